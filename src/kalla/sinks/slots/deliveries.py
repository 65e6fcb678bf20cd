"""Delivers ranges under intents: store the intent, deliver, commit; recovers unfinished ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kalla import logs
from kalla.database import Database
from kalla.errors import Lost, Unavailable
from kalla.settings import Sinks as SinkSettings
from kalla.sinks import ledger, plan, store
from kalla.sinks.kernel import Delivery, Facts, Unsettled
from kalla.sinks.ledger import Partition
from kalla.sinks.model import RowRules
from kalla.sinks.servers.message_ranges import OffsetRange, OffsetsGone
from kalla.sinks.slots.child import Child, Connections
from kalla.sinks.slots.member import GroupMember
from kalla.sinks.slots.placement import Result, SparkPlacement, place_locally
from kalla.sinks.slots.seat import Seat
from kalla.sinks.store import PipelineRecord

_log = logs.get(__name__)

_GRACE_SECONDS = 2.0  # an insert that passed the deadline check may take this long to be written
_WINDOW_SECONDS = 3600.0  # for which replicated tables store tokens


@dataclass(frozen=True)
class Table:
    """The state of the table at the last check."""

    uuid: str
    window: int  # inserts whose tokens it remembers
    probe: bool  # whether it can be asked for the offsets it holds


@dataclass
class Deliveries:
    """The partitions of a carrier, and their deliveries."""

    database: Database
    record: PipelineRecord
    seat: Seat
    settings: SinkSettings
    member: GroupMember
    child: Child
    connections: Connections
    table: Table
    taken: dict[int, Partition]
    not_before: dict[int, float]  # when a recovered intent may be checked again

    async def deliver(
        self,
        ranges: Sequence[OffsetRange],
        highs: Mapping[int, int],
        spark: SparkPlacement | None = None,
    ) -> list[Facts]:
        """Delivers these ranges; a failed one keeps its intent, and the first error is raised."""
        begun = [each for each in ranges if self.member.begin(each.partition)]
        positions: dict[int, int] = {}
        try:
            deadline = await self.deadline()
            deliveries = [await self._intend(each, deadline) for each in begun]
            results: list[Result]
            if spark is not None:
                results = await spark.deliver(self.connections, deliveries, deadline)
            else:
                results = await place_locally(self.child, deliveries, deadline)
            return await self._settle(begun, results, highs, positions)
        finally:
            for each in begun:
                self.member.end(each.partition, positions.get(each.partition))

    async def _settle(
        self,
        begun: Sequence[OffsetRange],
        results: Sequence[Result],
        highs: Mapping[int, int],
        positions: dict[int, int],
    ) -> list[Facts]:
        done: list[Facts] = []
        errors: list[Exception] = []
        for wanted, result in zip(begun, results, strict=True):
            held = self.taken[wanted.partition]
            if isinstance(result, Facts):
                waiting = max(0, highs.get(wanted.partition, 0) - wanted.end)
                positions[wanted.partition] = await self._commit(held, wanted, result, waiting)
                done.append(result)
            elif isinstance(result, OffsetsGone):
                await self.stop_partition(held, "gap", self.gap_sentence(str(result)))
            else:
                errors.append(result)
        if errors:
            raise errors[0]
        return done

    async def _intend(self, wanted: OffsetRange, deadline: float) -> Delivery:
        held = self.taken[wanted.partition]
        rules = self.record.rules
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            intent_id = await ledger.intend(
                connection,
                self.record.pipeline,
                held,
                wanted,
                rules.version,
                self.table.uuid,
                deadline,
            )
        held = replace(
            held,
            intent_id=intent_id,
            intent_end=wanted.end,
            intent_mapping=rules.version,
            intent_table=self.table.uuid,
            intent_deadline=deadline,
            intent_seconds=0.0,
        )
        self.taken[wanted.partition] = held  # until it is committed it must be recovered
        return self._delivery(held, wanted, rules)

    async def recover(self, held: Partition) -> bool:
        """Finishes an earlier try: the kernel first queries ClickHouse for rows that arrived."""
        if held.intent_id is None or held.intent_end is None or held.intent_mapping is None:
            raise AssertionError("there is nothing to recover")
        wanted = OffsetRange(held.topic, held.partition, held.next_offset, held.intent_end)
        if held.intent_table != self.table.uuid:
            raise Unavailable(
                f"the table was created again while {wanted} was in flight: "
                f"`kalla sinks seek {self.record.pipeline}` sets where to start again"
            )
        if not self.table.probe and not await self._within_window(held, held.intent_id):
            await self._stop_uncertain(held, wanted)
            return True
        settles_in = (held.intent_deadline or 0) + _GRACE_SECONDS - await self.child.clock()
        if _GRACE_SECONDS + 0.5 > settles_in > 0:
            self.not_before[held.partition] = time.monotonic() + settles_in
            return False  # too late for another try before the deadline, too early after it
        deadline = await self.deadline()
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            rules = await store.rules_of(connection, self.record.pipeline, held.intent_mapping)
            if settles_in <= 0:
                await ledger.extend(
                    connection, self.record.pipeline, held, held.intent_id, deadline
                )
        delivery = replace(
            self._delivery(held, wanted, rules), recovered=True, settled=settles_in <= 0
        )
        if not self.member.begin(held.partition):
            return False
        position = None
        try:
            # Before the earlier deadline nothing may take longer than it, because it was stored.
            limit = deadline if settles_in <= 0 else held.intent_deadline or 0
            facts = await self.child.deliver(delivery, limit)
            position = await self._commit(held, wanted, facts, 0)
        except Unsettled:
            self.not_before[held.partition] = time.monotonic() + max(settles_in, 0.1)
            return False
        except OffsetsGone as error:
            await self.stop_partition(held, "gap", self.gap_sentence(str(error)))
        finally:
            self.member.end(held.partition, position)
        _log.info("intent recovered", pipeline=self.record.pipeline, range=str(wanted))
        return True

    async def _within_window(self, held: Partition, intent_id: int) -> bool:
        """Whether the table surely still stores the intent's token: within half of its window."""
        async with self.database.transaction() as connection:
            since = await ledger.intents_since(connection, intent_id)
        age = held.intent_seconds or 0.0
        return age <= _WINDOW_SECONDS / 2 and since <= self.table.window // 2

    async def _stop_uncertain(self, held: Partition, wanted: OffsetRange) -> None:
        await self.stop_partition(
            held,
            "uncertain",
            f"{wanted} was in flight {held.intent_seconds or 0:.0f} s ago, and without provenance "
            "columns Kalla cannot tell whether it arrived: check the table, then "
            f"`kalla sinks seek {self.record.pipeline}` sets where to continue",
        )

    async def _commit(
        self, held: Partition, wanted: OffsetRange, facts: Facts, waiting: int
    ) -> int:
        if held.intent_id is None:
            raise AssertionError("there is nothing to commit")
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            position = await ledger.commit(
                connection,
                self.record.pipeline,
                held,
                wanted.start,
                held.intent_id,
                facts,
                waiting,
            )
        self.taken[held.partition] = replace(
            held,
            next_offset=position,
            intent_id=None,
            intent_end=None,
            intent_mapping=None,
            intent_table=None,
            intent_deadline=None,
            intent_seconds=None,
        )
        return position

    async def stop_partition(self, held: Partition, stopped: ledger.Stopped, reason: str) -> None:
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            await ledger.stop_partition(connection, self.record.pipeline, held, stopped, reason)
        self.taken[held.partition] = replace(held, stopped=stopped)

    def gap_sentence(self, what: str) -> str:
        return f"{what}; `kalla sinks skip-gap {self.record.pipeline}` continues without them"

    def _delivery(self, held: Partition, wanted: OffsetRange, rules: RowRules) -> Delivery:
        name = self.record.pipeline
        return Delivery(
            pipeline=name,
            range=wanted,
            generation=held.generation,
            rules=rules,
            token=plan.token(name, held.topic_id, held.generation, rules.version, wanted),
            comment=f"kalla {name} {self.seat.comment}",
            provenance=self.record.clickhouse.provenance,
            probe=self.table.probe,
        )

    async def deadline(self) -> float:
        """The end of the lease by ClickHouse's clock: no later insert is accepted."""
        left = min(self.seat.deadline() - time.monotonic(), self.settings.insert_seconds)
        if left <= 0:
            raise Lost("the lease is about to end")
        return await self.child.clock() + left
