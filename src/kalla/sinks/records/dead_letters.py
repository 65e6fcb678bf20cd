"""Messages that could not become rows, read from the dead-letter table."""

from __future__ import annotations

import base64
from datetime import datetime

from pydantic import BaseModel, Field

from kalla.sinks.records.letters import OPEN
from kalla.sinks.servers.clickhouse_client import ClickHouse
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
    place: tuple[int, int] | None = None,
) -> DeadLetters:
    """Blocking. The newest open letters first; groups count all of them.

    `place` is the partition and offset of one letter.
    """
    server = ClickHouse(target(record.clickhouse, resolve))
    table = f"`{record.clickhouse.database}`.`{record.clickhouse.dead_letters}`"
    try:
        groups = server.rows(
            f"SELECT reason, field, count() AS count FROM {table}"
            f" WHERE {OPEN % {'table': table}} GROUP BY reason, field"
            f" ORDER BY count DESC, reason LIMIT {_MOST_GROUPS}",
            pipeline=record.pipeline,
        )
        letters = server.rows(
            "SELECT topic, partition, offset, generation, mapping_version,"
            " toUnixTimestamp64Milli(timestamp) AS millis, reason, field,"
            f" base64Encode(ifNull(value, '')) AS value FROM {table}"
            f" WHERE {OPEN % {'table': table}}"
            " AND ({partition:Int32} < 0 OR partition = {partition:Int32})"
            " AND ({offset:Int64} < 0 OR offset = {offset:Int64})"
            " AND ({reason:String} = '' OR reason = {reason:String})"
            " AND ({field:String} = '' OR field = {field:String})"
            f" ORDER BY timestamp DESC, partition, offset DESC LIMIT {int(limit)}",
            pipeline=record.pipeline,
            reason=reason or "",
            field=field or "",
            partition=-1 if place is None else place[0],
            offset=-1 if place is None else place[1],
        )
    finally:
        server.close()
    return DeadLetters(
        groups=[Group(**each) for each in groups], letters=[_letter(each) for each in letters]
    )


def _letter(row: dict[str, str]) -> Letter:
    raw = base64.b64decode(row["value"])
    millis = int(row.pop("millis"))
    return Letter.model_validate(
        row
        | {
            "timestamp": datetime.fromtimestamp(millis / 1000).astimezone(),
            "text": raw[:_TEXT_BYTES].decode("utf-8", "replace"),
        }
    )
