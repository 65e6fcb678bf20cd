"""A snapshot of a Postgres database: held so that many sessions see it, and described so
that evidence says which rows it is about."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import psycopg
from psycopg import errors
from psycopg.rows import DictRow

from kalla.spark.connectors.postgres_link import sql

Mark: TypeAlias = dict[str, str | None]
"""Which snapshot of a table was read, as written to `metadata.json`."""


@dataclass(frozen=True)
class Moment:
    """What a transaction sees: which others, how far the log was by then (on a standby: replayed),
    and when it began, by the database's clock.
    """

    seen: str
    lsn: str | None  # None where the server keeps it back
    at: str

    @classmethod
    def of(cls, connection: psycopg.Connection[DictRow]) -> Moment:
        (row,) = connection.execute(sql.moment).fetchall()
        return cls(row["seen"], _log_position(connection), row["at"])


@dataclass(frozen=True)
class Snapshot:
    """A moment that other sessions can see too, for as long as the one that holds it lasts."""

    name: str  # by which they see it
    table: str
    moment: Moment

    def mark(self) -> Mark:
        moment = self.moment
        return {
            "table": self.table,
            "snapshot": moment.seen,
            "lsn": moment.lsn,
            "at": moment.at,
        }


def time_of(connection: psycopg.Connection[DictRow]) -> str:
    """When the session's transaction began, by the database's clock."""
    (row,) = connection.execute(sql.moment).fetchall()
    at: str = row["at"]
    return at


def _log_position(connection: psycopg.Connection[DictRow]) -> str | None:
    lsn: str | None = None
    kept_back = (errors.InsufficientPrivilege, errors.FeatureNotSupported)
    # A savepoint: the transaction goes on without it.
    with suppress(*kept_back), connection.transaction():
        (row,) = connection.execute(sql.log_position).fetchall()
        lsn = row["lsn"]
    return lsn
