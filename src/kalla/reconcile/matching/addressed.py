"""Pairs by address: where a rule's key is the primary key of a side, and these are whole numbers
that lie close together, an array tells which row has a number. Nothing is hashed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.matching.fates import numbers
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import RulePlan

# Numbers lie close together if there are no more than so many places for each of them.
_PLACES = 4
_NOBODY = -1
_SHORT = 18  # digits of a decimal that fits into a word
_FAR = 2**62
_BATCH = 122_880

Numbers = npt.NDArray[np.int64]


def join(
    bench: Workbench, rule: RulePlan, side: Side, views: Mapping[Side, str]
) -> pa.Table | None:
    """All pairs of rows that satisfy key and checks, where the key is the primary key of `side`;
    none where they cannot be found in this way."""
    if len(rule.key) > 1 or rule.currency:
        return None
    kinds = {each: bench.arrow(f"SELECT * FROM {views[each]} LIMIT 0").schema for each in SIDES}
    key = f"v{rule.key[0]}"
    if not all(pa.types.is_integer(kind.field(key).type) for kind in kinds.values()):
        return None
    if not all(_is_plain(rule, place, kinds) for place in rule.pair_checks):
        return None
    low, high, rows = bench.row(f"SELECT min({key}), max({key}), count(*) FROM {views[side]}")
    if not rows or high - low >= _PLACES * rows or not -_FAR < low <= high < _FAR:
        return None
    addresses = _Addresses.of(bench, rule, side, views[side], low, high)
    other: Side = "right" if side == "left" else "left"
    parts = [f"p{part}" for part in range(len(bench.plan.sides[other].primary_key))]
    listed = ", ".join(["rid", key, *parts, *(f"v{place}" for place in rule.pair_checks)])
    # A number of more than 63 bits is nobody's.
    where = f"WHERE {key} BETWEEN {low} AND {high}"
    batches = bench.batches(f"SELECT {listed} FROM {views[other]} {where}", _BATCH)
    kind = kinds[side].field("p0").type
    found = list(_spread(lambda batch: addresses.meet(batch, parts, kind), batches, bench.threads))
    return pa.Table.from_batches(found) if found else None


def _is_plain(rule: RulePlan, place: int, kinds: Mapping[Side, pa.Schema]) -> bool:
    """Whether a check is a window for the difference of two numbers of a word each."""
    left, right = (kinds[side].field(f"v{place}").type for side in SIDES)
    if rule.checks[place].window is None or left != right:
        return False
    return bool(
        pa.types.is_date32(left) or (pa.types.is_decimal128(left) and left.precision <= _SHORT)
    )


@dataclass(frozen=True)
class _Addresses:
    """Where the row of each number is, among the rows of a side."""

    rule: RulePlan
    side: Side
    low: int
    places: npt.NDArray[np.int32]  # by number, from the lowest on
    rids: Numbers  # by place, as what is checked
    checked: Mapping[int, Numbers]

    @classmethod
    def of(
        cls, bench: Workbench, rule: RulePlan, side: Side, rows: str, low: int, high: int
    ) -> _Addresses:
        (key,) = rule.key
        wanted = ["rid", *(f"v{place}" for place in (key, *rule.pair_checks))]
        found = bench.arrow(f"SELECT {', '.join(wanted)} FROM {rows}")
        columns = [
            np.concatenate([_words(chunk) for chunk in column.chunks]) for column in found.columns
        ]
        places = np.full(high - low + 1, _NOBODY, np.int32)
        places[columns[1] - low] = np.arange(len(found), dtype=np.int32)
        checked = dict(zip(rule.pair_checks, columns[2:], strict=True))
        return cls(rule, side, low, places, columns[0], checked)

    def meet(self, batch: pa.RecordBatch, parts: list[str], kind: pa.DataType) -> pa.RecordBatch:
        """Those of the other side's rows that have a partner here, with it."""
        keys = _words(batch.column(1))
        places = self.places[keys - self.low]
        fits = places != _NOBODY
        deltas = {}
        for place in self.rule.pair_checks:
            mine, theirs = self.checked[place][places], _words(batch.column(f"v{place}"))
            left, right = (mine, theirs) if self.side == "left" else (theirs, mine)
            deltas[place] = self._delta(place, left, right)
            lowest, highest = self.rule.checks[place].window or (0, 0)
            fits &= (deltas[place] >= lowest) & (deltas[place] <= highest)
        chosen = np.flatnonzero(fits)
        rows = pa.array(chosen)
        own, other = ("l", "r") if self.side == "left" else ("r", "l")
        columns = {
            f"{own}rid": pa.array(self.rids[places[chosen]]),
            f"{other}rid": batch.column("rid").take(rows),
            f"{own}p0": pa.array(keys[chosen]).cast(kind),
            **{f"{other}{part}": batch.column(part).take(rows) for part in parts},
            **{
                f"d{place}": _typed(delta[chosen], batch.column(f"v{place}").type)
                for place, delta in deltas.items()
            },
            "interchangeable": pa.repeat(False, len(chosen)),
            "fifo": pa.repeat(False, len(chosen)),
        }
        return pa.RecordBatch.from_pydict(columns)

    def _delta(self, place: int, left: Numbers, right: Numbers) -> Numbers:
        bound = self.rule.checks[place].bound
        if bound and bound.negate == "left":
            return right + left
        if bound and bound.negate == "right":
            return -right - left
        return right - left


def _spread(
    work: Callable[[pa.RecordBatch], pa.RecordBatch],
    batches: Iterable[pa.RecordBatch],
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """The work on each batch, by several hands; few batches wait for them."""
    waiting: deque[Future[pa.RecordBatch]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for batch in batches:
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, batch))
        for each in waiting:
            yield each.result()


def _words(column: pa.Array) -> Numbers:
    """Whole numbers, dates as days, and decimals in units of their last place."""
    if pa.types.is_decimal128(column.type):
        words: Numbers = np.frombuffer(column.buffers()[1], np.int64)
        return np.asarray(words[2 * column.offset : 2 * (column.offset + len(column)) : 2])
    plain = column.view(pa.int32()) if pa.types.is_date32(column.type) else column
    return numbers(plain).astype(np.int64, copy=False)


def _typed(deltas: Numbers, kind: pa.DataType) -> pa.Array:
    """Differences of decimals as decimals, of dates as days."""
    if not pa.types.is_decimal128(kind):
        return pa.array(deltas)
    words = np.stack([deltas, deltas >> 63], axis=1)
    wide = pa.decimal128(_SHORT + 1, kind.scale)
    return pa.Array.from_buffers(wide, len(deltas), [None, pa.py_buffer(words)])
