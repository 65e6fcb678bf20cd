"""Messages flow from a real broker into a real ClickHouse by real workers, which are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from pydantic import SecretStr

from kalla.local import ports
from kalla.settings import Spark
from kalla.sinks.model import Pipeline
from tests.servers import SparkServer
from tests.sinks_kit import Site, event

pytestmark = pytest.mark.timeout(300)  # a busy machine starts processes slowly


async def delivered(site: Site, pipeline: Pipeline, messages: int, seconds: float = 120) -> None:
    """Wait until the ledger has counted so many messages."""
    deadline = time.monotonic() + seconds
    while True:
        ledger = await site.ledger(pipeline)
        counted = sum(each.rows + each.dead + each.skipped + each.filtered for each in ledger)
        if counted >= messages:
            return
        record = await site.record(pipeline)
        assert time.monotonic() < deadline, f"{counted} of {messages}; {record.trouble}; {ledger}"
        await asyncio.sleep(0.1)


async def test_every_message_is_there_once_though_its_worker_was_killed(site: Site) -> None:
    topic = site.servers.create_topic(3)
    pipeline = site.pipeline(topic, batch_rows=500)
    await site.apply(pipeline)
    first = site.start_worker()
    site.servers.produce(topic, [event(number) for number in range(10_000)])
    await delivered(site, pipeline, 1_000)
    site.start_worker()
    os.kill(first.pid, signal.SIGKILL)
    site.servers.produce(topic, [event(number) for number in range(10_000, 12_000)])
    await delivered(site, pipeline, 12_000)
    table = f"events.{pipeline.clickhouse.table}"
    (row,) = site.servers.rows(
        f"SELECT count() AS n, uniqExact(id) AS ids, sum(amount) AS total FROM {table}"
    )
    assert (int(row["n"]), int(row["ids"])) == (12_000, 12_000)
    assert float(row["total"]) == sum(range(12_000)) + 12_000 * 0.25
    found = await site.audit(pipeline)
    assert found.agrees
    assert sum(each.messages for each in found.partitions) == 12_000


@pytest.mark.spark
async def test_spark_places_ranges_and_without_it_the_slot_delivers_by_itself(
    site: Site, spark_server: SparkServer
) -> None:
    topic = site.servers.create_topic(3)
    pipeline = site.pipeline(topic, batch_rows=1000)
    await site.apply(pipeline)
    site.servers.produce(topic, [event(number) for number in range(5000)])
    spark = Spark(remote=spark_server.remote, token=SecretStr(spark_server.token))
    slots = await site.start_slots(spark, placement="spark", lease_ttl_seconds=20)
    await delivered(site, pipeline, 5000)
    await slots.stop()
    assert (await site.audit(pipeline)).agrees
    # A Spark that does not answer: `auto` says so and goes on, `spark` waits and says why.
    away = Spark(remote=f"sc://localhost:{ports.choose_free()}")
    waiting = await site.start_slots(away, placement="spark")
    site.servers.produce(topic, [event(number) for number in range(5000, 5100)])
    deadline = time.monotonic() + 60
    while "Spark" not in ((await site.record(pipeline)).trouble or ""):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    await waiting.stop()
    await site.start_slots(away, placement="auto")
    await delivered(site, pipeline, 5100)
    assert (await site.audit(pipeline)).agrees
