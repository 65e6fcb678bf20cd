"""Delivers ranges under intents: store the intent, deliver, commit; recovers unfinished ones."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kalla import logs
from kalla.database import Database
from kalla.errors import KallaError, Lost
from kalla.settings import Sinks as SinkSettings
from kalla.sinks import ledger, plan, store
from kalla.sinks.kernel import Delivery, Facts, TooLarge, Unsettled
from kalla.sinks.ledger import Partition
from kalla.sinks.model import RowRules
from kalla.sinks.servers.clickhouse_client import NoAnswer, TooSlow
from kalla.sinks.servers.message_ranges import OffsetRange, OffsetsGone
from kalla.sinks.slots.child import Child, ChildEnded, Connections
from kalla.sinks.slots.member import GroupMember
from kalla.sinks.slots.placement import Result, SparkPlacement, place_locally
from kalla.sinks.slots.seat import Seat
from kalla.sinks.store import PipelineRecord

_log = logs.get(__name__)

_GRACE_SECONDS = 2.0  # an insert that passed the deadline check may take this long to be written
_WINDOW_SECONDS = 3600.0  # for which replicated tables store tokens
_VIEW_TRIES = 3  # of a whole range: of one in parts, views lack what only the table has
_SHORTEST_RETRY = 0.2
_LONGEST_RETRY = 5.0


@dataclass(frozen=True)
class Table:
    """The state of the table at the last check."""

    uuid: str
    window: int  # inserts whose tokens it remembers, and every view's table too
    probe: bool  # whether it can be asked for the offsets it holds
    views: bool = False  # whether materialized views take their rows from it


@dataclass
class Retries:
    """Results of a carrier's last attempts, by partition; kept across its errors."""

    not_before: dict[int, float] = field(default_factory=dict)  # when an intent may be tried
    errors: dict[int, str] = field(default_factory=dict)  # of partitions that do not go on
    too_slow: dict[int, int] = field(default_factory=dict)  # tries without enough time or memory
    pauses: dict[int, float] = field(default_factory=dict)

    def failed(self, partition: int, error: KallaError) -> None:
        pause = min(self.pauses.get(partition, _SHORTEST_RETRY / 2) * 2, _LONGEST_RETRY)
        self.pauses[partition] = pause
        self.not_before[partition] = time.monotonic() + pause
        self.errors[partition] = str(error)
        if isinstance(error, TooSlow | ChildEnded):
            self.too_slow[partition] = self.too_slow.get(partition, 0) + 1

    @property
    def error_message(self) -> str | None:
        return next(iter(self.errors.values()), None)

    def forget(self, partition: int) -> None:
        self.not_before.pop(partition, None)
        self.errors.pop(partition, None)
        self.pauses.pop(partition, None)
        self.too_slow.pop(partition, None)


@dataclass(frozen=True)
class Delivered:
    """A range that is delivered, and not yet committed."""

    range: OffsetRange
    facts: Facts
    waiting: int = 0  # messages behind it


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
    retries: Retries
    delivered: Callable[[Facts], Awaitable[None]]

    async def deliver(
        self,
        ranges: Sequence[OffsetRange],
        highs: Mapping[int, int],
        spark: SparkPlacement | None = None,
    ) -> list[Facts]:
        """Delivers these ranges; a failed one keeps its intent, and is recovered later."""
        # Sorted: transactions of several partitions lock their rows in the same order.
        begun = [each for each in sorted(ranges) if self.member.begin(each.partition)]
        if not begun:
            return []
        positions: dict[int, int] = {}
        try:
            deadline = await self.deadline()
            deliveries = await self._intend(begun, deadline)
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
        """What was delivered is committed first: a stopped partition must not hold it up."""
        done: list[Delivered] = []
        failed: list[tuple[OffsetRange, KallaError | OffsetsGone]] = []
        for wanted, result in zip(begun, results, strict=True):
            if isinstance(result, Facts):
                waiting = max(0, highs.get(wanted.partition, 0) - wanted.end)
                done.append(Delivered(wanted, result, waiting))
            else:
                failed.append((wanted, result))
        positions |= await self._commit(done)
        errors: list[Exception] = []
        for wanted, result in failed:
            held = self.taken[wanted.partition]
            if isinstance(result, OffsetsGone):
                # Nothing was inserted: of the intent its first offset is left, which is gone.
                held = await self._shorten(held, wanted.start + 1)
                await self.stop_partition(held, "gap", self.gap_sentence(str(result)))
            elif isinstance(result, TooLarge):
                await self._shorten(held, result.end)  # nothing was inserted
            else:
                self.retries.failed(wanted.partition, result)
                if isinstance(result, NoAnswer | ChildEnded):
                    errors.append(result)
        if errors:
            raise errors[0]
        return [each.facts for each in done]

    async def _intend(self, ranges: Sequence[OffsetRange], deadline: float) -> list[Delivery]:
        rules = self.record.rules
        intended: list[Partition] = []
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            for each in ranges:
                held = await ledger.intend(
                    connection,
                    self.record.pipeline,
                    self.taken[each.partition],
                    each,
                    rules.version,
                    self.table.uuid,
                    deadline,
                )
                intended.append(held)
        for held in intended:
            self.taken[held.partition] = held  # until it is committed it must be recovered
        return [
            self._delivery(held, wanted, rules)
            for held, wanted in zip(intended, ranges, strict=True)
        ]

    async def recover(self, held: Partition) -> bool:
        """Finishes an earlier try: the kernel first queries ClickHouse for rows that arrived.

        False: it is too early to decide.
        """
        if held.intent_deadline is None or held.intent_mapping is None:
            raise AssertionError("there is nothing to recover")
        wanted = held.intent_range
        if held.intent_table != self.table.uuid:
            await self._stop_uncertain(held, "the table was created again meanwhile")
            return True
        in_window = await self._within_window(held)
        if not self.table.probe and not in_window:
            await self._stop_uncertain(
                held, "without provenance columns Kalla cannot tell whether it arrived"
            )
            return True
        settles_in = held.intent_deadline + _GRACE_SECONDS - await self.child.clock()
        settled = settles_in <= 0
        if _GRACE_SECONDS + 0.5 > settles_in > 0:
            return self._wait(held, settles_in)  # another try would have too little time
        part = held.intent_part
        patience = _VIEW_TRIES if self.table.views else 1
        if self.retries.too_slow.get(held.partition, 0) >= patience and self.table.probe:
            # Parts have other tokens than the whole: it must not arrive any more.
            if not settled:
                return self._wait(held, settles_in)
            part = wanted.start + max(1, (wanted.end - wanted.start) // 2)
            self.retries.too_slow.pop(held.partition)
        # Before the earlier deadline nothing may take longer than it, because it was stored.
        deadline = await self.deadline() if settled else held.intent_deadline
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            rules = await store.rules_of(connection, self.record.pipeline, held.intent_mapping)
            if settled:
                held = await ledger.extend(connection, self.record.pipeline, held, deadline, part)
        self.taken[held.partition] = held
        wanted = held.intent_range
        delivery = replace(
            self._delivery(held, wanted, rules),
            # A view may lack rows that its table has: the whole insert again reaches it, and its
            # token, which both still remember, keeps what is there from being doubled.
            recovered=not (self.table.views and in_window and held.intent_part is None),
            settled=settled,
        )
        if not self.member.begin(held.partition):
            return False
        position = None
        try:
            facts = await self.child.deliver(delivery, deadline)
            position = (await self._commit([Delivered(wanted, facts)]))[held.partition]
        except Unsettled:
            return self._wait(held, max(settles_in, 0.1))
        except TooSlow:
            if settled:
                raise
            return self._wait(held, settles_in)  # little was left of the earlier deadline
        except OffsetsGone as error:
            # What is behind the gap may be there, and then must not arrive any more.
            if not settled:
                return self._wait(held, settles_in)
            await self.stop_partition(held, "gap", self.gap_sentence(str(error)))
        except TooLarge as error:
            return await self._cut(held, error.end, settled, settles_in)
        finally:
            self.member.end(held.partition, position)
        self.retries.forget(held.partition)
        _log.info("intent recovered", pipeline=self.record.pipeline, range=str(wanted))
        return True

    def _wait(self, held: Partition, seconds: float) -> bool:
        self.retries.not_before[held.partition] = time.monotonic() + seconds
        return False

    async def _cut(self, held: Partition, end: int, settled: bool, settles_in: float) -> bool:
        """Delivers a range in parts that does not fit in memory."""
        if not self.table.probe:
            await self._stop_uncertain(held, "it is too large to be delivered at once")
            return True
        if not settled:
            return self._wait(held, settles_in)
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            # Nothing was inserted under the deadline that was stored last.
            self.taken[held.partition] = await ledger.extend(
                connection, self.record.pipeline, held, 0.0, end
            )
        return True

    async def _shorten(self, held: Partition, end: int) -> Partition:
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            held = await ledger.shorten(connection, self.record.pipeline, held, end)
        self.taken[held.partition] = held
        return held

    async def _within_window(self, held: Partition) -> bool:
        """Whether the table surely still stores the intent's token: within half of its window, and
        for the whole range, because the token of a part is another.
        """
        if held.intent_part is not None:
            return False
        async with self.database.transaction() as connection:
            age = await ledger.intent_age(connection, self.record.pipeline, held)
        return age.seconds <= _WINDOW_SECONDS / 2 and age.later <= self.table.window // 2

    async def _stop_uncertain(self, held: Partition, why: str) -> None:
        await self.stop_partition(
            held,
            "uncertain",
            f"{held.intent_range} was in flight, and {why}: check the table, then "
            f"`kalla sinks seek {self.record.pipeline}` sets where to continue",
        )

    async def _commit(self, done: Sequence[Delivered]) -> dict[int, int]:
        """Returns the next offsets by partition."""
        if not done:
            return {}
        committed: list[Partition] = []
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            for each in done:
                held = self.taken[each.range.partition]
                held = await ledger.commit(
                    connection, self.record.pipeline, held, each.range, each.facts, each.waiting
                )
                committed.append(held)
        for held in committed:
            self.taken[held.partition] = held
        for each in done:
            await self.delivered(each.facts)
        return {held.partition: held.next_offset for held in committed}

    async def stop_partition(self, held: Partition, stopped: ledger.Stopped, reason: str) -> None:
        async with self.database.transaction() as connection:
            await self.seat.assert_held(connection)
            await ledger.stop_partition(connection, self.record.pipeline, held, stopped, reason)
        self.retries.forget(held.partition)
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
