"""Messages flow from a real broker into a real ClickHouse by real workers, which are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from kalla.sinks.model import Pipeline
from tests.sinks_kit import Site, event


async def delivered(site: Site, pipeline: Pipeline, messages: int, seconds: float = 60) -> None:
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
