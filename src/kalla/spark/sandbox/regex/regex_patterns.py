"""Regular expressions, read as Java does, as far as it takes to count what they may try.

What only Java would understand is refused: references back, quotation, comments, a class within a
class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Signs = int
"""A set of characters: a bit for each of the first 128, and one for all the others together."""

OTHERS: Final[Signs] = 1 << 128
EVERY: Final[Signs] = (OTHERS << 1) - 1


class Unreadable(Exception):
    """A pattern whose tries cannot be counted."""


@dataclass(frozen=True)
class Sign:
    """One character of these."""

    signs: Signs


@dataclass(frozen=True)
class Place:
    """No character: `start` and `end` hold at one place of a text, `some` at any number."""

    kind: str


@dataclass(frozen=True)
class Group:
    """One of its branches: `plain`, or one that is never tried in another way once it is left:
    `atomic`, or `ahead` or `behind`, which take no character."""

    branches: tuple[tuple[Node, ...], ...]
    kind: str = "plain"
    captures: bool = False

    @property
    def takes_nothing(self) -> bool:
        return self.kind in ("ahead", "behind")


@dataclass(frozen=True)
class Repeat:
    body: Node
    least: int
    most: int | None
    possessive: bool = False


Node = Sign | Place | Group | Repeat
Sequence = tuple[Node, ...]


def read(pattern: str) -> Group:
    """Raises Unreadable."""
    reader = _Reader(pattern)
    found = reader.branches()
    if not reader.ended:  # a bracket that closes nothing
        raise Unreadable
    return Group(found)


def looks_around_for_a_group(node: Node) -> bool:
    """Whether a group is found beyond what matches, so that each match may give the whole text."""
    if isinstance(node, Repeat):
        return looks_around_for_a_group(node.body)
    if not isinstance(node, Group):
        return False
    inside = [each for branch in node.branches for each in branch]
    if node.takes_nothing:
        return any(map(_captures, inside))
    return any(map(looks_around_for_a_group, inside))


def _captures(node: Node) -> bool:
    if isinstance(node, Repeat):
        return _captures(node.body)
    if not isinstance(node, Group):
        return False
    return node.captures or any(_captures(each) for branch in node.branches for each in branch)


def _of(text: str) -> Signs:
    signs = 0
    for each in text:
        signs |= 1 << ord(each) if ord(each) < 128 else OTHERS
    return signs


def _between(first: str, last: str) -> Signs:
    if first > last:
        raise Unreadable
    signs = OTHERS if ord(last) > 127 else 0
    for code in range(ord(first), min(ord(last), 127) + 1):
        signs |= 1 << code
    return signs


def _but(signs: Signs) -> Signs:
    return (EVERY & ~signs) | OTHERS


_DIGIT: Final = _between("0", "9")
_WORD: Final = _DIGIT | _between("a", "z") | _between("A", "Z") | _of("_")
_SPACE: Final = _of(" \t\n\x0b\f\r")
_ACROSS: Final = _of(" \t\xa0")
_DOWN: Final = _of("\n\x0b\f\r\x85")
_CLASSES: Final[Mapping[str, Signs]] = {
    "d": _DIGIT, "D": _but(_DIGIT), "w": _WORD, "W": _but(_WORD), "s": _SPACE, "S": _but(_SPACE),
    "h": _ACROSS, "H": _but(_ACROSS), "v": _DOWN, "V": _but(_DOWN),
    "t": _of("\t"), "n": _of("\n"), "r": _of("\r"), "f": _of("\f"), "a": _of("\a"),
    "e": _of("\x1b"),
}  # fmt: skip
_PLACES: Final = {"A": "start", "z": "end", "Z": "end", "b": "some", "B": "some"}
# By its number, or by what Unicode says of it.
_CODED: Final = re.compile(
    r"x[0-9a-fA-F]{2}|x\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|0[0-7]{1,3}|[pP](?:\{[^}]*\}|\w)"
)
_FLAGS: Final = re.compile(r"\?([imsduU]*(?:-[imsduU]*)?)([:)])")
_OPENING: Final = re.compile(r"\?(?:([:=!>])|(<=|<!)|<[a-zA-Z][a-zA-Z0-9]*>)")
_KINDS: Final = {":": "plain", "=": "ahead", "!": "ahead", ">": "atomic", None: "plain"}
_REPEAT: Final = re.compile(r"(?:([*+?])|\{(\d{1,6})(?:(,)(\d{1,6})?)?\})([?+]?)")


class _Reader:
    def __init__(self, pattern: str) -> None:
        flags = "".join(found[1] for found in re.finditer(r"\(\?([a-zA-Z-]+)[:)]", pattern))
        self._pattern = pattern
        self._at = 0
        self._any_case = "i" in flags
        self._unicode = "u" in flags.lower()
        self._lines = "m" in flags

    @property
    def ended(self) -> bool:
        return self._at == len(self._pattern)

    def branches(self) -> tuple[Sequence, ...]:
        found, pieces = list[Sequence](), list[Node]()
        while not self.ended and self._next != ")":
            if self._takes("|"):
                found.append(tuple(pieces))
                pieces = []
            elif (atom := self._atom()) is not None:
                pieces.append(self._repeated(atom))
        return (*found, tuple(pieces))

    @property
    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _takes(self, sign: str) -> bool:
        if self._next != sign:
            return False
        self._at += 1
        return True

    def _match(self, expected: re.Pattern[str]) -> re.Match[str] | None:
        if (found := expected.match(self._pattern, self._at)) is not None:
            self._at = found.end()
        return found

    def _atom(self) -> Node | None:
        sign = self._next
        self._at += 1
        if sign == "(":
            return self._group()
        if sign == "[":
            return self._sign(self._class())
        if sign == "\\":
            return self._escaped()
        if sign in "^$":
            return self._place("start" if sign == "^" else "end")
        if sign in "*+?{":  # one repetition after another, or of nothing
            raise Unreadable
        return self._sign(EVERY if sign == "." else _of(sign))

    def _group(self) -> Node | None:
        kind, captures = "plain", True
        if (flags := self._match(_FLAGS)) is not None:
            if flags[2] == ")":
                return None
            captures = False
        elif (opening := self._match(_OPENING)) is not None:
            kind = "behind" if opening[2] else _KINDS[opening[1]]
            captures = opening[0].endswith(">") and opening[1] is None
        elif self._next == "?":
            raise Unreadable
        found = self.branches()
        if not self._takes(")"):
            raise Unreadable
        return Group(found, kind, captures)

    def _escaped(self) -> Node:
        if self._match(_CODED):
            return Sign(EVERY)
        sign = self._next
        if sign in _PLACES and sign:
            self._at += 1
            return self._place(_PLACES[sign])
        return self._sign(self._escaped_signs())

    def _escaped_signs(self) -> Signs:
        if self._match(_CODED):
            return EVERY
        sign = self._next
        self._at += 1
        if sign in _CLASSES:
            return _CLASSES[sign]
        if not sign or (sign.isascii() and sign.isalnum()):
            raise Unreadable
        return _of(sign)

    def _class(self) -> Signs:
        without = self._takes("^")
        signs = _of("]") if self._takes("]") else 0
        while not self._takes("]"):
            signs |= self._members()
        return _but(signs) if without else signs

    def _members(self) -> Signs:
        first = self._next
        self._at += 1
        if not first or first == "[" or (first == "&" and self._next == "&"):
            raise Unreadable
        signs = self._escaped_signs() if first == "\\" else _of(first)
        if self._next != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return signs
        self._at += 1
        last = self._next
        self._at += 1
        if last == "[":
            raise Unreadable
        if last == "\\":
            self._escaped_signs()
        return EVERY if "\\" in (first, last) else _between(first, last)

    def _sign(self, signs: Signs) -> Sign:
        if self._unicode:
            return Sign(EVERY)
        if self._any_case:
            small, large = signs & _between("a", "z"), signs & _between("A", "Z")
            signs |= small >> 32 | large << 32
        return Sign(signs)

    def _place(self, kind: str) -> Place:
        return Place("some" if self._lines else kind)

    def _repeated(self, atom: Node) -> Node:
        found = self._match(_REPEAT)
        if found is None:
            return atom
        if isinstance(atom, Place) or (isinstance(atom, Group) and atom.takes_nothing):
            raise Unreadable
        sign, least, comma, most, manner = found.groups()
        if sign:
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        elif comma:
            bounds = (int(least), int(most) if most else None)
        else:
            bounds = (int(least), int(least))
        return Repeat(atom, *bounds, possessive=manner == "+")
