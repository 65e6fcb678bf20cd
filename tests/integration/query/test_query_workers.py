"""Queries on query workers that are processes of their own, killed, stopped and drained mid-query.

A worker that is stopped (SIGSTOP) holds the work it was given, so that a fault meets it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kalla.local import ports
from tests.chaos_query import killed_api
from tests.metrics_kit import metrics_settings
from tests.query_cluster_kit import (
    FAULTS,
    QUERY,
    Cluster,
    Fault,
    carry_out,
    open_cluster,
    stopped_mid_query,
)
from tests.query_kit import api_site
from tests.servers import PostgresServer


@pytest_asyncio.fixture(scope="module")
async def cluster(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Cluster]:
    name = postgres_server.create(migrated_template)
    folder = tmp_path_factory.mktemp("workers")
    settings = metrics_settings(postgres_server.url(name), folder / "metrics", shards=8)
    try:
        async with open_cluster(settings, folder) as opened:
            yield opened
    finally:
        postgres_server.drop(name)


async def test_a_query_is_spread_over_the_workers(cluster: Cluster) -> None:
    await cluster.answer()
    [record, *_] = cluster.dispatcher.records.ended

    assert len({one.worker for one in record.work}) > 1
    assert {one.state for one in record.work} == {"fetched"}
    assert record.ending == "answered"


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_in_the_middle_of_a_query_leaves_its_answer(
    cluster: Cluster, fault: Fault
) -> None:
    """`make chaos-query` times fifty of them."""
    wanted = await cluster.answer()
    name = list(cluster.workers)[FAULTS.index(fault) % len(cluster.workers)]
    await carry_out(cluster, fault, name, wanted)
    assert await cluster.answer() == wanted


async def test_an_api_that_is_killed_leaves_idle_workers(cluster: Cluster, tmp_path: Path) -> None:
    await killed_api(cluster, tmp_path)


async def test_a_worker_that_comes_back_has_its_identity_and_its_work(cluster: Cluster) -> None:
    async with stopped_mid_query(cluster, "gamma") as (asking, _):
        await asking
    await cluster.answer()
    [after, *_] = cluster.dispatcher.records.ended

    assert "gamma" in {one.worker for one in after.work}


async def test_a_query_that_is_killed_ends_its_work_and_says_so(cluster: Cluster) -> None:
    async with (
        stopped_mid_query(cluster, "beta") as (asking, _),
        cluster.site.client("operator") as operator,
        cluster.site.client("viewer") as viewer,
    ):
        [live] = [one for one in (await viewer.get("/api/queries")).json() if one["live"]]
        path = f"/api/queries/{live['query_id']}"
        assert (await viewer.delete(path)).status_code == 403
        assert (await operator.delete(path)).status_code == 200
        with pytest.raises(AssertionError, match="canceled"):
            await asking
        assert (await operator.delete(path)).status_code == 404
    listed = {one["query_id"]: one for one in await _queries(cluster)}
    assert listed[live["query_id"]]["stage"] == "cancelled"


async def _queries(cluster: Cluster) -> list[dict[str, Any]]:
    async with cluster.site.client("viewer") as client:
        found: list[dict[str, Any]] = (await client.get("/api/queries")).json()
    return found


async def test_workers_and_the_queue_are_told(cluster: Cluster) -> None:
    async with cluster.site.client("viewer") as client:
        workers = (await client.get("/api/query-workers")).json()
        queue = (await client.get("/monitor/queries")).json()
        page = await client.get("/query-workers", headers={"Accept": "text/html"})
        queries = await client.get("/queries", headers={"Accept": "text/html"})
    assert {one["worker"] for one in workers} == set(cluster.workers)
    assert {one["state"] for one in workers} == {"accepting"}
    assert queue == {"queue_depth": 0, "oldest_age_seconds": 0, "running": 0}
    assert "alpha" in page.text
    assert "rate(http_requests_total[1m])" in queries.text


async def test_explain_tells_the_work_units(cluster: Cluster) -> None:
    units: list[dict[str, Any]] = []

    async def all_hit() -> bool:
        async with cluster.site.client("viewer") as client:
            answer = await client.get("/api/v1/query_range", params={**QUERY, "explain": "true"})
        units[:] = answer.json()["data"]["explain"]["work_units"]
        return {one["cache"] for one in units} == {"hit"}

    await cluster.until_true(all_hit, "both workers of each shard have its segments in memory")

    assert {one["worker"] for one in units} <= set(cluster.workers)
    assert all(one["bytes"] > 0 and one["retries"] == 0 for one in units)


async def test_an_api_without_workers_says_so(
    cluster: Cluster, postgres_server: PostgresServer
) -> None:
    settings = cluster.site.settings
    gone = f"127.0.0.1:{ports.choose_free()}"
    query = settings.query.model_copy(update={"workers": gone, "worker_wait_seconds": 0.5})
    async with api_site(settings.model_copy(update={"query": query}), {}) as site:
        site.tokens.update(cluster.site.tokens)
        async with site.client("viewer") as client:
            answer = await client.get("/api/v1/query_range", params=QUERY)
    assert answer.status_code == 503
    assert answer.json()["errorType"] == "unavailable"
    assert "no query worker took work within 0.5 s" in answer.json()["error"]


async def test_two_apis_share_workers_and_one_that_ends_leaves_them_idle(cluster: Cluster) -> None:
    wanted = await cluster.answer()
    async with api_site(cluster.site.settings, {}) as site:
        other = Cluster(site, cluster.workers)
        await other.joined(*cluster.workers)
        site.tokens.update(cluster.site.tokens)
        both = await asyncio.gather(*(one.answer() for one in (cluster, other) for _ in range(3)))
        assert both == [wanted] * 6
        assert await cluster.metric("kalla_query_worker_streams", "alpha") == 2
    for name in cluster.workers:
        await cluster.until_metric("kalla_query_worker_streams", name, 1)
        assert await cluster.metric("kalla_query_worker_running", name) == 0
    assert await cluster.answer() == wanted
