"""Files as they are now: one, all below a folder, or those that a pattern names.

Folders of this machine are gone through here, for links in them may lead in circles or nowhere.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from pyarrow import fs

from kalla.errors import InvalidInput, Problem
from kalla.storage.path_patterns import MAGIC, is_hidden, leads, matches
from kalla.threads import spread

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE = 16  # requests


@dataclass(frozen=True)
class File:
    """A file as it is now. Size and time are its mark: another content has another one.

    On disk it also has an inode, and the time when anything about it changed, which nobody sets; on
    S3, where it was asked for, what the server calls its content, and a version if it keeps them.
    """

    url: str
    size: int
    modified: datetime | None = None
    changed: datetime | None = None
    inode: tuple[int, int] | None = None  # its device and its number there
    etag: str | None = None
    version: str | None = None

    @property
    def mark(self) -> dict[str, str | int | None]:
        when = self.modified.isoformat() if self.modified else None
        found: dict[str, str | int | None] = {
            "file": self.url,
            "bytes": self.size,
            "modified": when,
        }
        if self.changed and self.inode:
            found |= {"changed": self.changed.isoformat(), "inode": self.inode[1]}
        if self.etag:
            found["etag"] = self.etag
        if self.version:
            found["version"] = self.version
        return found


def now(filesystem: fs.FileSystem, paths: Sequence[str]) -> list[File | None]:
    """Files of one filesystem, all asked for at once; None where there is none."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return [_on_disk(path, _status(path)) for path in paths]
    return [_on_s3(info) for info in filesystem.get_file_info(list(paths))]


def tagged(filesystem: fs.FileSystem, files: Sequence[File | None]) -> list[File | None]:
    """Adds what S3 reports beyond a listing, one request a file; None if a file is missing."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return list(files)

    def ask(file: File | None) -> File | None:
        if file is None:
            return None
        try:
            with filesystem.open_input_file(file.url.removeprefix("s3://")) as opened:
                headers = {name: value.decode() for name, value in opened.metadata().items()}
        except FileNotFoundError:
            return None
        return replace(
            file, etag=headers.get("ETag", "").strip('"'), version=headers.get("VersionId")
        )

    return list(spread(ask, files, _AT_ONCE, "tags"))


def below(filesystem: fs.FileSystem, folder: str) -> list[File]:
    """All files below a folder whose names, and those of their folders, are not hidden."""

    def is_seen(path: str) -> bool:
        return not is_hidden(path[len(folder) :])

    if isinstance(filesystem, fs.LocalFileSystem):
        return list(_walked(folder, is_seen, is_seen))
    found = _listed(filesystem, folder)
    return [each for each in found if is_seen(each.url.removeprefix("s3://"))]


def named(filesystem: fs.FileSystem, pattern: str) -> list[File]:
    """The files that a pattern names."""
    parts = pattern.split("/")
    first = next(place for place, part in enumerate(parts) if MAGIC.search(part))
    folder = "/".join(parts[:first])

    def is_named(path: str) -> bool:
        return matches(parts, path.split("/"), first)

    if isinstance(filesystem, fs.LocalFileSystem):
        return list(_walked(folder or "/", lambda it: leads(parts, it.split("/"), first), is_named))
    if first == 0:
        raise InvalidInput(Problem("", f"s3://{pattern} is a pattern of buckets: name one bucket"))
    deep = len(parts) - first > 1 or "**" in parts
    found = _listed(filesystem, folder, recursive=deep)
    return [each for each in found if is_named(each.url.removeprefix("s3://"))]


def each_once(files: Sequence[File]) -> tuple[list[File], list[File]]:
    """Each file by one name, its own before that of a link to it, and the files' other names."""
    if len({each.inode or each.url for each in files}) == len(files):
        return list(files), []
    kept: dict[object, File] = {}
    for each in sorted(files, key=lambda each: (os.path.realpath(each.url) != each.url, each.url)):
        kept.setdefault(each.inode or each.url, each)
    chosen = set(kept.values())
    return [each for each in files if each in chosen], [
        each for each in files if each not in chosen
    ]


def _listed(filesystem: fs.FileSystem, folder: str, *, recursive: bool = True) -> Iterator[File]:
    selector = fs.FileSelector(folder, recursive=recursive, allow_not_found=True)
    found = map(_on_s3, filesystem.get_file_info(selector))
    return (each for each in found if each is not None)


def _walked(
    folder: str, is_entered: Callable[[str], bool], is_wanted: Callable[[str], bool]
) -> Iterator[File]:
    """Files below a folder; a link to a folder that this one lies in is not followed."""
    real = Path(os.path.realpath(folder))
    above = {_inode(status) for each in (real, *real.parents) if (status := _status(str(each)))}
    yield from _entered(folder, above, is_entered, is_wanted)


def _entered(
    folder: str,
    above: set[tuple[int, int]],
    is_entered: Callable[[str], bool],
    is_wanted: Callable[[str], bool],
) -> Iterator[File]:
    paths: list[str] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        paths = sorted(entry.path for entry in entries)
    for path in paths:
        enters, wants = is_entered(path), is_wanted(path)
        if not enters and not wants:
            continue
        status = _status(path)
        if status is None:
            if wants and Path(path).is_symlink():
                raise InvalidInput(
                    Problem("", f"{path} is a link that leads nowhere: remove or mend it")
                )
        elif S_ISDIR(status.st_mode):
            if enters and _inode(status) not in above:
                yield from _entered(path, above | {_inode(status)}, is_entered, is_wanted)
        elif wants and (file := _on_disk(path, status)):
            _demand_name(path)
            yield file


def _demand_name(path: str) -> None:
    """A name of other bytes than UTF-8, as some archives leave them, cannot be shown."""
    shown = os.fsencode(path).decode(errors="replace")
    if shown != path:
        raise InvalidInput(Problem("", f"the name {shown} is not UTF-8: rename the file"))


def _status(path: str) -> os.stat_result | None:
    """What a path leads to, or None if there is nothing."""
    try:
        return Path(path).stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _on_disk(path: str, status: os.stat_result | None) -> File | None:
    if status is None or not S_ISREG(status.st_mode):
        return None
    modified, changed = (
        _EPOCH + timedelta(microseconds=nanoseconds // 1000)
        for nanoseconds in (status.st_mtime_ns, status.st_ctime_ns)
    )
    return File(path, status.st_size, modified, changed, _inode(status))


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _on_s3(info: fs.FileInfo) -> File | None:
    if info.type != fs.FileType.File:
        return None
    return File(f"s3://{info.path}", info.size, info.mtime)
