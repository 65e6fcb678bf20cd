"""Runs one slot: opens its connections, takes partitions, and delivers waiting messages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kalla import logs
from kalla.database import AWAY, Database
from kalla.errors import InvalidInput, KallaError, Lost, Unavailable
from kalla.redaction import scrub
from kalla.settings import Sinks as SinkSettings
from kalla.sinks import ledger, plan, store
from kalla.sinks.kernel import DEAD_LETTER_COLUMNS
from kalla.sinks.ledger import Partition
from kalla.sinks.servers.checks import wanted_columns
from kalla.sinks.servers.clickhouse_client import check_problems
from kalla.sinks.servers.message_ranges import OffsetRange
from kalla.sinks.servers.server_connections import Resolve, connections
from kalla.sinks.slots.child import Child, Connections
from kalla.sinks.slots.deliveries import Deliveries, Table
from kalla.sinks.slots.member import GroupMember, LogEnds, TopicFacts, topic_facts
from kalla.sinks.slots.placement import SparkPlacement
from kalla.sinks.slots.replaying import Replaying
from kalla.sinks.slots.seat import Seat
from kalla.sinks.store import PipelineRecord

_log = logs.get(__name__)

_SHORTEST_BACKOFF = 0.2
_LONGEST_BACKOFF = 5.0
_TOPIC_SECONDS = 5.0
_LOG_SECONDS = 2.0


@dataclass(frozen=True)
class Dependencies:
    """The dependencies that all carriers of a worker share."""

    database: Database
    settings: SinkSettings
    resolve: Resolve
    spark: SparkPlacement


class Carrier:
    """Runs until it is stopped; every error is shown with the pipeline and retried."""

    def __init__(self, shared: Dependencies, record: PipelineRecord, seat: Seat) -> None:
        self.record = record
        self.poisoned = False
        self._shared = shared
        self._database = shared.database
        self._settings = shared.settings
        self._seat = seat
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._child: Child | None = None
        self._connections: Connections | None = None
        self._member: GroupMember | None = None
        self._topic = TopicFacts("", None)
        self._topic_asked = 0.0
        self._log_noted = 0.0
        self._taken: dict[int, Partition] = {}
        self._not_before: dict[int, float] = {}
        self._waiting_since: dict[int, float] = {}
        self._table: Table | None = None  # None: to be checked again
        self._error_message: str | None = ""  # the last stored message; "": none yet
        share = record.options.rows_per_second
        per_member = share / max(record.replicas, 1) if share and seat.lease else share
        self._rate = plan.RateLimit(per_member, time.monotonic())
        self._batch = plan.BatchSize(record.options.batch_rows)
        self._poison = plan.Poison(record.options.poison_percent)
        self._replaying = Replaying(shared.database, record, seat)
        self._task = asyncio.create_task(self._run(), name=f"carrier of {record.pipeline}")

    async def stop(self, seconds: float) -> None:
        """Finishes the range in flight if `seconds` allow it; then closes everything."""
        self._stopping.set()
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await asyncio.shield(self._task)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._close()

    async def _run(self) -> None:
        backoff = _SHORTEST_BACKOFF
        while not self._stopping.is_set():
            try:
                await self._step(await self._open())
                await self._store_state(None)
                backoff = _SHORTEST_BACKOFF
            except Lost as error:
                # Another worker has the partition: the local state is outdated.
                _log.info("partition lost", pipeline=self.record.pipeline, reason=str(error))
                self._taken.clear()
                self._not_before.clear()
                await self._pause(0.1)
            except (KallaError, *AWAY) as error:
                self._table = None
                await self._store_state(scrub(str(error)), backoff)
                await self._pause(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF)
            except Exception as error:
                _log.exception("carrier failed", pipeline=self.record.pipeline)
                await self._store_state(
                    f"{type(error).__name__}: {scrub(str(error))}", _LONGEST_BACKOFF
                )
                await self._close()
                await self._pause(_LONGEST_BACKOFF)

    async def _open(self) -> Deliveries:
        record = self.record
        if self._child is not None and not self._child.running:
            self._child = None
        if self._child is None or self._connections is None:
            self._connections = await asyncio.to_thread(
                connections, record.kafka, record.clickhouse, self._shared.resolve
            )
            self._child = await Child.start(self._connections)
            self._table = None
        if self._table is None:
            self._table = await self._check_tables(self._child)
        if self._member is not None and not self._member.is_alive():
            self._member = None
            self._taken.clear()
        if self._member is None:
            self._topic = await asyncio.to_thread(
                topic_facts, self._connections.kafka, record.kafka.topic
            )
            self._topic_asked = time.monotonic()
            self._member = GroupMember(
                self._connections.kafka,
                record.kafka.topic,
                f"kalla.{record.pipeline}",
                f"{record.pipeline}-{self._seat.instance}",
                self._settings.lease_ttl_seconds,
                self._wake,
            )
            self._member.start()
        return Deliveries(
            database=self._database,
            record=record,
            seat=self._seat,
            settings=self._settings,
            member=self._member,
            child=self._child,
            connections=self._connections,
            table=self._table,
            taken=self._taken,
            not_before=self._not_before,
        )

    def _wake(self) -> None:
        """Called by the member's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)

    async def _check_tables(self, child: Child) -> Table:
        """Refuses a table that was changed since `apply`, before a row is sent."""
        config = self.record.clickhouse
        rows, letters = await child.tables(config.table, config.dead_letters)
        problems = []
        wanted = wanted_columns(self.record.rules.mapping, config.provenance)
        for name, state, columns in (
            (config.table, rows, wanted),
            (config.dead_letters, letters, DEAD_LETTER_COLUMNS),
        ):
            if state is None:
                raise Unavailable(f"ClickHouse has no table {config.database}.{name}")
            problems += check_problems(columns, state, name)
        if problems:
            raise InvalidInput(*problems)
        if rows is None or letters is None:
            raise AssertionError("both were checked")
        return Table(rows.uuid, rows.window, config.provenance and rows.readable)

    async def _step(self, deliveries: Deliveries) -> None:
        member = deliveries.member
        self._changed.clear()
        await self._compare_topic(deliveries)
        assigned, ends = member.assigned(), member.ends()
        for partition in [each for each in self._taken if each not in assigned]:
            del self._taken[partition]
        for partition in sorted(assigned - self._taken.keys()):
            if partition in ends:
                await self._take(deliveries, partition, ends[partition].low)
        worked = False
        now = time.monotonic()
        for partition, held in list(self._taken.items()):
            if held.intent_id is not None and self._not_before.get(partition, 0) <= now:
                worked |= await deliveries.recover(held)
        await self._note_log(ends)
        highs = {each: end.high for each, end in ends.items()}
        ranges = self._next_ranges(highs)
        if ranges:
            worked |= await self._deliver(deliveries, ranges, highs)
        worked |= await self._replaying.step(deliveries.child, deliveries.deadline)
        if member.error_message:
            raise Unavailable(member.error_message)
        if not worked:
            flush = self.record.options.flush_seconds if self._waiting_since else 0
            await self._pause(flush or self._settings.idle_seconds)

    def _next_ranges(self, highs: dict[int, int]) -> list[OffsetRange]:
        if self.poisoned:
            return []
        now = time.monotonic()
        waiting = {
            each for each, held in self._taken.items() if highs.get(each, 0) > held.next_offset
        }
        self._waiting_since = {each: self._waiting_since.get(each, now) for each in waiting}
        options = self.record.options
        return plan.next_ranges(
            list(self._taken.values()),
            highs,
            plan.Limits(
                self._batch.rows,
                options.flush_seconds,
                self._rate.budget(now),
                now,
                self._waiting_since,
            ),
        )

    async def _deliver(
        self, deliveries: Deliveries, ranges: Sequence[OffsetRange], highs: dict[int, int]
    ) -> bool:
        """True if anything was delivered."""
        spark = self._shared.spark
        placement = self._settings.placement
        waiting = sum(max(0, highs[each.partition] - each.start) for each in ranges)
        if plan.on_spark(placement, waiting) and (placement == "spark" or spark.usable):
            try:
                await spark.warm(len(ranges))
            except Unavailable as error:
                if placement == "spark":
                    raise
                await self._event("placement", f"{error}; the slot's own process delivers")
            else:
                return await self._deliver_some(deliveries, ranges, highs, spark)
        worked = False
        for wanted in ranges:
            if self._stopping.is_set():
                break
            worked |= await self._deliver_some(deliveries, [wanted], highs)
        return worked

    async def _deliver_some(
        self,
        deliveries: Deliveries,
        ranges: Sequence[OffsetRange],
        highs: dict[int, int],
        spark: SparkPlacement | None = None,
    ) -> bool:
        for each in ranges:
            self._waiting_since.pop(each.partition, None)
        done = await deliveries.deliver(ranges, highs, spark)
        self._rate.spend(sum(each.messages for each in done))
        for facts in done:
            self._batch.note(facts.messages, facts.bytes)
            if sentence := self._poison.verdict(facts.messages, facts.dead):
                await self._stop_poisoned(sentence)
        return bool(done)

    async def _stop_poisoned(self, sentence: str) -> None:
        self.poisoned = True
        async with self._database.transaction() as connection:
            await self._seat.assert_held(connection)
            await store.stop_poisoned(connection, self.record.pipeline, sentence)

    async def _compare_topic(self, deliveries: Deliveries) -> None:
        if time.monotonic() - self._topic_asked < _TOPIC_SECONDS:
            return
        self._topic = await asyncio.to_thread(
            topic_facts, deliveries.connections.kafka, self.record.kafka.topic
        )
        self._topic_asked = time.monotonic()
        for held in list(self._taken.values()):
            if held.stopped is not None:
                del self._taken[held.partition]  # a person may have fixed it: take it again
            elif held.topic_id != self._topic.topic_id:
                await self._stop_replaced(deliveries, held)

    async def _take(self, deliveries: Deliveries, partition: int, low: int) -> None:
        record, seat = self.record, self._seat
        async with self._database.transaction() as connection:
            await seat.assert_held(connection)
            held = await ledger.take(
                connection,
                record.pipeline,
                record.kafka.topic,
                partition,
                self._topic.topic_id,
                low,
                seat.slot,
                seat.holder,
            )
        self._taken[partition] = held
        self._not_before.pop(partition, None)
        if held.stopped is not None:
            return
        if held.topic_id != self._topic.topic_id:
            await self._stop_replaced(deliveries, held)
        elif held.next_offset < low:
            gap = f"Kafka removed the offsets {held.next_offset} to {low - 1}"
            reason = deliveries.gap_sentence(f"{gap} before they were delivered")
            await deliveries.stop_partition(held, "gap", reason)

    async def _stop_replaced(self, deliveries: Deliveries, held: Partition) -> None:
        await deliveries.stop_partition(
            held,
            "topic_replaced",
            "the topic was deleted and created again: its offsets name other messages; "
            f"`kalla sinks seek {self.record.pipeline} --to earliest` starts with the new one",
        )

    async def _note_log(self, ends: dict[int, LogEnds]) -> None:
        """Stores the lag for pages; no decision depends on it."""
        now = time.monotonic()
        if now - self._log_noted < _LOG_SECONDS:
            return
        self._log_noted = now
        async with self._database.transaction() as connection:
            for partition, held in self._taken.items():
                if partition in ends:
                    log = (ends[partition].low, ends[partition].high)
                    await ledger.note_log(
                        connection, self.record.pipeline, held, log, self._topic.retention_ms
                    )

    async def _event(self, event: str, detail: str) -> None:
        _log.warning(event, pipeline=self.record.pipeline, detail=detail)
        async with self._database.transaction() as connection:
            await store.add_event(connection, self.record.pipeline, event, detail)

    async def _store_state(self, error_message: str | None, retry_seconds: float = 0) -> None:
        """Stores why the pipeline does not deliver, and when it is tried again."""
        if self.poisoned:
            return
        with contextlib.suppress(*AWAY):
            if error_message != self._error_message:
                if error_message:
                    _log.warning(
                        "delivery waits", pipeline=self.record.pipeline, error=error_message
                    )
                async with self._database.transaction() as connection:
                    await store.set_trouble(
                        connection, self.record.pipeline, error_message, retry_seconds
                    )
                self._error_message = error_message
            elif error_message:
                async with self._database.transaction() as connection:
                    await store.set_retry(connection, self.record.pipeline, retry_seconds)

    async def _pause(self, seconds: float) -> None:
        if self._stopping.is_set():
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    async def _close(self) -> None:
        member, self._member = self._member, None
        child, self._child = self._child, None
        self._taken.clear()
        self._not_before.clear()
        if child is not None:
            await child.kill()
        if member is not None:
            await asyncio.to_thread(member.stop)
