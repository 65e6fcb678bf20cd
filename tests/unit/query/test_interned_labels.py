"""Label sets by number do what the label sets themselves would do, however the table has grown."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.array_types import Whole
from kalla.query.labels.interned import (
    Interned,
    are_distinct,
    group,
    group_numbers,
    joined,
    nameless,
    names_in,
    order,
    taken,
    values_of,
)
from kalla.query.labels.label_sets import Labels, labels_of, unnamed, value_of
from kalla.query.promql.matchers import readable
from kalla.query.store.series_table import SeriesTable, text_of

# Values that need quoting, that are not ASCII, and a byte that is no text.
VALUES = ("a", "b", '"\\\n', "ä\U0001f600", "x\udcff")
NAMES = ("__name__", "__type__", "Z", "g", "i")
label_sets = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES)).map(labels_of)
known_sets = st.lists(label_sets, max_size=8)


def interned(table: SeriesTable, known: Sequence[Labels]) -> Interned:
    return Interned(
        table,
        table.numbers(pa.array([text_of(one) for one in known], pa.string())).astype(np.int64),
    )


def ordered(known: Sequence[Labels]) -> list[Labels]:
    index = order(known)
    return list(known) if index is None else list(taken(known, index))


@settings(deadline=None)
@given(st.lists(known_sets, min_size=1, max_size=3), st.booleans())
def test_sets_of_a_table_are_told_apart_and_ordered_as_they_are(
    batches: list[list[Labels]], dropping: bool
) -> None:
    table = SeriesTable()
    parts: list[Sequence[Labels]] = []
    plain: list[Labels] = []
    for batch in batches:  # each finds a table that has grown since
        found: Sequence[Labels] = interned(table, batch)
        parts.append(nameless(found) if dropping else found)
        plain += map(unnamed, batch) if dropping else batch
        assert list(joined(parts)) == plain
        assert ordered(joined(parts)) == sorted(plain)
        assert are_distinct(joined(parts)) == (len(set(plain)) == len(plain))
    whole = joined(parts)
    assert isinstance(whole, Interned)
    assert pickle.loads(pickle.dumps(whole)) == tuple(plain)  # noqa: S301 - our own
    assert list(whole[1:]) == plain[1:]

    content, lows, highs = whole.texts()
    for labels, low, high in zip(plain, lows.tolist(), highs.tolist(), strict=True):
        written = json.loads(content[low:high].tobytes())
        assert written == {name: readable(value) for name, value in labels}


@settings(deadline=None)
@given(
    known_sets,
    known_sets,
    st.lists(st.sampled_from(NAMES), unique=True),
    st.booleans(),
    st.booleans(),
)
def test_groups_by_number_are_those_of_their_labels(
    left: list[Labels], right: list[Labels], names: list[str], on: bool, dropping: bool
) -> None:
    table = SeriesTable()
    sides: list[Sequence[Labels]] = [interned(table, left), interned(table, right)]
    plain: list[Sequence[Labels]] = [left, right]
    if dropping:
        sides[1], plain[1] = nameless(sides[1]), nameless(right)

    by_number = group_numbers(sides, names, on=on)
    by_labels = group_numbers(plain, names, on=on)

    assert as_lists(by_number) == as_lists(by_labels)
    every = [group(labels, names, on=on) for side in plain for labels in side]
    places = {one: at for at, one in enumerate(dict.fromkeys(every))}
    assert np.concatenate(by_labels).tolist() == [places[one] for one in every]


@settings(deadline=None)
@given(known_sets, st.sampled_from(NAMES), st.booleans())
def test_values_by_number_are_those_of_the_labels(
    known: list[Labels], name: str, dropping: bool
) -> None:
    found: Sequence[Labels] = interned(SeriesTable(), known)
    plain: Sequence[Labels] = known
    if dropping:
        found, plain = nameless(found), nameless(known)

    for given_sets in (found, plain):
        values, which = values_of(given_sets, name)
        assert [values[at] for at in which.tolist()] == [value_of(one, name) for one in plain]
        assert len(set(values)) == len(values)
        assert {name for labels in plain for name, _ in labels} <= names_in(given_sets)


def as_lists(sides: Sequence[Whole]) -> list[list[int]]:
    return [side.tolist() for side in sides]


def test_groups_of_many_labels_do_not_run_out_of_numbers() -> None:
    table = SeriesTable()
    names = [f"l{number}" for number in range(40)]
    known = [labels_of({name: str(at // 2 + 1) for name in names}) for at in range(100)]
    found = interned(table, known)

    [by_number] = group_numbers([found], names, on=True)

    assert by_number.tolist() == [at // 2 for at in range(100)]
