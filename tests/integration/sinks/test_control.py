"""Slots are taken, shared, given up and taken over by real workers, and no message suffers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

import pytest
from confluent_kafka import TopicPartition

from kalla.sinks import ledger, store
from kalla.sinks.model import Pipeline
from kalla.sinks.servers.consumer_lag import log_ends
from kalla.sinks.slots import carrier
from kalla.work.state import leases
from tests.sinks_kit import Site, event

pytestmark = pytest.mark.timeout(300)  # a busy machine starts processes slowly


async def until(look: Callable[[], Awaitable[object]], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not await look():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        await asyncio.sleep(0.1)


async def live(site: Site, pipeline: Pipeline) -> list[leases.Holding]:
    async with site.database.transaction() as connection:
        found = await leases.holders(connection, f"sink/{pipeline.name}")
    return [each for each in found if each.live]


async def counted(site: Site, pipeline: Pipeline) -> int:
    return sum(each.rows + each.dead for each in await site.ledger(pipeline))


def every_offset_once(site: Site, pipeline: Pipeline, messages: int) -> None:
    found = site.servers.offsets(pipeline)
    assert sum(map(len, found.values())) == messages
    for offsets in found.values():
        assert offsets == list(range(len(offsets)))


async def test_replicas_are_shared_and_given_up_when_scaled_down(site: Site) -> None:
    topic = site.servers.create_topic(4)
    pipeline = site.pipeline(topic, replicas=3, batch_rows=200)
    await site.apply(pipeline)
    workers = [await site.start_slots(replicas_per_worker=2) for _ in range(2)]
    site.servers.produce(topic, [event(number) for number in range(1000)])

    async def three() -> bool:
        return len(await live(site, pipeline)) == 3

    await until(three, "three slots held")
    holders = {each.holder for each in await live(site, pipeline)}
    assert len(holders) == len(workers)  # the cap is two slots a worker
    await site.set(pipeline, replicas=1)

    async def one() -> bool:
        return [each.slot for each in await live(site, pipeline)] == [0]

    await until(one, "the upper slots given up")
    site.servers.produce(topic, [event(number) for number in range(1000, 2000)])

    async def all_there() -> bool:
        return await counted(site, pipeline) == 2000

    await until(all_there, "all messages")
    every_offset_once(site, pipeline, 2000)
    await site.set(pipeline, desired="stopped")

    async def none() -> bool:
        return not await live(site, pipeline)

    await until(none, "the slot given up")


async def test_a_worker_that_wakes_up_late_adds_no_row(site: Site) -> None:
    topic = site.servers.create_topic(2)
    pipeline = site.pipeline(topic, batch_rows=50)
    await site.apply(pipeline)
    first = site.start_worker()
    site.servers.produce(topic, [event(number) for number in range(3000)])

    async def begun() -> bool:
        return await counted(site, pipeline) > 100

    await until(begun, "the first rows")
    os.kill(first.pid, signal.SIGSTOP)
    try:
        site.start_worker()

        async def taken_over() -> bool:
            return await counted(site, pipeline) == 3000

        await until(taken_over, "the second worker to deliver the rest")
    finally:
        os.kill(first.pid, signal.SIGCONT)
    site.servers.produce(topic, [event(number) for number in range(3000, 3500)])

    async def all_there() -> bool:
        return await counted(site, pipeline) == 3500

    await until(all_there, "all messages")
    every_offset_once(site, pipeline, 3500)
    assert len(await live(site, pipeline)) == 1


async def test_nothing_is_lost_while_clickhouse_is_away(site: Site) -> None:
    topic = site.servers.create_topic(2)
    pipeline = site.pipeline(topic, batch_rows=100)
    await site.apply(pipeline)
    await site.start_slots()
    site.servers.produce(topic, [event(number) for number in range(2000)])

    async def begun() -> bool:
        return await counted(site, pipeline) > 100

    await until(begun, "the first rows")
    site.servers.clickhouse.kill()
    site.servers.produce(topic, [event(number) for number in range(2000, 2500)])

    async def waiting() -> bool:
        return "ClickHouse" in ((await site.record(pipeline)).trouble or "")

    await until(waiting, "the pipeline to say what is away")

    async def lag() -> bool:
        return sum(each.log_end or 0 for each in await site.ledger(pipeline)) == 2500

    await until(lag, "the lag to grow")
    site.servers.clickhouse.start()

    async def all_there() -> bool:
        return await counted(site, pipeline) == 2500

    await until(all_there, "all messages")
    every_offset_once(site, pipeline, 2500)
    assert (await site.record(pipeline)).trouble is None


async def test_offsets_that_retention_removed_stop_the_partition_until_skipped(site: Site) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    slots = await site.start_slots()
    site.servers.produce(topic, [event(number) for number in range(100)])

    async def first() -> bool:
        return await counted(site, pipeline) == 100

    await until(first, "the first rows")
    await slots.stop()
    site.servers.produce(topic, [event(number) for number in range(100, 200)])
    admin = site.servers.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, 150)]).values():
        future.result(20)
    await site.start_slots()

    async def stopped() -> bool:
        return [each.stopped for each in await site.ledger(pipeline)] == ["gap"]

    await until(stopped, "the partition to stop")
    (row,) = await site.ledger(pipeline)
    assert "100 to 149" in (row.reason or "")
    ends = log_ends({"bootstrap.servers": site.servers.kafka.address}, topic)
    async with site.database.transaction() as connection:
        await ledger.skip_gap(connection, pipeline.name, row, ends[0][0], "test")

    async def rest() -> bool:
        return await counted(site, pipeline) == 150

    await until(rest, "the rest")
    assert site.servers.offsets(pipeline)[0] == [*range(100), *range(150, 200)]
    async with site.database.transaction() as connection:
        events = await store.events(connection, pipeline.name)
    assert any(each.event == "gap skipped" and "100 to 149" in each.detail for each in events)


async def test_a_range_that_was_inserted_is_not_doubled_when_kafka_removes_a_part_of_it(
    site: Site,
) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    slots = await site.start_slots()
    site.servers.produce(topic, [event(number) for number in range(200)])

    async def first() -> bool:
        return await counted(site, pipeline) == 200

    await until(first, "the first rows")
    await slots.stop()
    async with site.database.transaction() as connection:
        # As if the worker had been killed between the insert and its commit.
        await connection.execute(
            "UPDATE kalla.ledger SET next_offset = 0, rows = 0, intent_end = 200,"
            " intent_id = nextval('kalla.intents'), intent_mapping = 1, intent_table = %s,"
            " intent_deadline = 0, intent_at = kalla.clock()",
            [table_uuid(site, pipeline)],
        )
    admin = site.servers.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, 150)]).values():
        future.result(20)
    await site.start_slots()

    async def stopped() -> bool:
        return [each.stopped for each in await site.ledger(pipeline)] == ["gap"]

    await until(stopped, "the partition to stop")
    (row,) = await site.ledger(pipeline)
    async with site.database.transaction() as connection:
        await ledger.skip_gap(connection, pipeline.name, row, 150, "test")
    site.servers.produce(topic, [event(number) for number in range(200, 220)])

    async def rest() -> bool:
        return [each.next_offset for each in await site.ledger(pipeline)] == [220]

    await until(rest, "the rest")
    every_offset_once(site, pipeline, 220)
    async with site.database.transaction() as connection:
        events = [each.event for each in await store.events(connection, pipeline.name)]
    assert events.count("gap") == 1


async def test_a_range_that_clickhouse_refuses_is_shown_and_holds_up_no_other_partition(
    site: Site,
) -> None:
    topic = site.servers.create_topic(2)
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    table = f"events.{pipeline.clickhouse.table}"
    site.servers.execute(f"ALTER TABLE {table} ADD CONSTRAINT five CHECK id != 5")
    slots = await site.start_slots()
    site.servers.produce(topic, [event(5)], partition=0)

    async def refused() -> bool:
        return "five" in ((await site.record(pipeline)).trouble or "")

    await until(refused, "the pipeline to say what ClickHouse refuses")
    for number in range(2):
        site.servers.produce(topic, [event(number)], partition=1)

        async def there(expected: int = number + 1) -> bool:
            return await counted(site, pipeline) == expected

        await until(there, "the other partition")
    # Whoever presses Start again sees the same reason again.
    async with site.database.transaction() as connection:
        again = await store.set_state(connection, pipeline.name, "test", desired="started")
    assert again.trouble is None
    await until(refused, "the pipeline to say so again")
    site.servers.execute(f"ALTER TABLE {table} DROP CONSTRAINT five")

    async def all_there() -> bool:
        return await counted(site, pipeline) == 3

    await until(all_there, "the refused range")
    every_offset_once(site, pipeline, 3)

    async def fine() -> bool:
        return (await site.record(pipeline)).trouble is None

    await until(fine, "the reason to be gone")
    await slots.stop()


def table_uuid(site: Site, pipeline: Pipeline) -> str:
    (row,) = site.servers.rows(
        "SELECT toString(uuid) AS uuid FROM system.tables"
        f" WHERE database = 'events' AND name = '{pipeline.clickhouse.table}'"
    )
    return str(row["uuid"])


async def test_a_topic_that_is_made_anew_while_it_is_carried_is_not_read_on(site: Site) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    await site.start_slots(lease_ttl_seconds=20.0)
    site.servers.produce(topic, [event(number) for number in range(10)])

    async def first() -> bool:
        return await counted(site, pipeline) == 10

    await until(first, "the first rows")
    site.servers.replace_topic(topic)
    site.servers.produce(topic, [event(number) for number in range(30)])

    async def stopped() -> bool:
        return [each.stopped for each in await site.ledger(pipeline)] == ["topic_replaced"]

    await until(stopped, "the partition to stop")
    assert site.servers.offsets(pipeline)[0] == list(range(10))


async def test_a_log_that_ends_before_the_next_offset_stops_the_partition(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "_AHEAD_SECONDS", 0.5)
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    site.servers.produce(topic, [event(1)])
    slots = await site.start_slots()

    async def first() -> bool:
        return await counted(site, pipeline) == 1

    await until(first, "the first row")
    await slots.stop()
    async with site.database.transaction() as connection:
        await connection.execute("UPDATE kalla.ledger SET next_offset = 5")
    await site.start_slots()

    async def stopped() -> bool:
        return [each.stopped for each in await site.ledger(pipeline)] == ["gap"]

    await until(stopped, "the partition to stop")
    (row,) = await site.ledger(pipeline)
    assert "ends at 1, before the next offset 5" in (row.reason or "")


async def test_a_topic_that_was_made_anew_is_not_read_on(site: Site) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    slots = await site.start_slots()
    site.servers.produce(topic, [event(number) for number in range(10)])

    async def first() -> bool:
        return await counted(site, pipeline) == 10

    await until(first, "the first rows")
    await slots.stop()
    site.servers.replace_topic(topic)
    site.servers.produce(topic, [event(number) for number in range(30)])
    await site.start_slots()

    async def stopped() -> bool:
        return [each.stopped for each in await site.ledger(pipeline)] == ["topic_replaced"]

    await until(stopped, "the partition to stop")
    assert site.servers.offsets(pipeline)[0] == list(range(10))


async def test_a_missing_topic_is_said_and_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def fail_once(broken: carrier.Carrier, seconds: float) -> None:
        if not paused:
            paused.append(seconds)
            raise ValueError("no pause")  # where nothing is expected: the carrier ends
        await pause(broken, seconds)

    pause = carrier.Carrier._back_off
    monkeypatch.setattr(carrier.Carrier, "_back_off", fail_once)
    topic = f"later-{time.monotonic_ns()}"
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    await site.start_slots()

    async def said() -> bool:
        return "has no topic" in ((await site.record(pipeline)).trouble or "")

    await until(said, "the pipeline to name the missing topic")
    site.servers.create_topic(1, name=topic)
    site.servers.produce(topic, [event(1)])

    async def delivered() -> bool:
        return await counted(site, pipeline) == 1

    await until(delivered, "the message")
