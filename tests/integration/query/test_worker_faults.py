"""What goes wrong on a query worker or on the way from it leaves the answer as it is.

The workers are in this process, so that a fault can be put exactly where it is wanted.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kalla.errors import StartFailed, Unavailable
from kalla.query.coordination.events import FailQuery
from kalla.query.coordination.rendezvous import candidates
from kalla.query.discovery.static import StaticList
from kalla.query.dispatch import worker_connection
from kalla.query.dispatch.dispatcher import Dispatcher
from kalla.query.dispatch.metrics import QueryGauges
from kalla.query.dispatch.query_records import QueryRecord, WorkRecord
from kalla.query.dispatch.worker_source import WorkerSource
from kalla.query.engine import Answer, Engine
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.sample_source import MemorySource
from kalla.query.promql.query_errors import LimitReached, Stopped
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.work_messages import Assignment, ListWork
from kalla.query.worker.disk_budget import DiskBudget
from kalla.query.worker.execution import Result
from kalla.query.worker.server import QueryWorkerServer
from kalla.settings import Settings
from kalla.settings import Storage as StorageSettings
from tests.integration.query.made_up import MINUTES, made_up
from tests.integration.query.test_segment_source import written_segments
from tests.promqltest.comparing import same_answers
from tests.query_kit import query_worker
from tests.worker_fleet_kit import TOKEN, Fleet, fleet

SHARDS = 8
SERIES = made_up(5)
TEXT = "sum by (g) (rate(m_total[5m])) + on (g) group_left n"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("segments")) as opened:
        yield opened


def source(workers: Fleet) -> WorkerSource:
    return workers.source(written_segments(workers.folder, SERIES, SHARDS), SHARDS)


def asked(where: Any) -> Answer:
    engine = Engine(where, limits=Limits(seconds=60.0), workers=16)
    return engine.range("rate(m_total[5m])", 0, 12 * MINUTES, 45_000)


WANTED = asked(MemorySource(SERIES))


def until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        threading.Event().wait(0.02)


def retries(where: WorkerSource) -> int:
    return where._record.retries


class SlowExecutor:
    """Work that ends only when it is told to."""

    def __init__(self) -> None:
        self.working = 0

    def run(self, given: Assignment, stop: threading.Event) -> Result:
        self.working += 1
        try:
            assert stop.wait(60), "nobody stopped the work"
            raise Stopped("query was canceled in expression evaluation")
        finally:
            self.working -= 1


@pytest.fixture
def slow(workers: Fleet, monkeypatch: pytest.MonkeyPatch) -> SlowExecutor:
    executor = SlowExecutor()
    for worker in workers.workers:
        monkeypatch.setattr(worker.table._executor, "run", executor.run)
    return executor


def test_work_is_spread_and_soon_every_segment_is_in_memory(workers: Fleet) -> None:
    written = written_segments(workers.folder, SERIES, SHARDS)
    units: list[WorkRecord] = []
    for _ in range(5):
        where = workers.source(written, SHARDS)
        assert same_answers(asked(where), WANTED)
        units += where._record.work

    names = frozenset(worker.worker_id for worker in workers.workers)
    assert {one.worker for one in units} == names
    wanted = candidates("default", SHARDS, names)
    assert all(one.worker in wanted[one.shard] for one in units)
    decoded = sum(not one.cache_hit for one in units)
    assert decoded <= sum(map(len, wanted))  # each candidate decodes a segment once


def test_an_artifact_damaged_on_its_way_is_fetched_and_then_made_again(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged: list[int] = []
    for worker in workers.workers:
        keep = worker.spool.keep

        def damage(content: pa.Buffer, keep: Callable[[pa.Buffer], str] = keep) -> str:
            if damaged:
                return keep(content)
            damaged.append(content.size)
            return keep(pa.py_buffer(bytes(content.size)))

        monkeypatch.setattr(worker.spool, "keep", damage)
    before = workers.dispatcher.metrics.mismatches._value.get()
    where = source(workers)

    assert same_answers(asked(where), WANTED)
    assert damaged
    assert workers.dispatcher.metrics.mismatches._value.get() == before + 2
    assert retries(where) == 1


def test_any_error_of_a_fetch_is_a_retry(workers: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = workers.dispatcher._artifacts.fetch
    failed: list[str] = []

    async def failing_once(*given: Any) -> pa.Buffer:
        if not failed:
            failed.append(given[1])
            raise ValueError("Read on closed or unwrapped SSL socket.")
        return await fetch(*given)

    monkeypatch.setattr(workers.dispatcher._artifacts, "fetch", failing_once)
    where = source(workers)

    assert same_answers(asked(where), WANTED)
    assert retries(where) == 1


def test_work_of_a_query_that_has_failed_gets_the_same_reason(
    workers: Fleet, slow: SlowExecutor
) -> None:
    where = source(workers)
    dispatcher, query_id = workers.dispatcher, where._record.query_id
    reasons: list[BaseException | None] = []

    async def fail_and_submit() -> None:
        dispatcher._perform(FailQuery(query_id, "no query worker took work within 10 s"))
        given = Assignment(ListWork(((),), 0, 1), 0, SHARDS, (), 1, Limits())
        result = dispatcher.submit(where._record, 0, given)
        await asyncio.sleep(0.01)
        reasons.append(result.exception(timeout=0))
        dispatcher.close_query(query_id)

    workers.run(fail_and_submit())

    assert "no query worker took work within 10 s" in str(reasons[0])
    assert query_id not in dispatcher._problems


def test_the_api_lets_go_of_an_artifact_when_the_query_has_it(workers: Fleet) -> None:
    where = source(workers)

    assert same_answers(asked(where), WANTED)
    assert workers.dispatcher._units[where._record.query_id] == {}


def test_an_artifact_that_expired_before_the_fetch_is_made_again(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired: list[str] = []
    for worker in workers.workers:
        path = worker.spool.path

        def expire(name: str, worker: QueryWorkerServer = worker, path: Any = path) -> Path | None:
            if not expired:
                expired.append(name)
                worker.spool.drop(name)
            found: Path | None = path(name)
            return found

        monkeypatch.setattr(worker.spool, "path", expire)
    where = source(workers)

    assert same_answers(asked(where), WANTED)
    assert retries(where) == 1


def test_a_worker_whose_disk_is_full_gives_its_work_to_others(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = workers.workers[0]
    monkeypatch.setattr(full.spool, "budget", DiskBudget(10))
    where = source(workers)

    assert same_answers(asked(where), WANTED)
    assert full.worker_id not in {one.worker for one in where._record.work}


def test_a_limit_fails_the_query_at_once_and_is_told_as_in_one_process(workers: Fleet) -> None:
    where = source(workers)
    where._limits = Limits(memory_bytes=64, seconds=60.0)

    with pytest.raises(LimitReached, match="64 bytes of memory"):
        asked(where)
    assert retries(where) == 0


def test_a_draining_worker_gets_no_work_and_gives_back_what_it_has_not_begun(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained = workers.workers[1]

    async def set_draining(draining: bool) -> None:
        if draining:
            drained.table.drain()
        drained.table.draining = draining
        drained.sessions.send_status()

    def draining() -> bool:
        return workers.dispatcher.workers.open[drained.worker_id].status.draining

    try:
        workers.run(set_draining(True))
        until(draining, "the API knows of it")
        where = source(workers)
        assert same_answers(asked(where), WANTED)
        assert drained.worker_id not in {one.worker for one in where._record.work}
    finally:
        workers.run(set_draining(False))
        until(lambda: not draining(), "the API knows that it is over")


def test_a_closed_stream_moves_the_work_and_the_worker_comes_back_as_itself(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowExecutor()
    lost = workers.workers[2]
    usual = lost.table._executor.run
    monkeypatch.setattr(lost.table._executor, "run", slow.run)
    where = source(workers)
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(asked(where)))
    asking.start()
    until(lambda: slow.working, "the worker is at work")
    connection = workers.dispatcher.workers.open[lost.worker_id]

    workers.loop.call_soon_threadsafe(connection.hang_up, "a test")
    asking.join(30)

    assert same_answers(answers[0], WANTED)
    assert retries(where) > 0
    until(lambda: not slow.working, "nothing runs on for nobody")
    monkeypatch.setattr(lost.table._executor, "run", usual)
    until(
        lambda: lost.worker_id in workers.dispatcher.workers.open, "it is back under its identity"
    )
    again = source(workers)
    assert same_answers(asked(again), WANTED)
    assert lost.worker_id in {one.worker for one in again._record.work}


def test_an_api_that_is_gone_leaves_idle_workers_and_the_other_api_goes_on(
    workers: Fleet, slow: SlowExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = StaticList(tuple(worker.address for worker in workers.workers))

    async def opened() -> Dispatcher:
        other = Dispatcher(addresses, PeerAccess(TOKEN))
        await other.start()
        return other

    other = workers.run(opened())
    until(lambda: len(other.workers.open) == 3, "the other API has joined")
    second = Fleet(workers.folder, workers.loop, other, workers.workers)
    where = source(second)
    ended: list[str] = []

    def stopped() -> None:
        try:
            asked(where)
        except Stopped as problem:
            ended.append(str(problem))

    asking = threading.Thread(target=stopped)
    asking.start()
    until(lambda: slow.working, "its query is under way")
    workers.run(other.close())
    asking.join(30)

    assert ended == ["query was canceled in query execution"]
    until(lambda: not slow.working, "the workers are idle")
    assert all(worker.table.queued == 0 for worker in workers.workers)
    monkeypatch.undo()
    assert same_answers(asked(source(workers)), WANTED)


def test_a_storm_of_cancelled_queries_leaves_nothing_behind(
    workers: Fleet, slow: SlowExecutor
) -> None:
    written = written_segments(workers.folder, SERIES, SHARDS)
    process = psutil.Process()

    def left() -> tuple[int, int]:
        return threading.active_count(), process.num_fds()

    def files() -> int:
        kept = [worker.spool._artifacts_folder for worker in workers.workers]
        return sum(len(list(folder.iterdir())) for folder in kept)

    async def storm() -> None:
        for number in range(1000):
            record = QueryRecord(f"query {number}", "ann")
            workers.dispatcher.open_query(record)
            for shard in range(4):
                listed = tuple(one for one in written if one.shard == shard)
                given = Assignment(ListWork(((),), 0, 1), shard, SHARDS, listed, 1, Limits())
                workers.dispatcher.submit(record, 0, given)
            await asyncio.sleep(0)
            workers.dispatcher.cancel_query(record.query_id)
            if number % 100 == 0:
                await asyncio.sleep(0.05)

    known = set(workers.dispatcher._coordinator.queries)
    workers.run(storm())
    before, files_before, children = left(), files(), set(process.children(recursive=True))
    workers.run(storm())
    until(lambda: not slow.working, "no work runs")
    until(lambda: not any(worker.table.queued for worker in workers.workers), "no work waits")
    until(
        lambda: all(now <= then + 2 for now, then in zip(left(), before, strict=True)),
        f"{left()} threads and files are open as before, {before}",
    )
    assert files() <= files_before
    assert set(process.children(recursive=True)) <= children
    assert set(workers.dispatcher._coordinator.queries) == known
    assert set(workers.dispatcher._units) == known


def test_the_artifacts_of_a_cancelled_query_go_at_once(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()

    async def unfetched(*_: object) -> pa.Buffer:
        await never.wait()
        raise AssertionError("nobody fetches it")

    monkeypatch.setattr(workers.dispatcher._artifacts, "fetch", unfetched)
    known = {worker.worker_id: set(worker.spool._artifacts) for worker in workers.workers}
    where = source(workers)
    asking = threading.Thread(target=_stopped, args=(where,))
    asking.start()
    until(lambda: sum(worker.table.unfetched for worker in workers.workers) >= 4, "they are ready")
    query_id = where._record.query_id
    workers.loop.call_soon_threadsafe(workers.dispatcher.cancel_query, query_id)
    asking.join(30)

    until(lambda: not any(worker.table.unfetched for worker in workers.workers), "they are gone")
    for worker in workers.workers:
        assert set(worker.spool._artifacts) <= known[worker.worker_id]


def test_an_action_that_fails_fails_its_query_and_nothing_else(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a flaw")

    with monkeypatch.context() as patch:
        patch.setattr(workers.dispatcher, "_assign", broken)
        with pytest.raises(Unavailable, match="RuntimeError: a flaw"):
            asked(source(workers))

    assert same_answers(asked(source(workers)), WANTED)


def test_work_without_a_worker_waits_and_is_counted(tmp_path: Path) -> None:
    with fleet(tmp_path, 1) as alone:
        slow = SlowExecutor()
        [worker] = alone.workers
        worker.table._executor.run = slow.run  # type: ignore[method-assign]
        where = alone.source(written_segments(tmp_path, SERIES, SHARDS), SHARDS)
        asking = threading.Thread(target=_stopped, args=(where,))
        asking.start()
        until(lambda: alone.dispatcher.queue()[2] == 2, "two threads are at work")

        async def lose() -> None:
            [connection] = alone.dispatcher.workers.connections
            await connection.close()
            alone.dispatcher.lost(connection)

        alone.run(lose())

        until(lambda: alone.dispatcher.queue()[2] == 0, "nothing runs")
        assert alone.dispatcher.queue()[0] == len(where._record.work) > 2
        assert {(one.worker, one.state) for one in where._record.work} == {("", "pending")}
        query_id = where._record.query_id
        alone.loop.call_soon_threadsafe(alone.dispatcher.cancel_query, query_id)
        asking.join(30)
        assert {one.state for one in where._record.work} == {"cancelled"}


def _stopped(where: WorkerSource) -> None:
    with suppress(Stopped):
        asked(where)


def test_another_version_of_the_protocol_is_refused_with_a_sentence(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connection, "PROTOCOL_VERSION", 99)
    refused = _refusal(workers, TOKEN)

    assert "speaks version 1 of the protocol, the API version 99" in refused


def test_another_token_is_refused(workers: Fleet) -> None:
    assert "set the same query.token on both sides" in _refusal(workers, "another")


def _refusal(workers: Fleet, token: str) -> str:
    async def opened() -> Dispatcher:
        other = Dispatcher(StaticList((workers.workers[0].address,)), PeerAccess(token))
        await other.start()
        return other

    other = workers.run(opened())
    try:
        until(
            lambda: other.workers.connections and other.workers.connections[0].problem,
            "it is refused",
        )
        return other.workers.connections[0].problem
    finally:
        workers.run(other.close())


async def test_workers_share_a_folder_and_leave_nothing_in_it(
    workers: Fleet, tmp_path: Path
) -> None:
    left = tmp_path / "kalla-killed" / "artifacts"
    left.mkdir(parents=True)
    (left.parent / ".owner").touch()  # not locked: its process was killed
    settings = Settings(storage=StorageSettings(metrics=str(workers.folder)))
    async with (
        query_worker(settings, folder=str(tmp_path)) as one,
        query_worker(settings, folder=str(tmp_path)) as other,
    ):
        kept = [worker.spool.path(worker.spool.keep(pa.py_buffer(b"x"))) for worker in (one, other)]
        assert all(path is not None and path.exists() for path in kept)
        assert not left.exists()
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240  (nothing else runs)


def test_a_worker_that_others_can_reach_needs_a_token() -> None:
    PeerAccess().require_safe("127.0.0.1")
    PeerAccess("a token").require_safe("0.0.0.0")
    with pytest.raises(StartFailed, match=r"query\.token"):
        PeerAccess().require_safe("0.0.0.0")


def test_an_artifact_is_not_served_without_the_token(workers: Fleet) -> None:
    connection = workers.dispatcher.workers.connections[0]
    host, port = connection.artifact_host
    answer = httpx.get(f"http://{host}:{port}/artifacts/any", timeout=10)
    assert answer.status_code == 401


METRICS = {
    "api": {
        "streams", "heartbeat_seconds", "disconnects_total", "reconnect_seconds",
        "assignment_seconds", "work_accepted_total", "work_rejected_total",
        "work_reassigned_total", "work_affinity_total", "queue_depth", "oldest_age_seconds",
        "work_running", "live", "duration_seconds", "ready_to_fetch_seconds", "fetch_seconds",
        "checksum_mismatches_total", "first_result_seconds", "errors_total",
    },
    "worker": {
        "worker_streams", "worker_queue_depth", "worker_oldest_age_seconds", "worker_running",
        "worker_accepted_total", "worker_rejected_total", "worker_failed_total",
        "worker_wait_seconds", "worker_task_seconds", "worker_download_seconds",
        "worker_cancel_seconds", "worker_cache_total", "worker_artifact_cleanups_total",
        "worker_spool_bytes", "worker_cache_bytes", "worker_free_bytes", "worker_memory_bytes",
        "worker_draining",
    },
}  # fmt: skip


def test_api_and_worker_have_every_metric_by_its_name_and_alerts_name_these(workers: Fleet) -> None:
    of_api = CollectorRegistry()
    of_api.register(QueryGauges(workers.dispatcher.metrics.registry))
    host, port = workers.dispatcher.workers.connections[0].artifact_host
    of_worker = httpx.get(f"http://{host}:{port}/metrics", timeout=10).text

    for side, text in (("api", generate_latest(of_api).decode()), ("worker", of_worker)):
        names = set(
            re.findall(r"^# TYPE kalla_query_(\w+) (?:counter|gauge|histogram)$", text, re.M)
        )
        own = {name for name in names if not name.endswith("_created")}
        assert own == METRICS[side]
    rules = (Path(__file__).parents[3] / "docs/alerts/kalla.rules.yml").read_text("utf-8")
    named = set(re.findall(r"kalla_query_(\w+?)(?:_bucket|_sum|_count)?\b", rules))
    assert named <= METRICS["api"] | METRICS["worker"]


def test_a_heartbeat_comes_back(workers: Fleet) -> None:
    until(
        lambda: all(one.round_trip > 0 for one in workers.dispatcher.workers.connections),
        "a round trip",
    )
