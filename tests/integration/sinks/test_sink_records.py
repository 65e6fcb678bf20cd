"""What operators look at: dead letters with their messages, and an audit that guesses nothing."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from kalla.errors import Conflict, NotFound
from kalla.sinks.ledger import LedgerRow
from kalla.sinks.records import audit, dead_letters
from kalla.sinks.servers.message_ranges import Message
from tests.integration.sinks.test_deliver_kernel import Bench
from tests.sinks_kit import MAPPING, Site, event

KEYED = [*MAPPING, {"column": "key", "type": "UUID", "kafka": "key"}]
LARGE = event(1, id="one", note="x" * 5_000_000)


@pytest.fixture
async def bench(site: Site) -> AsyncIterator[Bench]:
    """Two rows, a dead letter for its key, and one of 5 MB."""
    bench = Bench(site, [event(0)], mapping=[*KEYED[:-1], {**KEYED[-1], "type": "Nullable(UUID)"}])
    producer = Producer(
        {"bootstrap.servers": site.servers.kafka.address, "message.max.bytes": 16_000_000}
    )
    headers: list[tuple[str, str | bytes | None]] = [
        ("trace", b"a"),
        ("trace", None),
        ("raw", b"\xff"),
    ]
    producer.produce(bench.topic, event(1), b"no uuid", 0, headers=headers, timestamp=1_790_000)
    producer.produce(bench.topic, LARGE, None, 0)
    producer.produce(bench.topic, event(2), None, 0)
    assert producer.flush(30) == 0
    await site.apply(bench.pipeline, start=False)
    await bench.deliver(bench.delivery(4), bench.soon())
    yield bench
    bench.kernel.close()


def row(bench: Bench, **changes: Any) -> LedgerRow:
    nothing = dict.fromkeys(LedgerRow.__annotations__)
    given = {"topic": bench.topic, "partition": 0, "generation": 0, "first_offset": 0}
    return LedgerRow(**{**nothing, **given, "next_offset": 4, **changes})


async def test_letters_are_listed_without_their_messages_and_shown_with_all_of_them(
    site: Site, bench: Bench
) -> None:
    record = await site.record(bench.pipeline)

    def resolve(_name: str) -> Any:
        return site.password

    found = await asyncio.to_thread(dead_letters.read, record, resolve)
    assert {(each.offset, each.field, each.bytes) for each in found.letters} == {
        (1, "key", len(event(1))),
        (2, "id", len(LARGE)),
    }
    assert len(found.model_dump_json()) < 10_000
    letter = await asyncio.to_thread(dead_letters.whole, record, resolve, 0, 1)
    assert base64.b64decode(letter.value) == event(1)
    assert (letter.key, letter.headers) == ("no uuid", [("trace", None), ("raw", "\ufffd")])
    # What a mapping is tried on has the key and the headers, too: the last one of a name.
    message = await asyncio.to_thread(dead_letters.message_of, record, resolve, 0, 1)
    last = (("trace", None), ("raw", b"\xff"))
    assert message == Message(bench.topic, 0, 1, 1_790_000, b"no uuid", event(1), last)
    with pytest.raises(NotFound):
        await asyncio.to_thread(dead_letters.whole, record, resolve, 0, 0)


async def test_an_audit_says_what_it_cannot_compare(site: Site, bench: Bench) -> None:
    record = await site.record(bench.pipeline)
    rules = [replace(record.rules, version=1)]

    async def compared(*rows: LedgerRow) -> audit.Audit:
        return await asyncio.to_thread(
            audit.audit, record, rows, rules, lambda _name: site.password
        )

    found = await compared(row(bench))
    assert (found.agrees, found.not_compared) == (True, [])
    (partition,) = found.partitions
    assert (partition.messages, partition.rows, partition.dead_letters) == (4, 2, 2)
    replaced = row(bench, stopped="topic_replaced")
    found = await compared(replaced, row(bench, partition=7))
    assert (found.agrees, found.partitions, found.not_compared) == (False, [], [0, 7])
    with pytest.raises(Conflict, match="start it again"):  # retention is quicker than an audit
        await compared(row(bench, first_offset=9, next_offset=12))
