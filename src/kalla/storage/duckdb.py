"""S3 as DuckDB asks for it: about its ways with files, and so apart from what a URL is."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias, cast

import pyarrow as pa
from fsspec.spec import AbstractFileSystem
from pyarrow import fs

from kalla.errors import Unavailable

ErrorTranslator: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Turns what goes wrong with a URL into an error of ours."""


class S3ForDuckDB(AbstractFileSystem):  # type: ignore[misc]
    """What DuckDB asks of a filesystem. A file is as it was when it was first looked at."""

    protocol = "s3"
    cachable = False

    def __init__(self, filesystem: fs.FileSystem, translate_errors: ErrorTranslator) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._translate_errors = translate_errors
        self._known: dict[str, fs.FileInfo] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("s3://")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return _entry(self._look(path))

    def modified(self, path: str) -> datetime:
        return cast(datetime, self._look(path).mtime)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        selector = fs.FileSelector(self._strip_protocol(path), allow_not_found=True)
        found = self._filesystem.get_file_info(selector)
        return [_entry(each) if detail else each.path for each in found]

    def _look(self, path: str) -> fs.FileInfo:
        """Asked for again and again, and each time it would be a request."""
        path = self._strip_protocol(path)
        if path not in self._known:
            with self._translate_errors(f"s3://{path}"):
                info = self._filesystem.get_file_info(path)
            if info.type == fs.FileType.NotFound:
                raise FileNotFoundError(f"s3://{path} does not exist")
            self._known[path] = info
        return self._known[path]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> _SharedFile:
        if mode != "rb":
            raise PermissionError("DuckDB only reads from S3 here")
        url = f"s3://{path}"
        with self._translate_errors(url):
            opened = self._filesystem.open_input_file(path)
        if opened.size() != self._look(path).size:
            raise Unavailable(f"{url} has changed while it was read: start again")
        return _SharedFile(opened, partial(self._translate_errors, url))


def _entry(info: fs.FileInfo) -> dict[str, Any]:
    kind = "directory" if info.type == fs.FileType.Directory else "file"
    return {"name": info.path, "size": info.size, "type": kind, "mtime": info.mtime}


class _SharedFile(io.RawIOBase):
    """A file that several threads seek and read at once, as DuckDB does with one handle.

    What a thread sought is where it reads next; who has not sought reads on after the last.
    """

    def __init__(
        self, opened: pa.NativeFile, translate_errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__()
        self._opened = opened
        self._translate_errors = translate_errors
        self._place = 0
        self._sought: dict[int, int] = {}

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._opened.size()}
        self._place = self._sought[get_ident()] = start[whence] + place
        return self._place

    def read(self, size: int = -1) -> bytes:
        place = self._sought.pop(get_ident(), self._place)
        wanted = self._opened.size() - place if size < 0 else size
        with self._translate_errors():
            found: bytes = self._opened.read_at(wanted, place)
        self._place = place + len(found)
        return found

    def tell(self) -> int:
        return self._place

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._opened.close()
        super().close()
