"""Pipelines over REST and as pages: applied, refused with the DDL that mends it, started, shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kalla.sinks import ledger, model, pages, store
from kalla.sinks.servers import checks
from kalla.work.state import leases
from tests.sinks_kit import DATABASE, MAPPING, Servers, event
from tests.web_kit import PAGE, Site, open_site


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch, sink_servers: Servers) -> None:
    monkeypatch.setenv("KALLA_SECRET_SINK", "sink-password")
    monkeypatch.setenv("KALLA_SECRET_ADMIN", sink_servers.clickhouse.password)


@pytest.fixture
async def web(database_url: str, secret: None) -> AsyncIterator[Site]:
    async with open_site(database_url) as site:
        yield site


def document(servers: Servers, topic: str, **clickhouse: Any) -> dict[str, Any]:
    target = {
        "url": servers.clickhouse.url,
        "database": DATABASE,
        "table": topic.replace("-", "_"),
        "user": "sink",
        "password": "secret://sink",
    }
    return {
        "name": topic,
        "kafka": {"bootstrap_servers": servers.kafka.address, "topic": topic},
        "clickhouse": target | clickhouse,
        "mapping": MAPPING,
    }


async def test_a_pipeline_is_applied_started_and_shown(web: Site, sink_servers: Servers) -> None:
    topic = sink_servers.create_topic(2)
    body = document(sink_servers, topic)
    async with web.client("admin") as client:
        refused = await client.post("/api/pipelines", json=body)
        assert refused.status_code == 422
        assert "CREATE TABLE" in refused.text
        for statement in checks.definitions(model.validate(body)).values():
            sink_servers.execute(statement)
        made = await client.post("/api/pipelines", json=body)
        assert made.status_code == 201, made.text
        assert made.json()["state"] == "stopped"
        again = await client.post("/api/pipelines", json=body)
        assert again.json()["mapping_version"] == 1
        path = f"/api/pipelines/{topic}"
        state = await client.patch(f"{path}/state", json={"desired": "started", "replicas": 3})
        assert state.json() == {"desired": "started", "replicas": 3}
        assert (await client.get(path)).json()["state"] == "waiting for a worker"
        async with web.database.transaction() as connection:
            resource = (await store.get(connection, topic)).resource
            assert await leases.acquire(connection, resource, "a worker", 3, 60)
        assert (await client.get(path)).json()["state"] == "delivering"
        lag = (await client.get(f"{path}/metrics")).json()
        assert [each["waiting"] for each in lag] == [0, 0]
        tables = (await client.get(f"{path}/tables")).json()
        assert [each["window"] for each in tables] == [10_000, 10_000]
        listing = await client.get("/sinks", headers=PAGE)
        assert listing.status_code == 200
        assert topic in listing.text
        for tab in ("", *(f"/{each}" for each in pages.TABS)):
            page = await client.get(f"/sinks/{topic}{tab}", headers=PAGE)
            assert page.status_code == 200, page.text
            assert "sink-password" not in page.text
            assert ("CREATE TABLE" in page.text) == (tab in ("/clickhouse", "/mapping"))
        audit = (await client.post(f"{path}/audit")).json()
        assert audit == {"agrees": True, "partitions": [], "not_compared": []}
        async with web.database.transaction() as connection:
            await ledger.take(connection, topic, topic, 0, "another topic's", 5, 0, "a worker")
            await connection.execute("UPDATE kalla.ledger SET stopped = 'gap'")
        cut_back = await client.post(f"{path}/skip-gap")
        assert (cut_back.status_code, "kalla sinks seek" in cut_back.text) == (409, True)
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).status_code == 404


async def test_a_table_that_does_not_fit_is_refused_with_what_mends_it(
    web: Site, sink_servers: Servers
) -> None:
    topic = sink_servers.create_topic(1)
    body = document(sink_servers, topic)
    statements = checks.definitions(model.validate(body))
    table = body["clickhouse"]["table"]
    wrong = statements[table].replace("`name` LowCardinality(String)", "`name` UInt8")
    sink_servers.execute(wrong.replace("window = 10000", "window = 5"))
    sink_servers.execute(statements[f"{table}_dead_letters"])
    async with web.client("admin") as client:
        refused = await client.post("/api/pipelines", json=body)
    assert refused.status_code == 422
    assert "is UInt8 in ClickHouse and LowCardinality(String) in the mapping" in refused.text
    assert "remembers the tokens of 5 blocks" in refused.text


async def test_a_bare_materialized_view_is_refused_and_one_with_a_window_is_not(
    web: Site, sink_servers: Servers
) -> None:
    topic = sink_servers.create_topic(1)
    body = document(sink_servers, topic)
    table = body["clickhouse"]["table"]
    for statement in checks.definitions(model.validate(body)).values():
        sink_servers.execute(statement)
    sums = f"{DATABASE}.{table}_sums"
    select = f"SELECT name, count() AS n FROM {DATABASE}.{table} GROUP BY name"
    engine = "ENGINE = SummingMergeTree ORDER BY name"
    sink_servers.execute(
        f"CREATE TABLE {sums} (name String, n UInt64) {engine}"
        " SETTINGS non_replicated_deduplication_window = 1000"
    )
    sink_servers.execute(f"CREATE MATERIALIZED VIEW {sums}_view TO {sums} AS {select}")
    async with web.client("admin") as client:
        allowed = await client.post("/api/pipelines", json=body)
        assert allowed.status_code == 201, allowed.text
        bare = f"CREATE MATERIALIZED VIEW {sums}_bare {engine} AS {select}"
        sink_servers.execute(bare)
        refused = await client.post("/api/pipelines", json=body)
    assert refused.status_code == 422
    assert f"{table}_sums_bare" in refused.text
    assert f"{table}_sums_view" not in refused.text


async def test_a_wrong_password_and_an_inlined_one_are_refused(
    web: Site, sink_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = sink_servers.create_topic(1)
    monkeypatch.setenv("KALLA_SECRET_SINK", "wrong")
    async with web.client("admin") as client:
        wrong = await client.post("/api/pipelines", json=document(sink_servers, topic))
        inlined = await client.post(
            "/api/pipelines", json=document(sink_servers, topic, password="hunter2")
        )
    assert wrong.status_code == 409
    assert "Authentication failed" in wrong.text
    assert inlined.status_code == 422
    assert "hunter2" not in inlined.text
    async with web.client("operator") as client:
        refused = await client.post("/api/pipelines", json=document(sink_servers, topic))
    assert refused.status_code == 403


async def test_a_setting_that_kafka_does_not_know_is_refused_by_its_field(
    web: Site, sink_servers: Servers
) -> None:
    kafka = document(sink_servers, sink_servers.create_topic(1))["kafka"]
    body = {"kafka": kafka | {"settings": {"fetch.no.such": "1"}}}
    async with web.client("admin") as client:
        refused = await client.post("/api/pipelines/sample", json=body)
    assert refused.status_code == 422
    assert "fetch.no.such" in refused.text


async def test_samples_suggest_a_mapping_that_can_be_tried_and_saved(
    web: Site, sink_servers: Servers
) -> None:
    topic = sink_servers.create_topic(2)
    values: list[bytes | None] = [event(number) for number in range(30)]
    sink_servers.produce(topic, [*values, event(30, name=7), b"nonsense", None])
    body = document(sink_servers, topic, create=True)
    body["clickhouse"]["user"] = "kalla"
    body["clickhouse"]["password"] = "secret://admin"
    path = f"/api/pipelines/{topic}"
    async with web.client("admin") as client:
        found = (await client.post("/api/pipelines/infer", json={"kafka": body["kafka"]})).json()
        assert (found["samples"], found["unreadable"], found["empty"]) == (33, 1, 1)
        by_path = {each["path"]: each for each in found["fields"]}
        assert "30 text" in by_path["name"]["conflict"]
        assert by_path["amount"]["column"]["type"] == "Decimal(18, 2)"
        assert by_path["at"]["column"]["unit"] == "ms"
        assert "CREATE TABLE" in found["create_tables"][0]
        body["mapping"] = found["mapping"]
        made = await client.post("/api/pipelines", json=body)
        assert made.status_code == 201, made.text
        shown = (await client.get(f"{path}/sample", params={"samples": 5})).json()["samples"]
        assert 0 < len(shown) <= 5
        tried = (await client.post(f"{path}/mapping/preview", json={})).json()
        assert (tried["row_count"], tried["refusal_count"], tried["skipped"]) == (30, 2, 1)
        assert {each["field"] for each in tried["refusals"]} == {"", "name"}
        tested = await client.post(f"{path}/filters/test", json={"filters": ["id < 10"]})
        assert (tested.json()["row_count"], tested.json()["filtered_count"]) == (10, 20)
        given = {"filters": ["id > 1"], "messages": [{"id": 1}]}
        assert (await client.post(f"{path}/filters/test", json=given)).json()["refusal_count"] == 1
        wrong = await client.put(f"{path}/filters", json={"filters": ["nope = 1"]})
        assert wrong.status_code == 422
        saved = (await client.put(f"{path}/filters", json={"filters": ["id < 10"]})).json()
        assert saved == {"version": 2, "filters": ["id < 10"]}
        again = (await client.put(f"{path}/filters", json={"filters": ["id < 10"]})).json()
        assert again["version"] == 2
        mapping = (await client.get(f"{path}/mapping")).json()
        assert mapping["mapping"] == found["mapping"]
        put = await client.put(f"{path}/mapping", json={"mapping": [*found["mapping"], NEW]})
        assert put.status_code == 422  # the table has no such column, and the DDL is said
        assert "ALTER TABLE" in put.text
        assert (await client.get(f"{path}/kafka")).json()["topic"] == topic
        assert (await client.get(f"{path}/clickhouse")).json()["password"] == "secret://admin"
        state = await client.put(f"{path}/state", json={"desired": "stopped", "replicas": 4})
        assert state.json() == {"desired": "stopped", "replicas": 4}
        assert (await client.get(f"{path}/assignments")).json() == []
        refused = await client.post(f"{path}/dead-letters/replay", json={})
        assert refused.status_code == 409
        assert (await client.get(f"{path}/audit")).status_code == 404
        await client.post(f"{path}/audit")
        assert (await client.get(f"{path}/audit")).json()["agrees"]


NEW = {"column": "extra", "type": "String", "path": "extra"}
