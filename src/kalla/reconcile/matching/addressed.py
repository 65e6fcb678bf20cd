"""Pairs by address: where a rule's key is the primary key of a side, and these are whole numbers
that lie close together, an array tells which row has a number. Nothing is hashed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.matching.fates import words
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import RulePlan

# Numbers lie close together if there are no more than so many places for each of them.
_PLACES = 8
_NOBODY = -1
_SHORT = 18  # digits of a decimal that fits into a word
_FAR = 2**62
_MOST_ROWS = 2**31
_FEW = 5_000  # differences that can be told by their numbers, as evidence spells them
_BATCH = 122_880

Numbers = npt.NDArray[np.integer[Any]]
Given = TypeVar("Given")
Made = TypeVar("Made")


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
    if any(bench.fates[each].rows >= _MOST_ROWS for each in SIDES):
        return None
    addresses = _Addresses.of(bench, rule, views[side], (low, high), rows)
    other: Side = "right" if side == "left" else "left"
    parts = [f"p{part}" for part in range(len(bench.plan.sides[other].primary_key))]
    listed = ", ".join(["rid", key, *parts, *(f"v{place}" for place in rule.pair_checks)])
    batches = bench.batches(
        f"SELECT {listed} FROM {views[other]} WHERE {key} BETWEEN {low} AND {high}", _BATCH
    )
    meeting = _Meeting(rule, side, addresses, parts, kinds[side].field("p0").type)
    found = list(_spread(meeting.pairs, batches, bench.threads))
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

    low: int
    places: npt.NDArray[np.int32]  # by number, from the lowest on
    rids: npt.NDArray[np.int32]  # by place, as what is checked
    checked: Mapping[int, Numbers]

    @classmethod
    def of(
        cls, bench: Workbench, rule: RulePlan, view: str, span: tuple[int, int], rows: int
    ) -> _Addresses:
        low, high = span
        (key,) = rule.key
        wanted = ", ".join(["rid", *(f"v{place}" for place in (key, *rule.pair_checks))])
        places, rids = np.full(high - low + 1, _NOBODY, np.int32), np.empty(rows, np.int32)
        checked: dict[int, Numbers] = {}

        def lay(given: tuple[int, pa.RecordBatch]) -> None:
            first, batch = given
            here = slice(first, first + len(batch))
            rids[here] = words(batch.column(0))
            keys = words(batch.column(1)).astype(np.int64, copy=False)
            places[keys - low] = np.arange(here.start, here.stop)
            for place, column in zip(rule.pair_checks, batch.columns[2:], strict=True):
                checked[place][here] = words(column)

        def numbered() -> Iterator[tuple[int, pa.RecordBatch]]:
            first = 0
            for batch in bench.batches(f"SELECT {wanted} FROM {view}", _BATCH):
                for place, column in zip(rule.pair_checks, batch.columns[2:], strict=True):
                    if place not in checked:
                        checked[place] = np.empty(rows, words(column).dtype)
                yield first, batch
                first += len(batch)

        for _ in _spread(lay, numbered(), bench.threads):
            pass
        return cls(low, places, rids, checked)


@dataclass(frozen=True)
class _Meeting:
    """The rows of the other side, and who has their number."""

    rule: RulePlan
    side: Side
    addresses: _Addresses
    parts: Sequence[str]  # of the other side's primary key
    kind: pa.DataType  # of this side's

    def pairs(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = words(batch.column(1)).astype(np.int64, copy=False)
        places = _taken(self.addresses.places, keys - self.addresses.low)
        fits = places != _NOBODY
        deltas = {}
        for place in self.rule.pair_checks:
            deltas[place] = self._delta(place, places, words(batch.column(f"v{place}")))
            lowest, highest = self._window(place)
            fits &= (deltas[place] >= lowest) & (deltas[place] <= highest)
        chosen = np.flatnonzero(fits)
        rows = pa.array(chosen)
        own, other = ("l", "r") if self.side == "left" else ("r", "l")
        return pa.RecordBatch.from_pydict(
            {
                f"{own}rid": pa.array(_taken(self.addresses.rids, places[chosen])),
                f"{other}rid": pa.array(words(batch.column(0))[chosen].astype(np.int32)),
                f"{own}p0": pa.array(keys[chosen]).cast(self.kind),
                **{f"{other}{part}": batch.column(part).take(rows) for part in self.parts},
                **{
                    f"d{place}": _told(
                        delta[chosen], self._window(place), batch.column(f"v{place}")
                    )
                    for place, delta in deltas.items()
                },
                "interchangeable": pa.repeat(False, len(chosen)),
                "fifo": pa.repeat(False, len(chosen)),
            }
        )

    def _delta(self, place: int, places: Numbers, theirs: Numbers) -> npt.NDArray[np.int64]:
        mine = _taken(self.addresses.checked[place], places).astype(np.int64, copy=False)
        left, right = (mine, theirs) if self.side == "left" else (theirs, mine)
        bound = self.rule.checks[place].bound
        negated = bound.negate if bound else None
        return (-right if negated == "right" else right) - (-left if negated == "left" else left)

    def _window(self, place: int) -> tuple[int, int]:
        window = self.rule.checks[place].window
        if window is None:
            raise TypeError("a check that is plain has a window")
        return window


def _told(deltas: npt.NDArray[np.int64], window: tuple[int, int], compared: pa.Array) -> pa.Array:
    """Differences that satisfy a check: of decimals as decimals, of dates as days. Where a window
    has few, each is told by its number in it."""
    lowest, highest = window
    if highest - lowest >= _FEW:
        return _typed(deltas, compared.type)
    every = _typed(np.arange(lowest, highest + 1), compared.type)
    return pa.DictionaryArray.from_arrays(pa.array((deltas - lowest).astype(np.int16)), every)


def _typed(deltas: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal128(kind):
        return pa.array(deltas)
    halves = np.stack([deltas, deltas >> 63], axis=1)
    wide = pa.decimal128(_SHORT + 1, kind.scale)
    return pa.Array.from_buffers(wide, len(deltas), [None, pa.py_buffer(halves)])


def _taken(values: npt.NDArray[Any], places: Numbers) -> npt.NDArray[Any]:
    """Those at some places; where there is no such place, any. An index that checks is slow."""
    return values.take(places, mode="clip")


def _spread(work: Callable[[Given], Made], given: Iterable[Given], threads: int) -> Iterator[Made]:
    """The work on each of them, by several hands; few wait for these."""
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for each in given:
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, each))
        for asked in waiting:
            yield asked.result()
