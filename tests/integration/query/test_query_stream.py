"""Answers as server-sent events: by time, whole or told not to be, ended by who leaves."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from kalla.query.array_types import Floats
from kalla.query.evaluate import blocks
from kalla.query.evaluate.frames import Frame, Steps
from kalla.query.http import event_stream, response_json
from kalla.query.operators.elementwise import ELEMENTWISE
from kalla.query.promql.query_errors import Stopped, TimedOut
from kalla.query.protocol.work_messages import Assignment
from kalla.query.service.engine_loading import set_kernel_cache
from kalla.query.service.query_service import QueryService
from kalla.query.worker.execution import Result
from tests.metrics_kit import named
from tests.web_kit import Site, until

START, STEP, COUNT = 1_700_000_000, 10, 30
END = START + STEP * (COUNT - 1)
SERIES = {
    named("m", i=f"{number:02d}"): [
        (1000 * (START + STEP * at), float(number * 1000 + at))
        for at in range(COUNT)
        if number != 7 or at > 20  # one begins later
    ]
    for number in range(40)
}
BODY = {"q": "m", "s": START, "e": END, "step": STEP}


async def events(site: Site, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with site.client("viewer") as client:
        answer = await client.post("/api/v1/metrics/query", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def matrix(site: Site, query: str, step: float) -> Any:
    given: dict[str, str | float] = {"query": query, "start": START, "end": END, "step": step}
    async with site.client("viewer") as client:
        answer = await client.get("/api/v1/query_range", params=given)
    return answer.json()["data"]["result"]


async def test_a_stream_is_the_answer_in_the_order_of_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "EVENT_POINTS", 100)
    monkeypatch.setattr(blocks, "_EARLY_CELLS", 4 * len(SERIES))

    *results, summary, done = await events(site, BODY)

    assert {event["type"] for event in results} == {"result"}
    assert (summary["type"], done) == ("summary", {"type": "done", "data": {}})
    metrics: dict[int, Any] = {}
    points: list[list[Any]] = []
    for event in results:
        for one in event["data"]["series"]:
            assert one["id"] not in metrics, "told twice"
            metrics[one["id"]] = one["metric"]
        assert len(event["data"]["points"]) <= 100
        assert {point[1] for point in event["data"]["points"]} <= set(metrics)
        points += event["data"]["points"]
    assert [(time, number) for time, number, _ in points] == sorted(
        (time, number) for time, number, _ in points
    )
    gathered = [
        {
            "metric": metric,
            "values": [[time, value] for time, one, value in points if one == number],
        }
        for number, metric in sorted(metrics.items(), key=lambda one: one[1]["i"])
    ]
    assert metrics[39] == {"__name__": "m", "i": "07"}, "numbered when it was met"
    assert gathered == await matrix(site, "m", STEP)
    assert summary["data"]["series"] == 40
    assert summary["data"]["points"] == len(points)
    assert summary["data"]["stats"]["samples"]["samplesRead"] == 40 * COUNT - 21


async def test_without_a_step_there_are_some_250_points(site: Site) -> None:
    body = {"q": "vector(1)", "s": "2023-11-14T22:13:20Z", "e": START + 10_000}
    result, summary, _ = await events(site, body)
    assert summary["data"]["step"] == 40
    assert len(result["data"]["points"]) == 251
    _, summary, _ = await events(site, {"q": "vector(1)", "s": START, "e": START + 5})
    assert summary["data"]["step"] == 1


async def test_an_answer_without_points_is_whole_too(site: Site) -> None:
    summary, done = await events(site, BODY | {"q": "nothing"})
    assert (summary["data"]["points"], done["type"]) == (0, "done")


@dataclass
class Gate:
    """Stands in for abs(): lets the first block pass, then only who is let."""

    passed: int = 0
    let: threading.Event = field(default_factory=threading.Event)

    def __call__(self, values: Floats) -> Floats:
        self.passed += 1
        assert self.passed == 1 or self.let.wait(60)
        return np.abs(values)


@asynccontextmanager
async def gated(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Gate, httpx.Response]]:
    """A stream of as many blocks as steps, before its second block."""
    gate = Gate()
    monkeypatch.setattr(blocks, "_EARLY_CELLS", len(SERIES))
    monkeypatch.setitem(ELEMENTWISE, "abs", gate)
    headers = {"Authorization": f"Bearer {site.tokens['viewer']}"}
    try:
        async with (
            site.served() as url,
            httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as client,
            client.stream("POST", "/api/v1/metrics/query", json=BODY | {"q": "abs(m)"}) as answer,
        ):
            yield gate, answer
    finally:
        gate.let.set()


async def test_points_come_while_later_ones_are_computed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated(site, monkeypatch) as (gate, answer):
        lines = (line async for line in answer.aiter_lines() if line.startswith("data: "))
        first = json.loads((await anext(lines)).removeprefix("data: "))
        assert {time for time, *_ in first["data"]["points"]} == {START}
        gate.let.set()
        later = [json.loads(line.removeprefix("data: ")) async for line in lines]
    assert [event["type"] for event in later] == ["result"] * (COUNT - 1) + ["summary", "done"]
    assert later[-2]["data"]["points"] == 40 * COUNT - 21


async def test_closing_a_stream_ends_the_work_between_two_blocks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: QueryService = site.app.state.queries
    async with gated(site, monkeypatch) as (gate, answer):
        await until(_true(lambda: gate.passed == 2), "the second block is being computed", 60)
        [record] = queries._running.values()
        assert record is not None
        await answer.aclose()
        await until(_true(record.stop.is_set), "the query is told to stop", 60)
        gate.let.set()
        await until(_true(lambda: queries.running == 0), "the query has ended", 60)
    assert gate.passed == 2


async def test_a_query_waits_for_its_reader_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, frame = Steps(0, 0, 1000), Frame.empty(1)
    handover = event_stream.BlockQueue()

    async def put_all(count: int) -> None:
        for _ in range(count):
            await asyncio.to_thread(handover.put, steps, frame)

    putting = asyncio.create_task(put_all(10))
    putting.add_done_callback(lambda _: handover.end())
    assert len([block async for block in handover.blocks()]) == 10

    monkeypatch.setattr(event_stream, "READER_SECONDS", 0.05)
    with pytest.raises(TimedOut, match="did not read the points"):
        await put_all(10)
    handover.close()
    await asyncio.to_thread(handover.put, steps, frame)  # who left is not waited for


async def test_what_fails_while_it_is_computed_ends_the_stream(site: Site) -> None:
    [error] = await events(site, BODY | {"q": "sum(m) + on () m"})
    assert error["type"] == "error"
    assert error["data"]["errorType"] == "execution"
    assert "many-to-" in error["data"]["error"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": "m +"}, 'invalid parameter "query": 1:4: parse error'),
        ({"q": "m[5m]"}, 'invalid expression type "range vector" for range query'),
        ({"s": "soon"}, 'invalid parameter "s": cannot parse "soon" to a valid timestamp'),
        ({"e": START - 1}, 'invalid parameter "end": end timestamp must not be before start time'),
        ({"step": "0"}, "zero or negative query resolution step widths are not accepted"),
        ({"step": 0.001}, "exceeded maximum resolution of 11,000 points per timeseries"),
        ({"x": 1}, "x: there is no such field"),
        ({"q": None}, "q: must be a valid string"),
    ],
)
async def test_what_cannot_be_asked_is_refused_before_the_stream(
    site: Site, changes: dict[str, Any], message: str
) -> None:
    async with site.client("viewer") as client:
        answer = await client.post("/api/v1/metrics/query", json=BODY | changes)
    assert answer.status_code == 400
    assert answer.json()["status"] == "error"
    assert answer.json()["errorType"] == "bad_data"
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ('"\ud800" +', "parse error"),
        ('m{i=~"\ud800"}', '"points":0'),
        ('label_replace(sum(m), "i", "\udc00", "", "")', '"metric":{"i":"\ufffd"}'),
        ('label_replace(m, "", "\ud800", "i", "\ud800(")', "invalid regular expression"),
    ],
)
async def test_half_a_pair_in_an_expression_is_an_unknown_character(
    site: Site, query: str, told: str
) -> None:
    async with site.client("viewer") as client:
        answer = await client.post(
            "/api/v1/metrics/query",
            content=json.dumps(BODY | {"q": query}),
            headers={"Content-Type": "application/json"},
        )
    assert told in answer.text
    assert "internal" not in answer.text


class Slow:
    """What a query worker executes never ends by itself, until it is told to stop."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.asked = 0
        self.working = 0

    def run(self, given: Assignment, stop: threading.Event) -> Result:
        self.threads.add(threading.current_thread())
        self.asked += 1
        self.working += 1
        try:
            assert stop.wait(120), "nobody stopped the work"
            raise Stopped("query was canceled in expression evaluation")
        finally:
            self.working -= 1


@asynccontextmanager
async def slow(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Slow, QueryService]]:
    """The site, with a query worker whose work never ends by itself."""
    source = Slow()
    [worker] = site.query_workers
    queries = QueryService(site.settings, site.app.state.metric_store, site.app.state.dispatcher)
    monkeypatch.setattr(worker.table._executor, "run", source.run)
    usual, site.app.state.queries = site.app.state.queries, queries
    try:
        yield source, queries
    finally:
        site.app.state.queries = usual
        await queries.close()


@pytest.mark.parametrize("way", ["stream", "plain"])
async def test_closing_the_connection_ends_the_work(
    site: Site, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    headers = {"Authorization": f"Bearer {site.tokens['viewer']}"}
    async with slow(site, monkeypatch) as (source, queries), site.served() as url:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as client:
            if way == "stream":
                request = client.post("/api/v1/metrics/query", json=BODY)
            else:
                form = {"query": "m", "start": START, "end": END, "step": STEP}
                request = client.post("/api/v1/query_range", data=form)
            asking = asyncio.create_task(request)
            await until(_true(lambda: source.working), "the query is under way", 60)
            asking.cancel()
        await until(_true(lambda: queries.running == 0), "the query has ended", 60)
        await until(_true(lambda: not source.working), "its work has ended", 60)


async def test_a_server_that_stops_ends_its_queries_and_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow(site, monkeypatch) as (source, queries):
        asking = asyncio.create_task(events(site, BODY))
        await until(_true(lambda: source.working), "the query is under way", 60)
        queries.stop()
        [error] = await asking
        assert error["data"]["errorType"] == "canceled"
        async with site.client("viewer") as client:
            refused = await client.get("/api/v1/query", params={"query": "1"})
        assert refused.status_code == 503
        assert refused.json()["errorType"] == "unavailable"


async def test_waiting_for_others_counts_against_the_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow(site, monkeypatch) as (source, queries), site.client("viewer") as client:
        busy = [
            asyncio.create_task(
                client.get("/api/v1/query", params={"query": f"m + {number}", "time": END})
            )
            for number in range(site.settings.metrics.query_concurrency)
        ]
        await until(_true(lambda: queries.running == len(busy)), "the queries are under way", 60)
        await until(_true(lambda: source.working), "the queries are under way", 60)
        late = await client.get(
            "/api/v1/query", params={"query": "m", "time": END, "timeout": "50ms"}
        )
        queries.stop()
        ended = await asyncio.gather(*busy)
    assert late.status_code == 503
    assert late.json() == {
        "status": "error", "errorType": "timeout", "error": "query timed out in query queue"
    }  # fmt: skip
    assert {answer.status_code for answer in ended} == {499}


async def test_a_query_that_takes_too_long_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow(site, monkeypatch), site.client("viewer") as client:
        answer = await client.get(
            "/api/v1/query", params={"query": "m", "time": END, "timeout": "0.2"}
        )
    assert answer.status_code == 503
    assert answer.json()["errorType"] == "timeout"
    assert answer.json()["error"] == "query timed out in expression evaluation"


async def test_the_engine_is_loaded_before_the_first_query(site: Site) -> None:
    """Whatever the thread raises fails the test: warnings are errors."""
    loading = site.app.state.queries.warm(response_json.encoded_answer)
    await until(_true(lambda: not loading.is_alive()), "the engine is loaded", 150)
    assert "kalla.query.engine" in sys.modules


def test_kernels_are_kept_in_our_folder_where_the_code_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "as it was set")
    monkeypatch.setattr(os, "access", lambda *_: False)
    set_kernel_cache(tmp_path)
    assert os.environ["NUMBA_CACHE_DIR"] == "as it was set"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    set_kernel_cache(tmp_path)
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR")


def _true(condition: Any) -> Any:
    async def asked() -> bool:
        return bool(condition())

    return asked
