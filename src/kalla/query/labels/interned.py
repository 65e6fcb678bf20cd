"""Label sets by number: known sets are compared, sorted, grouped and written without reading their
labels.

Functions here take any label sets; those of a table are handled by their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import le
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from kalla.query.labels.label_sets import METADATA, Labels, only, unnamed, value_of, without
from kalla.query.promql.syntax_tree import METRIC_NAME

if TYPE_CHECKING:
    import pyarrow as pa

    from kalla.query.array_types import Whole

Objects = NDArray[Any]

# Writers copy eight bytes at a time: this many bytes beyond the last may be read.
SLACK = 32
# A group's number is kept as it is computed while there are not many more numbers than rows.
_SPARSE = 8
_LARGEST = 1 << 62


class Texts(NamedTuple):
    """JSON objects one after the other; number i lies between marks i and i + 1."""

    content: NDArray[np.uint8]
    marks: Whole


class Table(Protocol):
    """Series by number, and what is left of each without its name, by a number of its own."""

    def bare(self) -> Whole:
        """By the number of a series, that of its labels without the name."""

    def sets(self, *, bare: bool) -> Objects:
        """Label sets by number."""

    def places(self, *, bare: bool) -> Whole:
        """Each one's place in the order of label sets."""

    def texts(self, *, bare: bool) -> Texts: ...

    def written(self, numbers: Whole) -> pa.LargeStringArray:
        """The texts of series, from which another table of the same kind gives them numbers."""

    def codes(self, name: str) -> NDArray[np.int32]:
        """A number for each series' value of a label; equal values, and only those, share it."""

    def blank(self, name: str) -> int:
        """The code of a label that is not there."""

    def names(self, numbers: Whole) -> set[str]:
        """The names of all labels of these series."""


class Interned(Sequence[Labels]):
    """Label sets of a table; `nameless`: without what names the metric."""

    __slots__ = ("_sets", "nameless", "numbers", "table")

    def __init__(self, table: Table, numbers: Whole, *, nameless: bool = False) -> None:
        self.table = table
        self.numbers = numbers
        self.nameless = nameless
        self._sets: list[Labels] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> Labels: ...

    @overload
    def __getitem__(self, at: slice) -> Interned: ...

    def __getitem__(self, at: int | slice) -> Labels | Interned:
        if isinstance(at, slice):
            return self.take(self.numbers[at])
        return self._listed()[at]

    def __iter__(self) -> Iterator[Labels]:
        return iter(self._listed())

    def __reduce__(self) -> tuple[type[tuple[Any, ...]], tuple[list[Labels]]]:
        """Numbers mean nothing elsewhere: what travels are the labels."""
        return tuple, (self._listed(),)

    @property
    def identities(self) -> Whole:
        """Numbers of the label sets, not of the series."""
        return self.table.bare()[self.numbers] if self.nameless else self.numbers

    @property
    def places(self) -> Whole:
        return self.table.places(bare=self.nameless)[self.identities]

    def take(self, numbers: Whole) -> Interned:
        return Interned(self.table, numbers, nameless=self.nameless)

    def codes(self, name: str) -> Whole:
        if self.nameless and name in METADATA:
            return np.full(len(self), self.table.blank(name), np.int64)
        return self.table.codes(name)[self.numbers].astype(np.int64)

    def texts(self) -> tuple[NDArray[np.uint8], Whole, Whole]:
        """A text, and from where to where in it each label set is written."""
        content, marks = self.table.texts(bare=self.nameless)
        numbers = self.identities
        return content, marks[numbers], marks[numbers + 1]

    def _listed(self) -> list[Labels]:
        if self._sets is None:
            self._sets = self.table.sets(bare=self.nameless)[self.identities].tolist()
        return self._sets


def taken(known: Sequence[Labels], rows: Whole) -> Sequence[Labels]:
    if isinstance(known, Interned):
        return known.take(known.numbers[rows])
    return tuple(map(known.__getitem__, rows.tolist()))


def nameless(known: Sequence[Labels]) -> Sequence[Labels]:
    if isinstance(known, Interned):
        return Interned(known.table, known.numbers, nameless=True)
    return tuple(map(unnamed, known))


def joined(parts: Sequence[Sequence[Labels]]) -> Sequence[Labels]:
    """One after the other."""
    found = _of_one_table(parts)
    if found is not None and len({part.nameless for part in found}) == 1:
        return found[0].take(np.concatenate([part.numbers for part in found]))
    return tuple(chain.from_iterable(parts))


def are_distinct(known: Sequence[Labels]) -> bool:
    if isinstance(known, Interned):
        sorted_numbers = np.sort(known.identities)
        return not bool((sorted_numbers[1:] == sorted_numbers[:-1]).any())
    return len(set(known)) == len(known)


def order(known: Sequence[Labels]) -> Whole | None:
    """Rows in the order of their labels; None if that is the order they have."""
    if isinstance(known, Interned):
        places = known.places
        if bool((places[1:] >= places[:-1]).all()):
            return None
        return np.argsort(places, kind="stable")
    if all(map(le, known, known[1:])):
        return None
    return np.array(sorted(range(len(known)), key=known.__getitem__), np.int64)


def group(labels: Labels, names: Iterable[str], *, on: bool) -> Labels:
    """The listed labels alone; or all but those and the metric's name."""
    listed = frozenset(names)
    return only(labels, listed) if on else without(labels, listed | {METRIC_NAME})


def group_numbers(
    sides: Sequence[Sequence[Labels]], names: Sequence[str], *, on: bool
) -> list[Whole]:
    """Which group each label set belongs to, on every side by the same numbers.

    They count from zero, in the order in which groups appear.
    """
    tables = _of_one_table(sides)
    if tables is not None:
        return _by_codes(tables, names, on=on)
    known: dict[Labels, int] = {}
    listed = frozenset(names) if on else frozenset({*names, METRIC_NAME})
    part = only if on else without
    return [
        np.array([known.setdefault(part(one, listed), len(known)) for one in side], np.int64)
        for side in sides
    ]


def values_of(known: Sequence[Labels], name: str) -> tuple[list[str], Whole]:
    """The values that a label has, each once, and which of them is whose; empty: there is none."""
    if isinstance(known, Interned):
        which = _counted(known.codes(name))
        firsts = np.unique(which, return_index=True)[1]
        return [value_of(labels, name) for labels in taken(known, firsts)], which
    values: dict[str, int] = {}
    met = [values.setdefault(value_of(labels, name), len(values)) for labels in known]
    return list(values), np.array(met, np.int64)


def names_in(known: Sequence[Labels]) -> set[str]:
    """The names of all labels, possibly also of metrics whose name was dropped."""
    if isinstance(known, Interned):
        return known.table.names(known.numbers)
    return {name for labels in known for name, _ in labels}


def _of_one_table(parts: Sequence[Sequence[Labels]]) -> list[Interned] | None:
    found = [part for part in parts if isinstance(part, Interned)]
    if not found or len(found) < len(parts) or any(p.table is not found[0].table for p in found):
        return None
    return found


def _by_codes(sides: Sequence[Interned], names: Sequence[str], *, on: bool) -> list[Whole]:
    if not on:
        names = sorted(set().union(*map(names_in, sides)) - {*names, METRIC_NAME})
    ids = np.zeros(sum(map(len, sides)), np.int64)
    size = 1
    for name in names:
        codes = np.concatenate([side.codes(name) for side in sides])
        width = int(codes.max(initial=0)) + 1
        if size * width > _LARGEST:
            ids = _counted(ids)
            size = max(len(ids), 1)
        ids = ids * width + codes
        size *= width
    return np.split(_counted(ids), np.cumsum([len(side) for side in sides])[:-1])


def _counted(ids: Whole) -> Whole:
    """The same groups, counted in the order in which they appear."""
    size = int(ids.max(initial=-1)) + 1
    if size > _SPARSE * len(ids):
        ids = np.unique(ids, return_inverse=True)[1]
        size = int(ids.max(initial=-1)) + 1
    first = np.full(size, len(ids), np.int64)
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)
    appearing = np.argsort(first, kind="stable")
    numbers = np.empty(size, np.int64)
    numbers[appearing] = np.arange(size)
    return numbers[ids]
