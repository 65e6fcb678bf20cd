"""Writes labels as text in a kernel, for the usual case: sorted, unique, nothing to escape.

Python handles all other cases and refuses invalid labels.
"""

from __future__ import annotations

import numpy as np

from kalla.compiling import compiled, helper
from kalla.query.array_types import Whole
from kalla.query.store.label_keys import Bytes

# The positions of a text and its metric's name; -1 where the text is not plain.
FROM, TO, NAME_FROM, NAME_TO = range(4)

_METRIC = np.frombuffer(b"__name__", np.uint8)
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _BACKSLASH = b'",:{}\\'


def label_texts(data: Bytes, spans: Whole) -> tuple[bytes, Whole]:
    """The texts of label sets, as `series.text_of` has them; the position of each plain one."""
    # A label takes six bytes in addition to its name and value, in both forms.
    out = np.empty(int((spans[:, 1] - spans[:, 0]).sum()) + 2 * len(spans), np.uint8)
    found = np.empty((len(spans), 4), np.int64)
    size = _write_label_set(data, spans, out, found)
    return out[:size].tobytes(), found


@compiled("int: u1 i2 U1 I2")
def _write_label_set(data, spans, out, found):  # type: ignore[no-untyped-def]
    to = 0
    for i in range(len(spans)):
        at, end, begin = spans[i, 0], spans[i, 1], to
        found[i] = -1
        if at < 0 or at >= end:
            continue
        out[to] = _OPEN
        to += 1
        name, size = at, 0
        while at < end:
            length, width = _plain_label(data, at, end)
            if length == 0 or (size > 0 and not _follows(data, at + 4, length, name, size)):
                break
            name, size = at + 4, length
            to = _put(data, name, length, out, to)
            out[to] = _COLON
            if _is_metric(data, name, size):
                found[i, NAME_FROM] = to + 2
                found[i, NAME_TO] = to + 2 + width
            to = _put(data, name + length + 2, width, out, to + 1)
            out[to] = _COMMA
            to += 1
            at = name + length + 2 + width
        if at == end and found[i, NAME_FROM] >= 0:
            out[to - 1] = _CLOSE
            found[i, FROM] = begin
            found[i, TO] = to
        else:
            to = begin
    return to


@helper
def _plain_label(data, at, end):  # type: ignore[no-untyped-def]
    """How long name and value of a label are; 0 if it is not plain, or longer than 127 bytes."""
    if end - at < 8 or data[at] != 0x0A or data[at + 1] >= 0x80 or data[at + 2] != 0x0A:
        return 0, 0
    whole, length = np.int64(data[at + 1]), np.int64(data[at + 3])
    then = at + 4 + length
    if length == 0 or length > whole - 5 or whole > end - at - 2 or data[then] != 0x12:
        return 0, 0
    width = np.int64(data[then + 1])
    if width == 0 or length + width + 4 != whole:
        return 0, 0
    plain = True
    for k in range(at + 4, then + 2 + width):
        byte = data[k]
        fits = 0x20 <= byte < 0x7F and byte != _QUOTE and byte != _BACKSLASH
        plain = plain and (fits or k == then or k == then + 1)
    return (length, width) if plain else (0, 0)


@helper
def _follows(data, name, length, before, size):  # type: ignore[no-untyped-def]
    """Whether a name comes after another, and is not the same."""
    for k in range(min(length, size)):
        if data[name + k] != data[before + k]:
            return data[name + k] > data[before + k]
    return length > size


@helper
def _is_metric(data, name, length):  # type: ignore[no-untyped-def]
    alike = length == len(_METRIC)
    for k in range(len(_METRIC)):
        alike = alike and data[name + k] == _METRIC[k]
    return alike


@helper
def _put(data, first, length, out, to):  # type: ignore[no-untyped-def]
    out[to] = _QUOTE
    for k in range(length):
        out[to + 1 + k] = data[first + k]
    out[to + 1 + length] = _QUOTE
    return to + 2 + length
