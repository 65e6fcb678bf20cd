"""deliver(range) -> facts: reads a frozen range, maps it and inserts it once, without Postgres."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa

from kalla.errors import Unavailable
from kalla.sinks.clickhouse import ClickHouse, Target
from kalla.sinks.mapping import DeadLetter, Mapper
from kalla.sinks.messages import Message, OffsetRange, Reader
from kalla.sinks.model import PROVENANCE, Column

DEAD_LETTER_COLUMNS = {
    "pipeline": "LowCardinality(String)",
    "topic": "LowCardinality(String)",
    "partition": "Int32",
    "offset": "Int64",
    "generation": "Int32",
    "mapping_version": "Int32",
    "timestamp": "DateTime64(3, 'UTC')",
    "reason": "String",
    "field": "String",
    "key": "Nullable(String)",
    "value": "Nullable(String)",
}
_INPUT = {name: kind.replace("LowCardinality(String)", "String") for name, kind in
          {**PROVENANCE, **DEAD_LETTER_COLUMNS}.items()}  # fmt: skip


@dataclass(frozen=True)
class Delivery:
    """Everything a range is delivered by, frozen when its intent was written."""

    pipeline: str
    range: OffsetRange
    generation: int
    mapping_version: int
    mapping: tuple[Column, ...]
    tombstones: str
    token: str
    comment: str  # slot and epoch, for the query log
    recovered: bool = False  # an earlier try may have inserted some of it
    settled: bool = True  # and no insert of an earlier try can arrive any more


@dataclass(frozen=True)
class Facts:
    """What became of a range: every message is counted in exactly one of the three."""

    rows: int
    dead: int
    skipped: int  # tombstones
    bytes: int
    found: int  # of a recovered range: rows and dead letters that were there already
    newest_ms: int | None
    seconds: float


class Unsettled(Unavailable):
    """Some of a range is there, and the rest may still be on its way: ask again later."""


class Kernel:
    """The connections of one process that delivers; `deliver` is called again and again."""

    def __init__(self, kafka: Mapping[str, str], target: Target, dead_letters: str) -> None:
        self._reader = Reader(kafka)
        self._server = ClickHouse(target)
        self._table = target.table
        self._dead_letters = dead_letters
        self._mappers: dict[int, Mapper] = {}

    def close(self) -> None:
        self._reader.close()
        self._server.close()

    def clock(self) -> float:
        return self._server.now()

    def deliver(self, delivery: Delivery, deadline: float) -> Facts:
        """Deliver the range before `deadline`, a moment of ClickHouse's clock."""
        began = time.monotonic()
        messages = self._reader.read(delivery.range, max(1.0, deadline - self._server.now()))
        mapper = self._mapper(delivery)
        valued = [message for message in messages if message.value is not None]
        empty = [message for message in messages if message.value is None]
        mapped = mapper.map(valued)
        dead = list(mapped.dead)
        if delivery.tombstones == "dead_letter":
            dead += [DeadLetter(message, "has no value (a tombstone)") for message in empty]
            empty = []
        counted = len(mapped.offsets) + len(dead) + len(empty)
        if counted != len(messages):
            raise AssertionError(f"{len(messages)} messages became {counted} results")

        rows = _rows(mapped.columns, mapped.offsets, delivery)
        letters = _letters(sorted(dead, key=lambda each: each.message.offset), delivery)
        here_rows: set[int] = set()
        here_dead: set[int] = set()
        if delivery.recovered:
            here_rows = self._present(self._table, "_", delivery)
            here_dead = self._present(self._dead_letters, "", delivery)
        types = {column.column: known.input_type for column, known in mapper.columns} | _INPUT
        # Dead letters first: when the rows are there, nothing of the range is missing.
        self._insert(self._dead_letters, letters, "offset", here_dead, delivery, ":dead", deadline)
        self._insert(self._table, rows, "_offset", here_rows, delivery, "", deadline, types)
        return Facts(
            rows=rows.num_rows,
            dead=letters.num_rows,
            skipped=len(empty),
            bytes=sum(len(message.value or b"") for message in messages),
            found=len(here_rows) + len(here_dead),
            newest_ms=max((message.timestamp or 0 for message in messages), default=None),
            seconds=time.monotonic() - began,
        )

    def _mapper(self, delivery: Delivery) -> Mapper:
        known = self._mappers.get(delivery.mapping_version)
        if known is None:
            self._mappers = {delivery.mapping_version: Mapper(delivery.mapping)}
            known = self._mappers[delivery.mapping_version]
        return known

    def _present(self, table: str, prefix: str, delivery: Delivery) -> set[int]:
        """The offsets of the range that the table holds."""
        wanted = delivery.range
        mine = "" if prefix else " AND pipeline = {pipeline:String}"
        found = self._server.arrow(
            f"SELECT {prefix}offset AS o FROM `{self._server.target.database}`.`{table}`"
            f" WHERE {prefix}topic = {{topic:String}} AND {prefix}partition = {{partition:Int32}}"
            f" AND {prefix}generation = {{generation:Int32}}"
            f" AND {prefix}offset >= {{start:Int64}} AND {prefix}offset < {{end:Int64}}{mine}"
            " SETTINGS select_sequential_consistency = 1",
            topic=wanted.topic,
            partition=wanted.partition,
            generation=delivery.generation,
            start=wanted.start,
            end=wanted.end,
            pipeline=delivery.pipeline,
        )
        return set(found.column("o").to_pylist())

    def _insert(
        self,
        table: str,
        batch: pa.Table,
        offset_column: str,
        present: set[int],
        delivery: Delivery,
        suffix: str,
        deadline: float,
        types: Mapping[str, str] = _INPUT,
    ) -> None:
        token = delivery.token + suffix
        if present:
            offsets = batch.column(offset_column).to_pylist()
            missing = [row for row, offset in enumerate(offsets) if offset not in present]
            if missing and not delivery.settled:
                raise Unsettled(f"{delivery.range}: an earlier insert may still arrive")
            batch = batch.take(pa.array(missing, pa.int64()))
            # Other content needs another token, or ClickHouse would drop it without a word.
            token += repair_suffix([offsets[row] for row in missing])
        if batch.num_rows:
            self._server.insert(table, batch, types, token, deadline, delivery.comment)


def repair_suffix(offsets: Sequence[int]) -> str:
    """What tells the token of a repair apart: all of the offsets that it inserts."""
    return f":missing-{sha256(repr(list(offsets)).encode()).hexdigest()[:32]}" if offsets else ""


def _rows(columns: Mapping[str, pa.Array], offsets: Sequence[int], delivery: Delivery) -> pa.Table:
    count = len(offsets)
    provenance = {
        "_topic": pa.array([delivery.range.topic] * count, pa.string()),
        "_partition": pa.array([delivery.range.partition] * count, pa.int32()),
        "_offset": pa.array(offsets, pa.int64()),
        "_generation": pa.array([delivery.generation] * count, pa.int32()),
    }
    return pa.table({**columns, **provenance})


def _letters(dead: Sequence[DeadLetter], delivery: Delivery) -> pa.Table:
    messages: list[Message] = [each.message for each in dead]
    count = len(dead)
    return pa.table(
        {
            "pipeline": pa.array([delivery.pipeline] * count, pa.string()),
            "topic": pa.array([delivery.range.topic] * count, pa.string()),
            "partition": pa.array([delivery.range.partition] * count, pa.int32()),
            "offset": pa.array([each.offset for each in messages], pa.int64()),
            "generation": pa.array([delivery.generation] * count, pa.int32()),
            "mapping_version": pa.array([delivery.mapping_version] * count, pa.int32()),
            "timestamp": pa.array(
                [each.timestamp or 0 for each in messages], pa.timestamp("ms", "UTC")
            ),
            "reason": pa.array([each.reason for each in dead], pa.string()),
            "field": pa.array([each.field for each in dead], pa.string()),
            "key": pa.array([each.key for each in messages], pa.binary()),
            "value": pa.array([each.value for each in messages], pa.binary()),
        }
    )
