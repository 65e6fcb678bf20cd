"""A broker, a ClickHouse, and workers as real processes, for tests of sinks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from pydantic import SecretStr

from kalla.database import Database
from kalla.errors import NotInstalled
from kalla.local import ports
from kalla.local.servers.clickhouse import ClickHouse as ClickHouseServer
from kalla.local.servers.kafka import Kafka
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings
from kalla.settings import Sinks as SinkSettings
from kalla.settings import Spark as SparkSettings
from kalla.sinks import ledger, model, store
from kalla.sinks.model import Pipeline
from kalla.sinks.records import audit
from kalla.sinks.servers import checks
from kalla.sinks.servers.clickhouse_client import ClickHouse, Target
from kalla.sinks.servers.kafka_client import Admin, open_admin
from kalla.sinks.slots.reconciling import Slots

DATABASE = "events"
PASSWORD = "sink-password"
# What the documentation tells users to grant, and no more.
GRANTS = (
    "SELECT ON events.*",
    "INSERT ON events.*",
    "SELECT ON system.tables",
    "SELECT ON system.columns",
    "SELECT ON system.one",
    "CREATE TEMPORARY TABLE ON *.*",  # of input(), which the deadline needs
    "READ ON FILE",
)
BLIND_GRANTS = ("SHOW TABLES ON events.*", "SHOW COLUMNS ON events.*", *GRANTS[1:])  # no SELECT
MAPPING = [
    {"column": "id", "type": "UInt64", "path": "id"},
    {"column": "name", "type": "LowCardinality(String)", "path": "name"},
    {"column": "amount", "type": "Decimal(18, 2)", "path": "amount"},
    {"column": "at", "type": "DateTime64(3, 'UTC')", "path": "at", "unit": "ms"},
    {"column": "city", "type": "Nullable(String)", "path": "address.city"},
]


class Broker(Kafka):
    """With a second listener, which asks for a password."""

    @property
    def sasl_address(self) -> str:
        return f"{ports.HOST}:{int((self.folder / 'sasl_port').read_text('ascii'))}"

    def prepare(self) -> None:
        super().prepare()
        port = self.folder / "sasl_port"
        if not port.exists():
            port.write_text(str(ports.choose_free()), encoding="ascii")
        configuration = self.folder / "server.properties"
        given = configuration.read_text("utf-8")
        for name in ("listeners", "advertised.listeners"):
            (line,) = re.findall(rf"(?m)^{re.escape(name)}=.*$", given)
            given += f"{line},SASL://{self.sasl_address}\n"  # the last line of a name counts
        given += (
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            "SASL:SASL_PLAINTEXT\n"
            "sasl.enabled.mechanisms=PLAIN\n"
            "listener.name.sasl.plain.sasl.jaas.config="
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' user_sink="{PASSWORD}";\n'
        )
        configuration.write_text(given, encoding="utf-8")


@dataclass
class Servers:
    kafka: Broker
    clickhouse: ClickHouseServer

    @property
    def given(self) -> str:
        """How another process finds them: KALLA_TEST_SINKS."""
        return f"{self.kafka.folder.parent},{self.kafka.port},{self.clickhouse.port}"

    def admin(self) -> Admin:
        return open_admin({"bootstrap.servers": self.kafka.address})

    def create_topic(self, partitions: int = 3, name: str | None = None) -> str:
        name = name or f"topic-{uuid4().hex[:8]}"
        new = NewTopic(name, partitions, 1)
        admin = self.admin()  # kept: a client that is gone answers nothing
        for future in admin.create_topics([new]).values():
            future.result(30)
        return name

    def replace_topic(self, topic: str) -> None:
        """Delete the topic and make it anew under its name."""
        admin = self.admin()
        for future in admin.delete_topics([topic]).values():
            future.result(30)

        def gone() -> bool:
            return topic not in admin.list_topics(timeout=10).topics

        until(gone, f"{topic} to be gone")
        self.create_topic(1, topic)

    def produce(self, topic: str, values: list[bytes | None], partition: int = -1) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.address,
                "linger.ms": 5,
                "message.max.bytes": 16_000_000,
            }
        )
        for value in values:
            producer.produce(topic, value, partition=partition)
            producer.poll(0)
        assert producer.flush(30) == 0

    def produce_aborted(self, topic: str, values: list[bytes]) -> None:
        """Messages of a transaction that is aborted: they keep their offsets and are never read."""
        producer = Producer(
            {"bootstrap.servers": self.kafka.address, "transactional.id": uuid4().hex}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(30)
        end = self.end_offset(topic)
        producer.abort_transaction(30)
        # The coordinator writes the marker after it has answered.
        until(lambda: self.end_offset(topic) > end, "the marker of the aborted transaction")

    def end_offset(self, topic: str) -> int:
        """Where the next message of partition 0 goes, also while a transaction is open."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.address,
                "group.id": "end-offsets",
                "isolation.level": "read_uncommitted",
            }
        )
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
            return int(end)
        finally:
            consumer.close()

    def target(self, table: str) -> Target:
        return Target(self.clickhouse.url, DATABASE, table, "kalla", self.clickhouse.password)

    def rows(self, statement: str) -> list[dict[str, Any]]:
        server = ClickHouse(self.target(""))
        try:
            return server.rows(statement)
        finally:
            server.close()

    def execute(self, statement: str) -> None:
        server = ClickHouse(self.target(""))
        try:
            server.execute(statement)
        finally:
            server.close()

    def offsets(self, pipeline: Pipeline) -> dict[int, list[int]]:
        """Every offset that the table and the dead letters hold, doubles too."""
        found: dict[int, list[int]] = {}
        config = pipeline.clickhouse
        for row in self.rows(
            f"SELECT _partition AS p, _offset AS o FROM {DATABASE}.{config.table} UNION ALL "
            f"SELECT partition, offset FROM {DATABASE}.{config.dead_letters} l WHERE replay = 0"
            f" AND (partition, offset) NOT IN (SELECT partition, offset FROM"
            f" {DATABASE}.{config.dead_letters} WHERE replay > 0)"
        ):
            found.setdefault(row["p"], []).append(int(row["o"]))
        return {partition: sorted(offsets) for partition, offsets in found.items()}


@pytest.fixture(scope="session")
def sink_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """KALLA_TEST_SINKS names servers that run already: their folder and both ports."""
    if given := os.environ.get("KALLA_TEST_SINKS"):
        folder, kafka_port, clickhouse_port = given.split(",")
        yield Servers(
            Broker(Path(folder), int(kafka_port)),
            ClickHouseServer(Path(folder), int(clickhouse_port)),
        )
        return
    place = tmp_path_factory.mktemp("sinks")
    kafka = Broker(place, ports.choose_free(), retention_check_ms=1000)
    clickhouse = ClickHouseServer(
        place,
        ports.choose_free(),
        users=[("sink", PASSWORD, GRANTS), ("blind", PASSWORD, BLIND_GRANTS)],
    )
    try:
        kafka.check()
        clickhouse.check()
    except NotInstalled as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    try:
        clickhouse.start()
        kafka.start()
        servers = Servers(kafka, clickhouse)
        servers.execute(f"CREATE DATABASE {DATABASE} ENGINE = Atomic")
        yield servers
    finally:
        kafka.stop()
        clickhouse.stop()


def event(number: int, **changes: Any) -> bytes:
    """A valid message."""
    body = {
        "id": number,
        "name": f"name-{number % 50}",
        "amount": f"{number}.25",
        "at": 1_790_000_000_000 + number,
        "address": {"city": "Kyiv"},
    }
    return json.dumps(body | changes).encode()


@dataclass
class Site:
    """A database with pipelines, and the workers of a test."""

    servers: Servers
    url: str
    database: Database
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    worker_url: str = ""  # where workers find the database; "": as the test does
    held: list[Slots] = field(default_factory=list)
    password = SecretStr(PASSWORD)
    kafka_password = SecretStr(PASSWORD)

    def resolve(self, name: str) -> SecretStr:
        return self.kafka_password if name == "secret://kafka" else self.password

    def pipeline(self, topic: str, **changes: Any) -> Pipeline:
        document = {
            "name": f"p-{topic}",
            "kafka": {"bootstrap_servers": self.servers.kafka.address, "topic": topic},
            "clickhouse": {
                "url": self.servers.clickhouse.url,
                "database": DATABASE,
                "table": topic.replace("-", "_"),
                "user": "sink",
                "password": "secret://sink",
            },
            "mapping": MAPPING,
        }
        return model.validate(document | changes)

    async def apply(self, pipeline: Pipeline, start: bool = True) -> None:
        for statement in checks.definitions(pipeline).values():
            self.servers.execute(statement)
        config = pipeline.clickhouse
        user = replace(self.servers.target(config.table), user=config.user, password=PASSWORD)
        guarantee = checks.check_tables(pipeline, user)
        async with self.database.transaction() as connection:
            await store.apply(connection, pipeline, "test", guarantee)
            await store.set_state(
                connection, pipeline.name, "test", "started" if start else None, pipeline.replicas
            )

    async def audit(self, pipeline: Pipeline) -> audit.Audit:
        async with self.database.transaction() as connection:
            record = await store.get(connection, pipeline.name)
            rows = await ledger.ledger(connection, pipeline.name)
            versions = await store.all_rules(connection, pipeline.name)
        return await asyncio.to_thread(
            audit.audit, record, rows, versions, lambda _name: self.password
        )

    async def set(self, pipeline: Pipeline, **state: Any) -> None:
        async with self.database.transaction() as connection:
            await store.set_state(connection, pipeline.name, "test", **state)

    async def record(self, pipeline: Pipeline) -> store.PipelineRecord:
        async with self.database.transaction() as connection:
            return await store.get(connection, pipeline.name)

    async def ledger(self, pipeline: Pipeline) -> list[ledger.LedgerRow]:
        async with self.database.transaction() as connection:
            return await ledger.ledger(connection, pipeline.name)

    async def start_slots(self, spark: SparkSettings | None = None, **settings: Any) -> Slots:
        """Hold slots in this process: quicker than a worker, for tests that kill nobody."""
        given = {"reconcile_seconds": 0.3, "lease_ttl_seconds": 4.0, "placement": "local"}
        whole = Settings(
            database=DatabaseSettings(url=SecretStr(self.url)),
            sinks=SinkSettings(**given | settings),
            spark=spark or SparkSettings(),
        )
        slots = Slots(whole, self.database, f"slots-{len(self.held)}", self.resolve)
        self.held.append(slots)
        await slots.start()
        return slots

    def start_worker(self, **variables: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "KALLA_DATABASE_URL": self.worker_url or self.url,
            "KALLA_WAKE_CHANNEL": "postgres",
            "KALLA_SINKS_RECONCILE_SECONDS": "0.5",
            "KALLA_SINKS_LEASE_TTL_SECONDS": "4",
            "KALLA_SECRET_SINK": PASSWORD,
            "KALLA_DATA_DIR": str(self.folder),
            **variables,
        }
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.sinks_worker"],
                cwd=Path(__file__).resolve().parents[1],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.workers.append(process)
        return process


@asynccontextmanager
async def open_site(servers: Servers, url: str, folder: Path) -> AsyncIterator[Site]:
    async with Database(DatabaseSettings(url=SecretStr(url))) as database:
        site = Site(servers, url, database, folder)
        try:
            yield site
        finally:
            await asyncio.gather(*(slots.stop() for slots in site.held))
            for worker in site.workers:
                worker.terminate()
            deadline = time.monotonic() + 20
            for worker in site.workers:
                try:
                    worker.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    worker.kill()
                    worker.wait()


def until(condition: Callable[[], Any], what: str, seconds: float = 90) -> Any:
    """The first true answer of a condition; fails with what was awaited in vain."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.05)
    return found
