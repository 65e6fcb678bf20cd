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
from kalla.settings import Sinks as SinkSettings
from kalla.sinks import ledger, plan, store
from kalla.sinks.kernel import DEAD_LETTER_COLUMNS, Facts
from kalla.sinks.ledger import Partition
from kalla.sinks.servers.checks import wanted_columns
from kalla.sinks.servers.clickhouse_client import NoAnswer, check_problems
from kalla.sinks.servers.kafka_client import Admin, open_admin
from kalla.sinks.servers.message_ranges import OffsetRange
from kalla.sinks.servers.server_connections import Resolve, connections
from kalla.sinks.slots.child import Child, ChildEnded, Connections
from kalla.sinks.slots.deliveries import Deliveries, Retries, Table
from kalla.sinks.slots.member import GroupMember, LogEnds, TopicFacts, topic_facts
from kalla.sinks.slots.placement import SparkPlacement
from kalla.sinks.slots.replaying import Replaying
from kalla.sinks.slots.seat import Seat
from kalla.sinks.slots.slot_report import SlotReport
from kalla.sinks.store import PipelineRecord

_log = logs.get(__name__)

_SHORTEST_BACKOFF = 0.2
_LONGEST_BACKOFF = 5.0
_TOPIC_SECONDS = 5.0
_BUSY_TOPIC_SECONDS = 0.5  # while messages wait: they may be of a topic that was made anew
_AHEAD_SECONDS = 30.0


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
        self._admin: Admin | None = None
        self._taken: dict[int, Partition] = {}
        self._retries = Retries()
        self._waiting_since: dict[int, float] = {}
        self._ahead_since: dict[int, float] = {}
        self._table: Table | None = None  # None: to be checked again
        self._report = SlotReport(shared.database, record.pipeline, seat)
        share = record.options.rows_per_second
        per_member = share / max(record.replicas, 1) if share and seat.lease else share
        self._rate = plan.RateLimit(per_member, time.monotonic())
        self._batch = plan.BatchSize(record.options.batch_rows)
        self._poison = plan.Poison(record.options.poison_percent)
        self._replaying = Replaying(shared.database, record, seat)
        self._task = asyncio.create_task(self._run(), name=f"carrier of {record.pipeline}")

    @property
    def ended(self) -> bool:
        """Whether it ended by itself, which no error should bring about."""
        return self._task.done()

    async def stop(self, seconds: float) -> None:
        """Finishes the range in flight if `seconds` allow it; then closes everything."""
        self._stopping.set()
        self._changed.set()
        await asyncio.wait([self._task], timeout=max(seconds, 0))
        self._task.cancel()
        # Before the task has ended: its query to a database that is away takes seconds to end.
        await self._close()
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(result, Exception):
            _log.error("carrier ended", pipeline=self.record.pipeline, error=repr(result))
        await self._close()  # what it opened meanwhile

    async def _run(self) -> None:
        backoff = _SHORTEST_BACKOFF
        while not self._stopping.is_set():
            try:
                await self._step(await self._open())
                error_message = self._retries.error_message or self._replaying.error_message
                if await self._show(error_message, _LONGEST_BACKOFF) and error_message:
                    self._table = None
                backoff = _SHORTEST_BACKOFF
            except Lost as error:
                # Another worker has the partition: the local state is outdated.
                _log.info("partition lost", pipeline=self.record.pipeline, reason=str(error))
                self._taken.clear()
                self._retries = Retries()
                await self._back_off(0.1)
            except (KallaError, *AWAY) as error:
                self._table = None
                self._ahead_since.clear()  # the ends of logs may be outdated by the next step
                await self._show(str(error), backoff)
                await self._back_off(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF)
            except Exception as error:
                _log.exception("carrier failed", pipeline=self.record.pipeline)
                await self._show(f"{type(error).__name__}: {error}", _LONGEST_BACKOFF)
                await self._close()
                await self._back_off(_LONGEST_BACKOFF)

    async def _open(self) -> Deliveries:
        record, current = self.record, self._connections
        if current is None or self._table is None:  # after an error: a secret may be another one
            current = await asyncio.to_thread(
                connections, record.kafka, record.clickhouse, self._shared.resolve
            )
        if current != self._connections:
            await self._close()
            self._connections = current
        if self._member is not None and not self._member.is_alive():
            self._member = None
            self._taken.clear()
        # Together: each of them takes a second or more.
        opened, member = await asyncio.gather(
            self._open_child(current), self._open_member(current), return_exceptions=True
        )
        if isinstance(opened, BaseException):
            raise opened
        if isinstance(member, BaseException):
            raise member
        child, table = opened
        return Deliveries(
            database=self._database,
            record=record,
            seat=self._seat,
            settings=self._settings,
            member=member,
            child=child,
            connections=current,
            table=table,
            taken=self._taken,
            retries=self._retries,
            delivered=self._note_delivered,
        )

    async def _open_child(self, current: Connections) -> tuple[Child, Table]:
        if self._child is not None and not self._child.running:
            self._child = None
        if self._child is None:
            self._child = await Child.start(current)
            self._table = None
        if self._table is None:
            if self._member is not None:  # the lag grows while ClickHouse is away
                await self._note_log(self._member.ends())
            self._table = await self._check_tables(self._child)
        return self._child, self._table

    async def _open_member(self, current: Connections) -> GroupMember:
        if self._member is None:
            self._admin = open_admin(current.kafka)
            self._topic = await asyncio.to_thread(topic_facts, self._admin, self.record.kafka.topic)
            self._topic_asked = time.monotonic()
            member = GroupMember(
                current.kafka,
                self.record.kafka.topic,
                f"kalla.{self.record.pipeline}",
                f"{self.record.pipeline}-{self._seat.instance}",
                self._settings.lease_ttl_seconds,
                self._wake,
            )
            member.start()
            self._member = member
        return self._member

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
        windows = [rows.window, letters.window, *rows.views.values(), *letters.views.values()]
        probe = config.provenance and rows.probe and letters.readable
        return Table(rows.uuid, min(windows), probe, bool(rows.views or letters.views))

    async def _step(self, deliveries: Deliveries) -> None:
        member = deliveries.member
        self._changed.clear()
        # Before the topic's id is compared: ends of a newer topic must not be used.
        ends = member.ends()
        await self._compare_topic(deliveries, ends)
        assigned = member.assigned()
        for partition in [each for each in self._taken if each not in assigned]:
            del self._taken[partition]
            self._retries.forget(partition)
        for partition in sorted(assigned - self._taken.keys()):
            if partition in ends:
                await self._take(deliveries, partition, ends[partition].low)
        await self._stop_cut_back(deliveries, ends)
        worked = await self._recover(deliveries, failed=False)
        await self._note_log(ends)
        highs = {each: end.high for each, end in ends.items()}
        ranges = self._next_ranges(highs)
        if ranges:
            worked |= await self._deliver(deliveries, ranges, highs)
        worked |= await self._recover(deliveries, failed=True)
        worked |= await self._replaying.step(deliveries.child, deliveries.deadline)
        if member.error_message:
            raise Unavailable(member.error_message)
        if not worked:
            flush = self.record.options.flush_seconds if self._waiting_since else 0
            await self._pause(flush or self._settings.idle_seconds)

    async def _recover(self, deliveries: Deliveries, failed: bool) -> bool:
        """True if anything was decided. Ranges that `failed` before come last: one that ClickHouse
        refuses must not hold up the other partitions.
        """
        worked = False
        for partition, held in list(self._taken.items()):
            if (
                held.intent_id is None
                or held.stopped is not None
                or (partition in self._retries.errors) != failed
                or self._retries.not_before.get(partition, 0) > time.monotonic()
                or self._stopping.is_set()
            ):
                continue
            try:
                worked |= await deliveries.recover(held)
            except Lost:
                raise
            except KallaError as error:
                self._retries.failed(partition, error)
                if isinstance(error, NoAnswer | ChildEnded):
                    raise
        return worked

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
        for group in plan.groups(ranges, self._batch.rows):
            if self._stopping.is_set():
                break
            worked |= await self._deliver_some(deliveries, group, highs)
        return worked

    async def _deliver_some(
        self,
        deliveries: Deliveries,
        ranges: Sequence[OffsetRange],
        highs: dict[int, int],
        spark: SparkPlacement | None = None,
    ) -> bool:
        # What arrives meanwhile waits from now on: it need not wait for as long again afterwards.
        self._waiting_since |= dict.fromkeys((each.partition for each in ranges), time.monotonic())
        try:
            done = await deliveries.deliver(ranges, highs, spark)
        finally:
            for each in ranges:
                if each.partition in self._retries.too_slow:
                    self._batch.note_too_slow(each.end - each.start)
        return bool(done)

    async def _note_delivered(self, facts: Facts) -> None:
        self._rate.spend(facts.messages)
        self._batch.note(facts.messages, facts.bytes)
        if sentence := self._poison.verdict(facts.messages, facts.dead):
            await self._stop_poisoned(sentence)

    async def _stop_poisoned(self, sentence: str) -> None:
        self.poisoned = True
        async with self._database.transaction() as connection:
            await self._seat.assert_held(connection)
            await store.stop_poisoned(connection, self.record.pipeline, sentence)

    async def _compare_topic(self, deliveries: Deliveries, ends: dict[int, LogEnds]) -> None:
        waited = time.monotonic() - self._topic_asked
        more = any(
            held.stopped is None and each in ends and ends[each].high > held.next_offset
            for each, held in self._taken.items()
        )
        most = _BUSY_TOPIC_SECONDS if more else _TOPIC_SECONDS
        if waited < most and not deliveries.member.log_may_be_another():
            return
        if self._admin is None:
            raise AssertionError("a member has its admin client")
        self._topic_asked = 0.0  # asked again if there is no answer
        self._topic = await asyncio.to_thread(topic_facts, self._admin, self.record.kafka.topic)
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
        self._retries.forget(partition)
        if held.stopped is not None:
            return
        if held.topic_id != self._topic.topic_id:
            await self._stop_replaced(deliveries, held)
        elif held.next_offset < low and held.intent_id is None:  # else its recovery finds it
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

    async def _stop_cut_back(self, deliveries: Deliveries, ends: dict[int, LogEnds]) -> None:
        """Messages below the next offset are new ones, after brokers have lost the end of a log;
        one that restarts reports an earlier end for a moment.
        """
        now = time.monotonic()
        ahead = {
            partition
            for partition, held in self._taken.items()
            if held.stopped is None
            and partition in ends
            and ends[partition].high < held.next_offset
        }
        self._ahead_since = {each: self._ahead_since.get(each, now) for each in ahead}
        for partition in ahead:
            if now - self._ahead_since[partition] > _AHEAD_SECONDS:
                held = self._taken[partition]
                await deliveries.stop_partition(
                    held,
                    "gap",
                    f"Kafka's log ends at {ends[partition].high}, before the next offset "
                    f"{held.next_offset}: brokers have lost messages that were delivered; "
                    f"`kalla sinks seek {self.record.pipeline}` sets where to continue",
                )

    async def _note_log(self, ends: dict[int, LogEnds]) -> None:
        await self._report.log_ends(self._taken, ends, self._topic.retention_ms)

    async def _event(self, event: str, detail: str) -> None:
        _log.warning(event, pipeline=self.record.pipeline, detail=detail)
        async with self._database.transaction() as connection:
            await store.add_event(connection, self.record.pipeline, event, detail)

    async def _show(self, error_message: str | None, retry_seconds: float) -> bool:
        return not self.poisoned and await self._report.error(error_message, retry_seconds)

    async def _back_off(self, seconds: float) -> None:
        """New messages do not shorten it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _pause(self, seconds: float) -> None:
        if self._stopping.is_set():
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    async def _close(self) -> None:
        member, self._member = self._member, None
        child, self._child = self._child, None
        self._taken.clear()
        self._retries = Retries()
        if child is not None:
            await child.kill()
        if member is not None:
            await asyncio.to_thread(member.stop)
