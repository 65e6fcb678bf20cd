"""Tables of registered databases as sources: each is mirrored into a Delta table before a tick.

A mirror is compared with a snapshot of the table, or, with a watermark column, with the rows that
are not older than the newest one that is known; such rows replace those of the same key.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pydantic import BaseModel, ConfigDict, SecretStr

from kalla.database import Connection
from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.spark.connectors.connector import Predicate, Slice, arrow_schema
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.tables import store
from kalla.tables.delta.commit import FencedTable, Frontier, Stale
from kalla.tables.delta.data_files import written
from kalla.tables.delta.housekeeping import drop, tidy_if_due
from kalla.tables.delta.row_changes import Change, TableFiles, difference, rewritten
from kalla.tables.delta.workspace import Relation, Workspace, quoted, same
from kalla.tables.model import SourceDefinition
from kalla.work.handler import Context
from kalla.work.job import Job, Outcome

JOB_TYPE = "table_mirror"
_FENCE_BITS = 20
_WHOLE = Slice(0, 1)
# A watermark is set before its commit: rows of older times may appear after newer ones.
_SLACK = timedelta(minutes=5)
_LOOK_SECONDS = 20.0  # of a look while a request waits

Resolve = Callable[[str], SecretStr]


class MirrorPayload(BaseModel):
    """One mirroring of a registered table; the password stays a reference."""

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
    """From the document of the registered table; raises InvalidInput."""
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
    found = tuple(arrow_schema(_connector(asked, resolve, _LOOK_SECONDS).schema()).names)
    wanted = [*asked.key, *([asked.watermark] if asked.watermark else [])]
    if missing := [name for name in wanted if name not in found]:
        raise InvalidInput(Problem(asked.name, f"{asked.table} has no column {', '.join(missing)}"))
    return found


def mirror(asked: MirrorPayload, resolve: Resolve, sequence: int, refresh_id: str) -> Mirrored:
    """Updates the mirror to the current rows of the table, in one fenced commit."""
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
    table = fenced.files()
    is_same = known is not None and known.definition == frontier.definition
    try:
        with Workspace(fenced.folder) as workspace:
            if not is_same or table is None or table.schema is None or table.schema != schema:
                rows = _read(connector, schema, asked, workspace, fenced.folder)
                count = workspace.count(rows.relation)
                committed = fenced.overwrite(rows.paths, _delta_schema(schema), frontier)
                tidy_if_due(asked.location, committed.version)
                return Mirrored(count, 0, count)
            change = _change(asked, connector, table, workspace, fenced.folder)
            committed = fenced.commit(rewritten(workspace, table, change), frontier)
            tidy_if_due(asked.location, committed.version)
    finally:
        shutil.rmtree(fenced.folder, ignore_errors=True)
    total = table.rows - change.deleted + change.inserted
    return Mirrored(total, change.deleted, change.inserted)


@dataclass(frozen=True)
class _Rows:
    relation: Relation
    paths: list[str]


def _change(
    asked: MirrorPayload,
    connector: PostgresConnector,
    table: TableFiles,
    workspace: Workspace,
    folder: Path,
) -> Change:
    """All rows are compared, or, with a watermark, those from the newest known one on, and a little
    before it if it is a time."""
    schema = table.schema
    if schema is None:
        raise ValueError("a mirror has at least one file")
    old = workspace.placed_files("table_rows", table.paths, schema.names)
    newest = None
    if asked.watermark:
        found = workspace.read(f"SELECT max({quoted(asked.watermark)}) FROM {old.name}")
        newest = found.column(0)[0].as_py()
    if newest is None or asked.watermark is None:
        return difference(
            workspace, old, _read(connector, schema, asked, workspace, folder).relation
        )
    later = PostgresConnector(
        connector.uri,
        connector.table,
        connector.password,
        predicates=(Predicate(asked.watermark, "gte", _with_slack(newest)),),
    )
    rows = _read(later, schema, asked, workspace, folder).relation
    replaced = workspace.table(
        "old_rows",
        f"SELECT o.* FROM {old.name} o SEMI JOIN {rows.name} r ON {same(asked.key, 'o', 'r')}",
    )
    return difference(workspace, replaced, rows)


def _with_slack(newest: Any) -> Any:
    return newest - _SLACK if isinstance(newest, datetime) else newest


def _read(
    connector: PostgresConnector,
    schema: pa.Schema,
    asked: MirrorPayload,
    workspace: Workspace,
    folder: Path,
) -> _Rows:
    """Reads by one statement, so at one moment; to files, so that no worker must hold the rows."""
    files = written(folder / "rows", schema, connector.read(_WHOLE), even_empty=True)
    paths = [each.path for each in files]
    rows = workspace.files("read_rows", paths, schema.names)
    if asked.key:
        key = ", ".join(quoted(name) for name in asked.key)
        twice = workspace.rows(
            f"SELECT 1 FROM {rows.name} GROUP BY {key} HAVING count(*) > 1 LIMIT 1"
        )
        if twice:
            raise InvalidInput(
                Problem(
                    asked.name,
                    f"{', '.join(asked.key)} is not a key: two rows of {asked.table} have the same",
                    suggestion="name other columns by KEY (…)",
                )
            )
    return _Rows(rows, paths)


def _delta_schema(schema: pa.Schema) -> str:
    from deltalake import Schema

    nullable = pa.schema([field.with_nullable(True) for field in schema])
    return str(Schema.from_arrow(nullable).to_json())


def _connector(
    asked: MirrorPayload, resolve: Resolve, seconds: float | None = None
) -> PostgresConnector:
    password = SecretStr("") if asked.password is None else resolve(asked.password)
    return PostgresConnector(asked.uri, asked.table, password, seconds=seconds)


def _digest(asked: MirrorPayload) -> str:
    text = "\n".join([asked.uri, asked.table, *asked.key, asked.watermark or ""])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class MirrorTable:
    """The job type `table_mirror`: one mirroring of one registered table."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    def run(self, job: Job, context: Context) -> Outcome:
        asked = MirrorPayload.model_validate(job.payload)
        context.check()
        sequence = (job.job_id << _FENCE_BITS) | job.fence
        try:
            found = mirror(asked, self._resolve, sequence, f"{job.job_id}.{job.fence}")
        except Stale as stale:
            context.check()
            if (stale.holder or 0) >> _FENCE_BITS > job.job_id:
                # Written with another database, or this one is an older copy: no job of it could
                # take the mirror for long. The next attempt reads the table anew.
                drop(asked.location)
            raise Unavailable(f"{asked.name} is being mirrored elsewhere: {stale}") from None
        result = {"source": asked.name, "deleted": found.deleted, "inserted": found.inserted}
        return Outcome(result, rows=found.rows, facts=asked)

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        asked: MirrorPayload = outcome.facts
        await store.set_mirrored(connection, asked.name, job.job_id, asked.asked_at)
