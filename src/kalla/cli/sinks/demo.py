"""`kalla sinks demo`: a topic of orders into a table, with a worker killed on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import Any
from uuid import uuid4

import typer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic import SecretStr

from kalla import settings
from kalla.cli.client import Client, address
from kalla.errors import Unavailable
from kalla.local import folder
from kalla.secrets import Vault
from kalla.sinks.servers.clickhouse_client import ClickHouse, Target

_PARTITIONS = 6
_BROKEN_EVERY = 1000
_SECRET = "demo-clickhouse"  # noqa: S105
_WAIT_SECONDS = 600.0
_MAPPING = [
    {"column": "id", "type": "UInt64", "path": "id"},
    {"column": "placed_at", "type": "DateTime64(3, 'UTC')", "path": "placed_at", "unit": "ms"},
    {"column": "customer", "type": "String", "path": "customer.name"},
    {"column": "city", "type": "LowCardinality(String)", "path": "customer.city"},
    {"column": "amount", "type": "Decimal(18, 2)", "path": "amount"},
    {"column": "items", "type": "Array(String)", "path": "items"},
    {"column": "coupon", "type": "Nullable(String)", "path": "coupon"},
]


def run(messages: int) -> None:
    loaded = settings.load().settings
    broker = f"127.0.0.1:{loaded.up.kafka_port}"
    url = f"http://127.0.0.1:{loaded.up.clickhouse_port}"
    name = f"demo-{uuid4().hex[:6]}"
    password = folder.secret(loaded.data_dir / "clickhouse" / "password")
    _create_topic(broker, name)
    Vault(loaded).put(_SECRET, SecretStr(password), "demo")
    server = ClickHouse(Target(url, "demo", name, "kalla", password))
    server.execute("CREATE DATABASE IF NOT EXISTS demo ENGINE = Atomic")
    server.close()
    with Client(seconds=_WAIT_SECONDS) as client:
        client.post("/api/pipelines", _pipeline(name, broker, url))
        client.patch(address("pipelines", name, "state"), {"desired": "started"})
        broken = _produce(broker, name, messages)
        typer.echo(
            f"{messages:,} messages are in the topic {name}; {broken:,} of them are not orders."
        )
        _follow(client, name, messages)
        found = client.post(address("pipelines", name, "audit"))
    rows = sum(each["rows"] for each in found["partitions"])
    dead = sum(each["dead_letters"] for each in found["partitions"])
    typer.echo(f"ClickHouse has {rows:,} rows and {dead:,} dead letters: {rows + dead:,} together.")
    agrees = found["agrees"] and rows + dead == messages and dead == broken
    typer.echo("Every message is there once." if agrees else "They do not agree.")
    if not agrees:
        raise typer.Exit(1)


def _pipeline(name: str, broker: str, url: str) -> dict[str, Any]:
    return {
        "name": name,
        "kafka": {"bootstrap_servers": broker, "topic": name},
        "clickhouse": {
            "url": url,
            "database": "demo",
            "table": name.replace("-", "_"),
            "user": "kalla",
            "password": f"secret://{_SECRET}",
            "create": True,
        },
        "mapping": _MAPPING,
        "batch_rows": 10_000,
        "replicas": 2,
    }


def _create_topic(broker: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    try:
        for future in admin.create_topics([NewTopic(name, _PARTITIONS, 1)]).values():
            future.result(10)
    except (KafkaException, TimeoutError):
        raise Unavailable(
            f"Kafka does not answer on {broker}: start it with `kalla up --with kafka,clickhouse`."
        ) from None


def _produce(broker: str, topic: str, messages: int) -> int:
    """Produce orders, and a few messages that are not; returns how many those are."""
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 20})
    cities = ("Kyiv", "Lagos", "Lima", "Osaka", "Oslo")
    chance = random.Random(7)  # noqa: S311
    broken = 0
    for number in range(messages):
        order = {
            "id": number,
            "placed_at": 1_790_000_000_000 + number * 250,
            "customer": {"name": f"Customer {number % 5000}", "city": chance.choice(cities)},
            "amount": f"{chance.randrange(100, 99_999) / 100:.2f}",
            "items": [f"sku-{chance.randrange(900)}" for _ in range(chance.randrange(1, 4))],
        }
        value = json.dumps(order)
        if number % _BROKEN_EVERY == _BROKEN_EVERY // 2:
            value = value[: len(value) // 2]
            broken += 1
        while True:
            try:
                producer.produce(topic, value, key=str(number))
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(60):
        raise Unavailable("Kafka did not take all messages: try again.")
    return broken


def _follow(client: Client, name: str, messages: int) -> None:
    """Print the progress, and kill the worker of a slot at a third."""
    began, shown, killed = time.monotonic(), -1, False
    while time.monotonic() - began < _WAIT_SECONDS:
        found = client.get(address("pipelines", name))
        done = found["rows"] + found["dead_letters"]
        if done != shown:
            typer.echo(f"{time.monotonic() - began:6.1f} s  {done:>10,} delivered")
            shown = done
        if done >= messages:
            return
        if not killed and done > messages // 3:
            killed = _kill_a_worker(client, name)
        time.sleep(0.5)
    raise Unavailable(
        f"Not all messages arrived within {_WAIT_SECONDS:g} s: `kalla sinks show {name}` says why."
    )


def _kill_a_worker(client: Client, name: str) -> bool:
    slots = client.get(address("pipelines", name, "assignments"))
    for each in slots:
        if each["live"]:
            pid = int(each["worker"].split("-")[-2])
            os.kill(pid, signal.SIGKILL)
            typer.echo(f"          killed {each['worker']}, which held slot {each['slot']}")
            return True
    return False
