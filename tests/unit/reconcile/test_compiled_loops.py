"""The compiled loops against the same in plain Python, on numbers that chance and bounds make."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.compiling import prepare
from kalla.reconcile.arrays import compiled_loops

WORD = 2**64
WHOLE = st.integers(-(2**63), 2**63 - 1)
NARROW = st.integers(-(2**31), 2**31 - 1)
KINDS = pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32])


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    prepare(compiled_loops.__name__)


def array(values: list[int], kind: Any = np.int64) -> npt.NDArray[Any]:
    return np.array(values, kind)


@given(st.lists(st.integers(-30, 5_000)), st.data())
def test_chosen_values_are_numbered_from_the_lowest_on(
    values: list[int], data: st.DataObject
) -> None:
    chosen = [row for row in range(len(values)) if data.draw(st.booleans())]
    numbers = np.empty(len(chosen), np.int16)
    compiled_loops.number(array(values), array(chosen, np.int32), len(chosen), -30, numbers)
    assert numbers.tolist() == [values[row] + 30 for row in chosen]


@KINDS
@given(data=st.data())
def test_rows_and_sums_are_told_by_code(kind: Any, data: st.DataObject) -> None:
    extremes = np.iinfo(kind)
    any_number = st.integers(int(extremes.min), int(extremes.max))
    rows = data.draw(st.lists(st.tuples(st.integers(0, 4), any_number)))
    counts, low, high = (np.zeros(5, each) for each in (np.int64, np.uint64, np.int64))
    codes, numbers = array([code for code, _ in rows], np.uint16), [each for _, each in rows]
    compiled_loops.tally(codes, array(numbers, kind), len(rows), counts, low, high)
    for code in range(5):
        due = [each for own, each in rows if own == code]
        assert counts[code] == len(due)
        assert (int(high[code]) << 32) + int(low[code]) == sum(due)


@given(st.lists(st.integers(0, 9)))
def test_rows_are_counted_by_number(values: list[int]) -> None:
    counts = np.zeros(10, np.int32)
    compiled_loops.count_each(array(values, np.uint32), len(values), counts)
    assert counts.tolist() == [values.count(number) for number in range(10)]


@KINDS
@given(data=st.data())
def test_marks_tell_who_is_there(kind: Any, data: st.DataObject) -> None:
    extremes = np.iinfo(kind)
    base = data.draw(st.sampled_from([int(extremes.min), 0, 7, int(extremes.max) - 200]))
    near = st.integers(base, base + 200)
    numbers = data.draw(st.lists(near, min_size=1))
    any_number = st.integers(int(extremes.min), int(extremes.max))
    asked = data.draw(st.lists(near | any_number | st.sampled_from([0, int(extremes.max)])))
    low, high = min(numbers), max(numbers)
    places = high - low + 1
    marks = compiled_loops.marks(places)
    new = compiled_loops.mark(array(numbers, kind), len(numbers), low, marks)
    assert new == len(set(numbers))
    found = np.empty(len(asked), np.int64)
    rows = array(asked, kind)
    some = compiled_loops.marked(rows, len(asked), low, marks, places, 100, found)
    assert found[:some].tolist() == [100 + row for row, each in enumerate(asked) if each in numbers]


@given(
    st.lists(st.integers(0, 2**40)),
    st.lists(st.integers(0, 2**40)),
    st.sampled_from([-(2**62), -1, 0, 5]),
    st.integers(25, 41),
)
def test_cells_tell_who_is_near(values: list[int], sought: list[int], low: int, shift: int) -> None:
    cells = np.zeros(1 << 16, np.bool_)
    compiled_loops.fill(array([low + each for each in sought]), len(sought), low, shift, cells)
    found = np.empty(len(values), np.int64)
    above = array([low + each for each in values])
    some = compiled_loops.in_cells(above, len(values), low, shift, cells, 7, found)
    near = {each >> shift for each in sought}
    assert found[:some].tolist() == [7 + n for n, v in enumerate(values) if v >> shift in near]


@given(st.lists(st.integers(0, WORD - 1)), st.sampled_from([0, 11, 32, 53]))
def test_a_sort_by_digit_is_stable(words: list[int], shift: int) -> None:
    out = np.empty(len(words), np.uint64)
    places = np.zeros(compiled_loops.DIGIT_PLACES, np.int64)
    compiled_loops.sort_by_digit(array(words, np.uint64), len(words), shift, places, out)
    assert out.tolist() == sorted(words, key=lambda word: word >> shift & 2**11 - 1)


@given(data=st.data())
def test_rows_meet_where_their_keys_lie(data: st.DataObject) -> None:
    """Both sides' checks, too: who differs by more than the bounds has no partner."""
    base = data.draw(st.sampled_from([-(2**63), -(2**31), -5, 0, 2**31, 2**63 - 100]))
    own = st.tuples(st.integers(base, base + 30), st.booleans())
    mine = data.draw(st.lists(own, min_size=1, unique_by=lambda row: row[0]))
    asking = st.integers(base, base + 40) | WHOLE | st.sampled_from([-(2**63), -1, 2**63 - 1])
    theirs = data.draw(st.lists(st.tuples(asking, st.booleans(), NARROW)))
    amounts = data.draw(st.lists(WHOLE.map(lambda n: n // 4), min_size=len(mine)))
    keys = [key for key, _ in mine]
    low, high = min(keys), max(keys)
    places = np.full(high - low + 1, compiled_loops.NOBODY, np.int32)
    flags = array([admitted for _, admitted in mine], np.bool_)
    compiled_loops.lay(array(keys), len(keys), low, flags, 0, places)
    partners = np.empty(len(theirs), np.int32)
    asked = array([key for key, _, _ in theirs])
    admitted = array([flag for _, flag, _ in theirs], np.bool_)
    compiled_loops.meet(asked, len(theirs), low, admitted, places, len(places), partners)
    due = [
        keys.index(key) if flag and (key, True) in mine else compiled_loops.NOBODY
        for key, flag, _ in theirs
    ]
    assert partners.tolist() == due
    deltas = np.zeros(len(theirs), np.int64)
    values = array([value for _, _, value in theirs], np.int32)
    count, bounds = len(theirs), (-(10**9), 2 * 10**18)
    compiled_loops.apart(array(amounts), -1, values, 1, count, *bounds, partners, deltas)
    for row, partner in enumerate(due):
        if partner != compiled_loops.NOBODY:
            delta = theirs[row][2] - amounts[partner]
            assert deltas[row] == delta
            if not bounds[0] <= delta <= bounds[1]:
                due[row] = compiled_loops.NOBODY
    assert partners.tolist() == due
    found, met = np.empty(len(theirs), np.int32), np.empty(len(theirs), np.int32)
    some = compiled_loops.paired(partners, len(theirs), found, met)
    assert found[:some].tolist() == [
        n for n, each in enumerate(due) if each != compiled_loops.NOBODY
    ]
    assert met[:some].tolist() == [each for each in due if each != compiled_loops.NOBODY]


@KINDS
@given(data=st.data())
def test_who_is_settled_twice_is_counted(kind: Any, data: st.DataObject) -> None:
    codes = np.zeros(10, np.uint16)
    first, second = (data.draw(st.lists(st.integers(0, 9))) for _ in range(2))
    assert compiled_loops.settle(codes, array(first, kind), len(first), 3) == len(first) - len(
        set(first)
    )
    again = compiled_loops.settle(codes, array(second, kind), len(second), 5)
    assert again == len(second) - len(set(second) - set(first))
    assert codes.tolist() == [5 if n in second else 3 if n in first else 0 for n in range(10)]


@KINDS
@given(data=st.data())
def test_a_table_tells_what_it_has(kind: Any, data: st.DataObject) -> None:
    table = data.draw(st.lists(NARROW, min_size=1))
    places = data.draw(st.lists(st.integers(0, len(table) - 1)))
    found = np.empty(len(places), np.int32)
    compiled_loops.look_up(array(places, kind), len(places), array(table, np.int32), found)
    assert found.tolist() == [table[place] for place in places]
