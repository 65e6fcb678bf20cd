"""Pairs by address: where a rule's key is the primary key of a side, and these are whole numbers
that lie close together, an array tells which row has a number. Nothing is hashed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile import loops
from kalla.reconcile.matching.fates import Rids, numbers
from kalla.reconcile.matching.hand import PLACES, Chosen, Column, Hand, Units, taken, typed
from kalla.reconcile.matching.windows import Compared, Window, compared
from kalla.reconcile.matching.workbench import Workbench, is_bare
from kalla.reconcile.model import SIDES, Side, opposite
from kalla.reconcile.plan import RulePlan

_FAR = 2**62
_MOST_ROWS = 2**31
_DIGITS = 19  # what the difference of two decimals of a word takes
_FEW = 5_000  # differences that can be told by their numbers, as evidence spells them
_BATCH = 1 << 16  # rows: what is made of them stays in a cache

Places = npt.NDArray[np.int32]
Given = TypeVar("Given")
Made = TypeVar("Made")


def join(bench: Workbench, rule: RulePlan, side: Side) -> pa.Table | None:
    """All pairs of rows that satisfy key and checks, where the key is the primary key of `side`;
    none where they cannot be found in this way."""
    hands = {each: bench.hand(each) for each in SIDES}
    known = compared(rule, hands)
    mine, theirs = hands[side], hands[other := opposite(side)]
    if known is None or mine is None or theirs is None:
        return None
    if any(bench.fates[each].rows >= _MOST_ROWS for each in SIDES):
        return None
    admitted = {each: _admitted(bench, rule, each, known) for each in SIDES}
    keys = known.key[side]
    chosen = keys.held if admitted[side].all() else keys.held[admitted[side]]
    if not len(chosen):
        return None
    low, high = int(chosen.min()), int(chosen.max())
    if high - low >= PLACES * len(chosen) or not -_FAR < low <= high < _FAR:
        return None
    places = np.full(high - low + 1, loops.NOBODY, np.int32)

    def lay(rows: slice) -> None:
        here = keys.held[rows]
        loops.lay(here, len(here), low, admitted[side][rows], rows.start, places)

    for _ in _spread(lay, _ranges(bench.fates[side].rows), bench.threads):
        pass
    meeting = _Meeting(known, side, admitted[other], low, places)
    blocks = _blocks(bench, other, theirs)
    return pa.Table.from_batches(list(_spread(meeting.pairs, blocks, bench.threads)))


def _admitted(bench: Workbench, rule: RulePlan, side: Side, known: Compared) -> Chosen:
    """Which rows of a side the rule looks at."""
    if not is_bare(rule, side):
        chosen = np.zeros(bench.fates[side].rows, np.bool_)
        chosen[bench.column(f"SELECT rid FROM {bench.admit(rule, side)}")] = True
        return chosen
    chosen = bench.fates[side].are_open()
    for column in known.columns(side):
        if column.nulls is not None:
            chosen &= ~column.nulls
    return chosen


@dataclass(frozen=True)
class _Block:
    """Some rows of a side, and the parts of their primary keys, as they are in hand for all rows,
    or else of these rows."""

    rows: Rids | slice
    parts: Sequence[Column] | Sequence[pa.Array]


def _blocks(bench: Workbench, side: Side, hand: Hand) -> Iterator[_Block]:
    """All rows of a side."""
    parts = [f"p{part}" for part in range(len(bench.plan.sides[side].primary_key))]
    if all(part in hand.columns for part in parts):
        for rows in _ranges(bench.fates[side].rows):
            yield _Block(rows, [hand.columns[part] for part in parts])
    else:
        listed = ", ".join(["rid", *parts])
        for batch in bench.batches(f"SELECT {listed} FROM {bench.all_rows(side)}", _BATCH):
            yield _Block(numbers(batch.column(0)), batch.columns[1:])


def _ranges(rows: int) -> Iterator[slice]:
    for first in range(0, rows, _BATCH):
        yield slice(first, min(first + _BATCH, rows))


def _rids(rows: Rids | slice, chosen: Places) -> Rids | Places:
    return rows.start + chosen if isinstance(rows, slice) else rows[chosen]


@dataclass(frozen=True)
class _Meeting:
    """The rows of the other side, and who has their number."""

    known: Compared
    side: Side
    admitted: Chosen  # of the other side
    low: int
    places: Places  # the row of each number, from the lowest on

    def pairs(self, block: _Block) -> pa.RecordBatch:
        other = opposite(self.side)
        keys = self.known.key[other].held[block.rows]
        count = len(keys)
        partners = np.empty(count, np.int32)
        admitted = self.admitted[block.rows]
        loops.meet(keys, count, self.low, admitted, self.places, len(self.places), partners)
        deltas = {}
        for place, window in self.known.windows.items():
            deltas[place] = np.empty(count, np.int64)
            loops.apart(
                window.columns[self.side].held,
                window.signs[self.side],
                window.columns[other].held[block.rows],
                window.signs[other],
                count,
                window.lowest,
                window.highest,
                partners,
                deltas[place],
            )
        chosen, met = np.empty(count, np.int32), np.empty(count, np.int32)
        some = loops.paired(partners, count, chosen, met)
        chosen, met = chosen[:some], met[:some]
        rids = _rids(block.rows, chosen)
        ours, others = ("l", "r") if self.side == "left" else ("r", "l")
        parts = {
            f"{others}p{part}": held.narrow(rids)
            if isinstance(held, Column)
            else held.take(typed(chosen, pa.int32()))
            for part, held in enumerate(block.parts)
        }
        told = {
            f"d{place}": _told(self.known.windows[place], delta, chosen)
            for place, delta in deltas.items()
        }
        return pa.RecordBatch.from_pydict(
            {
                f"{ours}rid": typed(met, pa.int32()),
                f"{others}rid": typed(rids, pa.int32()),
                f"{ours}p0": typed(taken(keys, chosen), self.known.key[other].narrowest),
                **parts,
                **told,
                "interchangeable": pa.repeat(False, len(chosen)),
                "fifo": pa.repeat(False, len(chosen)),
            }
        )


def _told(window: Window, deltas: Units, chosen: Places) -> pa.Array:
    """The chosen differences, which satisfy a check: of decimals as decimals, of dates as days.
    Where a window has few, each is told by its number in it."""
    compared = window.columns["left"].kind
    kind = pa.int64()
    if pa.types.is_decimal128(compared):
        kind = pa.decimal128(_DIGITS, compared.scale)
    if window.highest - window.lowest >= _FEW:
        return typed(deltas[chosen], kind)
    every = typed(np.arange(window.lowest, window.highest + 1), kind)
    numbered = np.empty(len(chosen), np.int16)
    loops.number(deltas, chosen, len(chosen), window.lowest, numbered)
    return pa.DictionaryArray.from_arrays(typed(numbered, pa.int16()), every, safe=False)


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
