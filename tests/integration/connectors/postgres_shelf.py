"""A Postgres database in which a connector's test makes tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql
from pydantic import SecretStr

from kalla.spark.connectors.connector import Predicate
from kalla.spark.connectors.postgres_connector import PostgresConnector
from tests.integration.connectors.conformance import Kind, Row

TYPES: dict[Kind, str] = {
    "integer": "int8",
    "decimal(38,9)": "numeric(38,9)",
    "double": "float8",
    "boolean": "bool",
    "text": "text",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "uuid": "uuid",
    "json": "jsonb",
    "bytes": "bytea",
    "integers": "int8[]",
    "decimals": "numeric(38,9)[]",
    "texts": "text[]",
}


class PostgresShelf:
    """A database of this test's own."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self.secret = parts.password or ""
        self.uri = f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"

    def run(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def create(
        self, columns: Mapping[str, Kind], rows: Iterable[Row], key: Sequence[str] = ()
    ) -> str:
        parts = [f'"{name}" {TYPES[kind]}' for name, kind in columns.items()]
        if key:
            parts.append("PRIMARY KEY (" + ", ".join(f'"{name}"' for name in key) + ")")
        table = f"made_{uuid4().hex}"
        self.run(f"CREATE TABLE {table} ({', '.join(parts)})")
        self.add(table, rows)
        return table

    def add(self, table: str, rows: Iterable[Row]) -> None:
        into = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
        with (
            psycopg.connect(self.url, autocommit=True) as connection,
            connection.cursor().copy(into) as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def connector(
        self,
        table: str,
        partition_key: str | None = None,
        predicates: tuple[Predicate, ...] = (),
    ) -> PostgresConnector:
        return PostgresConnector(self.uri, table, SecretStr(self.secret), partition_key, predicates)

    @contextmanager
    def clerk(self, grant: str) -> Iterator[str]:
        """The address of somebody with the same password who has this right alone."""
        name = f"clerk_{uuid4().hex}"
        self.run(f"CREATE ROLE {name} LOGIN PASSWORD '{self.secret}'; {grant.format(name)}")
        parts = urlsplit(self.uri)
        try:
            yield f"postgresql://{name}@{parts.hostname}:{parts.port}{parts.path}"
        finally:
            self.run(f"DROP OWNED BY {name}; DROP ROLE {name}")

    def cut(self, doing: str = "COPY%") -> None:
        """End the one session whose last statement is like this."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE %s",
                (doing,),
            ).fetchall()
        assert ended == [(True,)], "one reader was in the middle of it"
