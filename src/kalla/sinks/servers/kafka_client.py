"""Opens clients of Kafka; a setting that librdkafka does not take is the user's to mend."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from kalla.errors import InvalidInput, Problem

Setting = str | int | float | bool


def open_consumer(settings: Mapping[str, Setting]) -> Consumer:
    try:
        return Consumer(dict(settings))
    except KafkaException as error:
        raise _refused(error) from None


def open_admin(settings: Mapping[str, Setting]) -> AdminClient:
    try:
        return AdminClient(dict(settings))
    except KafkaException as error:
        raise _refused(error) from None


def _refused(error: KafkaException) -> InvalidInput:
    return InvalidInput(Problem("kafka.settings", str(error.args[0].str())))
