"""Opens the evidence of finished runs, in a folder or on S3, through a DuckDB that is bounded.

Separate from the writer: a later query must never use a run's memory.
"""

from __future__ import annotations

import json
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import duckdb
from pydantic import BaseModel, ValidationError

from kalla.errors import Conflict, InvalidInput, NotFound, Problem, Unavailable
from kalla.reconcile.evidence.reading.column_labels import Labels
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.sources.scanning.scan_sql import parquet
from kalla.reconcile.sql.column_values import quote
from kalla.reconcile.sql.duckdb_errors import said
from kalla.reconcile.sql.duckdb_limits import Bounds, bounded
from kalla.storage import Storage, is_s3, join

Model = TypeVar("Model", bound=BaseModel)
Kind = Literal["text", "number", "time", "boolean", "list"]

_MOST_METADATA = 64 << 20
MEASURE = "DECIMAL(38, 9)"
_AMOUNT = re.compile(r"amount|.*_(amount|sum)|difference.*", re.DOTALL)
_TEXT, _LIST = "VARCHAR", "VARCHAR[]"
_UNMATCHED = {
    "record_key": _TEXT, "amount": "DECIMAL(38, 2)", "currency": _TEXT, "attempted_rules": _LIST,
    "closest_candidate": _TEXT, "candidate_status": _TEXT, "rule": _TEXT,
    "failing_condition": _TEXT, "left_value": _TEXT, "right_value": _TEXT, "difference": _TEXT,
    "rejection_reason": _TEXT, "date": "DATE", "candidate_amount": "DECIMAL(38, 2)",
    "candidate_currency": _TEXT, "candidate_date": "DATE",
}  # fmt: skip
# The columns of a dataset without a file.
_COLUMNS = {
    "matched": {
        "match_id": "UUID", "left_key": _TEXT, "right_key": _TEXT, "rule": _TEXT, "status": _TEXT,
        "cardinality": _TEXT, "left_amount": "DECIMAL(38, 2)", "right_amount": "DECIMAL(38, 2)",
        "left_currency": _TEXT, "right_currency": _TEXT, "left_date": "DATE", "right_date": "DATE",
        "part": "INTEGER", "parts": "INTEGER", "left_sum": "DECIMAL(38, 2)",
        "right_sum": "DECIMAL(38, 2)", "interchangeable": "BOOLEAN", "fifo": "BOOLEAN",
        "confidence": "DECIMAL(3, 2)", "matched_at": "TIMESTAMPTZ",
    },
    "unmatched_left": _UNMATCHED,
    "unmatched_right": _UNMATCHED,
    "ambiguous": {
        "record_key": _TEXT, "side": _TEXT, "amount": "DECIMAL(38, 2)", "currency": _TEXT,
        "rule": _TEXT, "candidates": _LIST, "candidate_count": "BIGINT", "reason": _TEXT,
        "date": "DATE",
    },
}  # fmt: skip
# The columns that identify a row of a dataset.
_KEYS = {
    "matched": ("left_key", "right_key", "match_id"),
    "unmatched_left": ("record_key",),
    "unmatched_right": ("record_key",),
    "ambiguous": ("side", "record_key"),
}


class Damaged(Conflict):
    """The evidence exists, but it is not what a run has written."""

    title = "The evidence is damaged"


def damaged(url: str, why: str) -> Damaged:
    return Damaged(f"the evidence at {url} is damaged: {why}")


@dataclass(frozen=True)
class Column:
    name: str
    type: str  # as DuckDB calls it

    @property
    def kind(self) -> Kind:
        if self.type.endswith("]"):
            return "list"
        if self.type == "BOOLEAN":
            return "boolean"
        if self.type.startswith(("TIMESTAMP", "DATE")):
            return "time"
        return "text" if self.type in ("VARCHAR", "UUID") else "number"

    @property
    def sql(self) -> str:
        return quote(self.name)

    @property
    def is_measure(self) -> bool:
        """A text that begins with a number, such as `5.00` or `2 days`: it is sorted by that."""
        return self.name == "difference" and self.type == "VARCHAR"

    @property
    def is_amount(self) -> bool:
        """Whether people read its numbers as money, and not as a key."""
        return bool(_AMOUNT.fullmatch(self.name))

    @property
    def sorted_as(self) -> str:
        """The type that a value is compared as."""
        if self.is_measure:
            return MEASURE
        return "VARCHAR" if self.kind == "list" else self.type


@dataclass(frozen=True)
class Dataset:
    """One of a run's four datasets, as something to select from."""

    part: str
    relation: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]


class Reader:
    """Reads evidence; `reading` opens one."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, storage: Storage, rung: threading.Event
    ) -> None:
        self._connection = connection
        self._storage = storage
        self._rung = rung
        self._metadata: dict[str, dict[str, Any]] = {}

    @property
    def urls(self) -> Sequence[str]:
        """The evidence that was read so far."""
        return list(self._metadata)

    def check(self) -> None:
        """Raise if the time is over and no query is running that could be interrupted."""
        if self._rung.is_set():
            raise duckdb.InterruptException

    def execute(self, sql: str, values: Sequence[Any] = ()) -> duckdb.DuckDBPyConnection:
        self.check()
        return self._connection.execute(sql, list(values))

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.execute(sql, values).fetchall()

    def metadata(self, url: str) -> dict[str, Any]:
        """The run's metadata.json; raises NotFound where there is none."""
        if url not in self._metadata:
            self._metadata[url] = metadata(url, self._storage)
        return self._metadata[url]

    def dataset(self, url: str, part: str) -> Dataset:
        """A part without files has columns but no rows; NotFound if evidence files are missing."""
        if part not in DATASETS:
            raise NotFound(f"evidence has no part {part!r}, only {', '.join(DATASETS)}")
        files = self.files(url, part)
        if files:
            relation = parquet(files)
        else:
            named = ", ".join(f"NULL::{kind} AS {name}" for name, kind in _COLUMNS[part].items())
            relation = f"(SELECT {named} WHERE false)"
        described = self.rows(f"DESCRIBE SELECT * FROM {relation}")
        columns = tuple(Column(str(name), str(kind)) for name, kind, *_ in described)
        if missing := set(_KEYS[part]) - {each.name for each in columns}:
            raise damaged(url, f"{part} has no column {min(missing)}")
        return Dataset(part, relation, columns, _KEYS[part])

    def labels(self, url: str) -> Labels:
        """The labels of this evidence's columns for people."""
        try:
            return Labels.of(self.metadata(url))
        except (ValidationError, AttributeError):
            raise damaged(url, "its metadata.json does not say what its sources are") from None

    def files(self, url: str, part: str) -> list[str]:
        """The files of a part that the metadata name: other files are not of this run."""
        try:
            named = [str(name) for name in self.metadata(url)["datasets"][part]["files"]]
        except (KeyError, TypeError):
            raise damaged(url, f"its metadata.json does not name the files of {part}") from None
        there = set(self._storage.names(join(url, part))) if named else set()
        for name in named:
            if name not in there:
                raise NotFound(f"the evidence at {url} is not whole: {part}/{name} is missing")
            _demand_file(url, part, name)
        return [join(url, part, name) for name in named]


def metadata(url: str, storage: Storage) -> dict[str, Any]:
    _demand_file(url, "metadata.json")
    try:
        with storage.open(join(url, "metadata.json")) as opened:
            content = opened.read(_MOST_METADATA + 1)
        if len(content) > _MOST_METADATA:
            raise damaged(url, f"its metadata.json has more than {_MOST_METADATA:,} bytes")
        found = json.loads(content.decode())
    except NotFound:
        raise NotFound(f"there is no evidence at {url}: it has no metadata.json") from None
    except (ValueError, RecursionError):
        raise damaged(url, "its metadata.json is not JSON") from None
    if not isinstance(found, dict):
        raise damaged(url, "its metadata.json is not an object")
    return found


def _demand_file(url: str, *names: str) -> None:
    """For evidence from elsewhere: opening a pipe would wait for its writer."""
    if is_s3(url):
        return
    place = Path(join(url, *names))
    with suppress(OSError):  # opening it reports the error
        if not stat.S_ISREG(place.stat().st_mode):
            raise damaged(url, f"{'/'.join(names)} is not a file")


def understood(url: str, kind: type[Model], metadata: Any) -> Model:
    """The needed part of the metadata, or the first field that is not valid."""
    try:
        return kind.model_validate(metadata)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise damaged(url, f"its metadata.json is of another kind ({what})") from None


@contextmanager
def reading(storage: Storage, bounds: Bounds = Bounds()) -> Iterator[Reader]:  # noqa: B008
    """A reader with its own memory and threads, interrupted when its time is over."""
    urls: Sequence[str] = ()
    try:
        with bounded(storage, bounds) as (connection, rung):
            reader = Reader(connection, storage, rung)
            try:
                yield reader
            finally:
                urls = reader.urls
    except duckdb.InterruptException:
        raise Unavailable(
            f"reading the evidence took longer than {bounds.seconds:g} s:"
            " narrow the filter, or sort by fewer columns"
        ) from None
    except duckdb.OutOfMemoryException:
        raise Unavailable(
            f"reading the evidence needs more than {bounds.memory}: narrow the filter"
        ) from None
    except (duckdb.IOException, duckdb.HTTPException) as error:
        reason = unwrapped(error)
        if reason.startswith("Could not write"):
            raise Unavailable(
                f"no disk space is left to read the evidence with: {reason}"
            ) from error
        raise Unavailable(f"the evidence cannot be read: {reason}") from error
    except duckdb.Error as error:
        named = [url for url in urls if url in str(error)]
        raise damaged(" or ".join(named or urls), unwrapped(error)) from error


def unwrapped(error: duckdb.Error) -> str:
    """DuckDB's own message, in one line."""
    return said(error).rstrip(": ")


def column(columns: Sequence[Column], name: str, where: str) -> Column:
    """The column of that name, or InvalidInput that names the ones there are."""
    for each in columns:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in columns)
    raise InvalidInput(Problem(where, f"there is no column {name!r}; there are {known}"))
