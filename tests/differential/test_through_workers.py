"""The same random queries through an API with three query workers: the bytes of one process.

What one process answers is compared with Prometheus in test_against_prometheus. Streams end and are
opened again meanwhile. KALLA_DIFFERENTIAL_QUERIES asks more than `make test` does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest_asyncio

from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.query.engine import Engine
from kalla.query.http.response_json import pieces
from kalla.query.promql.query_errors import QueryError
from tests.differential.both_engines import SETTING
from tests.differential.grammar import Maker
from tests.differential.queries import Times
from tests.differential.sample_series import sample_series
from tests.metrics_kit import metrics_settings
from tests.numbered_source import NumberedSource
from tests.query_kit import api_site, query_worker, with_workers
from tests.web_kit import Site, until

QUERIES = int(os.environ.get("KALLA_DIFFERENTIAL_QUERIES", "80"))
# A worker leaves and comes back after so many queries.
_HANG_UP_EVERY = 10
WORKERS = 3


@pytest_asyncio.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    settings = metrics_settings(
        database_url, tmp_path, shards=8, features=["experimental_functions"]
    )
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(query_worker(settings, name=f"worker-{number}"))
            for number in range(WORKERS)
        ]
        points = {
            labels: list(zip(one.times.tolist(), one.values.tolist(), strict=True))
            for labels, one in sample_series(1).items()
        }
        yield await stack.enter_async_context(api_site(with_workers(settings, *workers), points))


async def test_made_up_queries_have_the_bytes_of_one_process(site: Site) -> None:
    alone = Engine(NumberedSource(sample_series(1), shards=1), SETTING)
    dispatcher: Dispatcher = site.app.state.dispatcher

    async def joined() -> bool:
        return len(dispatcher.workers.open) == WORKERS

    await until(joined, "all workers joined", 30)
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    for seed in range(QUERIES):
        maker = Maker(seed)
        text, times = maker.query().ours, maker.times()
        status, wanted = _of_one_process(alone, text, times)
        async with site.client("viewer") as client:
            path, given = _asked(text, times)
            answer = await client.get(path, params=given, timeout=60)
        seen["rows" if status == 200 else "refused"] += 1
        got = answer.content
        if status != 200:
            got = answer.json()["error"].removeprefix('invalid parameter "query": ').encode()
        if (answer.status_code, got) != (status, wanted):
            wrong.append(f"{seed}: {text} at {times}: {got[:300]!r} and not {wanted[:300]!r}")
        if seed % _HANG_UP_EVERY == _HANG_UP_EVERY - 1:
            name = f"worker-{seed // _HANG_UP_EVERY % WORKERS}"
            if connection := dispatcher.workers.open.get(name):
                connection.hang_up("a test")

    assert not wrong, "\n".join(wrong)
    assert seen["rows"] > QUERIES / 2, seen
    used = {one.worker for record in dispatcher.records.ended for one in record.work}
    assert used == {f"worker-{number}" for number in range(WORKERS)}


def _asked(text: str, times: Times) -> tuple[str, dict[str, str]]:
    """The address, and its parameters."""
    if not times.step:
        return "/api/v1/query", {"query": text, "time": f"{times.start / 1000:.3f}"}
    return "/api/v1/query_range", {
        "query": text,
        "start": f"{times.start / 1000:.3f}",
        "end": f"{times.end / 1000:.3f}",
        "step": f"{times.step / 1000:.3f}",
    }


def _of_one_process(alone: Engine, text: str, times: Times) -> tuple[int, bytes]:
    try:
        if times.step:
            answer = alone.range(text, times.start, times.end, times.step)
        else:
            answer = alone.instant(text, times.start)
    except QueryError as problem:
        return problem.status, str(problem).encode()
    return 200, b"".join(pieces(answer, times.start, 0))
