"""Uploaded files: their rows, their places, and the sweep that removes what has expired."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex

from kalla import logs
from kalla.database import Connection
from kalla.errors import InvalidInput, KallaError, NotFound, Problem
from kalla.reconcile.recipe.model import COMPRESSIONS, ENDINGS
from kalla.reconcile.registry.admission import SourceDocument
from kalla.settings import Retention, Settings
from kalla.statements import load
from kalla.storage import Storage, join

sql = load("kalla.reconcile.uploads", "upload_store.sql")

PREFIX = "upload-"  # of the name that recipes know an upload by

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 100
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
    lowered = file_name.lower()
    for ending in COMPRESSIONS:
        lowered = lowered.removesuffix(ending)
    if not lowered.endswith(tuple(ENDINGS)):
        known = ", ".join(ENDINGS)
        raise InvalidInput(
            Problem("name", f"{file_name!r} has no known format: its name must end in {known}")
        )
    safe = _UNSAFE.sub("_", file_name).lstrip("._-")[-_LONGEST_NAME:]
    upload_id = token_hex(8)
    return upload_id, join(settings.uploads_url, upload_id, safe)


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
    if row is None:
        raise NotFound(f"there is no upload {upload_id}: it may have expired; send the file again")
    return Upload(**row)


async def uploads(connection: Connection) -> list[Upload]:
    """Those that have not expired, the newest first."""
    return [Upload(**row) for row in await (await connection.execute(sql.current)).fetchall()]


async def keep(connection: Connection, upload_id: str) -> None:
    """Keeps an upload for ever: it is a source now."""
    await connection.execute(sql.keep, {"upload_id": upload_id})


def sweeper(settings: Settings) -> Callable[[Connection, Retention], Awaitable[None]]:
    """Removes files that have expired, then their rows. A file that cannot be removed waits for the
    next sweep.
    """
    storage = Storage.of(settings.storage)

    async def sweep(connection: Connection, _: Retention) -> None:
        for row in await (await connection.execute(sql.expired)).fetchall():
            folder = row["url"].rpartition("/")[0]
            try:
                await asyncio.to_thread(storage.remove, folder)
            except (KallaError, OSError) as error:
                _log.warning(
                    "an upload cannot be removed", upload=row["upload_id"], reason=str(error)
                )
                continue
            await connection.execute(sql.remove, {"upload_id": row["upload_id"]})

    return sweep
