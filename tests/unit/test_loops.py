"""The compiled loops against the same in plain Python, on numbers that chance and bounds make."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla import machine_code
from kalla.reconcile import loops
from kalla.reconcile.evidence import identity, spelling

WORD = 2**64
WHOLE = st.integers(-(2**63), 2**63 - 1)
NARROW = st.integers(-(2**31), 2**31 - 1)
KINDS = pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32])


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    machine_code.prepare(loops.__name__)


def array(values: list[int], kind: Any = np.int64) -> npt.NDArray[Any]:
    return np.array(values, kind)


@given(st.lists(WHOLE | st.sampled_from([10**n + d for n in range(19) for d in (-1, 0, 1)])))
def test_numbers_are_spelled_as_python_spells_them(values: list[int]) -> None:
    assert spelling.of_numbers(array(values)).to_pylist() == [str(each) for each in values]


@given(st.lists(NARROW | st.sampled_from([10**n + d for n in range(10) for d in (-1, 0, 1)])))
def test_numbers_of_half_a_word_are_spelled_as_they_lie(values: list[int]) -> None:
    values = [each for each in values if each < 2**31]
    narrow = array(values, np.int32)
    assert spelling.of_numbers(narrow).to_pylist() == [str(each) for each in values]
    assert (
        spelling.of_numbers(narrow, 2).to_pylist()
        == spelling.of_numbers(array(values), 2).to_pylist()
    )


@given(st.lists(WHOLE | st.integers(-2_000, 2_000)), st.integers(1, 18))
def test_decimals_are_spelled_without_zeros_at_their_ends(values: list[int], places: int) -> None:
    exact = [Decimal(f"{each}e-{places}") for each in values]
    due = [f"{each:f}".rstrip("0").rstrip(".") for each in exact]
    found = spelling.of_numbers(array(values), places).to_pylist()
    assert found == ["0" if each in ("-0", "") else each for each in due]


@given(st.lists(st.tuples(WHOLE, WHOLE)))
def test_ids_of_numbers_are_as_defined(pairs: list[tuple[int, int]]) -> None:
    left, right = (array([pair[side] for pair in pairs]) for side in (0, 1))
    high, low = identity.of_numbers("recipe", "rule", left, right)
    found = list(zip(high.tolist(), low.tolist(), strict=True))
    assert found == [mixed(*pair) for pair in pairs]


@given(st.lists(st.tuples(NARROW, WHOLE)))
def test_ids_do_not_depend_on_how_wide_numbers_are_held(pairs: list[tuple[int, int]]) -> None:
    narrow, wide = array([left for left, _ in pairs], np.int32), array([each for _, each in pairs])
    for left, right in ((narrow, wide), (wide, narrow)):
        high, low = identity.of_numbers("recipe", "rule", left, right)
        due = [mixed(*each) for each in zip(left.tolist(), right.tolist(), strict=True)]
        assert list(zip(high.tolist(), low.tolist(), strict=True)) == due


def mixed(left: int, right: int) -> tuple[int, int]:
    """As docs/reconcile.md has it."""
    digest = hashlib.sha256(b"recipe\x1frule\x1f").digest()
    words = [int.from_bytes(digest[at : at + 8], "little") for at in range(0, 32, 8)]
    sides = [left + 2**63, right + 2**63]
    for number, word in enumerate(words):
        x = sides[1 - number % 2] ^ word
        p = (x ^ x // 2**29) * 0x9E3779B97F4A7C15 % WORD
        sides[number % 2] ^= p ^ p // 2**32
    return sides[0], sides[1]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, WORD - 1), st.integers(0, WORD - 1))))
def test_sums_by_code_are_exact(rows: list[tuple[int, int, int]]) -> None:
    codes, low, high = ([row[part] for row in rows] for part in range(3))
    sums = np.zeros((6, 4), np.uint64)
    words = (array(each, np.uint64) for each in (low, high))
    loops.add_up(array(codes, np.int32), *words, len(rows), sums)
    for code in range(6):
        due = sum(low + (high << 64) for each, low, high in rows if each == code)
        assert sum(part << (32 * n) for n, part in enumerate(sums[code].tolist())) == due


@given(st.lists(st.integers(-30, 5_000)), st.data())
def test_chosen_values_are_numbered_from_the_lowest_on(
    values: list[int], data: st.DataObject
) -> None:
    chosen = [row for row in range(len(values)) if data.draw(st.booleans())]
    numbers = np.empty(len(chosen), np.int16)
    loops.number(array(values), array(chosen, np.int32), len(chosen), -30, numbers)
    assert numbers.tolist() == [values[row] + 30 for row in chosen]


@KINDS
@given(data=st.data())
def test_rows_and_sums_are_told_by_code(kind: Any, data: st.DataObject) -> None:
    extremes = np.iinfo(kind)
    any_number = st.integers(int(extremes.min), int(extremes.max))
    rows = data.draw(st.lists(st.tuples(st.integers(0, 4), any_number)))
    counts, low, high = (np.zeros(5, each) for each in (np.int64, np.uint64, np.int64))
    codes, numbers = array([code for code, _ in rows], np.uint16), [each for _, each in rows]
    loops.tally(codes, array(numbers, kind), len(rows), counts, low, high)
    for code in range(5):
        due = [each for own, each in rows if own == code]
        assert counts[code] == len(due)
        assert (int(high[code]) << 32) + int(low[code]) == sum(due)


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
    marks = loops.marks(places)
    new = loops.mark(array(numbers, kind), len(numbers), low, marks)
    assert new == len(set(numbers))
    found = np.empty(len(asked), np.int64)
    rows = array(asked, kind)
    some = loops.marked(rows, len(asked), low, marks, places, 100, found)
    assert found[:some].tolist() == [100 + row for row, each in enumerate(asked) if each in numbers]


@given(
    st.lists(st.integers(0, 2**40)),
    st.lists(st.integers(0, 2**40)),
    st.sampled_from([-(2**62), -1, 0, 5]),
    st.integers(25, 41),
)
def test_cells_tell_who_is_near(values: list[int], sought: list[int], low: int, shift: int) -> None:
    cells = np.zeros(1 << 16, np.bool_)
    loops.fill(array([low + each for each in sought]), len(sought), low, shift, cells)
    found = np.empty(len(values), np.int64)
    above = array([low + each for each in values])
    some = loops.in_cells(above, len(values), low, shift, cells, 7, found)
    near = {each >> shift for each in sought}
    assert found[:some].tolist() == [7 + n for n, v in enumerate(values) if v >> shift in near]


@given(st.lists(st.integers(0, WORD - 1)), st.sampled_from([0, 11, 32, 53]))
def test_a_sort_by_digit_is_stable(words: list[int], shift: int) -> None:
    out = np.empty(len(words), np.uint64)
    places = np.zeros(loops.DIGIT_PLACES, np.int64)
    loops.sort_by_digit(array(words, np.uint64), len(words), shift, places, out)
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
    places = np.full(high - low + 1, loops.NOBODY, np.int32)
    flags = array([admitted for _, admitted in mine], np.bool_)
    loops.lay(array(keys), len(keys), low, flags, 0, places)
    partners = np.empty(len(theirs), np.int32)
    asked = array([key for key, _, _ in theirs])
    admitted = array([flag for _, flag, _ in theirs], np.bool_)
    loops.meet(asked, len(theirs), low, admitted, places, len(places), partners)
    due = [
        keys.index(key) if flag and (key, True) in mine else loops.NOBODY for key, flag, _ in theirs
    ]
    assert partners.tolist() == due
    deltas = np.zeros(len(theirs), np.int64)
    values = array([value for _, _, value in theirs], np.int32)
    count, bounds = len(theirs), (-(10**9), 2 * 10**18)
    loops.apart(array(amounts), -1, values, 1, count, *bounds, partners, deltas)
    for row, partner in enumerate(due):
        if partner != loops.NOBODY:
            delta = theirs[row][2] - amounts[partner]
            assert deltas[row] == delta
            if not bounds[0] <= delta <= bounds[1]:
                due[row] = loops.NOBODY
    assert partners.tolist() == due
    found, met = np.empty(len(theirs), np.int32), np.empty(len(theirs), np.int32)
    some = loops.paired(partners, len(theirs), found, met)
    assert found[:some].tolist() == [n for n, each in enumerate(due) if each != loops.NOBODY]
    assert met[:some].tolist() == [each for each in due if each != loops.NOBODY]


@KINDS
@given(data=st.data())
def test_who_is_settled_twice_is_counted(kind: Any, data: st.DataObject) -> None:
    codes = np.zeros(10, np.uint16)
    first, second = (data.draw(st.lists(st.integers(0, 9))) for _ in range(2))
    assert loops.settle(codes, array(first, kind), len(first), 3) == len(first) - len(set(first))
    again = loops.settle(codes, array(second, kind), len(second), 5)
    assert again == len(second) - len(set(second) - set(first))
    assert codes.tolist() == [5 if n in second else 3 if n in first else 0 for n in range(10)]


@KINDS
@given(data=st.data())
def test_a_table_tells_what_it_has(kind: Any, data: st.DataObject) -> None:
    table = data.draw(st.lists(NARROW, min_size=1))
    places = data.draw(st.lists(st.integers(0, len(table) - 1)))
    found = np.empty(len(places), np.int32)
    loops.look_up(array(places, kind), len(places), array(table, np.int32), found)
    assert found.tolist() == [table[place] for place in places]
