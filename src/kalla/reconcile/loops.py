"""What goes through all rows of a side, or all pairs, one by one: compiled, on arrays in hand.

Each takes some rows at a time, so that what is made of them stays in a cache, and what it counts is
for its caller to add up. Where nothing else is said, every number is one that has a place: `low` or
more, and less than there are places above it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kalla.machine_code import loop

NOBODY = -1
DIGIT_BITS = 11  # as many as make a table that stays in the nearest cache
DIGIT_PLACES = 1 << DIGIT_BITS

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SIGN = np.uint64(2**63)
_BEFORE, _AFTER = np.uint64(29), np.uint64(32)
_HALF, _BITS = np.uint64(2**32 - 1), np.uint64(32)
_ZERO, _ONE, _TEN, _HUNDRED, _MYRIAD = (np.uint64(each) for each in (0, 1, 10, 100, 10_000))
_WORD_BITS = 64
_WORD_SHIFT, _WORD_LAST = np.uint64(6), np.uint64(63)
_MOST_DIGITS = 20

LANES = 16  # texts that are hashed side by side: as many as one instruction takes
MD5_WORDS, MD5_ROOM = 16 * LANES, 9 * LANES  # of a block; and of hashes, those in the making, flags
_BLOCK, _LENGTH = 64, 8  # bytes of a block, and those of the last that tell how long the text is
_FULL, _TURN = np.uint32(32), np.uint32(31)
# What a hash begins with; and of each of the 64 steps what it adds, by how many bits it turns,
# which word it takes, and which of four ways it mixes in, as masks.
MD5 = np.array(
    [
        *(0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476),
        *(int(abs(math.sin(step + 1)) * 2**32) for step in range(64)),
        *([7, 12, 17, 22] * 4 + [5, 9, 14, 20] * 4 + [4, 11, 16, 23] * 4 + [6, 10, 15, 21] * 4),
        *(
            (by * step + more) % 16 * LANES
            for by, more in ((1, 0), (5, 1), (3, 5), (7, 0))
            for step in range(16)
        ),
        *(2**32 - 1 if step // 16 == way else 0 for way in range(4) for step in range(64)),
    ],
    np.uint32,
)
DIGITS = np.frombuffer("".join(f"{each:02d}" for each in range(100)).encode(), np.uint8)


def marks(places: int) -> Any:
    """So many places for marks, a bit each: bytes would not stay in a cache where bits do."""
    return np.zeros(-(-places // _WORD_BITS), np.uint64)


@loop("int: n int int U8")
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


@loop("int: n int int u8 int int I8")
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


@loop("none: n int int int U1")
def fill(numbers: Any, count: int, low: int, shift: int, cells: Any) -> None:
    """Marks the cell of each number, from the lowest on; a cell is as many numbers as the shift has
    bits."""
    for row in range(count):
        cells[(np.int64(numbers[row]) - low) >> shift] = 1


@loop("int: n int int int u1 int I8")
def in_cells(
    numbers: Any, count: int, low: int, shift: int, cells: Any, first: int, found: Any
) -> int:
    """Finds the rows whose number is in a marked cell, as `marked` does."""
    some = 0
    for row in range(count):
        found[some] = first + row  # without a branch: nobody can tell who is next
        some += cells[(np.int64(numbers[row]) - low) >> shift]
    return some


@loop("none: u8 int int I8 U8")
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


@loop("none: n int i4 I4")
def look_up(places: Any, count: int, table: Any, found: Any) -> None:
    """What a table has at each place."""
    for row in range(count):
        found[row] = table[places[row]]


@loop("none: n int int u1 int I4")
def lay(keys: Any, count: int, low: int, admitted: Any, first: int, places: Any) -> None:
    """Tells each admitted row at the place of its key, from the lowest on."""
    for row in range(count):
        if admitted[row]:
            places[np.int64(keys[row]) - low] = first + row


@loop("none: n int int u1 i4 int I4")
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


@loop("none: n int n int int int int I4 I8")
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


@loop("int: i4 int I4 I4")
def paired(partners: Any, count: int, found: Any, theirs: Any) -> int:
    """Finds the rows that have a partner, and these. Returns how many."""
    some = 0
    for row in range(count):
        found[some], theirs[some] = row, partners[row]
        some += partners[row] >= 0
    return some


@loop("none: i8 i4 int int I2")
def number(values: Any, rows: Any, count: int, low: int, numbers: Any) -> None:
    """The number of the value of each row, from the lowest one on; there are few."""
    for place in range(count):
        numbers[place] = values[rows[place]] - low


@loop("int: U2 n int int")
def settle(codes: Any, rids: Any, count: int, code: int) -> int:
    """Gives rows their code. Returns how many had one before."""
    before = 0
    for row in range(count):
        before += codes[rids[row]] != 0
        codes[rids[row]] = code
    return before


@loop("none: u2 n int I8 U8 I8")
def tally(codes: Any, numbers: Any, count: int, counts: Any, low: Any, high: Any) -> None:
    """Counts the numbers of each code, and adds up the halves of their words: the sum of four
    thousand million of them has its place."""
    for row in range(count):
        code, number = codes[row], np.int64(numbers[row])
        counts[code] += 1
        low[code] += np.uint64(number) & _HALF
        high[code] += number >> 32


@loop("none: n n int u8 U8 U8")
def mix(left: Any, right: Any, count: int, seeds: Any, high: Any, low: Any) -> None:
    """The words of the id of each pair of numbers, as `docs/reconcile.md` defines it."""
    for row in range(count):
        a, b = np.uint64(np.int64(left[row])) ^ _SIGN, np.uint64(np.int64(right[row])) ^ _SIGN
        for turn in range(0, 4, 2):
            x = b ^ seeds[turn]
            p = (x ^ (x >> _BEFORE)) * _FACTOR
            a ^= p ^ (p >> _AFTER)
            x = a ^ seeds[turn + 1]
            p = (x ^ (x >> _BEFORE)) * _FACTOR
            b ^= p ^ (p >> _AFTER)
        high[row], low[row] = a, b


@loop("none: n u8 u8 int U8")
def add_up(codes: Any, low: Any, high: Any, count: int, sums: Any) -> None:
    """Adds numbers of two words to the sums of their codes, each of four halves of a word."""
    for row in range(count):
        at = 4 * np.int64(codes[row])
        sums[at] += low[row] & _HALF
        sums[at + 1] += low[row] >> _BITS
        sums[at + 2] += high[row] & _HALF
        sums[at + 3] += high[row] >> _BITS


@loop("int: n int u1 I4 U1")
def spell(numbers: Any, count: int, digits: Any, ends: Any, text: Any) -> int:
    """Writes numbers as texts, one behind the other, and where each ends. Returns where all do."""
    end, length = 0, 1
    least, more = _ZERO, _TEN  # of numbers of this length, and above them: most are as the last was
    for row in range(count):
        number = np.int64(numbers[row])
        rest = np.uint64(number)
        if number < 0:
            text[end] = 45  # the sign
            end += 1
            rest = _ZERO - rest
        while rest >= more:  # which no number of a word does at 19 digits
            least, more, length = more, more * _TEN, length + 1
        while rest < least:
            least, more, length = least // _TEN, least, length - 1
            if length == 1:
                least = _ZERO
        end += length
        at = end
        while rest >= _MYRIAD:
            part = rest // _MYRIAD
            four = rest - part * _MYRIAD
            upper = four // _HUNDRED
            two, last = 2 * np.int64(upper), 2 * np.int64(four - upper * _HUNDRED)
            at -= 4
            text[at], text[at + 1] = digits[two], digits[two + 1]
            text[at + 2], text[at + 3] = digits[last], digits[last + 1]
            rest = part
        if rest >= _HUNDRED:
            part = rest // _HUNDRED
            two = 2 * np.int64(rest - part * _HUNDRED)
            at -= 2
            text[at], text[at + 1] = digits[two], digits[two + 1]
            rest = part
        two = 2 * np.int64(rest)
        text[at - 1] = digits[two + 1]
        if rest >= _TEN:
            text[at - 2] = digits[two]
        ends[row] = end
    return end


@loop("int: n int int int I4 U1")
def spell_decimals(numbers: Any, count: int, places: int, kept: int, ends: Any, text: Any) -> int:
    """The same of numbers that have so many places behind their point, 18 at the most; zeros at
    the end of these are left out but for so many, and a point with nothing behind it."""
    unit = np.uint64(1)
    for _ in range(places):
        unit *= _TEN
    end = 0
    for row in range(count):
        number = np.int64(numbers[row])
        rest = np.uint64(number)
        if number < 0:
            text[end] = 45  # the sign
            end += 1
            rest = _ZERO - rest
        whole = rest // unit
        behind, digits = rest - whole * unit, places
        while digits > kept and behind % _TEN == _ZERO:
            behind //= _TEN
            digits -= 1
        more, length = _TEN, 1
        while length < _MOST_DIGITS - 1 and whole >= more:
            more *= _TEN
            length += 1
        for at in range(end + length - 1, end - 1, -1):
            text[at] = 48 + whole % _TEN
            whole //= _TEN
        end += length
        if digits > 0:
            text[end] = 46  # the point
            for at in range(end + digits, end, -1):
                text[at] = 48 + behind % _TEN
                behind //= _TEN
            end += digits + 1
        ends[row] = end
    return end


@loop("none: u1 i4 int I8 U1")
def put(text: Any, ends: Any, count: int, at: Any, whole: Any) -> None:
    """Writes a text of each row at its place, which is then behind it. They lie one behind the
    other; the first of `ends` is where they begin."""
    for row in range(count):
        place = at[row]
        for byte in range(ends[row], ends[row + 1]):
            whole[place] = text[byte]
            place += 1
        at[row] = place


@loop("none: u1 int int I8 U1")
def put_same(text: Any, size: int, count: int, at: Any, whole: Any) -> None:
    """The same of a text that all rows have."""
    for row in range(count):
        place = at[row]
        for byte in range(size):
            whole[place + byte] = text[byte]
        at[row] = place + size


@loop("none: u1 i8 int u4 U4 U4 U8")
def add_md5(text: Any, ends: Any, count: int, md5: Any, words: Any, room: Any, sums: Any) -> None:
    """Adds the md5 of each text to four sums, one for each of its words. They lie as those to be
    `put`; `md5` is MD5.

    Of 16 texts at once, for the steps of one wait for each other.
    """
    hashes, flags = 4 * LANES, 8 * LANES
    for first in range(0, count, LANES):
        here, blocks = min(LANES, count - first), 0
        for lane in range(LANES):
            for part in range(4):
                room[hashes + part * LANES + lane] = md5[part]
            if lane < here:
                size = ends[first + lane + 1] - ends[first + lane]
                blocks = max(blocks, (size + _LENGTH) // _BLOCK + 1)
        for block in range(blocks):
            for lane in range(LANES):
                begin, size = 0, -_BLOCK  # of nobody: it has no block
                if lane < here:
                    begin, size = ends[first + lane], ends[first + lane + 1] - ends[first + lane]
                last = (size + _LENGTH) // _BLOCK
                room[flags + lane] = block <= last
                for word in range(16):
                    at, found = block * _BLOCK + 4 * word, np.uint32(0)
                    if at + 4 <= size:
                        for byte in range(4):
                            found |= np.uint32(text[begin + at + byte]) << np.uint32(8 * byte)
                    elif at <= size:  # behind the text a single bit, and zeros
                        for byte in range(size - at):
                            found |= np.uint32(text[begin + at + byte]) << np.uint32(8 * byte)
                        found |= np.uint32(128) << np.uint32(8 * (size - at))
                    elif block == last and word >= 14:
                        found = np.uint32((8 * size) >> (32 * (word - 14)))
                    words[word * LANES + lane] = found
            for each in range(4 * LANES):
                room[each] = room[hashes + each]
            for step in range(4, 68):
                added, turn, which = md5[step], md5[step + 64] & _TURN, np.int64(md5[step + 128])
                back = np.uint32(_FULL - turn) & _TURN
                one, two, three, four = (
                    md5[step + 192],
                    md5[step + 256],
                    md5[step + 320],
                    md5[step + 384],
                )
                for lane in range(LANES):
                    a, b = room[lane], room[LANES + lane]
                    c, d = room[2 * LANES + lane], room[3 * LANES + lane]
                    mixed = (d ^ (b & (c ^ d))) & one | (c ^ (d & (b ^ c))) & two
                    mixed |= (b ^ c ^ d) & three | (c ^ (b | ~d)) & four
                    mixed = np.uint32(mixed + a + added + words[which + lane])
                    mixed = np.uint32(mixed << turn) | np.uint32(mixed >> back)
                    room[lane], room[LANES + lane] = d, np.uint32(b + mixed)
                    room[2 * LANES + lane], room[3 * LANES + lane] = b, c
            for part in range(4):
                for lane in range(LANES):
                    at = part * LANES + lane
                    room[hashes + at] += room[at] * room[flags + lane]
        for lane in range(here):
            for part in range(4):
                sums[part] += np.uint64(room[hashes + part * LANES + lane])
