"""Refuses to run beside another version: every process compares itself with the database."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kalla import logs
from kalla.database import AWAY, NOT_MIGRATED, Database, require_release
from kalla.errors import VersionSkew

_BETWEEN_LOOKS = 0.5
_log = logs.get(__name__)


async def check_release(database: Database, program: str, stopping: asyncio.Event) -> None:
    """Return when the database belongs to this series of Kalla, or when it is time to stop.

    Raises VersionSkew if it belongs to another. While Postgres is away or has no tables yet,
    nothing is known: look again.
    """
    while not stopping.is_set():
        try:
            async with database.transaction() as connection:
                await require_release(connection, program)
        except VersionSkew:
            raise
        except (*AWAY, *NOT_MIGRATED) as error:
            _log.debug("the version of the database is not known yet", reason=str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _BETWEEN_LOOKS)
        else:
            return
