"""Tables of registered databases as sources: each is mirrored into a Delta table before a tick.

A mirror is compared with a snapshot of the table, or, with a watermark column, with the rows that
are not older than the newest one that is known; such rows replace those of the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml
from deltalake import DeltaTable
from pydantic import BaseModel, ConfigDict, SecretStr

from kalla.database import Connection
from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.spark.connectors.connector import Predicate, Slice, arrow_schema
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.tables import store
from kalla.tables.delta.commit import FencedTable, Frontier, Stale, difference, of_keys
from kalla.tables.model import SourceDefinition
from kalla.work.handler import Context
from kalla.work.job import Job, Outcome

JOB_TYPE = "table_mirror"
_FENCE_BITS = 20
_WHOLE = Slice(0, 1)

Resolve = Callable[[str], SecretStr]


class MirrorPayload(BaseModel):
    """One look at a registered table; the password stays a reference."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    uri: str
    table: str
    password: str | None
    key: tuple[str, ...]
    watermark: str | None
    location: str  # of the mirror
    asked_at: datetime  # the rows are at least as new as that


@dataclass(frozen=True)
class Mirrored:
    rows: int
    deleted: int
    inserted: int


def mirror_location(folder: str, name: str) -> str:
    return str(Path(folder) / "_mirrors" / name)


def payload(
    source: SourceDefinition, documents: Mapping[str, str], folder: str, asked_at: datetime
) -> MirrorPayload:
    """From the document under which the table is registered; raises InvalidInput."""
    text = documents.get(source.location)
    if text is None:
        raise InvalidInput(
            Problem(
                source.name,
                f"there is no registered source {source.location}",
                suggestion="`kalla sources list` shows all, `kalla sources add` registers one",
            )
        )
    document: dict[str, Any] = yaml.safe_load(text)
    uri = str(document.get("uri", ""))
    if not uri.startswith(("postgres://", "postgresql://")) or not document.get("table"):
        raise InvalidInput(
            Problem(
                source.name,
                f"{source.location} is not a table of a PostgreSQL database",
                suggestion="write LOCATION 'folder' for files",
            )
        )
    return MirrorPayload(
        name=source.name,
        uri=uri,
        table=str(document["table"]),
        password=document.get("password"),
        key=source.key or tuple(document.get("primary_key", ())),
        watermark=source.watermark,
        location=mirror_location(folder, source.name),
        asked_at=asked_at,
    )


def mirror_columns(asked: MirrorPayload, resolve: Resolve) -> tuple[str, ...]:
    """The columns that can be read; raises InvalidInput where the key is not among them."""
    found = tuple(arrow_schema(_connector(asked, resolve).schema()).names)
    wanted = [*asked.key, *([asked.watermark] if asked.watermark else [])]
    if missing := [name for name in wanted if name not in found]:
        raise InvalidInput(Problem(asked.name, f"{asked.table} has no column {', '.join(missing)}"))
    return found


def mirror(asked: MirrorPayload, resolve: Resolve, sequence: int, refresh_id: str) -> Mirrored:
    """Bring the mirror to the rows that the table has now, in one fenced commit."""
    fenced = FencedTable(asked.location, sequence)
    known = fenced.raise_barrier()
    frontier = Frontier(
        table_id=0,
        definition=_digest(asked),
        tick=0,
        refresh=refresh_id,
        data_version=0 if known is None else known.data_version,
        inputs={},
    )
    connector = _connector(asked, resolve)
    schema = arrow_schema(connector.schema())
    same = known is not None and known.definition == frontier.definition
    if not same or fenced.column_names() != schema.names:
        rows = _rows(connector, schema, asked)
        fenced.replace(rows, frontier)
        return Mirrored(rows.num_rows, 0, rows.num_rows)
    old = pa.table(DeltaTable(asked.location).to_pyarrow_table())
    newest = None
    if asked.watermark and old.num_rows:
        newest = pc.max(old.column(asked.watermark)).as_py()
    if asked.watermark and newest is not None:
        later = PostgresConnector(
            connector.uri,
            connector.table,
            connector.password,
            predicates=(Predicate(asked.watermark, "gte", newest),),
        )
        rows = _rows(later, schema, asked).cast(old.schema)
        change = difference(of_keys(old, rows.select(list(asked.key))), rows)
    else:
        change = difference(old, _rows(connector, schema, asked).cast(old.schema))
    fenced.commit(change, frontier)
    total = old.num_rows - change.deleted + change.inserts.num_rows
    return Mirrored(total, change.deleted, change.inserts.num_rows)


def _rows(connector: PostgresConnector, schema: pa.Schema, asked: MirrorPayload) -> pa.Table:
    """By one statement, hence of one moment."""
    rows = pa.Table.from_batches(list(connector.read(_WHOLE)), schema)
    if asked.key and rows.num_rows:
        counted = rows.group_by(list(asked.key)).aggregate([([], "count_all")])
        if counted.num_rows != rows.num_rows:
            raise InvalidInput(
                Problem(
                    asked.name,
                    f"{', '.join(asked.key)} is no key: two rows of {asked.table} have the same",
                    suggestion="name other columns by KEY (…)",
                )
            )
    return rows


def _connector(asked: MirrorPayload, resolve: Resolve) -> PostgresConnector:
    password = SecretStr("") if asked.password is None else resolve(asked.password)
    return PostgresConnector(asked.uri, asked.table, password)


def _digest(asked: MirrorPayload) -> str:
    text = "\n".join([asked.uri, asked.table, *asked.key, asked.watermark or ""])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class MirrorTable:
    """The job type `table_mirror`: one look at one registered table."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    def run(self, job: Job, context: Context) -> Outcome:
        asked = MirrorPayload.model_validate(job.payload)
        context.check()
        sequence = (job.job_id << _FENCE_BITS) | job.fence
        try:
            found = mirror(asked, self._resolve, sequence, f"{job.job_id}.{job.fence}")
        except Stale as stale:
            raise Unavailable(f"{asked.name} is being mirrored elsewhere: {stale}") from None
        result = {"source": asked.name, "deleted": found.deleted, "inserted": found.inserted}
        return Outcome(result, rows=found.rows, facts=asked)

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        asked: MirrorPayload = outcome.facts
        await store.set_mirrored(connection, asked.name, job.job_id, asked.asked_at)
