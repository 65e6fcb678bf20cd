"""Joins pairs by array index: where a rule's key is the primary key of a side, and its values are
whole numbers in a dense range, an array maps each number to its row. Nothing is hashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.arrays import compiled_loops
from kalla.reconcile.arrays.array_conditions import Compared, Window, compared
from kalla.reconcile.arrays.arrow_numbers import RowIds, numbers
from kalla.reconcile.arrays.column_arrays import (
    PLACES,
    Chosen,
    Column,
    ColumnArrays,
    Units,
    taken,
    typed,
)
from kalla.reconcile.arrays.loaded_rows import LoadedRows
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.threads import spread

_FAR = 2**62
_MOST_ROWS = 2**31
_DIGITS = 19  # what the difference of two decimals of a word takes
_FEW = 5_000  # differences that can be identified by their numbers, as evidence spells them
_BATCH = 1 << 16  # rows: intermediate results stay in a processor cache

Places = npt.NDArray[np.int32]


def join(session: LoadedRows, rule: RulePlan, side: Side) -> pa.Table | None:
    """All pairs of rows that satisfy key and checks, where the key is the primary key of `side`;
    none where they cannot be found in this way."""
    arrays = {each: session.column_arrays(each) for each in SIDES}
    known = compared(rule, arrays)
    mine, theirs = arrays[side], arrays[other := opposite(side)]
    if known is None or mine is None or theirs is None:
        return None
    if any(session.row_status[each].rows >= _MOST_ROWS for each in SIDES):
        return None
    admitted = {each: _admitted(session, each, known) for each in SIDES}
    keys = known.key[side]
    chosen = keys.held if admitted[side].all() else keys.held[admitted[side]]
    if not len(chosen):
        return None
    low, high = int(chosen.min()), int(chosen.max())
    if high - low >= PLACES * len(chosen) or not -_FAR < low <= high < _FAR:
        return None
    places = np.full(high - low + 1, compiled_loops.NOBODY, np.int32)

    def lay(rows: slice) -> None:
        here = keys.held[rows]
        compiled_loops.lay(here, len(here), low, admitted[side][rows], rows.start, places)

    for _ in spread(lay, _ranges(session.row_status[side].rows), session.threads):
        pass
    room = _Room(session.row_status[other].rows)
    meeting = _Meeting(known, side, admitted[other], low, places, room)
    blocks = _blocks(session, other, theirs)
    return pa.Table.from_batches(list(spread(meeting.pairs, blocks, session.threads)))


def _admitted(session: LoadedRows, side: Side, known: Compared) -> Chosen:
    """Which rows of a side the rule looks at."""
    chosen = session.row_status[side].are_open()
    for column in known.columns(side):
        if column.nulls is not None:
            chosen &= ~column.nulls
    return chosen


@dataclass(frozen=True)
class _Block:
    """Some rows of a side, and the parts of their primary keys, as they are in hand for all rows,
    or else of these rows."""

    first: int  # how many rows are in the blocks before
    rows: RowIds | slice
    parts: Sequence[Column] | Sequence[pa.Array]


def _blocks(session: LoadedRows, side: Side, arrays: ColumnArrays) -> Iterator[_Block]:
    """All rows of a side."""
    parts = [f"p{part}" for part in range(len(session.plan.sides[side].primary_key))]
    if all(part in arrays.columns for part in parts):
        for rows in _ranges(session.row_status[side].rows):
            yield _Block(rows.start, rows, [arrays.columns[part] for part in parts])
    else:
        listed, first = ", ".join(["row_id", *parts]), 0
        for batch in session.batches(f"SELECT {listed} FROM {session.all_rows(side)}", _BATCH):
            yield _Block(first, numbers(batch.column(0)), batch.columns[1:])
            first += len(batch)


def _ranges(rows: int) -> Iterator[slice]:
    for first in range(0, rows, _BATCH):
        yield slice(first, min(first + _BATCH, rows))


class _Room:
    """Where the pairs of all blocks lie, each block from its first row on: in few long arrays, for
    which the system finds memory many times as fast as for many short ones."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._making = Lock()

    def of(self, column: str, kind: Any, first: int, count: int) -> npt.NDArray[Any]:
        with self._making:
            if column not in self._columns:
                self._columns[column] = np.empty(self._rows, kind)
        return self._columns[column][first : first + count]


@dataclass(frozen=True)
class _Meeting:
    """The rows of the other side, and who has their number."""

    known: Compared
    side: Side
    admitted: Chosen  # of the other side
    low: int
    places: Places  # the row of each number, from the lowest on
    room: _Room

    def pairs(self, block: _Block) -> pa.RecordBatch:
        other = opposite(self.side)
        keys = self.known.key[other].held[block.rows]
        count = len(keys)
        partners = np.empty(count, np.int32)
        admitted = self.admitted[block.rows]
        compiled_loops.meet(
            keys, count, self.low, admitted, self.places, len(self.places), partners
        )
        deltas = {}
        for place, window in self.known.windows.items():
            deltas[place] = np.empty(count, np.int64)
            compiled_loops.apart(
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
        room = partial(self.room.of, first=block.first)
        chosen, met = np.empty(count, np.int32), room("met", np.int32, count=count)
        some = compiled_loops.paired(partners, count, chosen, met)
        chosen, row_ids = chosen[:some], room("row_id", np.int32, count=some)
        if isinstance(block.rows, slice):
            np.add(chosen, block.rows.start, out=row_ids)
        else:
            row_ids[:] = block.rows[chosen]
        ours, others = ("l", "r") if self.side == "left" else ("r", "l")
        parts = {
            f"{others}p{part}": held.narrow(row_ids, room(f"p{part}", held.held.dtype, count=some))
            if isinstance(held, Column)
            else held.take(typed(chosen, pa.int32()))
            for part, held in enumerate(block.parts)
        }
        differences = {
            f"d{place}": _difference_values(
                self.known.windows[place], delta, chosen, room(f"d{place}", np.int16, count=some)
            )
            for place, delta in deltas.items()
        }
        keys = taken(keys, chosen, room("key", keys.dtype, count=some))
        return pa.RecordBatch.from_pydict(
            {
                f"{self.side}_row_id": typed(met[:some], pa.int32()),
                f"{opposite(self.side)}_row_id": typed(row_ids, pa.int32()),
                f"{ours}p0": typed(keys, self.known.key[other].narrowest),
                **parts,
                **differences,
                "interchangeable": pa.repeat(False, some),
                "fifo": pa.repeat(False, some),
            }
        )


def _difference_values(
    window: Window, deltas: Units, chosen: Places, numbered: npt.NDArray[np.int16]
) -> pa.Array:
    """The chosen differences, which satisfy a check: of decimals as decimals, of dates as days.
    Where a window has few, each is told by its number in it, which lies there."""
    compared = window.columns["left"].kind
    kind = pa.int64()
    if pa.types.is_decimal128(compared):
        kind = pa.decimal128(_DIGITS, compared.scale)
    if window.highest - window.lowest >= _FEW:
        return typed(deltas[chosen], kind)
    every = typed(np.arange(window.lowest, window.highest + 1), kind)
    compiled_loops.number(deltas, chosen, len(chosen), window.lowest, numbered)
    return pa.DictionaryArray.from_arrays(typed(numbered, pa.int16()), every, safe=False)
