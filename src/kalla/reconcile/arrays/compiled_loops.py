"""Compiled loops over all rows of a side, or all pairs, on arrays.

Each takes some rows at a time, so that results stay in a processor cache; the caller adds up the
counts. Where nothing else is said, every number is one that has a place: `low` or more, and less
than there are places above it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kalla.compiling import compiled

NOBODY = -1
DIGIT_BITS = 11  # a table of this size stays in the first-level cache
DIGIT_PLACES = 1 << DIGIT_BITS

_HALF = np.uint64(2**32 - 1)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_WORD_BITS = 64
_WORD_SHIFT, _WORD_LAST = np.uint64(6), np.uint64(63)


def marks(places: int) -> Any:
    """Marks, one bit each: bits stay in the cache where bytes would not."""
    return np.zeros(-(-places // _WORD_BITS), np.uint64)


@compiled("int: n[] int int U8[]")
def mark(numbers: Any, count: int, low: int, marks: Any) -> int:
    """Marks each number's place, from the lowest on. Returns how many had no mark before."""
    new = 0
    for row in range(count):
        at = np.uint64(np.int64(numbers[row]) - low)
        word, bit = at >> _WORD_SHIFT, _ONE << (at & _WORD_LAST)
        before = marks[word]
        new += (before & bit) == _ZERO
        marks[word] = before | bit
    return new


@compiled("int: n[] int int u8[] int int I8[]")
def marked(
    numbers: Any, count: int, low: int, marks: Any, size: int, first: int, found: Any
) -> int:
    """Finds the rows whose number has a mark, of so many places, counted from the first row.
    Returns how many.

    Any number may be asked for: what is below the lowest is above all without a sign.
    """
    some = 0
    for row in range(count):
        at = np.uint64(numbers[row]) - np.uint64(low)
        if at < np.uint64(size) and (marks[at >> _WORD_SHIFT] >> (at & _WORD_LAST)) & _ONE:
            found[some] = first + row
            some += 1
    return some


@compiled("none: n[] int int int U1[]")
def fill(numbers: Any, count: int, low: int, shift: int, cells: Any) -> None:
    """Marks the cell of each number, from the lowest on; a cell is as many numbers as the shift has
    bits."""
    for row in range(count):
        cells[(np.int64(numbers[row]) - low) >> shift] = 1


@compiled("int: n[] int int int u1[] int I8[]")
def in_cells(
    numbers: Any, count: int, low: int, shift: int, cells: Any, first: int, found: Any
) -> int:
    """Finds the rows whose number is in a marked cell, as `marked` does."""
    some = 0
    for row in range(count):
        found[some] = first + row  # without a branch: the order is unpredictable
        some += cells[(np.int64(numbers[row]) - low) >> shift]
    return some


@compiled("none: u8[] int int I8[] U8[]")
def sort_by_digit(words: Any, count: int, shift: int, places: Any, sorted_words: Any) -> None:
    """Puts words in order by some of their bits, those that are alike as they were. There are as
    many places as these bits can tell apart, all of them zero."""
    last = np.uint64(DIGIT_PLACES - 1)
    for row in range(count):
        places[(words[row] >> np.uint64(shift)) & last] += 1
    before = 0
    for place in range(DIGIT_PLACES):
        here = places[place]
        places[place] = before
        before += here
    for row in range(count):
        digit = (words[row] >> np.uint64(shift)) & last
        sorted_words[places[digit]] = words[row]
        places[digit] += 1


@compiled("none: n[] int i4[] I4[]")
def look_up(places: Any, count: int, table: Any, found: Any) -> None:
    """What a table has at each place."""
    for row in range(count):
        found[row] = table[places[row]]


@compiled("none: n[] int int u1[] int I4[]")
def lay(keys: Any, count: int, low: int, admitted: Any, first: int, places: Any) -> None:
    """Tells each admitted row at the place of its key, from the lowest on."""
    for row in range(count):
        if admitted[row]:
            places[np.int64(keys[row]) - low] = first + row


@compiled("none: n[] int int u1[] i4[] int I4[]")
def meet(
    keys: Any, count: int, low: int, admitted: Any, places: Any, size: int, partners: Any
) -> None:
    """Who lies at the place of each row's key, of those that are admitted; else nobody. Any key may
    be asked for, as any number in `marked`."""
    for row in range(count):
        at = np.uint64(keys[row]) - np.uint64(low)
        found = NOBODY
        if admitted[row] and at < np.uint64(size):
            found = places[at]
        partners[row] = found


@compiled("none: n[] int n[] int int int int I4[] I8[]")
def apart(
    mine: Any,
    my_sign: int,
    theirs: Any,
    their_sign: int,
    count: int,
    lowest: int,
    highest: int,
    partners: Any,
    deltas: Any,
) -> None:
    """By how much partners differ, mine being theirs; who is outside the bounds is one no more."""
    for row in range(count):
        partner = partners[row]
        if partner >= 0:
            delta = my_sign * np.int64(mine[partner]) + their_sign * np.int64(theirs[row])
            deltas[row] = delta
            if delta < lowest or delta > highest:
                partners[row] = NOBODY


@compiled("int: i4[] int I4[] I4[]")
def paired(partners: Any, count: int, found: Any, theirs: Any) -> int:
    """Finds the rows that have a partner, and these. Returns how many."""
    some = 0
    for row in range(count):
        found[some], theirs[some] = row, partners[row]
        some += partners[row] >= 0
    return some


@compiled("none: i8[] i4[] int int I2[]")
def number(values: Any, rows: Any, count: int, low: int, numbers: Any) -> None:
    """The number of the value of each row, from the lowest one on; there are few."""
    for place in range(count):
        numbers[place] = values[rows[place]] - low


@compiled("int: U2[] n[] int int")
def settle(codes: Any, row_ids: Any, count: int, code: int) -> int:
    """Gives rows their code. Returns how many had one before."""
    before = 0
    for row in range(count):
        before += codes[row_ids[row]] != 0
        codes[row_ids[row]] = code
    return before


@compiled("none: u4[] int I4[]")
def count_each(numbers: Any, count: int, counts: Any) -> None:
    """Counts the rows of each number."""
    for row in range(count):
        counts[numbers[row]] += 1


@compiled("none: u2[] n[] int I8[] U8[] I8[]")
def tally(codes: Any, numbers: Any, count: int, counts: Any, low: Any, high: Any) -> None:
    """Counts the numbers of each code, and adds up the halves of their words: the sum of four
    thousand million of them has its place."""
    for row in range(count):
        code, number = codes[row], np.int64(numbers[row])
        counts[code] += 1
        low[code] += np.uint64(number) & _HALF
        high[code] += number >> 32
