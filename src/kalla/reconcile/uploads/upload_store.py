"""Uploaded files: their rows, their places, and the sweep that removes what has expired."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from kalla import logs
from kalla.database import Connection
from kalla.errors import Conflict, InvalidInput, KallaError, NotFound, Problem
from kalla.reconcile.recipe.model import COMPRESSIONS, ENDINGS
from kalla.reconcile.registry.admission import SourceDocument
from kalla.reconcile.sources.formats import converted_files
from kalla.settings import Retention, Settings
from kalla.statements import load
from kalla.storage import Storage, is_s3, join

sql = load("kalla.reconcile.uploads", "upload_store.sql")

PREFIX = "upload-"  # of the name that recipes know an upload by

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_ENDING = re.compile(
    rf"({'|'.join(map(re.escape, ENDINGS))})({'|'.join(map(re.escape, COMPRESSIONS))})?$"
)
_LONGEST_NAME = 100
_FOLDER = re.compile(r"[0-9a-f]{16}")
_RECEIVED = ".upload-"  # the beginning of the names of files that are being received
_RECEIVING_SECONDS = 24 * 3600
_log = logs.get(__name__)


@dataclass(frozen=True)
class Upload:
    upload_id: str
    file_name: str
    url: str
    bytes: int
    created_at: datetime
    created_by: str
    expires_at: datetime | None  # None: never, for it is a source

    @property
    def source_name(self) -> str:
        return f"{PREFIX}{self.upload_id}"

    @property
    def source(self) -> SourceDocument:
        return SourceDocument(uri=self.url)


def new_place(settings: Settings, file_name: str) -> tuple[str, str]:
    """The id of a new upload, and the URL of its file; refuses an unknown file format."""
    ending = _ENDING.search(file_name.lower())
    if ending is None:
        known = ", ".join(ENDINGS)
        raise InvalidInput(
            Problem("name", f"{file_name!r} has no known format: its name must end in {known}")
        )
    stem = _UNSAFE.sub("_", file_name[: ending.start()]).strip("._-")[-_LONGEST_NAME:]
    upload_id = token_hex(8)
    return upload_id, join(settings.uploads_url, upload_id, f"{stem or 'file'}{ending[0]}")


async def add(
    connection: Connection,
    upload_id: str,
    file_name: str,
    url: str,
    size: int,
    by: str,
    seconds: int,
) -> Upload:
    values = {
        "upload_id": upload_id, "file_name": file_name, "url": url, "bytes": size, "by": by,
        "seconds": seconds,
    }  # fmt: skip
    row = await (await connection.execute(sql.add, values)).fetchone()
    return Upload(**row or {})


async def upload(connection: Connection, upload_id: str) -> Upload:
    row = await (await connection.execute(sql.upload, {"upload_id": upload_id})).fetchone()
    return _of_row(upload_id, row)


async def uploads(connection: Connection) -> list[Upload]:
    """Those that have not expired, the newest first."""
    return [Upload(**row) for row in await (await connection.execute(sql.current)).fetchall()]


async def extend(connection: Connection, upload_id: str, seconds: int) -> Upload:
    """Keeps an upload whose file is in its place for this long."""
    values = {"upload_id": upload_id, "seconds": seconds}
    row = await (await connection.execute(sql.extend, values)).fetchone()
    return _of_row(upload_id, row)


async def remove(connection: Connection, storage: Storage, upload_id: str) -> None:
    """Removes an upload before it expires, unless it is a source."""
    row = await (await connection.execute(sql.locked, {"upload_id": upload_id})).fetchone()
    found = _of_row(upload_id, row)
    if found.expires_at is None:
        raise Conflict(f"upload {upload_id} is kept for a source: remove the source first")
    await asyncio.to_thread(storage.remove, _folder(found.url))
    await connection.execute(sql.remove, {"upload_id": upload_id})


async def discard(connection: Connection, storage: Storage, upload_id: str, url: str) -> None:
    """Removes an upload whose file did not reach its place. What is left of the file is swept."""
    await _removed(storage, _folder(url))
    await connection.execute(sql.remove, {"upload_id": upload_id})


async def keep(connection: Connection, upload_id: str) -> None:
    """Keeps an upload for ever: it is a source now."""
    await connection.execute(sql.keep, {"upload_id": upload_id})


def sweeper(settings: Settings) -> Callable[[Connection, Retention], Awaitable[None]]:
    """Removes files that have expired, then their rows; then files without a row for a day, and
    copies. A file that cannot be removed waits for the next sweep.
    """
    storage = Storage.of(settings.storage)

    async def sweep(connection: Connection, _: Retention) -> None:
        for row in await (await connection.execute(sql.expired)).fetchall():
            if await _removed(storage, _folder(row["url"])):
                await connection.execute(sql.remove, {"upload_id": row["upload_id"]})
        place = settings.uploads_url
        folders = await asyncio.to_thread(storage.folders, place)
        ids = [each for each in folders if _FOLDER.fullmatch(each)]
        rows = await (await connection.execute(sql.without_row, {"ids": ids})).fetchall()
        for row in rows:
            folder = join(place, row["upload_id"])
            if await asyncio.to_thread(_is_abandoned, storage, folder):
                await _removed(storage, folder)
        if not is_s3(place):
            await asyncio.to_thread(_remove_received, Path(place))
        await asyncio.to_thread(converted_files.sweep)

    return sweep


async def _removed(storage: Storage, folder: str) -> bool:
    try:
        await asyncio.to_thread(storage.remove, folder)
    except (KallaError, OSError) as error:
        _log.warning("an upload cannot be removed", folder=folder, reason=str(error))
        return False
    return True


def _is_abandoned(storage: Storage, folder: str) -> bool:
    """Whether nothing in it was written for a day."""
    try:
        files = storage.files(folder)
    except NotFound:
        return True
    oldest = time.time() - _RECEIVING_SECONDS
    return all(each.modified and each.modified.timestamp() < oldest for each in files)


def _remove_received(place: Path) -> None:
    """Removes files that an API process was receiving when it was killed."""
    oldest = time.time() - _RECEIVING_SECONDS
    for file in place.glob(f"{_RECEIVED}*"):
        with suppress(FileNotFoundError):  # another process sweeps too
            if file.stat().st_mtime < oldest:
                file.unlink()


def _of_row(upload_id: str, row: dict[str, Any] | None) -> Upload:
    if row is None:
        raise NotFound(f"there is no upload {upload_id}: it may have expired; send the file again")
    return Upload(**row)


def _folder(url: str) -> str:
    return url.rpartition("/")[0]
