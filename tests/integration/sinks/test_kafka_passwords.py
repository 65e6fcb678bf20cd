"""A broker that asks for a password: it is resolved by the worker, and a wrong one is named."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from kalla.errors import Conflict
from kalla.sinks.model import Pipeline
from kalla.sinks.servers.consumer_lag import log_ends
from kalla.sinks.servers.server_connections import kafka_settings
from tests.integration.sinks.test_control import until
from tests.sinks_kit import Site, event

pytestmark = pytest.mark.timeout(300)  # a busy machine starts processes slowly


def protected(site: Site) -> Pipeline:
    topic = site.servers.create_topic(1)
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sink",
        "sasl.password": "secret://kafka",
    }
    address = site.servers.kafka.sasl_address
    kafka = {"bootstrap_servers": address, "topic": topic, "settings": settings}
    return site.pipeline(topic, kafka=kafka)


async def test_a_pipeline_with_a_wrong_password_says_so_and_goes_on_with_the_right_one(
    site: Site,
) -> None:
    pipeline = protected(site)
    site.servers.produce(pipeline.kafka.topic, [event(number) for number in range(5)])
    await site.apply(pipeline)
    site.kafka_password = SecretStr("wrong")
    settings = kafka_settings(pipeline.kafka, site.resolve)
    with pytest.raises(Conflict, match="Authentication failed"):
        await asyncio.to_thread(log_ends, settings, pipeline.kafka.topic)
    await site.start_slots()

    async def named() -> bool:
        return "Authentication failed" in ((await site.record(pipeline)).trouble or "")

    await until(named, "the wrong password to be named")
    site.kafka_password = site.password

    async def there() -> bool:
        return sum(each.rows for each in await site.ledger(pipeline)) == 5

    await until(there, "the rows")
