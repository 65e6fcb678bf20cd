"""The ledger by itself: who lost a partition, a lease or an intent changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from pydantic import SecretStr

from kalla.database import Database
from kalla.errors import Conflict, Lost
from kalla.settings import Database as DatabaseSettings
from kalla.sinks import ledger, model, store
from kalla.sinks.kernel import Facts
from kalla.sinks.ledger import LedgerRow, Partition
from kalla.sinks.servers.message_ranges import OffsetRange
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
            return await ledger.intend(connection, "p", held, wanted, 1, "uuid", 5.0)

    async def commit(self, held: Partition, intent: int, start: int = 0) -> int:
        async with self.database.transaction() as connection:
            return await ledger.commit(connection, "p", held, start, intent, FACTS, 3)

    async def row(self) -> LedgerRow:
        async with self.database.transaction() as connection:
            (row,) = await ledger.ledger(connection, "p")
        return row


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    pipeline = model.validate(
        {
            "name": "p",
            "kafka": {"bootstrap_servers": "b", "topic": "t"},
            "clickhouse": {"url": "http://c:8123", "table": "t"},
            "mapping": [{"column": "a", "type": "Int8", "path": "a"}],
        }
    )
    async with Database(DatabaseSettings(url=SecretStr(database_url))) as database:
        async with database.transaction() as connection:
            await store.apply(connection, pipeline, "test")
        yield Books(database)


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
        pipeline = (await store.get(connection, "p")).document()
        for changes, version in (
            ({}, 1),
            ({"filters": ["a > 1"]}, 2),
            ({"filters": ["a > 1"]}, 2),
            ({"filters": ["a > 1"], "tombstones": "dead_letter"}, 3),
            ({}, 4),
        ):
            document = pipeline.model_dump(exclude_unset=True) | changes
            record = await store.apply(connection, model.validate(document), "test")
            assert record.rules.version == version
        assert [each.version for each in await store.all_rules(connection, "p")] == [4, 3, 2, 1]
        assert (await store.rules_of(connection, "p", 3)).tombstones == "dead_letter"
