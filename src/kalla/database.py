"""Connections to Postgres and the numbered migrations, under an advisory lock."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from kalla import logs, release
from kalla.errors import Conflict, Unavailable
from kalla.redaction import scrub
from kalla.settings import Database as DatabaseSettings

Connection: TypeAlias = AsyncConnection[DictRow]
Result = TypeVar("Result")

# What a restart, a cut line or a full server looks like: try again, do not die of it.
AWAY = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
    PoolTimeout,
    Unavailable,
)
# An outcome that exceeds a limit of Postgres: an OperationalError too, but one that stays.
TOO_LARGE = psycopg.errors.ProgramLimitExceeded
# What a database looks like before `kalla migrate`.
NOT_MIGRATED = (
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)
# What two transactions do to each other: the second try sees the first one's rows.
COLLIDED = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)

_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")
_MIGRATION_LOCK = 0x6B616C6C61  # "kalla"
_log = logs.get(__name__)


class Database:
    """A pool of connections. `transaction()` is the usual way in."""

    def __init__(self, settings: DatabaseSettings, name: str = "kalla") -> None:
        self._settings = settings
        self._name = name
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            settings.url.get_secret_value(),
            kwargs=self._options(),
            min_size=1,
            max_size=settings.pool_size,
            timeout=settings.connect_timeout,
            max_idle=300,
            reconnect_timeout=settings.connect_timeout,
            configure=_guard,
            open=False,
        )

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close(timeout=2)

    async def __aenter__(self) -> Database:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self._pool.connection() as connection:
            yield connection

    async def retrying(
        self, act: Callable[[Connection], Awaitable[Result]], tries: int = 5
    ) -> Result:
        """Run `act` in a transaction of its own, again when another transaction got in its way."""
        for left in reversed(range(tries)):
            try:
                async with self.transaction() as connection:
                    return await act(connection)
            except COLLIDED:
                if not left:
                    raise
        raise AssertionError("unreachable")

    async def connect(self) -> Connection:
        """A connection outside the pool, for LISTEN and for session locks; in autocommit."""
        return await AsyncConnection.connect(
            self._settings.url.get_secret_value(), autocommit=True, **self._options()
        )

    async def ping(self) -> None:
        async with self._pool.connection(timeout=2) as connection:
            await connection.execute("SELECT 1")

    def _options(self) -> dict[str, Any]:
        return {
            "row_factory": dict_row,
            "application_name": self._name,
            "connect_timeout": max(1, int(self._settings.connect_timeout)),
            # A cut line is noticed in seconds, not by the kernel's two hours.
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        }


async def _guard(connection: Connection) -> None:
    """A process frozen inside a transaction must not hold its locks until it thaws.

    Not as a startup option: poolers refuse those they do not know.
    """
    await connection.execute("SET idle_in_transaction_session_timeout = '10s'")
    await connection.commit()


def unanswered(error: psycopg.OperationalError) -> Unavailable:
    """For people: the driver's first line, without its hints."""
    reason = scrub(str(error)).strip().partition("\n")[0]
    return Unavailable(f"Postgres does not answer: {reason}; start it, or set database.url")


async def migrate(settings: DatabaseSettings) -> list[str]:
    """Apply the migrations that are missing; returns their names. Two at once do no harm."""
    try:
        connection: Connection = await AsyncConnection.connect(
            settings.url.get_secret_value(),
            row_factory=dict_row,
            connect_timeout=max(1, int(settings.connect_timeout)),
        )
    except psycopg.OperationalError as error:
        raise unanswered(error) from None
    async with connection:
        if connection.info.server_version < 140_000:
            raise Conflict(
                f"Kalla needs Postgres 14 or newer, this is {connection.info.server_version}"
            )
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
        await connection.execute("CREATE SCHEMA IF NOT EXISTS kalla")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS kalla.migrations ("
            " name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
        rows = await (await connection.execute("SELECT name FROM kalla.migrations")).fetchall()
        done = {row["name"] for row in rows}
        known = dict(_migrations())
        if unknown := sorted(done - known.keys()):
            raise Conflict(
                f"The database is ahead of this version of Kalla (it has {unknown[-1]}): "
                "install the newer one."
            )
        applied = []
        for name, text in known.items():
            if name in done:
                continue
            await connection.execute(text.encode())
            await connection.execute("INSERT INTO kalla.migrations (name) VALUES (%s)", [name])
            _log.info("migrated", migration=name)
            applied.append(name)
        cursor = await connection.execute("SELECT version FROM kalla.release")
        row = await cursor.fetchone()
        if row and release.is_newer(row["version"], release.version()):
            # A pod of the old version that starts anew must not take the database back.
            await require_release(connection, "this command")
        await connection.execute(
            "INSERT INTO kalla.release (version) VALUES (%(version)s) ON CONFLICT (only_row)"
            " DO UPDATE SET version = excluded.version, migrated_at = kalla.clock()"
            " WHERE kalla.release.version <> excluded.version",
            {"version": release.version()},
        )
    return applied


async def require_release(connection: Connection, program: str) -> None:
    """Raise VersionSkew if the database was migrated by another series of Kalla."""
    cursor = await connection.execute("SELECT version FROM kalla.release")
    if row := await cursor.fetchone():
        release.require_same_series(
            program, release.version(), "the database belongs to", row["version"]
        )


def _migrations() -> list[tuple[str, str]]:
    folder = files("kalla.migrations")
    return sorted(
        (item.name, item.read_text("utf-8"))
        for item in folder.iterdir()
        if _MIGRATION.match(item.name)
    )
