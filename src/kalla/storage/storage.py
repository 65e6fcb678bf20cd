"""URL -> filesystem: the one place that knows s3:// from a folder.

A Storage is a small value that travels into Spark tasks; it opens what it needs when it is called.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs
from pydantic import SecretStr

from kalla import settings
from kalla.errors import InvalidInput, NotFound, Problem
from kalla.storage.files import File, below, named, now, tagged
from kalla.storage.path_patterns import MAGIC
from kalla.storage.scratch import scratch
from kalla.storage.storage_failures import is_denial, translate_errors

if TYPE_CHECKING:
    import duckdb

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NONE = SecretStr("")
_PIECE = 4 << 20


@dataclass(frozen=True)
class S3:
    """How an S3 is reached. Without keys: as the machine is set up."""

    endpoint: str = ""
    region: str = "us-east-1"
    access_key: SecretStr = _NONE
    secret_key: SecretStr = _NONE

    def filesystem(self) -> fs.FileSystem:
        return _s3_filesystem(self)


@dataclass(frozen=True)
class Storage:
    """Folders of this machine and, where `s3` says how, buckets. A URL is a path, file:// or s3://."""

    s3: S3 | None = None

    @classmethod
    def of(cls, given: settings.Storage) -> Storage:
        return cls(S3(given.s3_endpoint, given.s3_region, given.s3_access_key, given.s3_secret_key))

    # Reading

    def files(self, url: str) -> tuple[File, ...]:
        """The file itself; all files below a folder; or all that a pattern (*, ?, [a], **) names.

        In order of their names. Names that begin with . or _ are left out below a folder, and where
        a pattern does not name them so. NotFound if there is none.
        """
        filesystem, path = self.filesystem(url)
        with translate_errors(url):
            (info,) = filesystem.get_file_info([path])
            if info.type == fs.FileType.File:
                return (self.info(url),)
            if info.type == fs.FileType.Directory:
                found = below(filesystem, path)
            elif info.type == fs.FileType.Unknown:
                raise InvalidInput(Problem("", f"{url} is neither a file nor a folder"))
            elif MAGIC.search(path):
                found = named(filesystem, path)
            else:
                self._require_bucket(url)
                raise NotFound(f"{_whole(url, path)} does not exist")
            if not found:
                self._require_bucket(url)
                raise NotFound(f"{_whole(url, path)} holds no file")
        return tuple(sorted(found, key=lambda each: each.url))

    def info(self, url: str) -> File:
        """One file; NotFound if there is none."""
        filesystem, path = self.filesystem(url)
        with translate_errors(url):
            (found,) = now(filesystem, [path])
            if found is None:
                self._require_bucket(url)
                raise NotFound(f"there is no file {url}")
        return found

    def now(self, urls: Sequence[str], *, with_tags: bool = False) -> dict[str, File | None]:
        """Files of one place as they are now, all asked for at once; None is one that is gone."""
        if not urls:
            return {}
        filesystem, _ = self.filesystem(urls[0])
        with translate_errors(urls[0]):
            found = now(filesystem, [self.filesystem(url)[1] for url in urls])
            if with_tags:
                found = tagged(filesystem, found)
        return dict(zip(urls, found, strict=True))

    def tagged(self, files: Sequence[File]) -> list[File]:
        """Files of one place with all that their storage knows; NotFound if one is gone."""
        filesystem, _ = self.filesystem(files[0].url)
        with translate_errors(files[0].url):
            found = tagged(filesystem, files)
        for file, now_there in zip(files, found, strict=True):
            if now_there is None:
                raise NotFound(f"{file.url} does not exist")
        return [each for each in found if each is not None]

    def size(self, url: str) -> int:
        return self.info(url).size

    def holds(self, url: str) -> bool:
        """Whether there is a file, or a folder with anything in it."""
        filesystem, path = self.filesystem(url)
        with translate_errors(url):
            (info,) = filesystem.get_file_info([path])
            if info.type != fs.FileType.Directory:
                return bool(info.type != fs.FileType.NotFound)
            return bool(filesystem.get_file_info(fs.FileSelector(path)))

    def plain(self, url: str) -> str:
        """The URL as files below it have theirs: s3://, or a path without escapes."""
        return _url(url, self.filesystem(url)[1])

    def folder_with(self, name: str, files: Sequence[File]) -> str | None:
        """The topmost folder that any of these files lies in, near or far, and that has such an
        entry."""
        url = files[0].url
        filesystem, _ = self.filesystem(url)
        homes = {self.filesystem(each.url)[1].rpartition("/")[0] for each in files}
        shared = os.path.commonpath(homes)
        above = [each for each in _with_parents(shared) if each != shared]
        below = {each for home in homes for each in _with_parents(home)} - set(above)
        with translate_errors(url):
            for folder in above:
                try:
                    if _first_with(name, [folder], filesystem):
                        return _url(url, folder)
                except OSError as error:
                    # Above a folder that is theirs, some may not even ask what is in the bucket.
                    if not is_denial(error):
                        raise
            found = _first_with(name, sorted(below), filesystem)
        return _url(url, found) if found else None

    def folders(self, url: str) -> list[str]:
        """The names of the folders in a folder; none if the folder does not exist."""
        filesystem, path = self.filesystem(url)
        with translate_errors(url):
            if filesystem.get_file_info(path).type != fs.FileType.Directory:
                return []
            found = filesystem.get_file_info(fs.FileSelector(path))
            return sorted(each.base_name for each in found if each.type == fs.FileType.Directory)

    def names(self, url: str) -> list[str]:
        """The names of everything in a folder, hidden files too; none if it does not exist."""
        filesystem, path = self.filesystem(url)
        with translate_errors(url):
            found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
            return sorted(each.base_name for each in found)

    @contextmanager
    def open(self, url: str) -> Iterator[BinaryIO]:
        """The bytes of a file, from any place in it; what fails inside is translated as here."""
        filesystem, path = self.filesystem(url)
        with translate_errors(url), filesystem.open_input_file(path) as opened:
            yield cast(BinaryIO, opened)

    def mapped(self, url: str) -> pa.NativeFile:
        """A file whose pieces are read where they lie on disk, and from S3 each by itself."""
        filesystem, path = self.filesystem(url)
        with translate_errors(url):
            return filesystem.open_input_file(path) if is_s3(url) else pa.memory_map(path)

    def read_text(self, url: str) -> str:
        with self.open(url) as opened:
            return opened.read().decode()

    # Writing

    def put(self, local: Path, url: str) -> None:
        """Copy a file here, or all of a folder, to the URL; folders are made.

        The folder's own files go last: who sees its metadata.json sees all that it tells of.
        """
        filesystem, path = self.filesystem(url)
        found = (
            [local] if local.is_file() else [each for each in local.rglob("*") if each.is_file()]
        )
        with translate_errors(url):
            for each in sorted(found, key=lambda each: (each.parent == local, each)):
                target = path if each == local else join(path, *each.relative_to(local).parts)
                _make_parent(filesystem, target)
                _copy(fs.LocalFileSystem(), str(each), filesystem, target)

    @contextmanager
    def writing(self, url: str) -> Iterator[Path]:
        """A path to write a file to: its own in a folder, else one here, which is sent when it is
        whole. If the body fails, a folder may keep a part of it, and S3 keeps nothing."""
        filesystem, path = self.filesystem(url)
        if not is_s3(url):
            with translate_errors(url):
                _make_parent(filesystem, path)
            yield Path(path)
            return
        with scratch() as folder:
            local = folder / path.rpartition("/")[2]
            yield local
            self.put(local, url)

    def write_text(self, url: str, text: str) -> None:
        """A reader sees the old text or the new one, never half."""
        filesystem, path = self.filesystem(url)
        with translate_errors(url):
            _make_parent(filesystem, path)
            if not is_s3(url):
                place = Path(path)
                fresh = place.with_name(f".{place.name}.{uuid4().hex[:8]}")
                try:
                    fresh.write_text(text, "utf-8")
                    fresh.replace(place)
                finally:
                    fresh.unlink(missing_ok=True)
                return
            with filesystem.open_output_stream(path, compression=None) as stream:
                stream.write(text.encode())  # an object appears when it is whole

    def keep(self, url: str, content: bytes | memoryview) -> None:
        """A new file, which a power cut right after this leaves whole."""
        filesystem, path = self.filesystem(url)
        with translate_errors(url):
            if is_s3(url):
                with filesystem.open_output_stream(path, compression=None) as stream:
                    stream.write(content)
                return
            place = Path(path)
            _make_lasting(place.parent)
            with place.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _sync(place.parent)

    def remove(self, url: str) -> None:
        """A file, or a folder with all that is in it; what is not there is gone already."""
        filesystem, path = self.filesystem(url)
        if not path.strip("/") or (is_s3(url) and "/" not in path.strip("/")):
            raise InvalidInput(Problem("", f"{url} is a whole disk or bucket, not a folder"))
        # Some S3 list a folder for a while in which there is nothing any more.
        with suppress(NotFound), translate_errors(url):
            (info,) = filesystem.get_file_info([path])
            if info.type == fs.FileType.File:
                filesystem.delete_file(path)
            elif info.type == fs.FileType.Directory:
                filesystem.delete_dir(path)

    # For others

    def filesystem(self, url: str) -> tuple[fs.FileSystem, str]:
        """The filesystem of a URL, and the path in it."""
        scheme = _scheme(url)
        if scheme == "s3":
            bucket, _, key = url.partition("://")[2].partition("/")
            if not bucket:
                raise InvalidInput(Problem("", f"{url} names no bucket: s3://bucket/folder"))
            if self.s3 is None:
                raise InvalidInput(Problem("", f"{url} is on S3, which is not set up here"))
            return self.s3.filesystem(), f"{bucket}/{key}".rstrip("/")
        return fs.LocalFileSystem(), str(_path(url))

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let a DuckDB connection read s3:// where this storage can."""
        if self.s3 is not None:
            from kalla.storage.duckdb import S3ForDuckDB

            connection.register_filesystem(S3ForDuckDB(self.s3.filesystem(), translate_errors))

    def delta_options(self, url: str) -> dict[str, str]:
        """The same for the deltalake package, which has a client of its own. Holds the keys."""
        if not is_s3(url) or self.s3 is None:
            return {}
        found = {"AWS_REGION": self.s3.region}
        if self.s3.endpoint:
            found["AWS_ENDPOINT_URL"] = self.s3.endpoint
            found["AWS_ALLOW_HTTP"] = str(self.s3.endpoint.startswith("http://")).lower()
        if self.s3.access_key.get_secret_value():
            found["AWS_ACCESS_KEY_ID"] = self.s3.access_key.get_secret_value()
            found["AWS_SECRET_ACCESS_KEY"] = self.s3.secret_key.get_secret_value()
        return found

    def _require_bucket(self, url: str) -> None:
        """Asked for one file, S3 says the same of a bucket that is not there as of a file."""
        filesystem, path = self.filesystem(url)
        bucket = path.partition("/")[0]
        if is_s3(url) and filesystem.get_file_info(bucket).type == fs.FileType.NotFound:
            raise NotFound(f"there is no bucket {bucket}")


LOCAL = Storage()
"""No S3: what works without any setting."""


def is_s3(url: str) -> bool:
    return _scheme(url) == "s3"


def join(url: str, *names: str) -> str:
    """The URL of what is called so below it."""
    return "/".join([url.rstrip("/"), *names])


def _scheme(url: str) -> str | None:
    found = _SCHEME.match(url)
    return found[1].lower() if found else None


def _path(url: str) -> Path:
    """The path of a URL on this machine."""
    scheme = _scheme(url)
    if scheme is None:
        return Path(url).absolute()
    host, sign, path = url.partition("://")[2].partition("/")
    if scheme != "file":
        raise InvalidInput(
            Problem("", f"{scheme}:// is not a place for files: a path, file:// or s3:// is")
        )
    if host not in ("", "localhost"):
        raise InvalidInput(Problem("", f"{url} is on another machine: write file:///path"))
    return Path(unquote(sign + path)).absolute()


def _url(like: str, path: str) -> str:
    return f"s3://{path}" if is_s3(like) else path


def _with_parents(folder: str) -> list[str]:
    """A folder after those that it lies in."""
    ends = [place for place, sign in enumerate(folder) if sign == "/" and place]
    return [folder[:end] for end in (*ends, len(folder))]


def _first_with(name: str, folders: Sequence[str], filesystem: fs.FileSystem) -> str | None:
    entries = filesystem.get_file_info([f"{folder}/{name}" for folder in folders])
    found = zip(folders, entries, strict=True)
    return next((folder for folder, each in found if each.type != fs.FileType.NotFound), None)


def _copy(source: fs.FileSystem, path: str, target: fs.FileSystem, to: str) -> None:
    """By streams that are closed here: what fails then is an error, which `fs.copy_files` drops."""
    with (
        source.open_input_stream(path, compression=None) as read,
        target.open_output_stream(to, compression=None) as write,
    ):
        shutil.copyfileobj(read, write, _PIECE)


def _make_parent(filesystem: fs.FileSystem, path: str) -> None:
    if isinstance(filesystem, fs.LocalFileSystem):
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def _make_lasting(folder: Path) -> None:
    """A folder, and its name in the one above it, that a power cut leaves."""
    if not folder.is_dir():
        _make_lasting(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _s3_filesystem(given: S3) -> fs.FileSystem:
    key = given.access_key.get_secret_value() or None
    return fs.S3FileSystem(
        access_key=key,
        secret_key=given.secret_key.get_secret_value() or None if key else None,
        endpoint_override=given.endpoint or None,
        region=given.region,
        connect_timeout=5,
        request_timeout=60,
        allow_delayed_open=True,  # a small object is one request
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
    )


def _whole(url: str, path: str) -> str:
    """A place on disk with all of its path: one that is relative may be looked for elsewhere."""
    return url if "://" in url else str(Path(path).absolute())
