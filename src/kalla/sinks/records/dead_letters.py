"""Messages that could not become rows, read from the dead-letter table."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from pydantic import BaseModel, Field

from kalla.errors import NotFound
from kalla.sinks.records.letters import OPEN, Chunk, messages_of
from kalla.sinks.servers.clickhouse_client import ClickHouse
from kalla.sinks.servers.message_ranges import Message
from kalla.sinks.servers.server_connections import Resolve, target
from kalla.sinks.store import PipelineRecord

_MOST_GROUPS = 100
_TEXT_BYTES = 2000


class Group(BaseModel):
    reason: str
    field: str
    count: int


class Letter(BaseModel):
    topic: str
    partition: int
    offset: int
    generation: int
    mapping_version: int
    timestamp: datetime
    reason: str
    field: str
    text: str = Field(
        description="the beginning of the message; bytes that are not UTF-8 are replaced"
    )
    bytes: int = Field(description="of the whole message")


class WholeLetter(Letter):
    key: str | None
    headers: list[tuple[str, str | None]]
    value: str = Field(description="the whole message, in Base64")


class DeadLetters(BaseModel):
    groups: list[Group]
    letters: list[Letter]


def read(
    record: PipelineRecord,
    resolve: Resolve,
    limit: int = 50,
    reason: str | None = None,
    field: str | None = None,
) -> DeadLetters:
    """Blocking. The newest open letters first; groups count all of them."""
    with _opened(record, resolve) as server:
        table = _table(record)
        groups = server.rows(
            f"SELECT reason, field, count() AS count FROM {table}"
            f" WHERE {OPEN % {'table': table}} GROUP BY reason, field"
            f" ORDER BY count DESC, reason LIMIT {_MOST_GROUPS}",
            pipeline=record.pipeline,
        )
        letters = _letters(
            server,
            record,
            "({reason:String} = '' OR reason = {reason:String})"
            " AND ({field:String} = '' OR field = {field:String})",
            limit,
            reason=reason or "",
            field=field or "",
        )
    return DeadLetters(groups=[Group(**each) for each in groups], letters=letters)


def whole(record: PipelineRecord, resolve: Resolve, partition: int, offset: int) -> WholeLetter:
    """Blocking. One letter with its whole message."""
    with _opened(record, resolve) as server:
        letter = _one(server, record, partition, offset)
        message = _message(server, record, letter)
    return WholeLetter(
        **letter.model_dump(),
        key=_text(message.key),
        headers=[(name, _text(value)) for name, value in message.headers],
        value=base64.b64encode(message.value or b"").decode(),
    )


def message_of(record: PipelineRecord, resolve: Resolve, partition: int, offset: int) -> Message:
    """Blocking. The message of a letter as it came from Kafka."""
    with _opened(record, resolve) as server:
        return _message(server, record, _one(server, record, partition, offset))


@contextmanager
def _opened(record: PipelineRecord, resolve: Resolve) -> Iterator[ClickHouse]:
    server = ClickHouse(target(record.clickhouse, resolve))
    try:
        yield server
    finally:
        server.close()


def _table(record: PipelineRecord) -> str:
    return f"`{record.clickhouse.database}`.`{record.clickhouse.dead_letters}`"


def _letters(
    server: ClickHouse, record: PipelineRecord, condition: str, limit: int, **values: object
) -> list[Letter]:
    table = _table(record)
    found = server.rows(
        "SELECT topic, partition, offset, generation, mapping_version,"
        " toUnixTimestamp64Milli(timestamp) AS millis, reason, field,"
        f" base64Encode(substring(ifNull(value, ''), 1, {_TEXT_BYTES})) AS start,"
        f" length(ifNull(value, '')) AS bytes FROM {table}"
        f" WHERE {OPEN % {'table': table}} AND {condition}"
        f" ORDER BY timestamp DESC, partition, offset DESC LIMIT {int(limit)}",
        pipeline=record.pipeline,
        **values,
    )
    return [
        Letter(
            **row,
            timestamp=datetime.fromtimestamp(int(row["millis"]) / 1000).astimezone(),
            text=_text(base64.b64decode(row["start"])) or "",
        )
        for row in found
    ]


def _one(server: ClickHouse, record: PipelineRecord, partition: int, offset: int) -> Letter:
    condition = "partition = {partition:Int32} AND offset = {offset:Int64}"
    found = _letters(server, record, condition, 1, partition=partition, offset=offset)
    if not found:
        raise NotFound(f"{record.pipeline} has no open dead letter {partition}/{offset}")
    return found[0]


def _message(server: ClickHouse, record: PipelineRecord, letter: Letter) -> Message:
    chunk = Chunk(letter.topic, letter.partition, letter.generation, (letter.offset,))
    messages = messages_of(server, record.clickhouse.dead_letters, record.pipeline, chunk)
    return messages[0]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
