"""Judges a chaos run by the producer's own log of acknowledged messages; shares no code with audit.

Every valid message is in the table once, every bad one in the dead letters once, nothing else is.
"""

from __future__ import annotations

import json
import threading
import zlib
from dataclasses import dataclass, field

import httpx
import numpy as np
from confluent_kafka import KafkaError, Message, Producer

_MOST_NAMED = 10
BAD_EVERY = 997


@dataclass
class ProducerLog:
    """What the broker acknowledged: partition, offset, checksum of the content, whether valid."""

    acknowledged: list[tuple[int, int, int, bool]] = field(default_factory=list)
    failed: int = 0

    def produce(
        self, brokers: str, topic: str, messages: int, rate: float, end: threading.Event
    ) -> None:
        """Blocking; runs in a thread. Idempotent, so that a retry of the client adds nothing."""
        producer = Producer(
            {
                "bootstrap.servers": brokers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "message.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        tick = max(1, int(rate / 20))
        for number in range(messages):
            if end.is_set():
                break
            text = f"text-{number * 7919 % 100_003}"
            content = zlib.crc32(f"{number}:{text}".encode())
            value = json.dumps({"id": number, "text": text}).encode()
            valid = number % BAD_EVERY != BAD_EVERY // 2
            if not valid:
                value = value[:-5]
                content = zlib.crc32(value)

            def noted(
                error: KafkaError | None,
                message: Message,
                content: int = content,
                valid: bool = valid,
            ) -> None:
                if error is not None:
                    self.failed += 1
                else:
                    place = (message.partition() or 0, message.offset() or 0)
                    self.acknowledged.append((*place, content, valid))

            while True:
                try:
                    producer.produce(topic, value, on_delivery=noted)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % tick == 0:
                producer.poll(0)
                end.wait(tick / rate)
        producer.flush(300)


@dataclass(frozen=True)
class Judgement:
    messages: int
    rows: int
    dead_letters: int
    violations: list[str]


def judge(url: str, user: str, password: str, table: str, log: ProducerLog) -> Judgement:
    rows = _held(
        url, user, password,
        f"SELECT _partition, _offset, CRC32(concat(toString(id), ':', text)) FROM {table}",
    )  # fmt: skip
    dead = _held(
        url, user, password,
        f"SELECT partition, offset, CRC32(ifNull(value, '')) FROM {table}_dead_letters",
    )  # fmt: skip
    logged = np.array(log.acknowledged, dtype=np.int64).reshape(-1, 4)
    violations = []
    for what, held, wanted in (
        ("row", rows, logged[logged[:, 3] == 1][:, :3]),
        ("dead letter", dead, logged[logged[:, 3] == 0][:, :3]),
    ):
        held_keys, counts = np.unique(held, axis=0, return_counts=True)
        doubled = held_keys[counts > 1]
        missing = _difference(wanted, held_keys)
        unknown = _difference(held_keys, wanted)
        for name, found in (("doubled", doubled), ("missing", missing), ("unknown", unknown)):
            if len(found):
                first = [tuple(map(int, each)) for each in found[:_MOST_NAMED]]
                violations.append(f"{len(found)} {what}s {name}: {first}")
    if log.failed:
        violations.append(f"{log.failed} messages were not acknowledged: the run proves nothing")
    return Judgement(len(logged), len(rows), len(dead), violations)


def _difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Rows of the first that the second has not."""
    kind = [("p", np.int64), ("o", np.int64), ("c", np.int64)]
    a = np.ascontiguousarray(first).view(kind).ravel()
    b = np.ascontiguousarray(second).view(kind).ravel()
    return np.setdiff1d(a, b)


def _held(url: str, user: str, password: str, statement: str) -> np.ndarray:
    answer = httpx.post(
        url,
        content=f"{statement} FORMAT TSV",
        headers={"X-ClickHouse-User": user, "X-ClickHouse-Key": password},
        timeout=300,
    )
    answer.raise_for_status()
    return np.array(
        [line.split("\t") for line in answer.text.splitlines()], dtype=np.int64
    ).reshape(-1, 3)
