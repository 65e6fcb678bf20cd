"""The line to a Postgres source: where it is, how a session begins there, and what its errors mean.

The password never is part of the address: it goes from the secret straight to libpq.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import adbc_driver_manager
import adbc_driver_postgresql
import psycopg
import pyarrow as pa
from adbc_driver_manager._reader import AdbcRecordBatchReader
from psycopg import conninfo
from psycopg.rows import DictRow, dict_row
from pydantic import SecretStr

from kalla.errors import InvalidInput, KallaError, Permanent, Problem, Unavailable
from kalla.redaction import scrub
from kalla.spark.connectors.connector import Unreadable
from kalla.spark.connectors.postgres_refusal import code_of_refusal
from kalla.spark.connectors.postgres_text import literal
from kalla.statements import load

sql = load("kalla.spark.connectors", "postgres.sql")

_ALLOWED = {"host", "port", "user", "dbname", "sslmode", "sslrootcert", "application_name"}
# A line that is dead without a word is given up after a minute or so.
_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# What libpq says of itself, in no language but English.
_REFUSED = ("root certificate file",)
# Connection, resources, intervention, system, collision, a transaction that was ended.
_AWAY = ("08", "53", "57", "58", "40", "25")
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class SnapshotEnded(Permanent):
    """The session that held a snapshot is gone: no slice of it can be read any more."""


class Link:
    """Opens sessions at one address, each a read-only transaction that sees one moment; with
    `seconds` no statement in it, and no wait for a lock, takes longer.
    """

    def __init__(
        self,
        uri: str,
        password: SecretStr,
        snapshot: str | None = None,
        seconds: float | None = None,
    ) -> None:
        self._given = parse(uri)
        self._password = password
        self._snapshot = snapshot
        self._seconds = seconds
        self.place = f"{self._given['host']}:{self._given['port']}/{self._given['dbname']}"

    @contextmanager
    def rows(self, locked: str | None = None) -> Iterator[psycopg.Connection[DictRow]]:
        """A session for questions; a `locked` table stays as it is while it lasts."""
        with self._connecting():
            connection = psycopg.connect(self._conninfo(), autocommit=True, row_factory=dict_row)
        with self._translated(), closing(connection):  # there is nothing to commit
            connection.execute(_BEGIN)
            for statement in self._locking(locked):
                connection.execute(statement.encode())
            if self._snapshot is not None:
                with self._holding():
                    connection.execute(_see(self._snapshot).encode())
            connection.execute(sql.settings)
            if self._seconds is not None:
                connection.execute(_hurried(self._seconds).encode())
            yield connection

    @contextmanager
    def arrow(self, locked: str | None = None) -> Iterator[ArrowSession]:
        """A session for data; a `locked` table stays as it is while it lasts."""
        with self._translated(), ExitStack() as opened:
            with self._connecting():
                database = opened.enter_context(adbc_driver_postgresql.connect(self._conninfo()))
                connection = opened.enter_context(adbc_driver_manager.AdbcConnection(database))
            session = ArrowSession(connection)
            session.run(_BEGIN)
            for statement in self._locking(locked):
                session.run(statement)
            if self._snapshot is not None:
                with self._holding():
                    session.run(_see(self._snapshot))
            session.run(sql.settings.decode().rstrip(";"))
            if self._seconds is not None:
                session.run(_hurried(self._seconds))
            yield session

    def _locking(self, table: str | None) -> list[str]:
        """The first statements of a transaction, which must not see anything yet.

        Who truncates a table and fills it again leaves no row of either to a transaction that saw a
        moment before, and then waited: so it waits first. These statements take no snapshot.
        """
        if table is None:
            return []
        limit = f"SET LOCAL statement_timeout = {_milliseconds(self._seconds)}"
        return [limit, "SET LOCAL lock_timeout = 0", f"LOCK TABLE {table} IN ACCESS SHARE MODE"]

    def _conninfo(self) -> str:
        # An empty password and no file of passwords: what the worker's own account has of either
        # is not for an address that a user chose.
        return conninfo.make_conninfo(
            **_PATIENCE,
            **self._given,
            password=self._password.get_secret_value(),
            passfile=f"{os.devnull}/none",
            client_encoding="UTF8",
        )

    @contextmanager
    def _holding(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, adbc_driver_manager.Error) as error:
            if error.sqlstate is None or error.sqlstate.startswith(_AWAY):
                raise
            raise SnapshotEnded(
                f"the snapshot {self._snapshot} of Postgres at {self.place} has ended: the session "
                "that held it is gone"
            ) from None

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, adbc_driver_manager.Error) as error:
            is_away = isinstance(error, psycopg.errors.ConnectionTimeout)
            code = None if is_away else code_of_refusal(self._conninfo())
            raise _of_connecting(_said(error), code, self.place) from None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
            # The chain is cut: the driver's own words may carry the whole query.
            raise _meaning(error, self.place) from None


class ArrowSession:
    """The driver as it is: its DB-API would bring pandas and polars along, seconds that every
    process of Spark's would wait.
    """

    def __init__(self, connection: adbc_driver_manager.AdbcConnection) -> None:
        self._connection = connection

    def run(self, statement: str) -> None:
        with adbc_driver_manager.AdbcStatement(self._connection) as asked:
            asked.set_sql_query(statement)
            asked.execute_update()

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query, by COPY."""
        with adbc_driver_manager.AdbcStatement(self._connection) as asked:
            asked.set_sql_query(query)
            stream, _ = asked.execute_query()
            with closing(AdbcRecordBatchReader._import_from_c(stream.address)) as reader:
                yield from reader


def parse(uri: str) -> dict[str, str]:
    """The parts of an address. A wrong one is not repeated in the error: it may hold a secret."""
    try:
        given = {
            name: str(value) for name, value in conninfo.conninfo_to_dict(uri).items() if value
        }
    except psycopg.ProgrammingError:
        given = {}
    if not uri.startswith(("postgresql://", "postgres://")) or not given.get("host"):
        raise InvalidInput(Problem("uri", "must be postgresql://user@host:port/database"))
    if "password" in given:
        raise InvalidInput(Problem("uri", "must not contain a password: name a secret instead"))
    if strange := sorted(set(given) - _ALLOWED):
        raise InvalidInput(Problem("uri", f"these options are not allowed: {', '.join(strange)}"))
    if missing := [name for name in ("user", "dbname") if name not in given]:
        raise InvalidInput(Problem("uri", f"must name the {' and the '.join(missing)}"))
    return {"port": "5432", **given}


def _see(snapshot: str) -> str:
    return f"SET TRANSACTION SNAPSHOT {literal(snapshot)}"


def _hurried(seconds: float) -> str:
    """Only for this transaction, and after `settings`, which lets a read take its time. A wait for
    a lock is part of a statement's time.
    """
    return f"SELECT set_config('statement_timeout', '{_milliseconds(seconds)}', true)"


def _milliseconds(seconds: float | None) -> int:
    """As a limit of Postgres', to which 0 is for ever."""
    return 0 if seconds is None else max(1, round(seconds * 1000))


def _of_connecting(said: str, code: str | None, place: str) -> KallaError:
    if any(sign in said for sign in _REFUSED) or (code and not code.startswith(_AWAY)):
        return InvalidInput(Problem("uri", f"Postgres at {place} refuses: {said}"))
    return Unavailable(f"Postgres at {place} broke off: {said}")


def _meaning(error: Exception, place: str) -> KallaError:
    code = getattr(error, "sqlstate", None)
    said = _said(error)
    if code is None and "ReadRecord failed" in said:
        return Unreadable(f"Postgres at {place} sent a value that cannot be read: {said}")
    if "row-level security" in said:
        hidden = f"Postgres at {place} would hide rows of the table without a word: {said}"
        way_out = "give the user BYPASSRLS, or read a view of its owner's that says which are meant"
        return InvalidInput(Problem("", f"{hidden}; {way_out}"))
    refused = isinstance(error, pa.ArrowException)
    if not refused and (code is None or code.startswith(_AWAY)):
        return Unavailable(f"Postgres at {place} broke off: {said}")
    return InvalidInput(Problem("", f"Postgres at {place} refuses: {said}"))


def _said(error: Exception) -> str:
    lines = (str(error) or type(error).__name__).strip().splitlines()
    first = lines[0]
    for label in ("FATAL:", "ERROR:", "failed: "):
        first = first.rpartition(label)[2] if label in first else first
    return scrub(first.strip().removeprefix("IO: [libpq] "))
