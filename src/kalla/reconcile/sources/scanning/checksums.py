"""Digests of a source's files: anybody can hash a file again to check that it is the one that a run
read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Side

_PIECE = 1 << 20
_LAST = 8  # bytes of a Parquet file: how long its footer is, and PAR1

Marks = tuple[Mapping[str, str | int | None], ...]


@contextmanager
def taken(inputs: Mapping[Side, Input]) -> Iterator[Mapping[Side, Marks]]:
    """The marks of inputs, with digests of files on disk when this is closed: they are computed
    while the match reads the files.

    A file on S3 would be fetched again: its mark has the server's own checksum. For a Delta table
    the version is enough.
    """
    found: dict[Side, Marks] = {}
    with ThreadPoolExecutor(1, "digests") as pool:
        asked = {side: pool.submit(_digested, given) for side, given in inputs.items()}
        yield found
        found |= {side: each.result() for side, each in asked.items()}


def _digested(given: Input) -> Marks:
    if given.format not in ("csv", "json", "parquet", "xlsx"):
        return given.marks
    return tuple(dict(mark) | _digest(given.format, str(mark.get("file"))) for mark in given.marks)


def _digest(kind: str, file: str) -> dict[str, str]:
    path = Path(file)
    if not path.is_file():  # on S3, or a table that was staged
        return {}
    try:
        if kind != "parquet":
            return {"sha256": _of_all(path)}
        return {"footer_sha256": _of_footer(path)}
    except OSError:  # it changes meanwhile, which its mark tells: the run fails by that
        return {}


def _of_all(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _of_footer(path: Path) -> str:
    """The footer has the position, length and, with statistics, the bounds of every column chunk.
    Hashing the whole file would take as long as the match.
    """
    with path.open("rb") as file:
        file.seek(-_LAST, 2)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-_LAST - length, 2)
        return hashlib.sha256(file.read(length + _LAST)).hexdigest()
