"""The connections of a pipeline, with its secrets resolved at run time."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import SecretStr

from kalla.sinks.model import ClickHouseConfig, KafkaConfig
from kalla.sinks.servers.clickhouse_client import Target
from kalla.sinks.slots.child import Connections

Resolve = Callable[[str], SecretStr]


def kafka_settings(config: KafkaConfig, resolve: Resolve) -> dict[str, str]:
    given = {name: _filled(value, resolve) for name, value in config.settings.items()}
    return {**given, "bootstrap.servers": config.bootstrap_servers, "client.id": "kalla"}


def target(config: ClickHouseConfig, resolve: Resolve) -> Target:
    return Target(
        config.url,
        config.database,
        config.table,
        config.user,
        _filled(config.password, resolve),
    )


def connections(kafka: KafkaConfig, clickhouse: ClickHouseConfig, resolve: Resolve) -> Connections:
    """Blocking: a secret may be in Postgres."""
    return Connections(
        kafka_settings(kafka, resolve), target(clickhouse, resolve), clickhouse.dead_letters
    )


def _filled(value: str, resolve: Resolve) -> str:
    return resolve(value).get_secret_value() if value.startswith("secret://") else value
