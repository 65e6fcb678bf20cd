"""One chaos run: servers of its own, workers as processes, a producer, faults, a judgement."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from kalla import database
from kalla.database import AWAY
from kalla.local import ports
from kalla.local.servers.clickhouse import ClickHouse as ClickHouseServer
from kalla.local.servers.postgres import Postgres
from kalla.settings import Database as DatabaseSettings
from kalla.sinks.model import Pipeline
from tests.chaos_sinks.faults import LEASE_SECONDS, REPLICAS, WEIGHTS, ArmedDropping, Faults
from tests.chaos_sinks.oracle import ProducerLog, judge
from tests.integration.sinks.test_lost_answers import Quiet
from tests.sinks_kit import DATABASE, GRANTS, PASSWORD, Broker, Servers, Site, open_site

_SETTLE_SECONDS = 300.0
_PARTITIONS = 6


@dataclass(frozen=True)
class Wish:
    messages: int = 60_000
    faults: int = 12
    workers: int = 2
    every: float = 2.0  # seconds between faults, on average
    rate: float = 3000.0  # messages a second
    batch_rows: int = 2000
    seed: int = 1
    only: tuple[str, ...] = tuple(WEIGHTS)


async def carry_out(wish: Wish, folder: Path) -> dict[str, Any]:
    postgres = Postgres(folder, ports.choose_free())
    kafka = Broker(folder, ports.choose_free())
    clickhouse = ClickHouseServer(folder, ports.choose_free(), users=[("sink", PASSWORD, GRANTS)])
    started = []
    try:
        for each in (postgres, clickhouse, kafka):
            each.start()
            started.append(each)
        url = postgres.url("postgres")
        await database.migrate(DatabaseSettings(url=SecretStr(url)))
        servers = Servers(kafka, clickhouse)
        servers.execute(f"CREATE DATABASE {DATABASE} ENGINE = Atomic")
        ArmedDropping.upstream = clickhouse.address
        proxy = Quiet((ports.HOST, 0), ArmedDropping)
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            async with open_site(servers, url, folder) as site:
                address = f"http://{ports.HOST}:{proxy.server_address[1]}"
                return await _run(wish, site, address, postgres)
        finally:
            proxy.shutdown()
            proxy.close()
    finally:
        for each in reversed(started):
            each.stop()


async def _run(wish: Wish, site: Site, address: str, postgres: Postgres) -> dict[str, Any]:
    topic = site.servers.create_topic(_PARTITIONS)
    config = site.pipeline(topic).clickhouse.model_dump(exclude_unset=True) | {"url": address}
    mapping = [
        {"column": "id", "type": "UInt64", "path": "id"},
        {"column": "text", "type": "String", "path": "text"},
    ]
    pipeline = site.pipeline(
        topic, clickhouse=config, mapping=mapping, replicas=REPLICAS, batch_rows=wish.batch_rows
    )
    await site.apply(pipeline)

    async def scale(replicas: int) -> None:
        await _insist(site, pipeline, replicas)

    def restart_postgres() -> None:
        postgres.stop()
        postgres.start()

    began = time.monotonic()
    log, end = ProducerLog(), threading.Event()
    arguments = (site.servers.kafka.address, topic, wish.messages, wish.rate, end)
    producing = threading.Thread(target=log.produce, args=arguments, daemon=True)
    for _ in range(wish.workers):
        site.start_worker(KALLA_SINKS_LEASE_TTL_SECONDS=str(LEASE_SECONDS))
    producing.start()
    faults = Faults(site, scale, restart_postgres, wish.seed)
    chance = random.Random(wish.seed)
    kinds = [*wish.only]  # each once, then by weight
    weights = [WEIGHTS[kind] for kind in wish.only]
    kinds += chance.choices(wish.only, weights, k=max(0, wish.faults - len(kinds)))
    for kind in kinds[: max(wish.faults, len(wish.only))]:
        await asyncio.sleep(chance.expovariate(1 / wish.every))
        print(f"{time.monotonic() - began:6.1f} s  {kind}", flush=True)
        await faults.do(kind)
    await asyncio.to_thread(producing.join)
    await scale(REPLICAS)
    settled = await _settle(site, pipeline, len(log.acknowledged))
    target = site.servers.target(pipeline.clickhouse.table)
    table = f"{DATABASE}.{pipeline.clickhouse.table}"
    found = await asyncio.to_thread(judge, target.url, "kalla", target.password, table, log)
    violations = [*found.violations, *([] if settled else ["not all was delivered in time"])]
    return {
        **asdict(found),
        "violations": violations,
        "faults": dict(faults.done),
        "answers_dropped": ArmedDropping.dropped,
        "seconds": round(time.monotonic() - began, 1),
        "seed": wish.seed,
    }


async def _insist(site: Site, pipeline: Pipeline, replicas: int) -> None:
    """Postgres may be restarting."""
    deadline = time.monotonic() + 60
    while True:
        try:
            await site.set(pipeline, replicas=replicas)
            return
        except AWAY:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def _settle(site: Site, pipeline: Pipeline, messages: int) -> bool:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while time.monotonic() < deadline:
        try:
            rows = await site.ledger(pipeline)
            if sum(each.rows + each.dead for each in rows) >= messages:
                return all(each.intent_id is None for each in rows)
        except AWAY:
            pass
        await asyncio.sleep(0.3)
    return False
