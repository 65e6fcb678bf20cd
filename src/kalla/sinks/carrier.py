"""Carries one slot: plan a range, write the intent, have it delivered, commit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kalla import logs
from kalla.database import AWAY, Connection, Database
from kalla.errors import InvalidInput, KallaError, Lost, Unavailable
from kalla.redaction import scrub
from kalla.settings import Sinks as SinkSettings
from kalla.sinks import plan, store
from kalla.sinks.checks import wanted_columns
from kalla.sinks.child import Child
from kalla.sinks.clickhouse import check_problems
from kalla.sinks.connections import Resolve, connections
from kalla.sinks.kernel import DEAD_LETTER_COLUMNS, Delivery, Facts, Unsettled
from kalla.sinks.member import GroupMember, topic_id
from kalla.sinks.messages import OffsetRange, OffsetsGone
from kalla.sinks.store import Partition, PipelineRecord
from kalla.work import leases
from kalla.work.leases import Lease

_log = logs.get(__name__)

_LONGEST_BACKOFF = 5.0
_GRACE_SECONDS = 2.0  # an insert that passed the deadline's check may take so long to be written
_TOPIC_SECONDS = 5.0


@dataclass(frozen=True)
class Seat:
    """The lease a carrier works under; `deadline` is when its work has to be over, by our clock."""

    lease: Lease
    holder: str
    deadline: Callable[[], float]


class Carrier:
    """Runs until it is stopped; whatever goes wrong is shown with the pipeline and tried again."""

    def __init__(
        self,
        database: Database,
        record: PipelineRecord,
        seat: Seat,
        settings: SinkSettings,
        resolve: Resolve,
    ) -> None:
        self.record = record
        self._database = database
        self._seat = seat
        self._settings = settings
        self._resolve = resolve
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._child: Child | None = None
        self._member: GroupMember | None = None
        self._topic_id = ""
        self._topic_asked = 0.0
        self._taken: dict[int, Partition] = {}
        self._not_before: dict[int, float] = {}  # when a recovered intent may be looked at again
        self._table_uuid = ""
        self._kafka: Mapping[str, str] = {}
        self._checked = False  # whether the tables still are as they should be
        self._trouble: str | None = ""  # what was told last; "": nothing yet
        self._task = asyncio.create_task(self._run(), name=f"carrier of {record.pipeline}")

    @property
    def partitions(self) -> list[int]:
        return sorted(self._taken)

    async def stop(self, seconds: float) -> None:
        """Finish the range that is on its way if `seconds` allow it; then everything is gone."""
        self._stopping.set()
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await asyncio.shield(self._task)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._close()

    async def _run(self) -> None:
        backoff = 0.2
        while not self._stopping.is_set():
            try:
                await self._open()
                await self._step()
                await self._tell(None)
                backoff = 0.2
            except Lost as error:
                # Somebody else has the partition: what we know of it is out of date.
                _log.info("partition lost", pipeline=self.record.pipeline, reason=str(error))
                self._taken.clear()
                self._not_before.clear()
                await self._pause(0.1)
            except (KallaError, *AWAY) as error:
                self._checked = False
                await self._tell(scrub(str(error)))
                await self._pause(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF)
            except Exception as error:
                _log.exception("carrier failed", pipeline=self.record.pipeline)
                await self._tell(f"{type(error).__name__}: {scrub(str(error))}")
                await self._close()
                await self._pause(_LONGEST_BACKOFF)

    async def _open(self) -> None:
        record = self.record
        if self._child is not None and not self._child.running:
            self._child = None
        if self._child is None:
            known = await asyncio.to_thread(
                connections, record.kafka, record.clickhouse, self._resolve
            )
            self._child = await Child.start(known)
            self._kafka = known.kafka
            self._checked = False
        if not self._checked:
            await self._check_tables(self._child)
            self._checked = True
        if self._member is not None and not self._member.is_alive():
            self._member = None
            self._taken.clear()
        if self._member is None:
            self._topic_id = await asyncio.to_thread(topic_id, self._kafka, record.kafka.topic)
            self._topic_asked = time.monotonic()
            member = GroupMember(
                self._kafka,
                record.kafka.topic,
                f"kalla.{record.pipeline}",
                f"{record.pipeline}-{self._seat.lease.slot}",
                self._settings.lease_ttl_seconds,
                self._wake,
            )
            member.start()
            self._member = member

    def _wake(self) -> None:
        """Called by the member's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is over
            self._loop.call_soon_threadsafe(self._changed.set)

    async def _check_tables(self, child: Child) -> None:
        """A table that was changed since `apply` is refused before a row is sent."""
        config = self.record.clickhouse
        rows, letters = await child.tables(config.table, config.dead_letters)
        problems = []
        for name, state, columns in (
            (config.table, rows, wanted_columns(self.record.mapping)),
            (config.dead_letters, letters, DEAD_LETTER_COLUMNS),
        ):
            if state is None:
                raise Unavailable(f"ClickHouse has no table {config.database}.{name}")
            problems += check_problems(columns, state, name)
        if problems:
            raise InvalidInput(*problems)
        assert rows is not None  # noqa: S101
        self._table_uuid = rows.uuid

    async def _step(self) -> None:
        member = self._member
        assert member is not None  # noqa: S101
        self._changed.clear()
        await self._compare_topic()
        assigned, ends = member.assigned(), member.ends()
        self._taken = {each: held for each, held in self._taken.items() if each in assigned}
        for partition in sorted(assigned - self._taken.keys()):
            if partition in ends:
                await self._take(partition, ends[partition].low)
        worked = False
        now = time.monotonic()
        for partition, held in list(self._taken.items()):
            if held.intent_id is not None and self._not_before.get(partition, 0) <= now:
                worked |= await self._recover(held)
        highs = {each: end.high for each, end in ends.items()}
        for wanted in plan.next_ranges(list(self._taken.values()), highs, self.record.batch_rows):
            if self._stopping.is_set():
                return
            await self._deliver(wanted)
            worked = True
        if member.trouble:
            raise Unavailable(member.trouble)
        if not worked:
            await self._pause(self._settings.idle_seconds)

    async def _compare_topic(self) -> None:
        if time.monotonic() - self._topic_asked < _TOPIC_SECONDS:
            return
        self._topic_id = await asyncio.to_thread(topic_id, self._kafka, self.record.kafka.topic)
        self._topic_asked = time.monotonic()
        for held in list(self._taken.values()):
            if held.stopped is not None:
                del self._taken[held.partition]  # a person may have mended it: take it anew
            elif held.topic_id != self._topic_id:
                await self._stop_replaced(held)

    async def _take(self, partition: int, low: int) -> None:
        record = self.record
        async with self._database.transaction() as connection:
            await self._assert_held(connection)
            held = await store.take(
                connection, record.pipeline, record.kafka.topic, partition, self._topic_id, low
            )
        self._taken[partition] = held
        self._not_before.pop(partition, None)
        if held.stopped is not None:
            return
        if held.topic_id != self._topic_id:
            await self._stop_replaced(held)
        elif held.next_offset < low:
            await self._stop_at_gap(held, low)

    async def _stop_replaced(self, held: Partition) -> None:
        await self._stop_partition(
            held,
            "topic_replaced",
            "the topic was deleted and made anew: its offsets name other messages; "
            f"`kalla sinks seek {self.record.pipeline} --to earliest` begins with the new one",
        )

    async def _stop_at_gap(self, held: Partition, low: int) -> None:
        await self._stop_partition(
            held,
            "gap",
            self._gap_sentence(
                f"Kafka removed the offsets {held.next_offset} to {low - 1} "
                "before they were delivered"
            ),
        )

    def _gap_sentence(self, what: str) -> str:
        return f"{what}; `kalla sinks skip-gap {self.record.pipeline}` goes on without them"

    async def _stop_partition(self, held: Partition, stopped: store.Stopped, reason: str) -> None:
        async with self._database.transaction() as connection:
            await self._assert_held(connection)
            await store.stop_partition(connection, self.record.pipeline, held, stopped, reason)
        self._taken[held.partition] = replace(held, stopped=stopped)

    async def _recover(self, held: Partition) -> bool:
        """Finish what an earlier try left: the kernel asks ClickHouse first what is there."""
        assert held.intent_id is not None  # noqa: S101
        assert held.intent_end is not None  # noqa: S101
        assert held.intent_mapping is not None  # noqa: S101
        member, child = self._member, self._child
        assert member is not None  # noqa: S101
        assert child is not None  # noqa: S101
        wanted = OffsetRange(held.topic, held.partition, held.next_offset, held.intent_end)
        if held.intent_table != self._table_uuid:
            raise Unavailable(
                f"the table was made anew while {wanted} was on its way: "
                f"`kalla sinks seek {self.record.pipeline}` says from where to deliver again"
            )
        settles_in = (held.intent_deadline or 0) + _GRACE_SECONDS - await child.clock()
        if _GRACE_SECONDS + 0.5 > settles_in > 0:
            self._not_before[held.partition] = time.monotonic() + settles_in
            return False  # too late for another try before the deadline, too early after it
        deadline = await self._deadline(child)
        async with self._database.transaction() as connection:
            await self._assert_held(connection)
            mapping = await store.mapping_of(connection, self.record.pipeline, held.intent_mapping)
            if settles_in <= 0:
                await store.extend(connection, self.record.pipeline, held, held.intent_id, deadline)
        delivery = replace(
            self._delivery(held, wanted, held.intent_mapping),
            mapping=mapping,
            recovered=True,
            settled=settles_in <= 0,
        )
        if not member.begin(held.partition):
            return False
        position = None
        try:
            # Before the earlier deadline nothing may last longer than it: it was written down.
            limit = deadline if settles_in <= 0 else held.intent_deadline or 0
            facts = await child.deliver(delivery, limit)
            position = await self._commit(held, wanted, held.intent_id, facts)
        except Unsettled:
            self._not_before[held.partition] = time.monotonic() + max(settles_in, 0.1)
            return False
        except OffsetsGone as error:
            await self._stop_partition(held, "gap", self._gap_sentence(str(error)))
        finally:
            member.end(held.partition, position)
        _log.info("intent recovered", pipeline=self.record.pipeline, range=str(wanted))
        return True

    async def _deliver(self, wanted: OffsetRange) -> None:
        member, child = self._member, self._child
        assert member is not None  # noqa: S101
        assert child is not None  # noqa: S101
        held = self._taken[wanted.partition]
        if not member.begin(wanted.partition):
            return
        position = None
        try:
            deadline = await self._deadline(child)
            version = self.record.mapping_version
            async with self._database.transaction() as connection:
                await self._assert_held(connection)
                intent_id = await store.intend(
                    connection,
                    self.record.pipeline,
                    held,
                    wanted,
                    version,
                    self._table_uuid,
                    deadline,
                )
            held = replace(
                held,
                intent_id=intent_id,
                intent_end=wanted.end,
                intent_mapping=version,
                intent_table=self._table_uuid,
                intent_deadline=deadline,
            )
            self._taken[wanted.partition] = held  # until it is committed it has to be recovered
            facts = await child.deliver(self._delivery(held, wanted, version), deadline)
            position = await self._commit(held, wanted, intent_id, facts)
        except OffsetsGone as error:
            await self._stop_partition(held, "gap", self._gap_sentence(str(error)))
        finally:
            member.end(wanted.partition, position)

    async def _commit(
        self, held: Partition, wanted: OffsetRange, intent_id: int, facts: Facts
    ) -> int:
        async with self._database.transaction() as connection:
            await self._assert_held(connection)
            position = await store.commit(
                connection, self.record.pipeline, held, wanted.start, intent_id, facts
            )
        self._taken[held.partition] = replace(
            held,
            next_offset=position,
            intent_id=None,
            intent_end=None,
            intent_mapping=None,
            intent_table=None,
            intent_deadline=None,
        )
        return position

    def _delivery(self, held: Partition, wanted: OffsetRange, version: int) -> Delivery:
        record, lease = self.record, self._seat.lease
        return Delivery(
            pipeline=record.pipeline,
            range=wanted,
            generation=held.generation,
            mapping_version=version,
            mapping=record.mapping,
            tombstones=record.tombstones,
            token=plan.token(record.pipeline, held.topic_id, held.generation, version, wanted),
            comment=f"kalla {record.pipeline} slot {lease.slot} epoch {lease.epoch}",
        )

    async def _deadline(self, child: Child) -> float:
        """The end of the lease's work by ClickHouse's clock: no later insert is accepted."""
        left = min(self._seat.deadline() - time.monotonic(), self._settings.insert_seconds)
        if left <= 0:
            raise Lost("the lease is about to end")
        return await child.clock() + left

    async def _assert_held(self, connection: Connection) -> None:
        await leases.assert_held(connection, self._seat.holder, self._seat.lease)

    async def _tell(self, trouble: str | None) -> None:
        if trouble == self._trouble:
            return
        if trouble:
            _log.warning("delivery waits", pipeline=self.record.pipeline, trouble=trouble)
        with contextlib.suppress(*AWAY):
            async with self._database.transaction() as connection:
                await store.set_trouble(connection, self.record.pipeline, trouble)
            self._trouble = trouble

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
