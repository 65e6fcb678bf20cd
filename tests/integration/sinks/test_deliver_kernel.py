"""The kernel by itself: one message is one row or one dead letter, inserted once.

The same tests run in this process and in a task that Spark places.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from pydantic import SecretStr

from kalla.settings import Spark
from kalla.sinks import kernel
from kalla.sinks.kernel import Delivery, Facts, Kernel, TooLarge, Unsettled
from kalla.sinks.servers import checks
from kalla.sinks.servers.clickhouse_client import Late, Refused
from kalla.sinks.servers.message_ranges import OffsetRange, OffsetsGone
from kalla.sinks.slots.child import Connections
from kalla.sinks.slots.placement import SparkPlacement
from tests.servers import SparkServer
from tests.sinks_kit import DATABASE, Site, event

pytestmark = pytest.mark.timeout(300)  # a busy machine starts processes slowly

BAD = {
    b"nope": "is not JSON",
    b'{"id": 1}{"id": 2}': "is not JSON",
    b"": "is not JSON",
    b"\xff\xfe": "is not JSON",
    b"null": "is JSON, but not an object",
    b"[]": "is JSON, but not an object",
    event(1, id="one"): "is text, not a whole number",
    event(1, id=-1): "does not fit UInt64",
    event(1, id=2**64): "does not fit UInt64",
    event(1, id=None): "is null, not a whole number",
    event(1, id=True): "is a boolean, not a whole number",
    event(1, amount="1.005"): "has more than 2 decimals",
    event(1, amount="NaN"): "is text that is not a number",
    event(1, name=7): "is a number, not text",
    event(1, at="later"): "is not a number of ms since 1970",
    b'{"id": 5}': "is absent, and the mapping has no default for it",
}


class Bench:
    """A topic of one partition, its tables, and a kernel."""

    def __init__(
        self,
        site: Site,
        values: list[bytes | None],
        spark: SparkPlacement | None = None,
        **changes: object,
    ) -> None:
        self.spark = spark
        self.servers = site.servers
        self.topic = self.servers.create_topic(1)
        self.servers.produce(self.topic, values, partition=0)
        self.pipeline = site.pipeline(self.topic, **changes)
        for statement in checks.definitions(self.pipeline).values():
            self.servers.execute(statement)
        config = self.pipeline.clickhouse
        target = replace(self.servers.target(config.table), user="sink", password="sink-password")
        kafka = {"bootstrap.servers": self.servers.kafka.address}
        self.connections = Connections(kafka, target, config.dead_letters)
        self.kernel = Kernel(kafka, target, config.dead_letters)
        self.table = f"{DATABASE}.{config.table}"
        self.letters = f"{DATABASE}.{config.dead_letters}"

    def delivery(self, end: int, start: int = 0, **changes: object) -> Delivery:
        given = Delivery(
            pipeline=self.pipeline.name,
            range=OffsetRange(self.topic, 0, start, end),
            generation=0,
            rules=replace(self.pipeline.rules, version=1),
            token=f"token-{start}-{end}",
            comment="test",
        )
        return replace(given, **changes)  # type: ignore[arg-type]

    async def deliver(self, delivery: Delivery, deadline: float) -> Facts:
        if self.spark is None:
            return self.kernel.deliver(delivery, deadline)
        (result,) = await self.spark.deliver(self.connections, [delivery], deadline)
        if isinstance(result, Exception):
            raise result
        return result

    def soon(self) -> float:
        return self.kernel.clock() + 90

    def offsets(self) -> list[int]:
        return self.servers.offsets(self.pipeline).get(0, [])


Benches = Callable[[list[bytes | None]], Bench]


@pytest.fixture(scope="module")
def spark_placement(request: pytest.FixtureRequest) -> Iterator[SparkPlacement]:
    server: SparkServer = request.getfixturevalue("spark_server")
    placement = SparkPlacement(Spark(remote=server.remote, token=SecretStr(server.token)))
    yield placement
    placement.close()


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def benches(site: Site, request: pytest.FixtureRequest) -> Iterator[Benches]:
    """Makes a topic with these messages, and a kernel in either placement."""
    spark = request.getfixturevalue("spark_placement") if request.param == "spark" else None
    made: list[Bench] = []

    def make(values: list[bytes | None]) -> Bench:
        made.append(Bench(site, values, spark))
        return made[-1]

    yield make
    for each in made:
        each.kernel.close()


@pytest.fixture
def bench(benches: Benches) -> Bench:
    return benches([event(number) for number in range(100)])


async def test_columns_may_have_the_names_of_the_dead_letters_columns(site: Site) -> None:
    """Each is sent with its own type: a letter's `timestamp` would change this number."""
    types = {
        "timestamp": "UInt64",
        "value": "Float64",
        "key": "UInt64",
        "offset": "UInt8",
        "headers": "Map(String, Int32)",
        "topic": "Array(String)",
    }
    values = {
        "timestamp": 1_790_000_000_000,
        "value": 1.5,
        "key": 2**64 - 1,
        "offset": 7,
        "headers": {"a": 1},
        "topic": ["x"],
    }
    mapping = [{"column": name, "type": kind, "path": name} for name, kind in types.items()]
    bench = Bench(site, [json.dumps(values).encode()], mapping=mapping)
    await bench.deliver(bench.delivery(1), bench.soon())
    bench.kernel.close()
    (row,) = site.servers.rows(f"SELECT {', '.join(types)} FROM {bench.table}")
    assert {**row, "timestamp": int(row["timestamp"]), "key": int(row["key"])} == values


async def test_a_message_that_has_no_row_is_a_dead_letter_with_its_reason(
    site: Site, benches: Benches
) -> None:
    bench = benches([event(0), *BAD, None, event(99)])
    count = len(BAD) + 3
    facts = await bench.deliver(bench.delivery(count), bench.soon())
    assert (facts.rows, facts.dead, facts.skipped) == (2, len(BAD), 1)
    found = site.servers.rows(
        f"SELECT offset, reason, hex(value) AS value FROM {bench.letters} ORDER BY offset"
    )
    for number, ((raw, reason), row) in enumerate(zip(BAD.items(), found, strict=True), start=1):
        assert int(row["offset"]) == number
        assert bytes.fromhex(row["value"]) == raw
        assert reason in row["reason"]
    assert bench.offsets() == [*range(len(BAD) + 1), count - 1]


async def test_the_same_token_inserts_once(bench: Bench) -> None:
    for _ in range(3):
        await bench.deliver(bench.delivery(100), bench.soon())
    assert bench.offsets() == list(range(100))


async def test_a_recovered_range_that_is_there_is_not_inserted_again(bench: Bench) -> None:
    await bench.deliver(bench.delivery(100), bench.soon())
    again = bench.delivery(100, recovered=True, token="another")  # the window has forgotten it
    assert (await bench.deliver(again, bench.soon())).found == 100
    assert bench.offsets() == list(range(100))


async def test_of_a_recovered_range_only_what_is_missing_is_inserted(bench: Bench) -> None:
    await bench.deliver(bench.delivery(40), bench.soon())
    rest = bench.delivery(100, recovered=True)
    with pytest.raises(Unsettled):
        await bench.deliver(replace(rest, settled=False), bench.soon())
    assert bench.offsets() == list(range(40))
    await bench.deliver(rest, bench.soon())
    assert bench.offsets() == list(range(100))


async def test_a_late_insert_is_refused_by_the_server(bench: Bench) -> None:
    with pytest.raises(Late):
        await bench.deliver(bench.delivery(100), bench.kernel.clock() - 0.5)
    assert bench.offsets() == []


async def test_offsets_that_kafka_does_not_have_are_refused(bench: Bench) -> None:
    with pytest.raises(OffsetsGone):
        await bench.deliver(bench.delivery(1000, start=500), bench.soon())


async def test_a_range_ends_though_its_last_offsets_were_aborted(
    site: Site, benches: Benches
) -> None:
    bench = benches([event(0)])
    site.servers.produce_aborted(bench.topic, [event(1), event(2)])
    site.servers.produce(bench.topic, [event(3)], partition=0)
    # 0, then two aborted messages and their marker, then 4.
    facts = await bench.deliver(bench.delivery(3), bench.soon())
    assert facts.rows == 1
    assert (await bench.deliver(bench.delivery(5, start=3), bench.soon())).rows == 1
    assert bench.offsets() == [0, 4]


@pytest.mark.parametrize("benches", ["local"], indirect=True)
async def test_a_range_that_does_not_fit_in_memory_names_the_part_that_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "MOST_BYTES", 50 * len(event(10)))
    with pytest.raises(TooLarge) as refused:
        await bench.deliver(bench.delivery(100), bench.soon())
    end = pickle.loads(pickle.dumps(refused.value)).end  # noqa: S301
    assert 45 < end < 55
    assert bench.offsets() == []
    assert (await bench.deliver(bench.delivery(end), bench.soon())).rows == end
    monkeypatch.setattr(kernel, "MOST_BYTES", 1)  # a single message is never too large
    assert (await bench.deliver(bench.delivery(end + 1, start=end), bench.soon())).rows == 1


@pytest.mark.parametrize("benches", ["local"], indirect=True)
async def test_a_range_may_reach_more_partitions_of_the_table_than_clickhouse_allows(
    site: Site, benches: Benches
) -> None:
    bench = benches([event(number) for number in range(120)])
    site.servers.execute(f"DROP TABLE {bench.table} SYNC")
    (definition, _) = checks.definitions(bench.pipeline).values()
    site.servers.execute(definition.replace(" ORDER BY ", " PARTITION BY id ORDER BY "))
    await bench.deliver(bench.delivery(120), bench.soon())
    assert bench.offsets() == list(range(120))


@pytest.mark.parametrize("benches", ["local"], indirect=True)
async def test_no_row_is_inserted_before_its_range_s_dead_letters(
    site: Site, benches: Benches
) -> None:
    bench = benches([event(0), b"nonsense"])
    site.servers.execute(f"DROP TABLE {bench.letters} SYNC")
    with pytest.raises(Refused):
        await bench.deliver(bench.delivery(2), bench.soon())
    assert site.servers.rows(f"SELECT id FROM {bench.table}") == []


async def test_a_message_of_five_megabytes_is_a_row(site: Site, benches: Benches) -> None:
    bench = benches([event(0, name="x" * 5_000_000), event(1)])
    facts = await bench.deliver(bench.delivery(2), bench.soon())
    assert facts.rows == 2
    (row,) = site.servers.rows(f"SELECT max(length(name)) AS n FROM {bench.table}")
    assert int(row["n"]) == 5_000_000
