"""Loops over all rows, compiled. Imported where rows are many: that alone takes a while."""

from __future__ import annotations

import numpy as np

from kalla.compiling import compiled

_NOBODY = -1


@compiled("int:i1 b1 I1")
def extent(values, chosen, ends):  # type: ignore[no-untyped-def]
    """How many are chosen; `ends` has the lowest and the highest of them."""
    count = 0
    low, high = ends[0], ends[1]
    for row in range(len(values)):
        if chosen[row]:
            count += 1
            low, high = min(low, values[row]), max(high, values[row])
    ends[0], ends[1] = low, high
    return count


@compiled("none:i1 b1 int int N1")
def lay(keys, chosen, low, first, places):  # type: ignore[no-untyped-def]
    """At the place of each chosen row's key its number, counted from the first one's."""
    for at in range(len(keys)):
        if chosen[at]:
            places[keys[at] - low] = first + at


@compiled("none:i1 b1 int n1 I1")
def look_up(keys, chosen, low, places, partners):  # type: ignore[no-untyped-def]
    """Whom each chosen row meets at the place of its key."""
    for at in range(len(keys)):
        place = keys[at] - low
        partners[at] = _NOBODY
        if chosen[at] and 0 <= place < len(places):
            partners[at] = places[place]


@compiled("none:i1 int i1 int int int I1 I1")
def hold(theirs, sign, mine, sign_of_mine, low, high, partners, deltas):  # type: ignore[no-untyped-def]
    """By how much rows and their partners differ; outside the window they are none."""
    for at in range(len(theirs)):
        partner = partners[at]
        if partner != _NOBODY:
            delta = sign * theirs[at] + sign_of_mine * mine[partner]
            deltas[at] = delta
            if delta < low or delta > high:
                partners[at] = _NOBODY


@compiled("none:h1 i1 I1 I2")
def tally(codes, units, rows, sums):  # type: ignore[no-untyped-def]
    """Rows and sums by code: of each sum the lower half of the words, and the upper."""
    for row in range(len(codes)):
        code = codes[row]
        rows[code] += 1
        sums[code, 0] += units[row] & 0xFFFFFFFF
        sums[code, 1] += units[row] >> 32


@compiled("flag:i1 int W1")
def differ(values, low, seen):  # type: ignore[no-untyped-def]
    """Whether no value occurs twice, by a bit for each that may occur."""
    for row in range(len(values)):
        place = values[row] - low
        bit = np.uint64(1) << np.uint64(place & 63)
        if seen[place >> 6] & bit:
            return False
        seen[place >> 6] |= bit
    return True


@compiled("int:i1 int b1 I1")
def marked(values, low, marks, found):  # type: ignore[no-untyped-def]
    """The rows whose value is marked, and how many they are."""
    count = 0
    for row in range(len(values)):
        place = values[row] - low
        if 0 <= place < len(marks) and marks[place]:
            found[count] = row
            count += 1
    return count
