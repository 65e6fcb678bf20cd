"""Stores the state of replays: dead letters that are tried again with a newer mapping."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from kalla.database import Connection
from kalla.errors import Conflict, Lost
from kalla.sinks.records.letters import Chunk, Cursor
from kalla.sinks.store import add_event
from kalla.statements import load

sql = load("kalla.sinks.records", "replays.sql")


@dataclass(frozen=True)
class Replay:
    replay: int
    version: int  # of the mapping
    reason: str  # "": all
    field: str
    status: Literal["running", "completed"]
    cursor: Cursor  # the letter done last
    chunk: Chunk | None  # in flight
    deadline: float | None
    rows: int
    refused: int
    created_at: datetime
    created_by: str
    ended_at: datetime | None


async def create(
    connection: Connection, pipeline: str, version: int, reason: str, field: str, by: str
) -> Replay:
    named = {"pipeline": pipeline, "version": version, "reason": reason, "field": field, "by": by}
    try:
        cursor = await connection.execute(sql.create, named)
    except UniqueViolation:
        raise Conflict(f"a replay of {pipeline} is running already: wait for its end") from None
    row = await cursor.fetchone()
    if row is None:
        raise AssertionError("an insert returns its row")
    await add_event(
        connection, pipeline, "replay", f"begun with mapping version {version}, by {by}"
    )
    return _replay(row)


async def all_replays(connection: Connection, pipeline: str, running: bool = False) -> list[Replay]:
    """The newest first."""
    found = await connection.execute(sql.replays, {"pipeline": pipeline, "running": running})
    return [_replay(row) for row in await found.fetchall()]


async def intend(connection: Connection, replay: Replay, chunk: Chunk, deadline: float) -> None:
    named = {
        "replay": replay.replay,
        "cursor": Jsonb(list(replay.cursor)),
        "before": Jsonb(replay.chunk.document()) if replay.chunk else None,
        "chunk": Jsonb(chunk.document()),
        "deadline": deadline,
    }
    await _ours(connection, sql.intend, named)


async def commit(
    connection: Connection, replay: Replay, following: Cursor, rows: int, refused: int
) -> None:
    named = {
        "replay": replay.replay,
        "cursor": Jsonb(list(replay.cursor)),
        "next": Jsonb(list(following)),
        "rows": rows,
        "refused": refused,
    }
    await _ours(connection, sql.commit, named)


async def complete(connection: Connection, pipeline: str, replay: Replay) -> None:
    await _ours(connection, sql.complete, {"replay": replay.replay})
    detail = f"ended: {replay.rows:,} became rows, {replay.refused:,} stay dead letters"
    await add_event(connection, pipeline, "replay", detail)


async def _ours(connection: Connection, statement: bytes, named: dict[str, Any]) -> None:
    cursor = await connection.execute(statement, named)
    if await cursor.fetchone() is None:
        raise Lost("another worker continued the replay")


def _replay(row: dict[str, Any]) -> Replay:
    chunk = row["chunk"]
    generation, partition, offset = row["cursor"]
    return Replay(
        **row
        | {
            "cursor": (generation, partition, offset),
            "chunk": Chunk.of(chunk) if chunk else None,
        }
    )
