"""Kernels over the bytes of remote write: protobuf walked in place, into columns.

Nothing is trusted: each length is checked against the enclosing message, and every loop moves
forward, so that no input makes a kernel read out of bounds or loop for ever. Columns never
overflow.
"""

from __future__ import annotations

import numpy as np

from kalla.compiling import compiled, helper

# The result of a walk.
WHOLE, BROKEN, TOO_MUCH = 0, 1, 2

# The columns of a walked series; the last three are of version 2.0 alone.
FROM, TO, SPLIT, SAMPLES, HISTOGRAMS, TYPE, HELP, UNIT = range(8)
SERIES_COLUMNS = 8

# The rows that samples are written to; BITS are those of the float.
TIME, BITS, START = range(3)

# What a walk counts; SYMBOLS and STARTS are of version 2.0, NOTES (messages of metadata) of 1.0.
SERIES, SAMPLES_ALL, EXEMPLARS, SYMBOLS, NOTES, REFS, STARTS, PLACE = range(8)
COUNTS = 8

_NAME = np.frombuffer(b"__name__", np.uint8)
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


@compiled("int: u1 I2 I2 I2 I1")
def walk_1(data, series, samples, notes, counts):  # type: ignore[no-untyped-def]
    """A prometheus.WriteRequest. A series is FROM and TO the positions of its labels in `data`.

    SPLIT: other bytes are between those labels.
    """
    at, end = 0, len(data)
    while at < end:
        counts[PLACE] = at
        field, kind, at = _tag(data, at, end)
        if at < 0:
            return BROKEN
        if (field == 1 or field == 3) and kind == _LENGTH:
            size, at = _size(data, at, end)
            if at < 0:
                return BROKEN
            if field == 1:
                code = _series_1(data, at, at + size, series, samples, counts)
                if code != WHOLE:
                    return code
            else:
                if counts[NOTES] == len(notes):
                    return TOO_MUCH
                notes[counts[NOTES], 0] = at
                notes[counts[NOTES], 1] = at + size
                counts[NOTES] += 1
            at += size
        else:
            at = _skip(data, at, end, kind)
            if at < 0:
                return BROKEN
    return WHOLE


@compiled("int: u1 I2 I2 I2 I1 I1")
def walk_2(data, series, samples, symbols, refs, counts):  # type: ignore[no-untyped-def]
    """An io.prometheus.write.v2.Request. A series is FROM and TO the positions of its labels in
    `refs`.
    """
    at, end = 0, len(data)
    while at < end:
        counts[PLACE] = at
        field, kind, at = _tag(data, at, end)
        if at < 0:
            return BROKEN
        if (field == 4 or field == 5) and kind == _LENGTH:
            size, at = _size(data, at, end)
            if at < 0:
                return BROKEN
            if field == 5:
                code = _series_2(data, at, at + size, series, samples, refs, counts)
                if code != WHOLE:
                    return code
            else:
                if counts[SYMBOLS] == len(symbols):
                    return TOO_MUCH
                symbols[counts[SYMBOLS], 0] = at
                symbols[counts[SYMBOLS], 1] = at + size
                counts[SYMBOLS] += 1
            at += size
        else:
            at = _skip(data, at, end, kind)
            if at < 0:
                return BROKEN
    return WHOLE


@compiled("int: u1 i2 i1 i2 U1 I2")
def expand_symbols(data, symbols, refs, series, out, spans):  # type: ignore[no-untyped-def]
    """The labels of 2.0 series in the bytes of 1.0; gives the size of all, whether it fits or not.

    `spans` gets where each series' labels lie in `out`, and the reference to its metric's name;
    -1 if a reference is to no symbol, or there is no name.
    """
    at = 0
    for i in range(len(series)):
        first, last = series[i, FROM], series[i, TO]
        sound = (last - first) % 2 == 0
        for k in range(first, last):
            sound = sound and 0 <= refs[k] < len(symbols)
        spans[i, 0] = at if sound else -1
        spans[i, 2] = -1
        if sound:
            for k in range(first, last, 2):
                name, value = refs[k], refs[k + 1]
                if _is_name(data, symbols[name, 0], symbols[name, 1]):
                    spans[i, 2] = value
                inner = _room(symbols[name, 1] - symbols[name, 0])
                inner += _room(symbols[value, 1] - symbols[value, 0])
                if at + 1 + _varint_room(inner) + inner <= len(out):
                    out[at] = 0x0A
                    then = _put_varint(out, at + 1, inner)
                    then = _put(out, then, 0x0A, data, symbols[name, 0], symbols[name, 1])
                    _put(out, then, 0x12, data, symbols[value, 0], symbols[value, 1])
                at += 1 + _varint_room(inner) + inner
        spans[i, 1] = at
    return at


@helper
def _is_name(data, first, last):  # type: ignore[no-untyped-def]
    """Whether these bytes are `__name__`."""
    if last - first != len(_NAME):
        return False
    alike = True
    for k in range(len(_NAME)):
        alike = alike and data[first + k] == _NAME[k]
    return alike


@helper
def _series_1(data, at, end, series, samples, counts):  # type: ignore[no-untyped-def]
    row = counts[SERIES]
    if row == len(series):
        return TOO_MUCH
    series[row] = 0
    counts[SERIES] += 1
    labelled = False
    while at < end:
        begun = at
        field, kind, at = _tag(data, at, end)
        if at < 0:
            return BROKEN
        if 1 <= field <= 4 and kind == _LENGTH:
            size, at = _size(data, at, end)
            if at < 0:
                return BROKEN
            if field == 1:
                if not labelled:
                    series[row, FROM] = begun
                elif series[row, TO] != begun:
                    series[row, SPLIT] = 1
                labelled = True
                series[row, TO] = at + size
            elif field == 2:
                code = _sample(data, at, at + size, samples, counts)
                if code != WHOLE:
                    return code
                series[row, SAMPLES] += 1
            elif field == 3:
                counts[EXEMPLARS] += 1
            else:
                series[row, HISTOGRAMS] += 1
            at += size
        else:
            at = _skip(data, at, end, kind)
            if at < 0:
                return BROKEN
    return WHOLE


@helper
def _series_2(data, at, end, series, samples, refs, counts):  # type: ignore[no-untyped-def]
    row = counts[SERIES]
    if row == len(series):
        return TOO_MUCH
    series[row] = 0
    series[row, FROM] = counts[REFS]
    counts[SERIES] += 1
    while at < end:
        field, kind, at = _tag(data, at, end)
        if at < 0:
            return BROKEN
        if field == 1 and kind == _VARINT:
            # Not packed: every protobuf reader must accept this form.
            at = _reference(data, at, end, refs, counts)
            if at < 0:
                return BROKEN
        elif 1 <= field <= 5 and kind == _LENGTH:
            size, at = _size(data, at, end)
            if at < 0:
                return BROKEN
            stop = at + size
            if field == 1:
                while at < stop:
                    at = _reference(data, at, stop, refs, counts)
                    if at < 0:
                        return BROKEN
            elif field == 2:
                code = _sample(data, at, stop, samples, counts)
                if code != WHOLE:
                    return code
                series[row, SAMPLES] += 1
            elif field == 3:
                series[row, HISTOGRAMS] += 1
            elif field == 4:
                counts[EXEMPLARS] += 1
            elif not _note(data, at, stop, series, row):
                return BROKEN
            at = stop
        else:
            at = _skip(data, at, end, kind)
            if at < 0:
                return BROKEN
    series[row, TO] = counts[REFS]
    return WHOLE


@helper
def _reference(data, at, end, refs, counts):  # type: ignore[no-untyped-def]
    value, at = _varint(data, at, end)
    # Each takes a byte at least, so that as many as there are bytes always fit.
    if at < 0 or counts[REFS] == len(refs):
        return -1
    refs[counts[REFS]] = value
    counts[REFS] += 1
    return at


@helper
def _note(data, at, end, series, row):  # type: ignore[no-untyped-def]
    """The metadata of a 2.0 series: its type, and references to help and unit."""
    while at < end:
        field, kind, at = _tag(data, at, end)
        if at < 0:
            return False
        if (field == 1 or field == 3 or field == 4) and kind == _VARINT:
            value, at = _varint(data, at, end)
            if at < 0:
                return False
            if field == 1:
                series[row, TYPE] = value
            elif field == 3:
                series[row, HELP] = value
            else:
                series[row, UNIT] = value
        else:
            at = _skip(data, at, end, kind)
            if at < 0:
                return False
    return True


@helper
def _sample(data, at, end, samples, counts):  # type: ignore[no-untyped-def]
    """A double, then milliseconds; 2.0 may add when the counter started. Left out is zero."""
    row = counts[SAMPLES_ALL]
    if row == samples.shape[1]:
        return TOO_MUCH
    counts[SAMPLES_ALL] += 1
    samples[TIME, row] = 0
    samples[BITS, row] = 0
    samples[START, row] = 0
    while at < end:
        field, kind, at = _tag(data, at, end)
        if at < 0:
            return BROKEN
        if field == 1 and kind == _EIGHT:
            if end - at < 8:
                return BROKEN
            word = np.uint64(0)
            for k in range(8):
                word |= np.uint64(data[at + k]) << np.uint64(8 * k)
            samples[BITS, row] = np.int64(word)
            at += 8
        elif (field == 2 or field == 3) and kind == _VARINT:
            value, at = _varint(data, at, end)
            if at < 0:
                return BROKEN
            samples[TIME if field == 2 else START, row] = value
            counts[STARTS] += field == 3
        else:
            at = _skip(data, at, end, kind)
            if at < 0:
                return BROKEN
    return WHOLE


@helper
def _tag(data, at, end):  # type: ignore[no-untyped-def]
    """(field, kind, place after); the place is -1 where there is no sound tag."""
    value, at = _varint(data, at, end)
    if at < 0 or value < 8 or value > 0xFFFFFFFF:
        return 0, 0, -1
    return value >> 3, value & 7, at


@helper
def _size(data, at, end):  # type: ignore[no-untyped-def]
    """(size, place after) of what is as long as it says; the place is -1 if it cannot be."""
    size, at = _varint(data, at, end)
    if at < 0 or size < 0 or size > end - at:
        return 0, -1
    return size, at


@helper
def _varint(data, at, end):  # type: ignore[no-untyped-def]
    """(value, place after); the place is -1 where it is cut off or longer than ten bytes."""
    value = np.uint64(0)
    for k in range(10):
        if at >= end:
            return np.int64(0), -1
        byte = data[at]
        at += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(7 * k)
        if byte < 0x80:
            return np.int64(value), at
    return np.int64(0), -1


@helper
def _skip(data, at, end, kind):  # type: ignore[no-untyped-def]
    """The place after a field of no interest; -1 if it is not whole, or a group."""
    if kind == _VARINT:
        _, at = _varint(data, at, end)
        return at
    size = 0
    if kind == _EIGHT:
        size = 8
    elif kind == _FOUR:
        size = 4
    elif kind == _LENGTH:
        size, at = _size(data, at, end)
        if at < 0:
            return -1
    else:
        return -1
    return at + size if size <= end - at else -1


@helper
def _varint_room(value):  # type: ignore[no-untyped-def]
    room = 1
    while value >= 0x80:
        value >>= 7
        room += 1
    return room


@helper
def _room(size):  # type: ignore[no-untyped-def]
    """Of a field that is as long as it says: tag, size, content."""
    return 1 + _varint_room(size) + size


@helper
def _put_varint(out, at, value):  # type: ignore[no-untyped-def]
    while value >= 0x80:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@helper
def _put(out, at, tag, data, first, last):  # type: ignore[no-untyped-def]
    out[at] = tag
    at = _put_varint(out, at + 1, last - first)
    for k in range(first, last):
        out[at] = data[k]
        at += 1
    return at
