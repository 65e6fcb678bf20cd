"""The kernel of a replay: dead letters become rows, each once, and are marked as replayed.

A letter's row stays in the table; a second row with the replay's number marks it as settled.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import pyarrow as pa

from kalla.sinks.kernel import (
    LETTER_TYPES,
    Delivery,
    letters_of,
    present_offsets,
    repair_suffix,
    rows_of,
)
from kalla.sinks.model import RowRules
from kalla.sinks.rows.mapping import DeadLetter
from kalla.sinks.rows.transform import Transform
from kalla.sinks.servers.clickhouse_client import ClickHouse
from kalla.sinks.servers.message_ranges import Message, OffsetRange

Cursor = tuple[int, int, int]  # generation, partition, offset

_MOST_LETTERS = 1000
_MOST_BYTES = 32 << 20

# A letter is open until a row of the same offset carries the number of a replay.
OPEN = (
    "replay = 0 AND pipeline = {pipeline:String} AND (topic, partition, offset, generation) NOT IN"
    " (SELECT topic, partition, offset, generation FROM %(table)s"
    " WHERE replay > 0 AND pipeline = {pipeline:String})"
)


@dataclass(frozen=True)
class Chunk:
    """Letters of one partition and generation."""

    topic: str
    partition: int
    generation: int
    offsets: tuple[int, ...]

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.offsets[0], self.offsets[-1] + 1)

    @property
    def end(self) -> Cursor:
        return self.generation, self.partition, self.offsets[-1]

    def document(self) -> dict[str, Any]:
        return {**vars(self), "offsets": list(self.offsets)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Chunk:
        return cls(**{**document, "offsets": tuple(document["offsets"])})


@dataclass(frozen=True)
class ChunkRequest:
    """The request for the next letters."""

    pipeline: str
    topic: str
    cursor: Cursor
    reason: str
    field: str


@dataclass(frozen=True)
class ReplayRequest:
    """A chunk and the rules for its letters."""

    pipeline: str
    chunk: Chunk
    rules: RowRules
    replay: int
    comment: str


@dataclass(frozen=True)
class ReplayFacts:
    rows: int
    refused: int  # still no row


def next_chunk(server: ClickHouse, table: str, request: ChunkRequest) -> Chunk | None:
    """The first open letters after the cursor, as many as fit in memory; None at the end."""
    named = f"`{server.target.database}`.`{table}`"
    generation, partition, offset = request.cursor
    found = server.rows(
        "SELECT generation, partition, offset, length(ifNull(value, '')) AS bytes"
        f" FROM {named} WHERE {OPEN % {'table': named}} AND topic = {{topic:String}}"
        " AND (generation, partition, offset) > ({g:Int32}, {p:Int32}, {o:Int64})"
        " AND ({reason:String} = '' OR reason = {reason:String})"
        " AND ({field:String} = '' OR field = {field:String})"
        f" ORDER BY generation, partition, offset LIMIT {_MOST_LETTERS}",
        pipeline=request.pipeline,
        topic=request.topic,
        reason=request.reason,
        field=request.field,
        g=generation,
        p=partition,
        o=offset,
    )
    if not found:
        return None
    first = (int(found[0]["generation"]), int(found[0]["partition"]))
    offsets: list[int] = []
    size = 0
    for row in found:
        size += int(row["bytes"])
        if (int(row["generation"]), int(row["partition"])) != first:
            break
        if offsets and size > _MOST_BYTES:
            break
        offsets.append(int(row["offset"]))
    return Chunk(request.topic, first[1], first[0], tuple(offsets))


def replay_chunk(
    server: ClickHouse, letters_table: str, request: ReplayRequest, deadline: float
) -> ReplayFacts:
    """Inserts the missing rows of the chunk, then the marks; earlier tries have ended."""
    chunk = request.chunk
    messages = messages_of(server, letters_table, request.pipeline, chunk)
    transform = Transform(request.rules)
    result = transform.apply(messages)
    settled = {
        **dict.fromkeys(result.offsets.tolist(), "became a row"),
        **dict.fromkeys(result.filtered.tolist(), "left out by a filter"),
        **dict.fromkeys(result.skipped.tolist(), "skipped as a tombstone"),
    }
    content = sha256(repr(chunk).encode()).hexdigest()[:32]
    delivery = Delivery(
        pipeline=request.pipeline,
        range=chunk.range,
        generation=chunk.generation,
        rules=request.rules,
        token=f"{request.pipeline}/replay-{request.replay}/{content}/m{request.rules.version}",
        comment=request.comment,
    )
    by_offset = {message.offset: message for message in messages}
    marks = [
        DeadLetter(replace(by_offset[offset], value=None, key=None, headers=()), settled[offset])
        for offset in sorted(settled)
    ]
    place = (chunk.range, chunk.generation, request.pipeline)
    rows_there = present_offsets(server, server.target.table, "_", *place)
    marks_there = present_offsets(
        server,
        letters_table,
        "",
        *place,
        f" AND pipeline = {{pipeline:String}} AND replay = {request.replay}",
    )
    # Rows first: a letter without a mark is tried again, and then its row is found.
    for table, batch, column, there, suffix, types in (
        (server.target.table, rows_of(result, delivery), "_offset", rows_there, "",
         transform.input_types),
        (letters_table, letters_of(marks, delivery, request.replay), "offset", marks_there,
         ":marks", LETTER_TYPES),
    ):  # fmt: skip
        offsets = batch.column(column).to_pylist()
        missing = [row for row, offset in enumerate(offsets) if offset not in there]
        if missing:
            token = delivery.token + suffix + repair_suffix([offsets[row] for row in missing])
            chosen = batch.take(pa.array(missing, pa.int64()))
            server.insert(table, chosen, types, token, deadline, request.comment)
    transform.close()
    return ReplayFacts(rows=len(result.offsets), refused=len(result.dead))


def messages_of(server: ClickHouse, table: str, pipeline: str, chunk: Chunk) -> list[Message]:
    """The chunk's letters as they came from Kafka."""
    found = server.rows(
        "SELECT offset, toUnixTimestamp64Milli(timestamp) AS millis, isNull(key) AS keyless,"
        " base64Encode(ifNull(key, '')) AS key, isNull(value) AS empty,"
        " base64Encode(ifNull(value, '')) AS value,"
        " arrayMap((k, v) -> (k, isNull(v), base64Encode(ifNull(v, ''))),"
        " mapKeys(headers), mapValues(headers)) AS headers"
        f" FROM `{server.target.database}`.`{table}`"
        " WHERE pipeline = {pipeline:String} AND topic = {topic:String}"
        " AND partition = {partition:Int32} AND generation = {generation:Int32} AND replay = 0"
        " AND offset >= {start:Int64} AND offset < {end:Int64} ORDER BY offset",
        pipeline=pipeline,
        topic=chunk.topic,
        partition=chunk.partition,
        generation=chunk.generation,
        start=chunk.range.start,
        end=chunk.range.end,
    )
    wanted = set(chunk.offsets)
    return [
        Message(
            topic=chunk.topic,
            partition=chunk.partition,
            offset=int(row["offset"]),
            timestamp=int(row["millis"]) or None,  # 0 is written where there was none
            key=None if row["keyless"] else base64.b64decode(row["key"]),
            value=None if row["empty"] else base64.b64decode(row["value"]),
            headers=tuple(
                (name, None if absent else base64.b64decode(value))
                for name, absent, value in row["headers"]
            ),
        )
        for row in found
        if int(row["offset"]) in wanted
    ]
