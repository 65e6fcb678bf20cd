"""The scenarios of control with real processes, and three witnesses that no slot is held twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient

from kalla.sinks.model import Pipeline
from tests.chaos.proxy import Proxy
from tests.integration.sinks.test_control import counted, every_offset_once, live, until
from tests.sinks_kit import Servers, Site, event, open_site

pytestmark = pytest.mark.timeout(300)  # a busy machine starts processes slowly

HISTORY = """
CREATE TABLE lease_history (resource text, slot integer, epoch bigint, holder text,
    until timestamptz, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE FUNCTION keep_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lease_history VALUES (NEW.resource, NEW.slot, NEW.epoch, NEW.holder, NEW.until);
    RETURN NEW;
END $$;
CREATE TRIGGER keep_lease AFTER INSERT OR UPDATE ON kalla.leases
    FOR EACH ROW EXECUTE FUNCTION keep_lease();
"""
# Before another holder may take a slot, the earlier one's time is over or it gave it up.
OVERLAPPING = """
WITH held AS (
    SELECT resource, slot, epoch, holder, until, at,
        lag(holder) OVER moments AS before, lag(until) OVER moments AS until_before,
        lag(epoch) OVER moments AS epoch_before
    FROM lease_history WINDOW moments AS (PARTITION BY resource, slot ORDER BY at, epoch)
)
SELECT * FROM held
WHERE (holder IS DISTINCT FROM before AND holder IS NOT NULL AND until_before > at)
   OR epoch < epoch_before
"""


class Witnesses:
    """A trigger's history of leases, the group's members, and the comments of inserts."""

    def __init__(self, site: Site, pipeline: Pipeline) -> None:
        self.site = site
        self.pipeline = pipeline
        self.most_members = 0
        self._admin = site.servers.admin()

    async def begin(self) -> None:
        async with self.site.database.transaction() as connection:
            await connection.execute(HISTORY)

    async def watch(self) -> None:
        """Describes the group ten times a second."""
        while True:
            members = await asyncio.to_thread(describe, self._admin, self.pipeline)
            self.most_members = max(self.most_members, len(members))
            await asyncio.sleep(0.1)

    async def check(self, replicas: int) -> None:
        async with self.site.database.transaction() as connection:
            cursor = await connection.execute(OVERLAPPING)
            assert await cursor.fetchall() == []
            cursor = await connection.execute("SELECT max(slot) AS slot FROM lease_history")
            row = await cursor.fetchone()
            assert row is not None
            assert row["slot"] < replicas
        assert self.most_members <= replicas
        self.site.servers.execute("SYSTEM FLUSH LOGS query_log")
        overlapping = self.site.servers.rows(f"""
            WITH spans AS (
                SELECT extract(log_comment, 'slot (\\\\d+)') AS slot,
                    toUInt64(extract(log_comment, 'epoch (\\\\d+)')) AS epoch,
                    min(query_start_time_microseconds) AS first,
                    max(event_time_microseconds) AS last
                FROM system.query_log
                WHERE type = 'QueryFinish' AND query_kind = 'Insert' AND written_rows > 0
                  AND startsWith(log_comment, 'kalla {self.pipeline.name} ')
                GROUP BY slot, epoch
            )
            SELECT a.slot AS slot, a.epoch AS epoch, b.epoch AS later
            FROM spans AS a JOIN spans AS b ON a.slot = b.slot
            WHERE a.epoch < b.epoch AND a.last > b.first
        """)
        assert overlapping == []


def describe(admin: AdminClient, pipeline: Pipeline) -> list[Any]:
    (future,) = admin.describe_consumer_groups([f"kalla.{pipeline.name}"]).values()
    return list(future.result(10).members)


async def test_slots_are_one_then_three_then_one_and_no_slot_is_held_twice(site: Site) -> None:
    topic = site.servers.create_topic(4)
    pipeline = site.pipeline(topic, replicas=1, batch_rows=50)
    witnesses = Witnesses(site, pipeline)
    await witnesses.begin()
    await site.apply(pipeline)
    watching = asyncio.create_task(witnesses.watch())
    workers = [site.start_worker(KALLA_SINKS_REPLICAS_PER_WORKER="2") for _ in range(2)]
    produced = 0

    async def settled(replicas: int, messages: int) -> None:
        """So many slots are live, and whatever was produced is delivered."""
        nonlocal produced
        numbers = range(produced, produced + messages)
        site.servers.produce(topic, [event(number) for number in numbers])
        produced += messages

        async def there() -> bool:
            slots = [each.slot for each in await live(site, pipeline)]
            return slots == list(range(replicas)) and await counted(site, pipeline) == produced

        await until(there, f"{replicas} slots and {produced} rows")

    await settled(1, 500)  # many workers, one replica
    await site.set(pipeline, replicas=3)
    await settled(3, 500)  # scaled up: shared by both
    assert len({each.holder for each in await live(site, pipeline)}) == 2
    workers[0].kill()  # its slots are taken over
    workers.append(site.start_worker())
    await settled(3, 500)
    await site.set(pipeline, replicas=1)
    await settled(1, 500)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    every_offset_once(site, pipeline, produced)
    await witnesses.check(3)


async def test_a_slot_that_is_given_up_leaves_the_group_at_once(site: Site) -> None:
    """Its partitions must not idle until the session of a static member ends."""
    topic = site.servers.create_topic(2)
    pipeline = site.pipeline(topic, replicas=2)
    await site.apply(pipeline)
    # The session lasts five minutes: who waits for its end waits in vain.
    site.start_worker(KALLA_SINKS_LEASE_TTL_SECONDS="600", KALLA_SINKS_RECONCILE_SECONDS="0.5")
    admin = site.servers.admin()

    async def two() -> bool:
        return len(await asyncio.to_thread(describe, admin, pipeline)) == 2

    await until(two, "two members")
    await site.set(pipeline, replicas=1)

    async def one() -> bool:
        return len(await asyncio.to_thread(describe, admin, pipeline)) == 1

    await until(one, "the member to leave")
    site.servers.produce(topic, [event(number) for number in range(100)])

    async def all_there() -> bool:
        return await counted(site, pipeline) == 100

    await until(all_there, "the partitions of the slot that is gone")


async def test_several_pipelines_deliver_at_once_within_a_worker_s_cap(site: Site) -> None:
    pipelines = []
    for _ in range(3):
        topic = site.servers.create_topic(2)
        pipelines.append(site.pipeline(topic, replicas=1))
        await site.apply(pipelines[-1])
        site.servers.produce(topic, [event(number) for number in range(300)])
    await site.start_slots(replicas_per_worker=2)

    async def two_of_three() -> bool:
        return sum([await counted(site, each) == 300 for each in pipelines]) == 2

    await until(two_of_three, "two pipelines to be delivered")
    assert sum([len(await live(site, each)) for each in pipelines]) == 2
    await site.start_slots(replicas_per_worker=2)

    async def all_there() -> bool:
        return all([await counted(site, each) == 300 for each in pipelines])

    await until(all_there, "the third pipeline")
    for each in pipelines:
        every_offset_once(site, each, 300)


@pytest.fixture
async def cut_site(
    sink_servers: Servers, database_url: str, tmp_path: Path
) -> AsyncIterator[tuple[Site, Proxy]]:
    """Workers reach Postgres through a proxy; the test itself does not."""
    parts = urlsplit(database_url)
    proxy = Proxy(parts.port or 5432)
    port = await proxy.start()
    async with open_site(sink_servers, database_url, tmp_path) as site:
        site.worker_url = parts._replace(
            netloc=parts.netloc.replace(f":{parts.port}", f":{port}")
        ).geturl()
        try:
            yield site, proxy
        finally:
            proxy.flow()
    await proxy.stop()


async def test_a_member_cut_off_from_the_store_stops_before_its_lease_ends(
    cut_site: tuple[Site, Proxy],
) -> None:
    site, proxy = cut_site
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic, batch_rows=20, flush_seconds=0)
    await site.apply(pipeline)
    site.start_worker()
    site.servers.produce(topic, [event(number) for number in range(200)])

    async def begun() -> bool:
        return await counted(site, pipeline) == 200

    await until(begun, "the first rows")
    admin = site.servers.admin()
    (lease,) = await live(site, pipeline)
    proxy.stall()
    left_at = None
    while await live(site, pipeline):  # the database itself still answers us
        if not await asyncio.to_thread(describe, admin, pipeline):
            left_at = time.monotonic()
            break
        await asyncio.sleep(0.05)
    assert left_at is not None, "the lease ended while its member was still there"
    site.servers.produce(topic, [event(number) for number in range(200, 300)])
    assert len(site.servers.offsets(pipeline)[0]) == 200
    proxy.flow()

    async def resumed() -> bool:
        return await counted(site, pipeline) == 300

    await until(resumed, "the rest, when the store is back")
    every_offset_once(site, pipeline, 300)
    (again,) = await live(site, pipeline)
    assert again.epoch > lease.epoch


async def test_without_leases_every_worker_carries_the_pipeline(site: Site) -> None:
    topic = site.servers.create_topic(4)
    pipeline = site.pipeline(topic, batch_rows=50)
    await site.apply(pipeline)
    workers = [site.start_worker(KALLA_SINKS_LEASES="false") for _ in range(2)]
    admin = site.servers.admin()

    async def two() -> bool:
        return len(await asyncio.to_thread(describe, admin, pipeline)) == 2

    await until(two, "two members")
    site.servers.produce(topic, [event(number) for number in range(600)])

    async def begun() -> bool:
        return await counted(site, pipeline) > 100

    await until(begun, "the first rows")
    os.kill(workers[0].pid, signal.SIGKILL)
    site.servers.produce(topic, [event(number) for number in range(600, 1000)])

    async def all_there() -> bool:
        return await counted(site, pipeline) == 1000

    await until(all_there, "all messages")
    every_offset_once(site, pipeline, 1000)
    assert await live(site, pipeline) == []
    rows = await site.ledger(pipeline)
    assert {each.slot for each in rows} == {None}
