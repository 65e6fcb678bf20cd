"""How often Java may try, where no cancel reaches it: for a pattern, on a text of some length.

Each choice multiplies what comes after it: how often a piece repeats, which branch is taken, where
a match begins. One that the next character decides is none: `[0-9]+-` never gives a digit back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kalla.spark.sandbox.regex.regex_patterns import (
    EVERY,
    OTHERS,
    Group,
    Node,
    Place,
    Repeat,
    Sequence,
    Sign,
    Signs,
    Unreadable,
)

MOST: Final = 5_000_000_000
_ENOUGH: Final = 10**18  # further, nobody needs to count
_MOST_CALLS: Final = 1_000  # of Java within itself
_MOST_COPIES: Final = 50  # of a group that is not always of one width


def of_pattern(pattern: Group, length: int) -> int:
    """Raises Unreadable for a group that is repeated without a bound, or often, and may be of
    several widths: tries would double with every character, and Java recur for each."""
    if any(map(_recurs, _repeats(pattern))):
        raise Unreadable
    starts = 1 if all(map(_is_anchored, pattern.branches)) else length
    steps, _ = _group(_trimmed(pattern), 0, length)
    return min(starts * steps, _ENOUGH)


def of_like(percent_signs: int, length: int) -> int:
    """`percent_signs` without one at the end, which takes whatever is left."""
    count: int = length**percent_signs
    return min(count, _ENOUGH)


def _is_anchored(branch: Sequence) -> bool:
    return bool(branch) and branch[0] == Place("start")


def _trimmed(group: Group) -> Group:
    """Without repetitions at the end that cannot fail: what is left to them is taken once."""
    return replace(group, branches=tuple(map(_without_end, group.branches)))


def _without_end(branch: Sequence) -> Sequence:
    while branch:
        *before, last = branch
        if isinstance(last, Group) and last.kind == "plain":
            return (*before, _trimmed(last))
        if not isinstance(last, Repeat) or _width(last.body) is None:
            break
        if last.least:
            return (*before, replace(last, most=last.least))
        branch = tuple(before)
    return branch


def _first(sequence: Sequence, after: Signs) -> Signs:
    """The characters that may come next, before a sequence and what comes after it; none if
    that cannot fail, or at one place alone."""
    for node in reversed(sequence):
        after = _first_of(node, after)
    return after


def _first_of(node: Node, after: Signs) -> Signs:
    if isinstance(node, Sign):
        return node.signs
    if isinstance(node, Place):
        return 0 if node.kind == "end" else after or EVERY
    if isinstance(node, Repeat):
        return _first_of(node.body, after) | (0 if node.least else after)
    if node.kind == "behind":
        return EVERY
    # What looks ahead is tried wherever it is reached, whatever comes after it.
    signs, after = (after, 0) if node.kind == "ahead" else (0, after)
    for branch in node.branches:
        signs |= _first(branch, after)
    return signs


def _sequence(sequence: Sequence, after: Signs, length: int) -> tuple[int, int]:
    """How many steps it takes from one place, and in how many ways it may be left."""
    steps, ways = 0, 1
    for place, node in enumerate(sequence):
        more, times = _node(node, _first(sequence[place + 1 :], after), length)
        steps, ways = _bounded(steps + ways * more, ways * times)
    return steps, ways


def _node(node: Node, after: Signs, length: int) -> tuple[int, int]:
    if isinstance(node, Group):
        return _group(node, after, length)
    if isinstance(node, Repeat):
        return _repeat(node, after, length)
    return 1, 1


def _group(group: Group, after: Signs, length: int) -> tuple[int, int]:
    alone = group.kind != "plain"
    counted = [_sequence(each, 0 if alone else after, length) for each in group.branches]
    steps, ways = 1 + sum(each for each, _ in counted), sum(each for _, each in counted)
    if group.kind == "behind":  # from each place before that it may have begun at
        steps *= steps
    return _bounded(steps, 1 if alone else ways)


def _repeat(node: Repeat, after: Signs, length: int) -> tuple[int, int]:
    most = length if node.most is None else min(node.most, length)
    least = min(node.least, most)
    again = _first_of(node.body, after)
    decided = node.possessive or not again & after
    if _width(node.body) is not None:
        steps, _ = _node(node.body, after, length)
        return _bounded(1 + most * steps, 1 if decided else most - least + 1)
    if node.most is None or node.most > _MOST_COPIES:
        raise Unreadable
    each, choices = _node(node.body, 0 if node.possessive else again | after, length)
    steps, ways, left = 1, 0 if least else 1, 1
    for number in range(1, most + 1):
        steps, left = _bounded(steps + left * each, left * choices)
        ways = max(ways, left) if decided else ways + left * (number >= least)
    return _bounded(steps, 1 if node.possessive else ways)


def _repeats(node: Node) -> Iterator[Repeat]:
    if isinstance(node, Repeat):
        yield node
        yield from _repeats(node.body)
    elif isinstance(node, Group):
        for branch in node.branches:
            for each in branch:
                yield from _repeats(each)


def _recurs(node: Repeat) -> bool:
    """Whether Java calls itself anew each time that the repeated part is of another width.

    An emoji is two of its characters, so that a part may be of two widths wherever it takes more
    than ASCII. The stack of a task, and Spark with it, ends after some ten thousand such calls,
    however long a text the sources have. A class before `*` or `+` is read in a loop.
    """
    if node.possessive or (node.most is not None and node.most <= _MOST_CALLS):
        return False
    is_loop = isinstance(node.body, Sign) and node.most is None and node.least <= 1
    return not is_loop and _takes_others(node.body)


def _takes_others(node: Node) -> bool:
    if isinstance(node, Sign):
        return bool(node.signs & OTHERS)
    if isinstance(node, Repeat):
        return _takes_others(node.body)
    if isinstance(node, Place):
        return False
    return any(_takes_others(each) for branch in node.branches for each in branch)


def _width(node: Node) -> int | None:
    """In characters, of what is always of one width and chooses nothing, and takes any at all."""
    if isinstance(node, Sign):
        return 1
    if isinstance(node, Group) and len(node.branches) == 1 and node.kind in ("plain", "atomic"):
        widths = [0 if isinstance(each, Place) else _width(each) for each in node.branches[0]]
        return None if None in widths else sum(each or 0 for each in widths) or None
    if isinstance(node, Repeat) and node.least == node.most and (width := _width(node.body)):
        return width * node.least or None
    return None


def _bounded(steps: int, ways: int) -> tuple[int, int]:
    return min(steps, _ENOUGH), min(ways, _ENOUGH)
