"""The compiled loop that puts each message's offset into its document, for a parser of many."""

from __future__ import annotations

from kalla.compiling import compiled

_OPEN, _COMMA, _LINE, _ZERO = ord("{"), ord(","), ord("\n"), ord("0")
DIGITS = 20  # of an offset, at most


@compiled("int: i1 i1 u1 u1 U1")
def splice(offsets, ends, values, head, out):  # type: ignore[no-untyped-def]
    """Write a line for each document: `head`, its offset, and what follows its opening brace.

    Returns how many bytes it wrote; negative if a document does not begin with a brace.
    """
    digits = out[len(out) - DIGITS :]
    at = 0
    for row in range(len(offsets)):
        start, end = ends[row], ends[row + 1]
        if start == end or values[start] != _OPEN:
            return -1
        for each in range(len(head)):
            out[at] = head[each]
            at += 1
        left = offsets[row]
        count = 0
        while left or not count:
            digits[count] = _ZERO + left % 10
            left //= 10
            count += 1
        for each in range(count):
            out[at] = digits[count - 1 - each]
            at += 1
        out[at] = _COMMA
        at += 1
        out[at : at + end - start - 1] = values[start + 1 : end]
        at += end - start - 1
        out[at] = _LINE
        at += 1
    return at
