"""Which files a pattern names: the same on disk, on S3, and for what is registered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

MAGIC = re.compile(r"[*?\[]")


def matches(pattern: Sequence[str], path: Sequence[str], plain: int) -> bool:
    """Whether a pattern names a file, both part by part; the first `plain` parts are the same."""
    return len(pattern) in _reached(pattern, path, plain)


def leads(pattern: Sequence[str], folder: Sequence[str], plain: int) -> bool:
    """Whether a pattern may name files below a folder."""
    return any(place < len(pattern) for place in _reached(pattern, folder, plain))


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder that it lies in, begins with . or _."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _part_matches(pattern: str, part: str) -> bool:
    if part.startswith((".", "_")) and pattern[:1] != part[0]:
        return False
    return pattern == "**" or fnmatchcase(part, pattern)


def _reached(pattern: Sequence[str], path: Sequence[str], plain: int) -> set[int]:
    """All places of the pattern that can have been reached after the last part of the path."""
    last = len(pattern) - 1

    def onward(places: set[int]) -> set[int]:
        for place in range(last):  # a ** may stand for nothing, but at the end for a name at least
            if place in places and pattern[place] == "**":
                places.add(place + 1)
        return places

    places = onward({plain})
    for part in path[plain:]:
        fitting = {
            place
            for place in places
            if place < len(pattern) and _part_matches(pattern[place], part)
        }
        stay = {place for place in fitting if pattern[place] == "**"}
        places = onward(stay | {place + 1 for place in fitting - stay | (stay & {last})})
    return places
