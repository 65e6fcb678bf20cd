"""`kalla sinks` as a person types it, from a topic to its removal; no worker is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kalla.sinks import model
from kalla.sinks.kernel import Delivery, Kernel
from kalla.sinks.model import Pipeline
from kalla.sinks.servers.message_ranges import OffsetRange
from tests.commands_kit import Place, a_place
from tests.servers import PostgresServer
from tests.sinks_kit import DATABASE, Servers, event

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def place(
    postgres_server: PostgresServer, migrated_template: str, tmp_path: Path, sink_servers: Servers
) -> Iterator[Place]:
    name = postgres_server.create(migrated_template)
    secret = sink_servers.clickhouse.password
    made = a_place(tmp_path, postgres_server.url(name), "admin", KALLA_SECRET_ADMIN=secret)
    try:
        with made.api():
            yield made
    finally:
        postgres_server.drop(name)


def deliver(servers: Servers, pipeline: Pipeline, end: int) -> None:
    """As a worker would, without a ledger."""
    config = pipeline.clickhouse
    kafka = {"bootstrap.servers": servers.kafka.address}
    kernel = Kernel(kafka, servers.target(config.table), config.dead_letters)
    wanted = OffsetRange(pipeline.kafka.topic, 0, 0, end)
    delivery = Delivery(pipeline.name, wanted, 0, pipeline.rules, "a token", "test")
    assert kernel.deliver(delivery, kernel.clock() + 60).dead == 2
    kernel.close()


def test_every_command_of_a_pipeline(place: Place, sink_servers: Servers) -> None:
    topic = sink_servers.create_topic(1)
    values: list[bytes | None] = [event(number) for number in range(40)]
    sink_servers.produce(topic, [*values, event(40, id="x", amount="1.25"), b"nonsense"])
    broker = ("--brokers", sink_servers.kafka.address, "--topic", topic)
    assert "name-1" in place.ok("sinks", "sample", *broker, "--limit", "100")
    text = place.ok("sinks", "infer", *broker)
    assert "42 samples; not JSON objects: 1" in text
    assert "CREATE TABLE" in text
    found = json.loads(place.ok("sinks", "infer", *broker, "--format", "json"))
    target = {
        "url": sink_servers.clickhouse.url,
        "database": DATABASE,
        "table": topic.replace("-", "_"),
        "user": "kalla",
        "password": "secret://admin",
        "create": True,
    }
    document = {
        "name": topic,
        "kafka": {"bootstrap_servers": sink_servers.kafka.address, "topic": topic},
        "clickhouse": target,
        "mapping": found["mapping"],
    }
    (place.folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    assert "guarantee: exactly once" in place.ok("sinks", "apply", "pipeline.yaml")
    assert "There is nothing to move" in place.ok("sinks", "seek", topic, "--to", "earliest")
    assert "started, replicas: 1" in place.ok("sinks", "start", topic)
    assert "replicas: 2" in place.ok("sinks", "scale", topic, "2")

    deliver(sink_servers, model.validate(document), 42)
    line = place.ok("sinks", "list").splitlines()[-1]
    assert "waiting for a worker" in line
    assert "behind" in place.ok("sinks", "lag", topic)
    assert "No worker holds a slot" in place.ok("sinks", "show", topic)
    letters = place.ok("sinks", "dead-letters", "list", topic)
    assert "is text, not a whole number" in letters
    listed = json.loads(place.ok("sinks", "dead-letters", "list", topic, "--format", "json"))
    (bad,) = [each for each in listed["letters"] if each["text"] == "nonsense"]
    at = (str(bad["partition"]), str(bad["offset"]))
    assert place.ok("sinks", "dead-letters", "show", topic, *at).endswith("nonsense\n")
    assert "has begun" in place.ok("sinks", "dead-letters", "replay", topic, "--no-wait")
    assert "Nothing has been delivered yet" in place.ok("sinks", "audit", topic)
    assert "stopped" in place.ok("sinks", "stop", topic)
    assert "No partition is stopped at a gap" in place.ok("sinks", "skip-gap", topic)
    assert "is removed" in place.ok("sinks", "remove", topic, "--yes")
    assert "There are no pipelines yet" in place.ok("sinks", "list")
    refused = place.run("sinks", "show", topic)
    assert refused.returncode != 0
    assert topic in refused.stderr
