"""Decides whether one uri covers another: a folder its contents, a glob its matches, a database
itself. Links are followed first, so that none leads out. Pure except for resolving links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from glob import iglob
from pathlib import Path, PurePosixPath
from urllib.parse import SplitResult, unquote, urlsplit

from kalla.reconcile.recipe.model import DATABASES
from kalla.storage.path_patterns import MAGIC, matches

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MOST_ENTRIES = 200_000
_POSTGRES_PORT = 5432


class Refused(Exception):
    """The uri would be covered but is refused; the text is the end of a message."""


def covered(registered: str, asked: str) -> str | None:
    """The uri to read when `asked` is covered by `registered`, with links followed; else None."""
    kind, scheme = kind_of(registered), kind_of(asked)
    if kind != scheme:
        return None
    if kind == "file":
        return _covered_path(path_of(registered), path_of(asked))
    if kind == "database":
        return registered if _same_database(registered, asked) else None
    return _covered_key(registered, asked)


def demand_inside(uri: str, files: Sequence[str]) -> None:
    """Refuse files behind a link that leads out of a place whose own links were resolved before.

    Between the submission of a run and its execution, a file or a folder may have become a link.
    """
    if kind_of(uri) != "file":
        return
    path = path_of(uri)
    root = Path(path) if Path(path).exists() else Path(*_cut(PurePosixPath(path).parts)[0])
    if root.resolve() != root:
        raise Refused(f"{root} has become a link since the run was submitted")
    for file in files:
        if not _is_within(Path(file).resolve(), root):
            raise Refused(f"{file} is a link that leads out of the registered {root}")


def kind_of(uri: str) -> str:
    found = _SCHEME.match(uri)
    if found is None or found[1] == "file":
        return "file"
    scheme = found[1].lower()
    return "database" if scheme in DATABASES else scheme


def path_of(uri: str) -> str:
    return unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri


def _same_database(registered: str, asked: str) -> bool:
    """The user too; a recipe without one takes the registered user. Options are not for recipes:
    `?host=` would lead elsewhere.
    """
    if registered == asked:
        return True
    try:
        one, other = urlsplit(registered), urlsplit(asked)
        same = _database(one) == _database(other)
    except ValueError:
        return False
    users, options = (None, one.username), ("", one.query)
    return same and other.username in users and other.query in options


def _database(uri: SplitResult) -> tuple[str, int, str]:
    return unquote(uri.hostname or ""), uri.port or _POSTGRES_PORT, unquote(uri.path.strip("/"))


def _covered_key(registered: str, asked: str) -> str | None:
    """Object stores have no folders and no links: keys are compared part by part."""
    one, other = _segments(registered), _segments(asked)
    if one is None or other is None:
        return None
    fixed, pattern = _cut(one)
    other_fixed, other_pattern = _cut(other)
    if one == other:
        return asked
    if not pattern:
        return asked if other_fixed[: len(fixed)] == fixed else None
    named = not other_pattern and other[: len(fixed)] == fixed and matches(one, other, len(fixed))
    return _as_object(asked.rstrip("/")) if named else None


def _as_object(asked: str) -> str | None:
    """A pattern that names this object alone: by its key, all that is below it would be read too,
    and nobody can tell before."""
    pattern = re.sub(r"([A-Za-z0-9])([^A-Za-z0-9/]*)$", r"[\1]\2", asked)
    return pattern if pattern != asked else None


def _segments(uri: str) -> list[str] | None:
    rest = uri.split("://", 1)[1].rstrip("/")
    parts = rest.split("/")
    return None if any(part in ("", ".", "..") for part in parts) else parts


def _covered_path(registered: str, asked: str) -> str | None:
    if "\0" in asked or not asked.startswith("/") or ".." in PurePosixPath(asked).parts:
        return None
    try:
        root, pattern = _followed(registered)
        place, rest = _followed(asked)
        if not _covers(root, pattern, place, rest):
            return None
        for entry in _linking(place, rest):
            if not _is_within(entry.resolve(), root):
                raise Refused(f"{entry} is a link that leads out of the registered {root}")
    except (OSError, RuntimeError):
        return None  # no permission, a name too long, links in a circle
    return str(place.joinpath(*rest))


def _covers(root: Path, pattern: Sequence[str], place: Path, rest: Sequence[str]) -> bool:
    if not pattern:
        return _is_within(place, root)
    if rest:
        return place == root and list(rest) == list(pattern)
    # A pattern names files: of a folder it names what it says, and not all that is in it.
    return (
        _is_within(place, root)
        and not place.is_dir()
        and matches(pattern, place.relative_to(root).parts, 0)
    )


def _followed(path: str) -> tuple[Path, list[str]]:
    """The real place of what a path says without signs, and the parts from its first sign on."""
    if Path(path).exists():  # signs can be part of a name
        return Path(path).resolve(), []
    fixed, pattern = _cut(PurePosixPath(path).parts)
    return Path(*fixed).resolve(), pattern


def _cut(parts: Sequence[str]) -> tuple[list[str], list[str]]:
    for index, part in enumerate(parts):
        if MAGIC.search(part):
            return list(parts[:index]), list(parts[index:])
    return list(parts), []


def _is_within(place: Path, root: Path) -> bool:
    return place == root or root in place.parents


def _linking(place: Path, rest: Sequence[str]) -> Iterator[Path]:
    """What a folder or glob holds, as far as it may be a link or behind one."""
    for count, entry in enumerate(_all(place, rest)):
        if count >= _MOST_ENTRIES:
            raise Refused(f"{place} holds more than {_MOST_ENTRIES:,} entries: name a part of it")
        if rest or entry.is_symlink():
            yield entry


def _all(place: Path, rest: Sequence[str]) -> Iterator[Path]:
    if rest:
        for found in iglob(str(place.joinpath(*rest)), recursive=True):  # noqa: PTH207 -- as it is read
            yield Path(found)
    elif place.is_dir():
        for folder, names, files in os.walk(place):
            for name in (*names, *files):
                yield Path(folder, name)
