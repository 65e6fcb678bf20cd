"""deliver(range) -> facts: reads a frozen range, maps it and inserts it once, without Postgres."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa

from kalla import compiling
from kalla.errors import Unavailable
from kalla.sinks.model import RowRules
from kalla.sinks.rows.mapping import DeadLetter
from kalla.sinks.rows.transform import Transform, Transformed
from kalla.sinks.servers.clickhouse_client import ClickHouse, Target
from kalla.sinks.servers.message_ranges import NO_TIMESTAMP, Message, OffsetRange
from kalla.sinks.servers.reader import Reader

MOST_BYTES = 64 << 20  # of the messages of a range; in memory they take ten times as much

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
    "headers": "Map(String, Nullable(String))",
    "replay": "Int64",  # 0: the letter; else the replay that made a row of it
}
LETTER_TYPES = {
    name: kind.replace("LowCardinality(String)", "String")
    for name, kind in DEAD_LETTER_COLUMNS.items()
}


OWN_LETTERS = " AND pipeline = {pipeline:String} AND replay = 0"  # of the shared table


@dataclass(frozen=True)
class Delivery:
    """Everything needed to deliver a range, frozen when its intent was written."""

    pipeline: str
    range: OffsetRange
    generation: int
    rules: RowRules
    token: str
    comment: str  # slot and epoch, for the query log
    recovered: bool = False  # an earlier try may have inserted some of it
    settled: bool = True  # and no insert of an earlier try can arrive any more
    provenance: bool = True  # whether rows have provenance columns
    probe: bool = True  # whether the tables can be queried


@dataclass(frozen=True)
class Facts:
    """The result of a range: every message is counted in exactly one of the first four fields."""

    rows: int
    dead: int
    skipped: int  # tombstones
    filtered: int
    bytes: int
    found: int  # of a recovered range: rows and dead letters that were in the tables already
    newest_ms: int | None
    seconds: float

    @property
    def messages(self) -> int:
        return self.rows + self.dead + self.skipped + self.filtered


class Unsettled(Unavailable):
    """A part of a range has arrived, and the rest may still be in flight: check again later."""


class TooLarge(Unavailable):
    """The messages of a range do not fit in memory; nothing of it was inserted."""

    def __init__(self, wanted: OffsetRange, end: int) -> None:
        super().__init__(f"{wanted} is too large: its messages up to {end - 1} come first")
        self.wanted = wanted
        self.end = end  # what is before it fits

    def __reduce__(self) -> tuple[type[TooLarge], tuple[OffsetRange, int]]:
        return type(self), (self.wanted, self.end)


def prepare() -> None:
    """Compiles the loops: this takes the first process of an installation some seconds."""
    from kalla.sinks.rows import splicing  # noqa: F401
    from kalla.sinks.servers import gathering  # noqa: F401

    compiling.prepare("kalla.sinks")


class Kernel:
    """The connections of one delivering process; `deliver` is called repeatedly."""

    def __init__(self, kafka: Mapping[str, str], target: Target, dead_letters: str) -> None:
        self._reader = Reader(kafka)
        self._server = ClickHouse(target)
        self._table = target.table
        self._dead_letters = dead_letters
        self._transform: Transform | None = None

    def close(self) -> None:
        self._reader.close()
        self._server.close()

    def clock(self) -> float:
        return self._server.now()

    def deliver(self, delivery: Delivery, deadline: float) -> Facts:
        """Deliver the range before `deadline`, a time of ClickHouse's clock."""
        began = time.monotonic()
        transform = self._transform_of(delivery.rules)
        parts = []
        size, newest = 0, NO_TIMESTAMP
        for batch in self._reader.read(delivery.range, max(1.0, deadline - self._server.now())):
            fits = max(batch.fitting(MOST_BYTES - size), 0 if size else 1)
            if fits < len(batch):
                raise TooLarge(delivery.range, int(batch.offsets[fits]))
            parts.append(transform.apply(batch))
            size += batch.value_bytes
            newest = max(newest, int(batch.timestamps.max()))
        result = transform.joined(parts)
        rows = rows_of(result, delivery)
        letters = letters_of(result.dead, delivery)
        row_offsets: set[int] = set()
        dead_offsets: set[int] = set()
        if delivery.recovered and delivery.probe:
            row_offsets = self._present(self._table, "_", delivery)
            dead_offsets = self._present(self._dead_letters, "", delivery)
        # Dead letters first: when the rows have arrived, the range is complete.
        self._insert(
            self._dead_letters, letters, LETTER_TYPES, "offset", dead_offsets, delivery, ":dead",
            deadline,
        )  # fmt: skip
        self._insert(
            self._table, rows, transform.input_types, "_offset", row_offsets, delivery, "",
            deadline,
        )  # fmt: skip
        return Facts(
            rows=rows.num_rows,
            dead=letters.num_rows,
            skipped=len(result.skipped),
            filtered=len(result.filtered),
            bytes=size,
            found=len(row_offsets) + len(dead_offsets),
            newest_ms=None if newest == NO_TIMESTAMP else newest,
            seconds=time.monotonic() - began,
        )

    def _transform_of(self, rules: RowRules) -> Transform:
        if self._transform is None or self._transform.rules != rules:
            if self._transform is not None:
                self._transform.close()
            self._transform = Transform(rules)
        return self._transform

    def _present(self, table: str, prefix: str, delivery: Delivery) -> set[int]:
        """The offsets of the range that the table holds."""
        mine = "" if prefix else OWN_LETTERS
        return present_offsets(
            self._server, table, prefix, delivery.range, delivery.generation, delivery.pipeline,
            mine,
        )  # fmt: skip

    def _insert(
        self,
        table: str,
        batch: pa.Table,
        types: Mapping[str, str],
        offset_column: str,
        present: set[int],
        delivery: Delivery,
        suffix: str,
        deadline: float,
    ) -> None:
        token = delivery.token + suffix
        if present:
            offsets = batch.column(offset_column).to_pylist()
            missing = [row for row, offset in enumerate(offsets) if offset not in present]
            if missing and not delivery.settled:
                raise Unsettled(f"{delivery.range}: an earlier insert may still arrive")
            batch = batch.take(pa.array(missing, pa.int64()))
            # Other content needs another token, or ClickHouse would silently drop it.
            token += repair_suffix([offsets[row] for row in missing])
        if batch.num_rows:
            self._server.insert(table, batch, types, token, deadline, delivery.comment)


def present_offsets(
    server: ClickHouse,
    table: str,
    prefix: str,
    wanted: OffsetRange,
    generation: int,
    pipeline: str,
    condition: str = "",
) -> set[int]:
    """The offsets of a range that a table holds, in one generation."""
    found = server.arrow(
        f"SELECT {prefix}offset AS o FROM `{server.target.database}`.`{table}`"
        f" WHERE {prefix}topic = {{topic:String}} AND {prefix}partition = {{partition:Int32}}"
        f" AND {prefix}generation = {{generation:Int32}}"
        f" AND {prefix}offset >= {{start:Int64}} AND {prefix}offset < {{end:Int64}}{condition}"
        " SETTINGS select_sequential_consistency = 1",
        topic=wanted.topic,
        partition=wanted.partition,
        generation=generation,
        start=wanted.start,
        end=wanted.end,
        pipeline=pipeline,
    )
    return set(found.column("o").to_pylist())


def repair_suffix(offsets: Sequence[int]) -> str:
    """The suffix of a repair's token: made of all offsets that it inserts."""
    return f":missing-{sha256(repr(list(offsets)).encode()).hexdigest()[:32]}" if offsets else ""


def rows_of(result: Transformed, delivery: Delivery) -> pa.Table:
    if not delivery.provenance:
        return result.columns
    count = len(result.offsets)
    provenance = {
        "_topic": pa.repeat(pa.scalar(delivery.range.topic, pa.string()), count),
        "_partition": pa.repeat(pa.scalar(delivery.range.partition, pa.int32()), count),
        "_offset": pa.array(result.offsets, pa.int64()),
        "_generation": pa.repeat(pa.scalar(delivery.generation, pa.int32()), count),
    }
    rows = result.columns
    for name, column in provenance.items():
        rows = rows.append_column(name, column)
    return rows


def letters_of(dead: Sequence[DeadLetter], delivery: Delivery, replay: int = 0) -> pa.Table:
    messages: list[Message] = [each.message for each in dead]
    count = len(dead)
    return pa.table(
        {
            "pipeline": pa.array([delivery.pipeline] * count, pa.string()),
            "topic": pa.array([delivery.range.topic] * count, pa.string()),
            "partition": pa.array([delivery.range.partition] * count, pa.int32()),
            "offset": pa.array([each.offset for each in messages], pa.int64()),
            "generation": pa.array([delivery.generation] * count, pa.int32()),
            "mapping_version": pa.array([delivery.rules.version] * count, pa.int32()),
            "timestamp": pa.array(
                [each.timestamp or 0 for each in messages], pa.timestamp("ms", "UTC")
            ),
            "reason": pa.array([each.reason for each in dead], pa.string()),
            "field": pa.array([each.field for each in dead], pa.string()),
            "key": pa.array([each.key for each in messages], pa.binary()),
            "value": pa.array([each.value for each in messages], pa.binary()),
            # The last header of a name is used, as in the mapping.
            "headers": pa.array(
                [list(dict(each.headers).items()) for each in messages],
                pa.map_(pa.string(), pa.binary()),
            ),
            "replay": pa.array([replay] * count, pa.int64()),
        }
    )
