"""Recomputes what a run's metadata.json claims from its Parquet files, to check evidence later.

It shares no code with the modules that write evidence: a mistake there must not be repeated here.
`docs/evidence-format.md` has the definitions that both follow.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kalla.errors import InvalidInput, NotFound
from kalla.reconcile.evidence.verifying import recomputed_ids as ids
from kalla.storage import Storage, join

FORMAT = 3  # the newest that is known here; evidence that names none is of format 1

_SIDES = ("left", "right")
_DATASETS = ("matched", "unmatched_left", "unmatched_right", "ambiguous")
_CONFIDENCE = {"confirmed": Decimal("1.00"), "suggested": Decimal("0.50")}
_FIRST_IN_FIRST_OUT = Decimal("0.75")
_NOT_HELD = (
    "Sums of filtered rows are compared among the claims alone: the evidence does not hold these"
    " rows' amounts."
)
_NOT_HELD_BEFORE = _NOT_HELD.replace("filtered", "matched and filtered", 1)
# The columns of the decision, which a row's hash covers; display columns follow them.
_DECIDED = {"ambiguous": 8, "unmatched_left": 12, "unmatched_right": 12}
_DIFFERENCE = "difference."
_ROWS = 50_000  # that are read at once
_BLOCK = 1 << 20  # bytes
_NO_CURRENCY = "∅"
_EXAMPLES = 3


@dataclass(frozen=True)
class Mismatch:
    """A claim that the files contradict."""

    claim: str  # its place in metadata.json, or the dataset that contradicts itself
    claimed: str
    found: str

    def __str__(self) -> str:
        return f"{self.claim}: claimed {self.claimed}, found {self.found}"


@dataclass(frozen=True)
class Verification:
    url: str
    format: int
    files: int
    rows: int
    claims: int  # that were checked
    mismatches: tuple[Mismatch, ...]
    notes: tuple[str, ...]  # not in the evidence, so it cannot be recomputed

    @property
    def holds(self) -> bool:
        return not self.mismatches


def verify(url: str, storage: Storage, memory: str = "1GB") -> Verification:
    """Read all files of the evidence in a folder or on S3, and check each claim against them."""
    try:
        document = json.loads(storage.read_text(join(url, "metadata.json")))
    except NotFound:
        raise NotFound(f"there is no evidence at {url}: it has no metadata.json") from None
    except (ValueError, RecursionError) as error:
        return _unreadable(url, f"no JSON: {error}")
    with ExitStack() as held:
        spilled = held.enter_context(tempfile.TemporaryDirectory(prefix="kalla-verify-"))
        scratch = held.enter_context(
            duckdb.connect(
                config={"memory_limit": memory, "threads": "2", "temp_directory": spilled}
            )
        )
        try:
            return _Verifier(url, storage, document, scratch).verify()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return _unreadable(url, f"{type(error).__name__}: {error}")


def _unreadable(url: str, why: str) -> Verification:
    mismatch = Mismatch("metadata.json", "the metadata of a run", why)
    return Verification(url, 0, 0, 0, 1, (mismatch,), ())


@dataclass
class _Sum:
    """Rows, and the sum of their amounts: of nothing, none."""

    rows: int = 0
    amount: Decimal | None = None
    currencies: dict[str, Decimal] = field(default_factory=dict)

    def add(self, amount: Decimal | None, currency: str | None = None) -> None:
        self.rows += 1
        if amount is not None:
            self.amount = amount + (self.amount or 0)
            name = _NO_CURRENCY if currency is None else currency
            self.currencies[name] = self.currencies.get(name, Decimal(0)) + amount


class _Verifier:
    def __init__(
        self,
        url: str,
        storage: Storage,
        document: Mapping[str, Any],
        scratch: duckdb.DuckDBPyConnection,
    ) -> None:
        self._url, self._storage, self._document, self._scratch = url, storage, document, scratch
        self._format = int(document.get("format", 1))
        self._claims = self._files = self._rows = 0
        self._mismatches: list[Mismatch] = []
        self._open: dict[tuple[str, str], _Sum] = defaultdict(_Sum)  # by side and status
        self._ambiguous: Counter[tuple[str, str]] = Counter()  # by side and rule
        self._settled: Counter[tuple[str, str, str]] = Counter()  # by side, rule and status
        self._matches: Counter[str] = Counter()  # by rule
        self._amounts: dict[tuple[str, str], _Sum] = defaultdict(
            _Sum
        )  # of matches, by side and state or rule
        recipe = document["recipe"]
        self._recipe = str(recipe.get("recipe_id") or recipe["name"])

    def verify(self) -> Verification:
        self._check("format", True, self._format <= FORMAT, str(self._format))
        self._scratch.execute("SET TimeZone = 'UTC'")
        self._scratch.execute("CREATE TABLE keys (side VARCHAR, key VARCHAR)")
        self._scratch.execute(
            "CREATE TABLE grouped (match_id VARCHAR, rule VARCHAR, status VARCHAR,"
            " cardinality VARCHAR, left_key VARCHAR, right_key VARCHAR)"
        )
        with localcontext(prec=100):  # the default context would round a sum at 28 digits
            for name in _DATASETS:
                self._dataset(name)
            self._groups()
            self._keys()
            self._rules()
            for side in _SIDES:
                self._side(side)
        return Verification(
            self._url,
            self._format,
            self._files,
            self._rows,
            self._claims,
            tuple(self._mismatches),
            (_NOT_HELD if self._format >= 3 else _NOT_HELD_BEFORE,),
        )

    def _check(self, claim: str, claimed: object, found: object, shown: str | None = None) -> None:
        self._claims += 1
        if claimed != found:
            self._mismatches.append(Mismatch(claim, _text(claimed), shown or _text(found)))

    # Files

    def _dataset(self, name: str) -> None:
        claim = self._document["datasets"][name]
        digest = rows = 0
        for file in claim["files"]:
            if self._format >= 3:
                self._checksum(name, str(file), claim["sha256"][file])
            for batch in self._batches(name, str(file)):
                rows += len(batch)
                digest += (
                    self._matched(batch) if name == "matched" else self._unsettled(batch, name)
                )
        self._rows += rows
        self._check(f"datasets.{name}.rows", claim["rows"], rows)
        self._check(f"datasets.{name}.digest", claim["digest"], f"{digest % 2**128:032x}")

    def _checksum(self, dataset: str, file: str, claimed: str) -> None:
        """Over every byte, so it also covers display columns, which digests do not."""
        try:
            with self._storage.open(join(self._url, dataset, file)) as opened:
                digest = hashlib.sha256()
                while block := opened.read(_BLOCK):
                    digest.update(block)
        except NotFound:  # reported where its rows are read
            return
        self._check(f"datasets.{dataset}.sha256.{file}", claimed, digest.hexdigest())

    def _batches(self, dataset: str, file: str) -> Iterator[list[dict[str, Any]]]:
        """The rows of a file. One that is missing or cannot be read is a mismatch of its own."""
        self._files += 1
        self._claims += 1
        place = f"{dataset}/{file}"
        try:
            with self._storage.open(join(self._url, dataset, file)) as opened:
                for batch in pq.ParquetFile(opened).iter_batches(_ROWS):
                    yield self._texts(batch)
        except NotFound:
            self._mismatches.append(Mismatch(place, "a file", "none"))
        except InvalidInput as error:  # what storage makes of a file that is not Parquet
            self._mismatches.append(Mismatch(place, "a Parquet file", str(error)))

    def _texts(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Rows with each value as the text that its hash is made of."""
        self._scratch.register("batch", pa.table(batch))
        listed = ", ".join(f'CAST("{name}" AS VARCHAR) AS "{name}"' for name in batch.schema.names)
        found = self._scratch.sql(f"SELECT {listed} FROM batch").to_arrow_table()
        self._scratch.unregister("batch")
        rows: list[dict[str, Any]] = found.to_pylist()
        amounts = [
            field.name
            for field in batch.schema
            if field.name.startswith(_DIFFERENCE)
            and pa.types.is_decimal(field.type)
            and field.type.scale
        ]
        for row in rows:
            for name in amounts:
                if row[name] is not None:
                    row[name] = row[name].rstrip("0").rstrip(".")
        return rows

    # Rows

    def _matched(self, rows: list[dict[str, Any]]) -> int:
        digest = 0
        keys: list[tuple[str, str]] = []
        grouped: list[dict[str, Any]] = []
        started = str(self._document["started_at"])
        for row in rows:
            digest += _hash_of_match(row, self._format)
            if self._format >= 3:
                self._add_amounts(row)
            confidence = (
                _FIRST_IN_FIRST_OUT if row["fifo"] == "true" else _CONFIDENCE[row["status"]]
            )
            if Decimal(row["confidence"]) != confidence:
                self._wrong("matched.confidence", row["match_id"], confidence, row["confidence"])
            if row["matched_at"].replace(" ", "T").replace("+00", "+00:00") != started:
                self._wrong("matched.matched_at", row["match_id"], started, row["matched_at"])
            if row["cardinality"] != "1:1":
                grouped.append(row)
                continue
            left, right = row["left_key"], row["right_key"]
            keys += [("left", left), ("right", right)]
            self._matches[row["rule"]] += 1
            for side in _SIDES:
                self._settled[side, row["rule"], row["status"]] += 1
            self._match_id(row["match_id"], row["rule"], [left], [right])
        self._keep("keys", keys, ("side", "key"))
        columns = ("match_id", "rule", "status", "cardinality", "left_key", "right_key")
        self._keep("grouped", [tuple(row[each] for each in columns) for row in grouped], columns)
        return digest

    def _add_amounts(self, row: Mapping[str, str | None]) -> None:
        """In a match of several rows, the amount of a side's only row counts once."""
        state = "matched" if row["status"] == "confirmed" else "suggested"
        for side, alone in zip(_SIDES, ("1:N", "N:1"), strict=True):
            counts = row["cardinality"] != alone or row["part"] == "1"
            if counts and row[f"{side}_key"] is not None:
                amount = row[f"{side}_amount"]
                for place in (state, f"rule {row['rule']}"):
                    self._amounts[side, place].add(
                        None if amount is None else Decimal(amount), row[f"{side}_currency"]
                    )

    def _unsettled(self, rows: list[dict[str, Any]], dataset: str) -> int:
        """Rows that are unmatched or ambiguous."""
        digest = 0
        keys: list[tuple[str, str]] = []
        for row in rows:
            decided = list(row.values())[: _DECIDED[dataset] if self._format >= 3 else None]
            digest += _hash_of_row(decided)
            side = row["side"] if dataset == "ambiguous" else dataset.removeprefix("unmatched_")
            status = dataset.partition("_")[0]
            keys.append((side, row["record_key"]))
            amount = row.get("amount")
            self._open[side, status].add(
                None if amount is None else Decimal(amount), row.get("currency")
            )
            if status == "ambiguous":
                self._ambiguous[side, row["rule"]] += 1
        self._keep("keys", keys, ("side", "key"))
        return digest

    def _keep(
        self, table: str, rows: Sequence[tuple[str | None, ...]], columns: tuple[str, ...]
    ) -> None:
        """Stored in DuckDB, which spills: the keys of millions of rows need not fit into memory."""
        if rows:
            arrays = [pa.array(each, pa.string()) for each in zip(*rows, strict=True)]
            self._scratch.register("kept", pa.table(arrays, names=list(columns)))
            self._scratch.execute(f"INSERT INTO {table} SELECT * FROM kept")
            self._scratch.unregister("kept")

    def _match_id(self, match_id: str, rule: str, lefts: list[str], rights: list[str]) -> None:
        known = ids.match_ids(self._format, self._recipe, rule, lefts, rights)
        if UUID(match_id) not in known:
            self._wrong("matched.match_id", f"{lefts} and {rights}", known[0], match_id)

    def _wrong(self, claim: str, row: str, claimed: object, found: object) -> None:
        """One row contradicts its dataset; reports a few of each kind."""
        if sum(each.claim.startswith(f"{claim} of ") for each in self._mismatches) < _EXAMPLES:
            self._mismatches.append(Mismatch(f"{claim} of {row}", _text(claimed), _text(found)))

    # Rows of one match

    def _groups(self) -> None:
        """Matches of several rows: their ids, and the number of keys that their cardinality has."""
        found = self._scratch.execute(
            "SELECT match_id, min(rule), min(status), min(cardinality),"
            " count(DISTINCT rule) + count(DISTINCT status) + count(DISTINCT cardinality),"
            " list(DISTINCT left_key) FILTER (left_key IS NOT NULL),"
            " list(DISTINCT right_key) FILTER (right_key IS NOT NULL)"
            " FROM grouped GROUP BY match_id ORDER BY match_id"
        )
        keys: list[tuple[str, str]] = []
        while rows := found.fetchmany(_ROWS):
            for match_id, rule, status, cardinality, kinds, lefts, rights in rows:
                both = lefts or [], rights or []
                if kinds != 3:
                    self._wrong("matched.match_id", match_id, "one rule and status", "several")
                shape = ":".join("1" if len(each) == 1 else "N" for each in both)
                shape = "M:N" if shape == "N:N" else shape
                if shape != cardinality or not all(both):
                    self._wrong("matched.cardinality", match_id, cardinality, shape)
                self._matches[rule] += 1
                self._match_id(match_id, rule, *both)
                for side, each in zip(_SIDES, both, strict=True):
                    self._settled[side, rule, status] += len(each)
                    keys += [(side, key) for key in each]
        self._keep("keys", keys, ("side", "key"))

    def _keys(self) -> None:
        """Each key of a side is in one place."""
        for side in _SIDES:
            doubled = self._scratch.execute(
                "SELECT key, count(*) FROM keys WHERE side = ? GROUP BY key HAVING count(*) > 1"
                " ORDER BY key",
                [side],
            ).fetchall()
            shown = ", ".join(f"{key} in {count}" for key, count in doubled[:_EXAMPLES])
            self._check(
                f"each {side} key in one place", 0, len(doubled), f"{len(doubled):,}: {shown}"
            )

    def _rules(self) -> None:
        named = [str(rule["name"]) for rule in self._document["rules"]]
        unknown = (set(self._matches) | {rule for _, rule in self._ambiguous}) - set(named)
        self._check("rules", [], sorted(unknown))
        for number, rule in enumerate(self._document["rules"]):
            name, place = rule["name"], f"rules.{number}"
            self._check(f"{place}.matches", rule["matches"], self._matches[name])
            for side in _SIDES:
                rows = sum(self._settled[side, name, status] for status in _CONFIDENCE)
                self._check(f"{place}.{side}.rows", rule[side]["rows"], rows)
                if self._format >= 3:
                    found = self._amounts[side, f"rule {name}"]
                    self._sums(f"{place}.{side}", side, rule[side], found)
                ambiguous = self._ambiguous[side, name]
                self._check(f"{place}.ambiguous_{side}", rule[f"ambiguous_{side}"], ambiguous)

    def _sums(self, place: str, side: str, claim: Mapping[str, Any], found: _Sum) -> None:
        self._check(f"{place}.amount", _decimal(claim["amount"]), found.amount)
        sums = {name: Decimal(each) for name, each in claim.get("currencies", {}).items()}
        has_currencies = self._document["recipe"]["sources"][side].get("currency") is not None
        self._check(f"{place}.currencies", sums, found.currencies if has_currencies else {})

    def _side(self, side: str) -> None:
        claims, place = self._document["sources"][side], f"sources.{side}"
        states = claims["states"]
        for status, state in (("confirmed", "matched"), ("suggested", "suggested")):
            rows = sum(
                count
                for (of, _, is_), count in self._settled.items()
                if (of, is_) == (side, status)
            )
            self._check(f"{place}.states.{state}.rows", states[state]["rows"], rows)
        for state in ("ambiguous", "unmatched"):
            found, claim = self._open[side, state], states[state]
            self._check(f"{place}.states.{state}.rows", claim["rows"], found.rows)
            self._sums(f"{place}.states.{state}", side, claim, found)
        for state in ("matched", "suggested") if self._format >= 3 else ():
            found = self._amounts[side, state]
            self._sums(f"{place}.states.{state}", side, states[state], found)
        # Conservation: `rows` are the rows that passed the filters.
        placed = sum(states[each]["rows"] for each in states if each != "filtered")
        self._check(f"{place}.rows", claims["rows"], placed)
        by_state = [_decimal(states[each]["amount"]) for each in ("matched", "suggested")]
        by_rule = [_decimal(rule[side]["amount"]) for rule in self._document["rules"]]
        self._check(f"{place}.states.matched.amount", _total(by_state), _total(by_rule))


def _hash_of_row(decided: Sequence[str | None]) -> int:
    return _md5("\x1f".join("∅" if each is None else each for each in decided))


def _hash_of_match(row: Mapping[str, str], version: int) -> int:
    who = UUID(row["match_id"]).int
    if row["cardinality"] != "1:1":
        keys = [row[each] or "∅" for each in ("left_key", "right_key")]
        who = _md5("\x1f".join([row["match_id"], *keys]))
    columns = [name for name in row if name.startswith(_DIFFERENCE)]
    apart = columns if version >= 3 else ["differences"]
    named = ("rule", "status", "cardinality", *apart)
    how = "\x1f".join("∅" if row[each] is None else row[each] for each in named)
    how += "i" if row["interchangeable"] == "true" else "f" if row["fifo"] == "true" else ""
    return who * (_md5(how) | 1)


def _md5(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest(), "little")


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _total(amounts: list[Decimal | None]) -> Decimal | None:
    given = [each for each in amounts if each is not None]
    return sum(given, Decimal(0)) if given else None


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "nothing" if value is None else str(value)
