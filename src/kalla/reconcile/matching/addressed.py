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

from kalla.reconcile.matching.fates import Rids, numbers
from kalla.reconcile.matching.hand import Chosen, Column, Hand, Units, typed
from kalla.reconcile.matching.workbench import Workbench, is_bare
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import RulePlan

# Numbers lie close together if there are no more than so many places for each of them.
_PLACES = 8
_NOBODY = -1
_FAR = 2**62
_MOST_ROWS = 2**31
_DIGITS = 19  # what the difference of two decimals of a word takes
_FEW = 5_000  # differences that can be told by their numbers, as evidence spells them
_BATCH = 1 << 16  # rows: what is made of them stays in a cache

Given = TypeVar("Given")
Made = TypeVar("Made")


def join(bench: Workbench, rule: RulePlan, side: Side) -> pa.Table | None:
    """All pairs of rows that satisfy key and checks, where the key is the primary key of `side`;
    none where they cannot be found in this way."""
    if len(rule.key) > 1 or rule.currency:
        return None
    hands = {each: found for each in SIDES if (found := bench.hand(each))}
    if len(hands) < len(SIDES) or any(bench.fates[each].rows >= _MOST_ROWS for each in SIDES):
        return None
    checked = _in_hand(rule, hands)
    if checked is None:
        return None
    admitted = {each: _admitted(bench, rule, each, checked) for each in SIDES}
    keys = {each: checked[rule.key[0]][each].units for each in SIDES}
    mine = keys[side] if admitted[side].all() else keys[side][admitted[side]]
    if not len(mine):
        return None
    low, high = int(mine.min()), int(mine.max())
    if high - low >= _PLACES * len(mine) or not -_FAR < low <= high < _FAR:
        return None
    places = np.full(high - low + 1, _NOBODY, np.int32)

    def lay(rows: slice) -> None:
        chosen = np.flatnonzero(admitted[side][rows])
        places[keys[side][rows][chosen] - low] = rows.start + chosen

    for _ in _spread(lay, _ranges(bench.fates[side].rows), bench.threads):
        pass
    other: Side = "right" if side == "left" else "left"
    kind = hands[side].columns["p0"].kind
    meeting = _Meeting(rule, side, checked, admitted[other], low, places, kind)
    blocks = _blocks(bench, other, hands[other])
    return pa.Table.from_batches(list(_spread(meeting.pairs, blocks, bench.threads)))


Checked = Mapping[int, Mapping[Side, Column]]


def _in_hand(rule: RulePlan, hands: Mapping[Side, Hand]) -> Checked | None:
    """What a rule compares, by the place of its check; none if some of it is not in hand, or a
    check is not a window for the difference of two words."""
    found: dict[int, dict[Side, Column]] = {}
    for place, check in enumerate(rule.checks):
        both = {side: hands[side].column(check.of(side).sql) for side in SIDES}
        known = {side: column for side, column in both.items() if column}
        if len(known) < len(SIDES):
            return None
        left, right = (column.kind for column in known.values())
        if check.is_key:
            plain = all(column.is_whole for column in known.values())
        else:
            plain = check.window is not None and left == right and _is_plain(left)
        if not plain:
            return None
        found[place] = known
    return found


def _is_plain(kind: pa.DataType) -> bool:
    """Whether two of its values differ by a number: two points in time may be infinite."""
    return bool(pa.types.is_decimal128(kind) or pa.types.is_date32(kind))


def _admitted(bench: Workbench, rule: RulePlan, side: Side, checked: Checked) -> Chosen:
    """Which rows of a side the rule looks at."""
    if not is_bare(rule, side):
        chosen = np.zeros(bench.fates[side].rows, np.bool_)
        chosen[bench.column(f"SELECT rid FROM {bench.admit(rule, side)}")] = True
        return chosen
    chosen = bench.fates[side].are_open()
    for columns in checked.values():
        if (nulls := columns[side].nulls) is not None:
            chosen &= ~nulls
    return chosen


@dataclass(frozen=True)
class _Block:
    """Some rows of a side, and the parts of their primary keys."""

    rows: Rids | slice
    parts: Sequence[pa.Array]


def _blocks(bench: Workbench, side: Side, hand: Hand) -> Iterator[_Block]:
    """All rows of a side."""
    parts = [f"p{part}" for part in range(len(bench.plan.sides[side].primary_key))]
    if all(part in hand.columns for part in parts):
        for rows in _ranges(bench.fates[side].rows):
            yield _Block(rows, [hand.columns[part].at(rows) for part in parts])
    else:
        listed = ", ".join(["rid", *parts])
        for batch in bench.batches(f"SELECT {listed} FROM {bench.all_rows(side)}", _BATCH):
            yield _Block(numbers(batch.column(0)), batch.columns[1:])


def _ranges(rows: int) -> Iterator[slice]:
    for first in range(0, rows, _BATCH):
        yield slice(first, min(first + _BATCH, rows))


def _rids(rows: Rids | slice) -> Rids:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


@dataclass(frozen=True)
class _Meeting:
    """The rows of the other side, and who has their number."""

    rule: RulePlan
    side: Side
    checked: Checked
    admitted: Chosen  # of the other side
    low: int
    places: npt.NDArray[np.int32]  # the row of each number, from the lowest on
    kind: pa.DataType  # of this side's primary key

    @property
    def other(self) -> Side:
        return "right" if self.side == "left" else "left"

    def pairs(self, block: _Block) -> pa.RecordBatch:
        keys = self.checked[self.rule.key[0]][self.other].units[block.rows]
        at = keys - self.low
        partners = _taken(self.places, at)
        fits = self.admitted[block.rows] & (partners != _NOBODY)
        fits &= at.view(np.uint64) < len(self.places)  # none is below zero as one without a sign
        deltas = {}
        for place in self.rule.pair_checks:
            sign, sign_of_mine = self._signs(place)
            theirs = self.checked[place][self.other].units[block.rows]
            mine = _taken(self.checked[place][self.side].units, partners)
            delta = _signed(theirs, sign) + _signed(mine, sign_of_mine)
            lowest, highest = self._window(place)
            fits &= (delta >= lowest) & (delta <= highest)
            deltas[place] = delta
        chosen = np.flatnonzero(fits)
        rows = typed(chosen, pa.int64())
        own, other = ("l", "r") if self.side == "left" else ("r", "l")
        parts = {f"{other}p{part}": held.take(rows) for part, held in enumerate(block.parts)}
        return pa.RecordBatch.from_pydict(
            {
                f"{own}rid": typed(partners[chosen], pa.int32()),
                f"{other}rid": typed(_rids(block.rows)[chosen], pa.int32()),
                f"{own}p0": typed(keys[chosen], self.kind),
                **parts,
                **{
                    f"d{place}": self._told(place, found[chosen]) for place, found in deltas.items()
                },
                "interchangeable": pa.repeat(False, len(chosen)),
                "fifo": pa.repeat(False, len(chosen)),
            }
        )

    def _signs(self, place: int) -> tuple[int, int]:
        """Of the other side's value and of this side's: the difference is right less left."""
        bound = self.rule.checks[place].bound
        sign: dict[Side, int] = {"right": 1, "left": -1}
        if bound and bound.negate:
            sign[bound.negate] *= -1
        return sign[self.other], sign[self.side]

    def _window(self, place: int) -> tuple[int, int]:
        window = self.rule.checks[place].window
        if window is None:
            raise TypeError("a check that is in hand has a window")
        return window

    def _told(self, place: int, deltas: Units) -> pa.Array:
        """Differences that satisfy a check: of decimals as decimals, of dates as days. Where a
        window has few, each is told by its number in it."""
        compared = self.checked[place][self.side].kind
        kind = pa.int64()
        if pa.types.is_decimal128(compared):
            kind = pa.decimal128(_DIGITS, compared.scale)
        lowest, highest = self._window(place)
        if highest - lowest >= _FEW:
            return typed(deltas, kind)
        every = typed(np.arange(lowest, highest + 1), kind)
        return pa.DictionaryArray.from_arrays(pa.array((deltas - lowest).astype(np.int16)), every)


def _taken(values: npt.NDArray[Any], places: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Those at some places; where there is no such place, any. An index that checks is slow."""
    return values.take(places, mode="clip")


def _signed(units: Units, sign: int) -> Units:
    return units if sign > 0 else -units


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
