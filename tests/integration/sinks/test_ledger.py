"""The ledger: who lost a partition, a lease or an intent changes nothing; and its open intents are
recovered, with a child that answers as a test says.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from kalla.database import Database
from kalla.errors import Conflict, Lost, Unavailable
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Sinks
from kalla.sinks import ledger, model, store
from kalla.sinks.kernel import Delivery, Facts, TooLarge
from kalla.sinks.ledger import LedgerRow, Partition
from kalla.sinks.servers.clickhouse_client import Late
from kalla.sinks.servers.message_ranges import OffsetRange
from kalla.sinks.slots.deliveries import Deliveries, Retries, Table
from kalla.sinks.slots.seat import Seat
from kalla.work.state import leases
from kalla.work.state.leases import Lease

FACTS = Facts(7, 1, 1, 1, 100, 0, 1_790_000_000_000, 0.1)
WANTED = OffsetRange("t", 0, 0, 10)


class Books:
    """A pipeline with one partition in a database of its own."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def take(self, slot: int | None = 0, topic_id: str = "id-1") -> Partition:
        async with self.database.transaction() as connection:
            return await ledger.take(connection, "p", "t", 0, topic_id, 0, slot, "worker")

    async def intend(self, held: Partition, wanted: OffsetRange = WANTED) -> int:
        async with self.database.transaction() as connection:
            begun = await ledger.intend(connection, "p", held, wanted, 1, "uuid", 5.0)
        return begun.intent_id or 0

    async def commit(self, held: Partition, intent: int, start: int = 0) -> int:
        async with self.database.transaction() as connection:
            begun = replace(held, intent_id=intent, intent_end=WANTED.end)
            wanted = replace(WANTED, start=start)
            return (await ledger.commit(connection, "p", begun, wanted, FACTS, 3)).next_offset

    async def row(self) -> LedgerRow:
        async with self.database.transaction() as connection:
            (row,) = await ledger.ledger(connection, "p")
        return row


def pipeline(name: str = "p", table: str = "t") -> model.Pipeline:
    return model.validate(
        {
            "name": name,
            "kafka": {"bootstrap_servers": "b", "topic": "t"},
            "clickhouse": {"url": "http://c:8123", "table": table},
            "mapping": [{"column": "a", "type": "Int8", "path": "a"}],
        }
    )


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    async with Database(DatabaseSettings(url=SecretStr(database_url))) as database:
        async with database.transaction() as connection:
            await store.apply(connection, pipeline(), "test")
        yield Books(database)


class Child:
    """Answers deliveries in turn; it has a ClickHouse's clock, which stands still."""

    def __init__(self, *answers: Facts | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[Delivery] = []
        self.now = 1000.0

    async def clock(self) -> float:
        return self.now

    async def deliver(self, delivery: Delivery, deadline: float) -> Facts:
        self.asked.append(delivery)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(each.range.start, each.range.end) for each in self.asked]


class Member:
    """Has every partition."""

    def begin(self, partition: int) -> bool:
        return True

    def end(self, partition: int, position: int | None = None) -> None:
        """Nothing is committed to a group."""


async def delivered(_facts: Facts) -> None:
    """Nothing is limited by it."""


async def deliveries(
    books: Books, child: Child, probe: bool = True, uuid: str = "uuid"
) -> Deliveries:
    """Of a member that has taken the partition."""
    async with books.database.transaction() as connection:
        record = await store.get(connection, "p")
    parts: dict[str, Any] = {
        "database": books.database,
        "record": record,
        "seat": Seat("me", None, lambda: time.monotonic() + 100),
        "settings": Sinks(),
        "member": Member(),
        "child": child,
        "connections": None,
        "table": Table(uuid, 10_000, probe),
        "taken": {0: await books.take()},
        "retries": Retries(),
        "delivered": delivered,
    }
    return Deliveries(**parts)


async def test_a_range_is_intended_delivered_and_committed(books: Books) -> None:
    held = await books.take()
    intent = await books.intend(held)
    assert (await books.row()).intent_end == 10
    assert await books.commit(held, intent) == 10
    row = await books.row()
    assert (row.next_offset, row.intent_id) == (10, None)
    assert (row.rows, row.dead, row.skipped, row.filtered) == (7, 1, 1, 1)
    async with books.database.transaction() as connection:
        (rate,) = await store.rates(connection, "p")
    assert (rate.rows, rate.dead, rate.waiting) == (7, 1, 3)


async def test_whoever_had_the_partition_before_changes_nothing(books: Books) -> None:
    early = await books.take()
    intent = await books.intend(early)
    late = await books.take()
    assert late.intent_id == intent
    with pytest.raises(Lost):
        await books.commit(early, intent)
    assert (await books.row()).next_offset == 0
    assert await books.commit(late, intent) == 10
    with pytest.raises(Lost):
        await books.intend(replace(early, next_offset=10), OffsetRange("t", 0, 10, 20))


async def test_a_commit_needs_its_offset_and_its_intent(books: Books) -> None:
    held = await books.take()
    intent = await books.intend(held)
    for start, number in ((1, intent), (0, intent + 1)):
        with pytest.raises(Lost):
            await books.commit(held, number, start)
    assert await books.commit(held, intent) == 10
    with pytest.raises(Lost):  # the same again
        await books.commit(held, intent)


async def test_two_intents_of_a_partition_are_never_open_at_once(books: Books) -> None:
    held = await books.take()
    await books.intend(held)
    with pytest.raises(Lost):
        await books.intend(held)


async def test_a_write_needs_the_lease(books: Books) -> None:
    async with books.database.transaction() as connection:
        lease = await leases.acquire(connection, "sink/p", "me", 1, 60)
    assert lease is not None
    for seat, held in (
        (Seat("me", lease, lambda: 0.0), True),
        (Seat("you", lease, lambda: 0.0), False),
        (Seat("me", Lease("sink/p", 0, lease.epoch - 1), lambda: 0.0), False),
        (Seat("me", None, lambda: 0.0), True),
    ):
        async with books.database.transaction() as connection:
            if held:
                await seat.assert_held(connection)
            else:
                with pytest.raises(Lost):
                    await seat.assert_held(connection)


async def test_a_seek_raises_the_generation_and_not_while_a_range_is_on_its_way(
    books: Books,
) -> None:
    held = await books.take()
    intent = await books.intend(held)
    row = await books.row()
    with pytest.raises(Conflict):
        async with books.database.transaction() as connection:
            await ledger.seek(connection, "p", row, 3, "id-1", "test")
    await books.commit(held, intent)
    async with books.database.transaction() as connection:
        row = await books.row()
        assert await ledger.seek(connection, "p", row, 3, "id-1", "test") == 1
    row = await books.row()
    assert (row.generation, row.first_offset, row.next_offset) == (1, 3, 3)
    with pytest.raises(Lost):  # the member that had it is fenced off
        await books.intend(replace(held, next_offset=3), OffsetRange("t", 0, 3, 9))


@pytest.mark.parametrize("stopped", ["topic_replaced", "uncertain"])
async def test_a_seek_settles_what_nobody_can_say(books: Books, stopped: ledger.Stopped) -> None:
    held = await books.take()
    await books.intend(held)
    async with books.database.transaction() as connection:
        await ledger.stop_partition(connection, "p", held, stopped, "why")
    async with books.database.transaction() as connection:
        row = await books.row()
        await ledger.seek(connection, "p", row, 0, "id-2", "test")
    row = await books.row()
    assert (row.stopped, row.intent_id, row.topic_id) == (None, None, "id-2")


async def test_rules_are_a_new_version_with_every_change_and_only_then(books: Books) -> None:
    async with books.database.transaction() as connection:
        document = (await store.get(connection, "p")).document().model_dump(exclude_unset=True)
        for changes, version in (
            ({}, 1),
            ({"filters": ["a > 1"]}, 2),
            ({"filters": ["a > 1"]}, 2),
            ({"filters": ["a > 1"], "tombstones": "dead_letter"}, 3),
            ({}, 4),
        ):
            changed = model.validate(document | changes)
            record = await store.apply(connection, changed, "test")
            assert record.rules.version == version
        assert [each.version for each in await store.all_rules(connection, "p")] == [4, 3, 2, 1]
        assert (await store.rules_of(connection, "p", 3)).tombstones == "dead_letter"


async def test_a_stopped_partition_is_neither_tried_again_nor_committed(books: Books) -> None:
    held = await books.take()
    intent = await books.intend(held)
    async with books.database.transaction() as connection:
        await ledger.stop_partition(connection, "p", held, "topic_replaced", "why")
    with pytest.raises(Lost):
        await books.commit(held, intent)
    child = Child(FACTS)
    mine = await deliveries(books, child)
    with pytest.raises(Lost):
        await mine.recover(mine.taken[0])
    assert child.asked == []


async def test_a_second_recovery_knows_that_the_insert_of_the_first_may_still_arrive(
    books: Books,
) -> None:
    await books.intend(await books.take())  # long ago
    child = Child(Unavailable("the answer is lost"), FACTS)
    mine = await deliveries(books, child)
    with pytest.raises(Unavailable):
        await mine.recover(mine.taken[0])
    assert await mine.recover(mine.taken[0])
    assert [each.settled for each in child.asked] == [True, False]


async def test_an_intent_grows_old_while_its_member_lives(books: Books) -> None:
    await books.intend(await books.take())
    child = Child(Unavailable("ClickHouse is away"))
    mine = await deliveries(books, child, probe=False)
    with pytest.raises(Unavailable):
        await mine.recover(mine.taken[0])
    async with books.database.transaction() as connection:
        await connection.execute(
            "UPDATE kalla.ledger SET intent_at = kalla.clock() - interval '2 hours'"
        )
    assert await mine.recover(mine.taken[0])
    assert (await books.row()).stopped == "uncertain"


async def test_an_intent_of_a_table_that_is_gone_is_settled_by_a_seek(books: Books) -> None:
    await books.intend(await books.take())
    mine = await deliveries(books, Child(), uuid="another")
    assert await mine.recover(mine.taken[0])
    row = await books.row()
    assert (row.stopped, "created again" in (row.reason or "")) == ("uncertain", True)
    async with books.database.transaction() as connection:
        await ledger.seek(connection, "p", row, 0, "id-1", "test")
    assert (await books.row()).stopped is None


async def test_a_range_that_was_too_slow_is_delivered_in_parts(books: Books) -> None:
    await books.intend(await books.take())
    child = Child(Late("too late"), FACTS, FACTS)
    mine = await deliveries(books, child)
    with pytest.raises(Late) as late:
        await mine.recover(mine.taken[0])
    mine.retries.failed(0, late.value)
    assert not await mine.recover(mine.taken[0])  # not before the first insert is settled
    child.now += 100
    assert await mine.recover(mine.taken[0])
    row = await books.row()
    assert (row.next_offset, row.intent_end) == (5, 10)
    assert await mine.recover(mine.taken[0])
    assert child.ranges == [(0, 10), (0, 5), (5, 10)]
    assert [each.settled for each in child.asked] == [True, True, True]
    assert len({each.token for each in child.asked}) == 3
    row = await books.row()
    assert (row.next_offset, row.intent_id) == (10, None)


async def test_parts_grow_again_and_count_as_blocks(books: Books) -> None:
    held = await books.take()
    intent = await books.intend(held)
    async with books.database.transaction() as connection:
        held = replace(held, intent_id=intent, intent_end=10)
        held = await ledger.extend(connection, "p", held, 5.0, 2)
        held = await ledger.commit(connection, "p", held, OffsetRange("t", 0, 0, 2), FACTS, 8)
        assert held.intent_range == OffsetRange("t", 0, 2, 6)
        held = await ledger.commit(connection, "p", held, OffsetRange("t", 0, 2, 6), FACTS, 4)
        assert held.intent_range == OffsetRange("t", 0, 6, 10)
        assert await ledger.intents_since(connection, intent) == 2


async def test_a_range_that_does_not_fit_in_memory_becomes_shorter(books: Books) -> None:
    child = Child(TooLarge(WANTED, 4), FACTS)
    mine = await deliveries(books, child)
    assert await mine.deliver([WANTED], {0: 10}) == []
    assert await mine.recover(mine.taken[0])
    assert child.ranges == [(0, 10), (0, 4)]
    row = await books.row()
    assert (row.next_offset, row.intent_id) == (4, None)


@pytest.mark.parametrize(("probe", "stopped"), [(True, None), (False, "uncertain")])
async def test_what_is_behind_a_gap_is_still_in_flight(
    books: Books, probe: bool, stopped: str | None
) -> None:
    held = await books.take()
    await books.intend(held)
    async with books.database.transaction() as connection:
        await ledger.stop_partition(connection, "p", held, "gap", "why")
    async with books.database.transaction() as connection:
        await ledger.skip_gap(connection, "p", await books.row(), 5, "test")
    child = Child(FACTS)
    mine = await deliveries(books, child, probe=probe)
    assert await mine.recover(mine.taken[0])
    assert child.ranges == ([(5, 10)] if probe else [])
    row = await books.row()
    assert (row.stopped, row.next_offset) == (stopped, 10 if probe else 5)


async def test_a_pipeline_of_a_name_that_was_used_before_uses_no_generation_again(
    books: Books,
) -> None:
    assert (await books.take()).generation == 0
    async with books.database.transaction() as connection:
        await store.remove(connection, "p")
        await store.apply(connection, pipeline(), "test")
    assert (await books.take()).generation == 1


async def test_two_pipelines_do_not_deliver_one_topic_into_one_table(books: Books) -> None:
    async with books.database.transaction() as connection:
        with pytest.raises(Conflict, match="the pipeline p delivers"):
            await store.apply(connection, pipeline("q"), "test")
        await store.apply(connection, pipeline("q", "another"), "test")


async def test_a_pipeline_that_cannot_be_read_does_not_hide_the_others(books: Books) -> None:
    async with books.database.transaction() as connection:
        await store.apply(connection, pipeline("q", "another"), "test")
        await connection.execute(
            'UPDATE kalla.kafka_configs SET config = config || \'{"settings": {"group.id": "x"}}\''
            " WHERE pipeline = 'p'"
        )
        assert [each.pipeline for each in await store.all_pipelines(connection)] == ["q"]


async def test_only_what_keeps_a_started_pipeline_from_delivering_now_is_its_trouble(
    books: Books,
) -> None:
    async with books.database.transaction() as connection:

        async def trouble() -> str | None:
            return (await store.get(connection, "p")).trouble

        # As a worker of an earlier version writes it.
        await connection.execute("UPDATE kalla.pipeline_state SET trouble = 'x', retry_at = now()")
        await store.set_trouble(connection, "p", "slot 0", "refused", 1.0)
        assert await trouble() is None  # it is stopped
        await store.set_state(connection, "p", "test", desired="started")
        assert await trouble() is None
        await store.set_trouble(connection, "p", "slot 0", "refused", 1.0)
        assert await trouble() == "refused"
        await connection.execute(
            "UPDATE kalla.slot_troubles SET retry_at = kalla.clock() - interval '2 minutes'"
        )
        assert await trouble() is None  # its worker is gone
        await store.remove(connection, "p")
        await store.set_trouble(connection, "p", "slot 0", "refused", 1.0)
