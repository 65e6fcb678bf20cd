"""Rows per second from Kafka into ClickHouse, against a plain Python consumer in the same run.

Ledger, probe, fence, provenance columns and dead letters are on; the broker and ClickHouse run on
the same cores. Kalla's worker runs and has its session with Spark, as one that has delivered
before; its clock starts when the pipeline is started and stops when the ledger has counted every
message. The peer's starts with its processes and stops when they end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic import SecretStr

from kalla import database, logs
from kalla.database import Database
from kalla.local import ports
from kalla.local.servers.clickhouse import ClickHouse as ClickHouseServer
from kalla.local.servers.kafka import Kafka
from kalla.local.servers.postgres import Postgres
from kalla.local.servers.spark import Spark
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings, Sinks
from kalla.settings import Spark as SparkSettings
from kalla.sinks import ledger, model, store
from kalla.sinks.model import Pipeline
from kalla.sinks.servers import checks
from kalla.sinks.servers.clickhouse_client import ClickHouse, Target
from kalla.sinks.slots.reconciling import Slots

PARTITIONS = 6
SMALL = 6000  # messages of the topic that is delivered before the clock starts
FIRST_IDS = 1_000_000_000  # of the rows for which the tail waits before its clock starts
PEER = "plain Python consumer, 2 processes"
MAPPING = [
    {"column": "id", "type": "UInt64", "path": "id"},
    {"column": "name", "type": "LowCardinality(String)", "path": "name"},
    {"column": "amount", "type": "Float64", "path": "amount"},
    {"column": "at", "type": "DateTime64(3, 'UTC')", "path": "at", "unit": "ms"},
    {"column": "city", "type": "Nullable(String)", "path": "address.city"},
    {"column": "source", "type": "LowCardinality(String)", "path": "source"},
]
PEER_COLUMNS = {
    "id": "UInt64",
    "name": "LowCardinality(String)",
    "amount": "Float64",
    "at": "Int64",
    "city": "Nullable(String)",
    "source": "LowCardinality(String)",
}


@dataclass(frozen=True)
class Rates:
    """Rows per second of a backfill."""

    whole: float  # from the start of the pipeline
    delivering: float  # from the first intent


@dataclass(frozen=True)
class Tail:
    first_rows: float  # seconds from a worker's start until each partition has a visible row
    p50: float  # milliseconds from just before a message is produced until its row is visible
    p95: float


class Bench:
    """The servers, a topic of events, and both contenders."""

    def __init__(
        self, kafka: Kafka, clickhouse: ClickHouseServer, url: str, spark: SparkSettings | None
    ) -> None:
        self.kafka = kafka
        self.clickhouse = clickhouse
        self.database_url = url
        self.spark = spark
        self.server = ClickHouse(Target(clickhouse.url, "bench", "", "kalla", clickhouse.password))
        self.memory = [0] * 4  # the most of a member, in each quarter of a backfill

    def create_topic(self, partitions: int = PARTITIONS) -> str:
        topic = f"bench-{uuid4().hex[:6]}"
        admin = AdminClient({"bootstrap.servers": self.kafka.address})
        for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(30)
        return topic

    def produce(self, topic: str, messages: int) -> list[int]:
        """About 170 bytes each, spread evenly; returns how many each partition has."""
        producer = Producer(
            {"bootstrap.servers": self.kafka.address, "linger.ms": 50, "batch.size": 1_000_000,
             "queue.buffering.max.messages": 1_000_000, "compression.type": "lz4"}
        )  # fmt: skip
        counts = [0] * PARTITIONS
        for number in range(messages):
            value = (
                f'{{"id": {number}, "name": "name-{number % 997}", "amount": {number % 9973}.25, '
                f'"at": {1_790_000_000_000 + number}, "address": {{"street": "Main {number % 89}", '
                f'"city": "city-{number % 61}"}}, "source": "web"}}'
            )
            partition = number % PARTITIONS
            counts[partition] += 1
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
        producer.flush(120)
        return counts

    def pipeline(self, topic: str, batch_rows: int) -> Pipeline:
        return model.validate(
            {
                "name": f"{topic}-{uuid4().hex[:4]}",
                "kafka": {"bootstrap_servers": self.kafka.address, "topic": topic},
                "clickhouse": {
                    "url": self.clickhouse.url,
                    "database": "bench",
                    "table": f"ours_{uuid4().hex[:8]}",
                    "user": "kalla",
                    "password": "secret://bench",
                },
                "mapping": MAPPING,
                "batch_rows": batch_rows,
            }
        )

    def slots(self, database: Database, placement: str) -> Slots:
        settings = Settings(
            sinks=Sinks(
                reconcile_seconds=0.2,
                placement=placement,
                insert_seconds=60,
                replicas_per_worker=100,
            ),
            spark=self.spark or SparkSettings(),
        )
        password = SecretStr(self.clickhouse.password)
        return Slots(settings, database, f"bench-{uuid4().hex[:4]}", lambda _name: password)

    async def apply(self, database: Database, pipeline: Pipeline) -> None:
        for statement in checks.definitions(pipeline).values():
            self.server.execute(statement)
        async with database.transaction() as connection:
            await store.apply(connection, pipeline, "bench")
            await store.set_state(connection, pipeline.name, "bench", "started")

    async def ours(
        self, small: str, topic: str, messages: int, placement: str, batch_rows: int
    ) -> Rates:
        """Delivers the `small` topic first: Spark's Python workers are ready after it."""
        settings = DatabaseSettings(url=SecretStr(self.database_url))
        async with Database(settings, name="bench") as database:
            slots = self.slots(database, placement)
            await slots.start()
            try:
                await self._deliver(database, self.pipeline(small, batch_rows), SMALL)
                return await self._deliver(database, self.pipeline(topic, batch_rows), messages)
            finally:
                await slots.stop()

    async def _deliver(self, database: Database, pipeline: Pipeline, messages: int) -> Rates:
        await self.apply(database, pipeline)
        began, delivering, done = time.monotonic(), 0.0, 0
        while done < messages:
            async with database.transaction() as connection:
                partitions = await ledger.ledger(connection, pipeline.name)
            done = sum(each.rows for each in partitions)
            if not delivering and (done or any(each.intent_id for each in partitions)):
                delivering = time.monotonic()
            self._note_memory(done / messages)
            await asyncio.sleep(0.05)
        ended = time.monotonic()
        async with database.transaction() as connection:
            await store.set_state(connection, pipeline.name, "bench", "stopped")
        self._check(f"bench.{pipeline.clickhouse.table}", messages)
        return Rates(messages / (ended - began), messages / (ended - delivering))

    def _note_memory(self, done: float) -> None:
        """Of the processes that deliver here; Spark's are its own."""
        quarter = min(int(done * 4), 3)
        for each in psutil.Process().children():
            try:
                if "kalla.sinks.slots.child" in each.cmdline():
                    self.memory[quarter] = max(self.memory[quarter], each.memory_info().rss)
            except psutil.Error:
                continue

    def peer(self, topic: str, counts: list[int]) -> float:
        table = f"bench.peer_{uuid4().hex[:8]}"
        columns = ", ".join(f"{name} {kind}" for name, kind in PEER_COLUMNS.items())
        self.server.execute(f"CREATE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY id")
        command = [
            *(sys.executable, "-m", "bench.sinks_peer", "--brokers", self.kafka.address),
            *("--topic", topic, "--partitions", str(PARTITIONS), "--url", self.clickhouse.url),
            *("--table", table, "--user", "kalla", "--password", self.clickhouse.password),
            *("--counts", ",".join(map(str, counts))),
        ]
        began = time.monotonic()
        subprocess.run(command, check=True)
        seconds = time.monotonic() - began
        self._check(table, sum(counts))
        return sum(counts) / seconds

    def _check(self, table: str, messages: int) -> None:
        (row,) = self.server.rows(f"SELECT count() AS n, uniqExact(id) AS ids FROM {table}")
        if (int(row["n"]), int(row["ids"])) != (messages, messages):
            raise AssertionError(f"{table} has {row}, and {messages} were produced")
        self.server.execute(f"DROP TABLE {table} SYNC")

    async def tail(self, rate: int, seconds: float) -> Tail:
        topic = self.create_topic()
        pipeline = self.pipeline(topic, 100_000)
        settings = DatabaseSettings(url=SecretStr(self.database_url))
        table = f"bench.{pipeline.clickhouse.table}"
        async with Database(settings, name="bench") as database:
            await self.apply(database, pipeline)
            slots = self.slots(database, "local")
            producer = Producer({"bootstrap.servers": self.kafka.address, "linger.ms": 5})
            for partition in range(PARTITIONS):
                producer.produce(topic, _event(FIRST_IDS + partition), partition=partition)
            producer.flush(30)
            started = time.monotonic()
            await slots.start()
            there = 0
            while there < PARTITIONS:
                await asyncio.sleep(0.02)
                there = len(await self._ids(table, FIRST_IDS))
            first_rows = time.monotonic() - started
            sent: dict[int, float] = {}
            visible: dict[int, float] = {}
            began, number, asked = time.monotonic(), 0, 0
            while time.monotonic() - began < seconds + 5:
                due = int(min(time.monotonic() - began, seconds) * rate)
                for each in range(number, due):
                    sent[each] = time.monotonic()
                    producer.produce(topic, _event(each), partition=each % PARTITIONS)
                number = max(number, due)
                producer.poll(0)
                ids = await self._ids(table, asked)
                now = time.monotonic()
                for each in ids:
                    visible.setdefault(each, now)
                while asked in visible:
                    asked += 1
                if number >= int(seconds * rate) and asked >= number:
                    break
                await asyncio.sleep(0.02)
            async with database.transaction() as connection:
                await store.set_state(connection, pipeline.name, "bench", "stopped")
            await slots.stop()
        # A message that is not visible by now counts with the time that it has waited.
        ended = time.monotonic()
        lags = sorted(visible.get(each, ended) - moment for each, moment in sent.items())
        return Tail(first_rows, *(1000 * lags[int(len(lags) * part)] for part in (0.5, 0.95)))

    async def _ids(self, table: str, first: int) -> list[int]:
        """The ids of the visible rows from `first` on."""
        end = FIRST_IDS if first < FIRST_IDS else 2 * FIRST_IDS
        statement = f"SELECT id FROM {table} WHERE id >= {first} AND id < {end}"
        rows = await asyncio.to_thread(self.server.rows, statement)
        return [int(row["id"]) for row in rows]

    async def idle(self, pipelines: int, seconds: float) -> float:
        """Percent of a core that so many started pipelines with nothing to do take."""
        settings = DatabaseSettings(url=SecretStr(self.database_url))
        async with Database(settings, name="bench") as database:
            names = []
            for _ in range(pipelines):
                pipeline = self.pipeline(self.create_topic(1), 1000)
                await self.apply(database, pipeline)
                names.append(pipeline.name)
            slots = self.slots(database, "local")
            await slots.start()
            taken = 0
            while taken < pipelines:
                await asyncio.sleep(0.5)
                async with database.transaction() as connection:
                    taken = sum([len(await ledger.ledger(connection, name)) for name in names])
            await asyncio.sleep(15)  # members that see no message ask less often after 10 s
            before = _cpu_seconds()
            await asyncio.sleep(seconds)
            used = _cpu_seconds() - before
            await slots.stop()
        return 100 * used / seconds


def _event(number: int) -> str:
    return json.dumps({"id": number, "name": "n", "amount": 1.5, "at": 1_790_000_000_000,
                       "address": {"city": "c"}, "source": "s"})  # fmt: skip


def _cpu_seconds() -> float:
    total = 0.0
    me = psutil.Process(os.getpid())
    for each in [me, *me.children()]:
        try:
            if each is me or "kalla.sinks.slots.child" in each.cmdline():
                times = each.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=3_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--placement", choices=("spark", "local"), default="spark")
    parser.add_argument("--batch-rows", type=int, default=250_000)
    parser.add_argument("--tail-rate", type=int, default=2000, help="rows/s; 0: no tail")
    parser.add_argument("--idle", type=int, default=20, help="idle pipelines; 0: none")
    chosen = parser.parse_args()
    logs.configure("error", "text")
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        postgres = Postgres(folder, ports.choose_free())
        kafka = Kafka(folder, ports.choose_free(), memory="512m")
        clickhouse = ClickHouseServer(folder, ports.choose_free())
        spark = Spark(folder, ports.choose_free(), memory="1g")
        wanted = [postgres, kafka, clickhouse, *([spark] if chosen.placement == "spark" else [])]
        for server in wanted:
            server.start()
            stack.callback(server.stop)
        url = postgres.url("postgres")
        asyncio.run(database.migrate(DatabaseSettings(url=SecretStr(url))))
        settings = SparkSettings(remote=spark.remote, token=SecretStr(spark.token))
        bench = Bench(kafka, clickhouse, url, settings if spark in wanted else None)
        bench.server.execute("CREATE DATABASE bench ENGINE = Atomic")
        for line in measure(bench, chosen):
            print(json.dumps(line), flush=True)


def measure(bench: Bench, chosen: argparse.Namespace) -> list[dict[str, object]]:
    """A line for each comparison; the headline, rows/s, comes last."""
    lines: list[dict[str, object]] = []
    if chosen.tail_rate:
        tail = asyncio.run(bench.tail(chosen.tail_rate, 15))
        lines.append({"name": "start_to_first_rows", "ours": round(tail.first_rows, 1),
                      "unit": "s"})  # fmt: skip
        lines.append({"name": "tail_p95", "ours": round(tail.p95), "unit": "ms", "goal": 500,
                      "rate": chosen.tail_rate, "p50": round(tail.p50)})  # fmt: skip
    if chosen.idle:
        used = asyncio.run(bench.idle(chosen.idle, 15))
        lines.append({"name": f"idle_{chosen.idle}_pipelines", "ours": round(used, 1),
                      "unit": "percent of a core", "goal": 10})  # fmt: skip
    small, topic = bench.create_topic(), bench.create_topic()
    say(f"producing {chosen.messages:,} messages")
    bench.produce(small, SMALL)
    counts = bench.produce(topic, chosen.messages)
    ours: list[Rates] = []
    peers: list[float] = []
    for number in range(chosen.repeat):
        ours.append(
            asyncio.run(
                bench.ours(small, topic, chosen.messages, chosen.placement, chosen.batch_rows)
            )
        )
        peers.append(bench.peer(topic, counts))
        say(f"repetition {number + 1}: {ours[-1].whole:,.0f} ({ours[-1].delivering:,.0f} from the"
            f" first intent) and {peers[-1]:,.0f} rows/s")  # fmt: skip
    mine = statistics.median(each.whole for each in ours)
    theirs = statistics.median(peers)
    lines.append({"name": "member_memory", "ours": max(bench.memory) >> 20, "unit": "MiB",
                  "goal": 600, "quarters": [each >> 20 for each in bench.memory]})  # fmt: skip
    lines.append(
        {
            "name": f"rows_{chosen.placement}",
            "ours": round(mine),
            "peer": round(theirs),
            "peer_name": PEER,
            "unit": "rows/s",
            "ratio": round(mine / theirs, 2),
            "messages": chosen.messages,
            "all": [round(each.whole) for each in ours],
            "from_first_intent": round(statistics.median(each.delivering for each in ours)),
            "peer_all": [round(each) for each in peers],
        }
    )
    return lines


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
