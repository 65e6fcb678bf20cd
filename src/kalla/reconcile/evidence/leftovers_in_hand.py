"""What is to be said of unmatched rows whose closest ones were found in hand: the same as by SQL,
but nothing is joined, compiled loops spell the numbers, and what all rows have is said once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.evidence import leftovers, spelling
from kalla.reconcile.evidence.hashing import sum_of_hashes
from kalla.reconcile.evidence.leftovers import REASONS, STATUSES
from kalla.reconcile.matching import shortfalls, telling
from kalla.reconcile.matching.closest_in_hand import Seen, there
from kalla.reconcile.matching.conditions import Check
from kalla.reconcile.matching.fates import OPEN, OPEN_CODE, SETTLED, Rids
from kalla.reconcile.matching.hand import Column, taken, typed
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side, opposite

_AMBIGUOUS, _UNMATCHED = (STATUSES.index(each) for each in OPEN)
_SUM_FAILED, _TAKEN = (REASONS.index(each) for each in ("sum_failed", "taken"))
_MOST_ROWS = 2**31 // 22  # whose numbers, with sign and point, have places of 32 bits as one text

_FEW = pa.dictionary(pa.int8(), pa.string())
_KINDS = {
    "record_key": pa.string(),
    "amount": pa.int32(),  # of sources that name none
    "currency": pa.string(),
    "attempted_rules": pa.list_(pa.string()),
    "closest_candidate": pa.string(),
    "candidate_status": _FEW,
    "rule": _FEW,
    "failing_condition": _FEW,
    "left_value": pa.string(),
    "right_value": pa.string(),
    "difference": pa.string(),
    "rejection_reason": _FEW,
}

Said = Mapping[str, pa.Array | str | None]
"""By column: of each row its own, or the same of all."""


@dataclass(frozen=True)
class Leftovers:
    """Rows of which much is the same. What is hashed of a column is its text."""

    rows: int
    said: Said
    texts: Said
    rules: Sequence[str]  # that met each of them

    def blocks(self, schema: pa.Schema, rows: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """So many rows at a time, and the sum of their hashes."""
        for first in range(0, self.rows, rows):
            count = min(rows, self.rows - first)
            said, texts = (_part(each, first, count) for each in (self.said, self.texts))
            arrays = [
                _lists(self.rules, count)
                if field.name == "attempted_rules"
                else _array(said[field.name], field.type, count)
                for field in schema
            ]
            hashes = sum_of_hashes([texts[name] for name in schema.names], count)
            yield pa.record_batch(arrays, schema=schema), hashes


def schema(bench: Workbench, side: Side) -> pa.Schema:
    """Of the rows that are told: as SQL has it."""
    amount = _amount(bench, side)
    return pa.schema(_KINDS | ({"amount": amount.kind} if amount else {}))


def tell(bench: Workbench, side: Side, seen: Sequence[Seen]) -> list[Leftovers] | None:
    """From what was seen in hand; none where more is to be said than is there."""
    plan, amount = bench.plan.sides[side], _amount(bench, side)
    if plan.currency or shortfalls.are_kept(bench.plan):
        return None
    if plan.amount and (amount is None or amount.nulls is not None):
        return None
    unmatched = bench.column(f"SELECT rid FROM {side}_unmatched")
    if len(unmatched) > _MOST_ROWS or not all(map(bench.has_whole_keys, SIDES)):
        return None
    teller = _Teller(bench, side, amount)
    lonely = np.zeros(bench.fates[side].rows, np.bool_)
    lonely[unmatched] = True
    for each in seen:
        lonely[each.rids] = False
    return [*map(teller.of_seen, seen), teller.of_lonely(np.flatnonzero(lonely))]


def _amount(bench: Workbench, side: Side) -> Column | None:
    hand, amount = bench.hand(side), bench.plan.sides[side].amount
    return hand.column(amount.sql) if hand and amount else None


class _Teller:
    """Puts together what is said of rows that are alike in what fails."""

    def __init__(self, bench: Workbench, side: Side, amount: Column | None) -> None:
        self._bench, self._side, self._other = bench, side, opposite(side)
        self._amount = amount
        self._hands = {each: there(bench.hand(each)) for each in SIDES}
        self._ambiguous = bench.column(f"SELECT rid FROM {self._other}_ambiguous")
        names, _ = leftovers.attempted(bench.plan, side)  # of rules without filters
        (self._attempted,) = bench.row(f"SELECT CAST({names} AS VARCHAR)")

    def of_seen(self, seen: Seen) -> Leftovers:
        statuses = self._statuses(seen.others)
        said: dict[str, pa.Array | str | None] = {
            "closest_candidate": self._keys(self._other, seen.others),
            "candidate_status": _coded(statuses, STATUSES),
            "rule": seen.rule.name,
        }
        if seen.place is None:
            reasons = np.where(statuses == _UNMATCHED, _SUM_FAILED, _TAKEN).astype(np.int8)
            return self._told(seen.rids, said | {"rejection_reason": _coded(reasons, REASONS)})
        check = seen.rule.checks[seen.place]
        said |= {"failing_condition": check.label, "rejection_reason": "condition_failed"}
        return self._told(seen.rids, {**said, **self._values(seen, check)})

    def of_lonely(self, rids: Rids) -> Leftovers:
        return self._told(rids, {"rejection_reason": "no_candidate"})

    def _values(self, seen: Seen, check: Check) -> Said:
        """What fails: both values, and the difference."""
        rids = {self._side: seen.rids, self._other: seen.others}
        held = {each: there(self._hands[each].column(check.of(each).sql)) for each in SIDES}
        if check.left.kind != "number":
            return self._by_sql(seen, {each[0]: held[each].at(rids[each]) for each in SIDES})
        found = {
            f"{each}_value": spelling.of_numbers(held[each].units(rids[each]), check.of(each).scale)
            for each in SIDES
        }
        if seen.window is not None:
            found["difference"] = spelling.of_numbers(seen.window.delta(rids), check.scale)
        return found

    def _by_sql(self, seen: Seen, both: Mapping[str, pa.Array]) -> Said:
        """The same of what is no number, as l and r."""
        name, order = f"{self._side}_failing", typed(np.arange(len(seen.rids)), pa.int64())
        self._bench.connection.register(name, pa.table({"place": order, **both}))
        said, rows = telling.said_of(seen.rule, there(seen.place), name)
        values = [each for each in telling.SAID if each != "failing"]
        listed = ", ".join(f"{said[each]} AS {each}" for each in values)
        found = self._bench.arrow(f"SELECT {listed} FROM {rows} ORDER BY place").combine_chunks()
        self._bench.connection.unregister(name)
        return {each: found.column(each).chunk(0).cast(pa.string()) for each in values}

    def _told(self, rids: Rids, some: Said) -> Leftovers:
        said = {**dict.fromkeys(_KINDS), **some, "record_key": self._keys(self._side, rids)}
        texts = {name: _text(column) for name, column in said.items()}
        texts["attempted_rules"] = self._attempted
        if self._amount is not None:
            said["amount"] = self._amount.at(rids)
            places = getattr(self._amount.kind, "scale", 0)
            texts["amount"] = spelling.of_numbers(self._amount.units(rids), places, places)
        return Leftovers(len(rids), said, texts, [rule.name for rule in self._bench.plan.rules])

    def _keys(self, side: Side, rids: Rids) -> pa.Array:
        return spelling.of_numbers(taken(self._hands[side].columns["p0"].held, rids))

    def _statuses(self, others: Rids) -> npt.NDArray[np.int8]:
        """What became of rows of the other side."""
        codes = self._bench.fates[self._other].codes()[others]
        found = np.where(codes == OPEN_CODE, _UNMATCHED, (codes - 1) % len(SETTLED)).astype(np.int8)
        if len(self._ambiguous):
            found[(codes == OPEN_CODE) & np.isin(others, self._ambiguous)] = _AMBIGUOUS
        return found


def _part(said: Said, first: int, rows: int) -> Said:
    return {
        name: each.slice(first, rows) if isinstance(each, pa.Array) else each
        for name, each in said.items()
    }


def _coded(codes: npt.NDArray[np.int8], names: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(typed(codes, pa.int8()), pa.array(names))


def _text(column: pa.Array | str | None) -> pa.Array | str | None:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _array(said: pa.Array | str | None, kind: pa.DataType, rows: int) -> pa.Array:
    if said is None:
        return pa.nulls(rows, kind)
    if isinstance(said, str):
        return _coded(np.zeros(rows, np.int8), [said])
    return said


def _lists(names: Sequence[str], rows: int) -> pa.ListArray:
    """The same list for each of so many rows."""
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(names))
    which = np.tile(np.arange(len(names)), rows)
    return pa.ListArray.from_arrays(
        typed(ends, pa.int32()), pa.array(names, pa.string()).take(typed(which, pa.int64()))
    )
