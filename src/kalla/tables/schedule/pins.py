"""The newest versions of sources; of an unchanged Delta table by one read of its log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kalla.errors import InvalidInput, Problem
from kalla.tables.sources import mirrors
from kalla.tables.sources.snapshots import Pin, pin
from kalla.tables.store import Source

_Mark = tuple[int, int, int]


class PinCache:
    """The results of the newest read, for this process alone."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Pin, _Mark]] = {}

    def of(self, folder: str, sources: Sequence[Source]) -> tuple[dict[str, Pin], dict[str, str]]:
        """The pins, and why other sources cannot be read: tables of the rest continue."""
        pins: dict[str, Pin] = {}
        problems: dict[str, str] = {}
        for each in sources:
            try:
                pins[each.name] = self._pin(folder, each)
            except InvalidInput as error:
                problems[each.name] = str(error)
            except OSError as error:
                problems[each.name] = str(Problem(each.name, f"cannot be read: {error}"))
        return pins, problems

    def _pin(self, folder: str, source: Source) -> Pin:
        place = _location(folder, source)
        known = self._known.get(place)
        if known is not None and _newest(known[0]) == known[1]:
            return known[0]
        found = pin_source(folder, source)
        self._known.pop(place, None)
        if found.kind == "delta" and (mark := _newest(found)) is not None:
            self._known[place] = (found, mark)
        return found


def pin_source(folder: str, source: Source) -> Pin:
    """The newest version of a source, of a registered table that of its mirror."""
    format_ = "delta" if source.format == "registered" else source.format
    return pin(source.name, _location(folder, source), format_)


def _location(folder: str, source: Source) -> str:
    if source.format == "registered":
        return mirrors.mirror_location(folder, source.name)
    return source.location


def _newest(pinned: Pin) -> _Mark | None:
    """The mark of the pinned version's file, if it is the newest: a table that was created again
    has another file.
    """
    log = Path(pinned.location) / "_delta_log"
    if (log / f"{pinned.version + 1:020d}.json").exists():
        return None
    try:
        facts = (log / f"{pinned.version:020d}.json").stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
