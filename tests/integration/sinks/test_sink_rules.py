"""Rules change while a pipeline delivers: filters, replays, poison, limits, weaker guarantees."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from kalla.errors import Conflict
from kalla.sinks import ledger, store
from kalla.sinks.model import EXACTLY_ONCE, WITHIN_WINDOW, Pipeline
from kalla.sinks.records import dead_letters, replays
from kalla.sinks.records.letters import ChunkRequest, ReplayRequest, next_chunk, replay_chunk
from kalla.sinks.servers import checks
from kalla.sinks.servers.clickhouse_client import ClickHouse
from kalla.sinks.servers.message_ranges import OffsetRange
from tests.integration.sinks.test_control import counted, table_uuid, until
from tests.sinks_kit import DATABASE, MAPPING, PASSWORD, Site, event

pytestmark = pytest.mark.timeout(300)  # a busy machine starts processes slowly

LENIENT = [each for each in MAPPING if each["column"] != "amount"] + [
    {"column": "amount", "type": "Decimal(18, 2)", "path": "amount", "default": 0}
]


async def test_filters_leave_rows_out_and_the_audit_explains_them(site: Site) -> None:
    topic = site.servers.create_topic(2)
    pipeline = site.pipeline(topic, filters=["amount >= 100", 'city == "Kyiv" || id == 7'])
    await site.apply(pipeline)
    await site.start_slots()
    site.servers.produce(topic, [*[event(number) for number in range(200)], event(1, id="x"), None])

    async def all_there() -> bool:
        rows = await site.ledger(pipeline)
        return sum(each.rows + each.dead + each.skipped + each.filtered for each in rows) == 202

    await until(all_there, "all messages")
    found = await site.audit(pipeline)
    assert found.agrees
    assert sum(each.rows for each in found.partitions) == 100
    assert sum(each.left_out for each in found.partitions) == 101
    assert sum(each.dead_letters for each in found.partitions) == 1
    # A row that is lost is not mistaken for one that a filter left out.
    table = f"{DATABASE}.{pipeline.clickhouse.table}"
    site.servers.execute(f"DELETE FROM {table} WHERE id = 150")
    found = await site.audit(pipeline)
    assert [each.missing_count for each in found.partitions if each.missing_count] == [1]


async def test_replayed_letters_become_rows_once_though_the_replayer_is_killed(site: Site) -> None:
    topic = site.servers.create_topic(2)
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    worker = site.start_worker()
    good = [event(number) for number in range(100)]
    lacking = [event(number).replace(b'"amount"', b'"other"') for number in range(100, 2100)]
    site.servers.produce(topic, [*good, *lacking, b"nonsense"])

    async def all_dead() -> bool:
        return sum(each.dead for each in await site.ledger(pipeline)) == 2001

    await until(all_dead, "the dead letters")
    mended = site.pipeline(topic, mapping=LENIENT)
    async with site.database.transaction() as connection:
        record = await store.apply(connection, mended, "test")
        made = await replays.create(connection, pipeline.name, record.rules.version, "", "", "test")
    with pytest.raises(Conflict):
        async with site.database.transaction() as connection:
            await replays.create(connection, pipeline.name, 2, "", "", "test")

    async def begun() -> bool:
        return await rows_of(site, pipeline) > 100

    await until(begun, "the first replayed row")
    worker.kill()
    site.start_worker()

    async def ended() -> bool:
        async with site.database.transaction() as connection:
            (found,) = await replays.all_replays(connection, pipeline.name)
        return found.status == "completed"

    await until(ended, "the end of the replay")
    assert made.version == 2
    found = await site.audit(pipeline)
    assert found.agrees
    assert sum(each.rows for each in found.partitions) == 2100
    record = await site.record(pipeline)
    left = dead_letters.read(record, lambda _name: site.password)
    assert [(each.count, each.field) for each in left.groups] == [(1, "")]


async def rows_of(site: Site, pipeline: Pipeline) -> int:
    (row,) = site.servers.rows(f"SELECT count() AS n FROM {DATABASE}.{pipeline.clickhouse.table}")
    return int(row["n"])


async def test_a_chunk_that_is_replayed_again_adds_nothing(site: Site) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    await site.apply(pipeline)
    slots = await site.start_slots()
    site.servers.produce(topic, [event(number, amount="x") for number in range(20)])

    async def all_dead() -> bool:
        return sum(each.dead for each in await site.ledger(pipeline)) == 20

    await until(all_dead, "the dead letters")
    await slots.stop()
    config = pipeline.clickhouse
    user = replace(site.servers.target(config.table), user="sink", password=PASSWORD)
    server = ClickHouse(user)
    texts = site.pipeline(topic, mapping=[MAPPING[0]]).rules
    request = ChunkRequest(pipeline.name, topic, (-1, -1, -1), "", "")
    chunk = next_chunk(server, config.dead_letters, request)
    assert chunk is not None
    assert chunk.offsets == tuple(range(20))
    for number in (1, 1, 2):  # again, and by a replay that believes the letters are open
        replay = ReplayRequest(pipeline.name, chunk, replace(texts, version=2), number, "test")
        facts = await asyncio.to_thread(
            replay_chunk, server, config.dead_letters, replay, server.now() + 20
        )
        assert (facts.rows, facts.refused) == (20, 0)
    assert next_chunk(server, config.dead_letters, request) is None
    server.close()
    assert site.servers.offsets(pipeline)[0] == list(range(20))


async def test_a_poisoned_topic_stops_the_pipeline_with_a_sentence(site: Site) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic, poison_percent=20, batch_rows=100)
    await site.apply(pipeline)
    await site.start_slots()
    site.servers.produce(topic, [event(number) for number in range(100)])

    async def first() -> bool:
        return await counted(site, pipeline) == 100

    await until(first, "the good ones")
    site.servers.produce(topic, [event(1, id="x")] * 1000)

    async def stopped() -> bool:
        record = await site.record(pipeline)
        return record.desired == "stopped" and record.poisoned

    await until(stopped, "the pipeline to stop itself")
    record = await site.record(pipeline)
    # All of one range, whose size depends on how fast the messages came.
    assert re.match(r"([\d,]+) of the last \1 messages were dead letters", record.trouble or "")
    await site.set(pipeline, desired="started")
    assert not (await site.record(pipeline)).poisoned


async def test_without_provenance_an_old_intent_stops_as_uncertain(site: Site) -> None:
    topic = site.servers.create_topic(2)
    plain = site.pipeline(topic)
    config = plain.clickhouse.model_dump(exclude_unset=True) | {"provenance": False}
    pipeline = site.pipeline(topic, clickhouse=config)
    await site.apply(pipeline, start=False)
    assert (await site.record(pipeline)).guarantee == WITHIN_WINDOW
    site.servers.produce(topic, [event(number) for number in range(10)], partition=0)
    site.servers.produce(topic, [event(number) for number in range(10)], partition=1)
    uuid = table_uuid(site, pipeline)
    from kalla.sinks.slots.member import topic_facts

    identity = topic_facts(site.servers.admin(), topic).topic_id
    async with site.database.transaction() as connection:
        for partition, age in ((0, 3600), (1, 60)):
            held = await ledger.take(
                connection, pipeline.name, topic, partition, identity, 0, 0, "somebody"
            )
            wanted = OffsetRange(topic, partition, 0, 10)
            await ledger.intend(connection, pipeline.name, held, wanted, 1, uuid, 0.0)
            await connection.execute(
                "UPDATE kalla.ledger SET intent_at = kalla.clock() - make_interval(secs => %s)"
                " WHERE partition = %s",
                [age, partition],
            )
    await site.set(pipeline, desired="started")
    await site.start_slots()

    async def decided() -> bool:
        rows = await site.ledger(pipeline)
        return [each.stopped for each in rows] == ["uncertain", None] and rows[1].rows == 10

    await until(decided, "the old intent to stop, the young one to be delivered")
    uncertain, _ = await site.ledger(pipeline)
    assert "Kalla cannot tell whether it arrived" in (uncertain.reason or "")
    # The slot goes on, and a stopped partition is left alone.
    site.servers.produce(topic, [event(10)], partition=1)

    async def later() -> bool:
        return await rows_of(site, pipeline) == 11

    await until(later, "the other partition")
    async with site.database.transaction() as connection:
        events = [each.event for each in await store.events(connection, pipeline.name)]
    assert events.count("uncertain") == 1


async def test_a_user_without_select_gets_the_weaker_guarantee(site: Site) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    for statement in checks.definitions(pipeline).values():
        site.servers.execute(statement)
    target = site.servers.target(pipeline.clickhouse.table)
    user = replace(target, user="blind", password=PASSWORD)
    assert checks.check_tables(pipeline, user) == WITHIN_WINDOW
    reader = replace(user, user="sink")
    assert checks.check_tables(pipeline, reader) == EXACTLY_ONCE


async def test_a_table_whose_engine_merges_rows_away_gets_the_weaker_guarantee(site: Site) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    statements = checks.definitions(pipeline)
    config = pipeline.clickhouse
    site.servers.execute(statements[config.dead_letters])
    user = replace(site.servers.target(config.table), user="sink", password=PASSWORD)
    key = "(`_topic`, `_partition`, `_offset`)"
    for engine, order, guarantee in (
        ("ReplacingMergeTree", "id", WITHIN_WINDOW),
        ("SummingMergeTree", "(id, _partition, _offset)", WITHIN_WINDOW),
        ("ReplacingMergeTree", "(_topic, id, _offset, _partition)", EXACTLY_ONCE),
        ("MergeTree", "id", EXACTLY_ONCE),
    ):
        statement = statements[config.table].replace("MergeTree", engine).replace(key, order)
        site.servers.execute(statement)
        assert checks.check_tables(pipeline, user) == guarantee, engine
        site.servers.execute(f"DROP TABLE {DATABASE}.{config.table} SYNC")


async def test_a_materialized_view_that_failed_gets_the_rows_of_a_recovered_range(
    site: Site,
) -> None:
    topic = site.servers.create_topic(1)
    pipeline = site.pipeline(topic)
    table = f"{DATABASE}.{pipeline.clickhouse.table}"
    for statement in checks.definitions(pipeline).values():
        site.servers.execute(statement)
    site.servers.execute(f"CREATE TABLE {table}_flag (x UInt8) ENGINE = MergeTree ORDER BY x")
    site.servers.execute(
        f"CREATE TABLE {table}_copy (id UInt64) ENGINE = MergeTree ORDER BY id"
        " SETTINGS non_replicated_deduplication_window = 1000"
    )
    site.servers.execute(
        f"CREATE MATERIALIZED VIEW {table}_view TO {table}_copy AS SELECT id FROM {table}"
        f" WHERE NOT throwIf((SELECT count() FROM {table}_flag) = 0, 'no flag')"
    )
    await site.apply(pipeline)
    site.servers.produce(topic, [event(number) for number in range(10)])
    await site.start_slots(lease_ttl_seconds=20.0)

    async def refused() -> bool:
        return "no flag" in ((await site.record(pipeline)).trouble or "")

    await until(refused, "the view to fail")
    site.servers.execute(f"INSERT INTO {table}_flag VALUES (1)")

    async def committed() -> bool:
        return await counted(site, pipeline) == 10

    await until(committed, "the range")
    assert await rows_of(site, pipeline) == 10
    (row,) = site.servers.rows(f"SELECT count() AS n, uniqExact(id) AS ids FROM {table}_copy")
    assert (int(row["n"]), int(row["ids"])) == (10, 10)
