"""One bad row never ends a background service nor holds up the others. A rule for all of them."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import pytest_asyncio
from deltalake import write_deltalake
from psycopg.types.json import Jsonb
from pydantic import SecretStr

import kalla
from kalla.database import Connection, Database
from kalla.scaling import store as scaling_store
from kalla.scaling.decision_service import ScalingDecisions, ScalingGauges
from kalla.settings import ROLES, Retention, Settings
from kalla.settings import Database as DatabaseSettings
from kalla.sinks import store as sink_store
from kalla.sinks.model import Pipeline
from kalla.sinks.slots.reconciling import Slots
from kalla.tables import store as table_store
from kalla.tables.model import SourceDefinition
from kalla.tables.schedule.scheduler import TableScheduler
from kalla.work.handler import Context
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.metrics import Metrics
from kalla.work.service import Periodic, Service, SetAside, each_step
from kalla.work.services.alarms import Alarms
from kalla.work.services.claims import Claims
from kalla.work.services.cleaner import Cleaner
from kalla.work.services.reaper import Reaper
from kalla.work.services.settling import Settling
from kalla.work.state import jobs, runs
from tests.work_kit import JOB_TYPES, Silence, put, take_one
from tests.worker_kit import Site, eventually

pytestmark = pytest.mark.attack


def services(of: type[Service] = Service) -> set[type[Service]]:
    found = set(of.__subclasses__())
    return found.union(*(services(each) for each in found))


def test_every_service_of_kalla_begins_again_after_an_error() -> None:
    """A new one is covered by being there: none may catch, or end, on its own terms."""
    for module in pkgutil.walk_packages(kalla.__path__, "kalla."):
        if not module.name.endswith(("__main__", ".spark_daemon")):
            importlib.import_module(module.name)
    ours = {each for each in services() if each.__module__.startswith("kalla.")} - {Periodic}
    assert len(ours) >= 14
    for each in ours:
        assert each._live is Service._live, f"{each.__name__} has its own end"
        if issubclass(each, Periodic):
            assert each.work is Periodic.work, f"{each.__name__} has its own loop"
        else:
            assert each in (Alarms, Claims, Settling), f"write a test for {each.__name__} here"


class Failing(Service):
    name = "failing"

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0

    async def work(self) -> None:
        self.begun += 1
        if self.begun < 3:
            raise ZeroDivisionError("a bad row")
        await asyncio.Event().wait()


class FailingTick(Periodic):
    def __init__(self) -> None:
        super().__init__("failing", 0.01)
        self.begun = 0

    async def tick(self) -> None:
        self.begun += 1
        if self.begun < 3:
            raise ZeroDivisionError("a bad row")


@pytest.mark.parametrize("kind", [Failing, FailingTick])
async def test_a_service_whose_work_fails_goes_on_and_says_so(
    kind: type[Failing] | type[FailingTick],
) -> None:
    service = kind()
    await service.start()

    async def going() -> bool:
        return service.begun >= 3

    try:
        await eventually(going)
        assert service.death is None
    finally:
        await service.stop()


async def test_claims_go_on_after_an_error_nobody_foresaw(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.handle("noop", lambda *_: Outcome())
    async with site.client() as client, site.worker() as worker:
        claim, failed = jobs.claim, list[bool]()

        async def broken(*arguments: Any) -> list[Job]:
            if not failed:
                failed.append(True)
                raise ZeroDivisionError("a bad row")
            return await claim(*arguments)

        monkeypatch.setattr(jobs, "claim", broken)
        (job_id,) = await client.submit(NewJob("noop"))
        await client.until(job_id, "completed")
        assert failed
        assert worker.problems() == []


async def test_alarms_go_on_after_an_error_nobody_foresaw(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.worker() as worker:
        alarms = next(each for each in worker._services.services if isinstance(each, Alarms))
        alarmed, calls = worker._wake.alarmed, list[bool]()

        async def broken() -> None:
            calls.append(True)
            if len(calls) == 1:
                raise ZeroDivisionError("a bad message")
            await alarmed()

        monkeypatch.setattr(worker._wake, "alarmed", broken)
        await alarms.stop()
        await alarms.start()

        async def again() -> bool:
            return len(calls) > 1

        await eventually(again)
        assert worker.problems() == []


async def test_a_job_whose_failure_cannot_be_kept_is_let_go_and_settling_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = jobs.fail

    async def broken(connection: Connection, job: Job, *arguments: Any) -> Any:
        if job.type == "bad":
            await connection.execute("SELECT 1 / 0")
        return await fail(connection, job, *arguments)

    def raise_error(*_: object) -> Outcome:
        raise ValueError("as a handler does")

    monkeypatch.setattr(jobs, "fail", broken)
    site.handle("bad", raise_error)
    site.handle("good", lambda *_: Outcome())
    async with site.client() as client, site.worker() as worker:
        (bad,) = await client.submit(NewJob("bad", max_attempts=1))
        (good,) = await client.submit(NewJob("good"))
        await client.until(good, "completed")
        await client.until(bad, "failed")  # the reaper takes it, for nobody holds it any more
        assert worker.problems() == []


async def test_a_job_whose_progress_cannot_be_kept_costs_no_other_its_heartbeat(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat, seen = jobs.heartbeat, set[int]()

    async def broken(connection: Connection, ours: Any, progress: Any) -> set[int]:
        if any(progress):
            await connection.execute("SELECT 1 / 0")
        seen.update(job.job_id for job in ours)
        return await heartbeat(connection, ours, progress)

    def act(job: Job, context: Context) -> Outcome:
        if job.type == "bad":
            context.progress(rows=1)
        context.wait(3)  # longer than a job lives without a heartbeat
        return Outcome()

    monkeypatch.setattr(jobs, "heartbeat", broken)
    site.handle("bad", act)
    site.handle("good", act)
    async with site.client() as client, site.worker():
        submitted = await client.submit(
            NewJob("bad", max_attempts=1), NewJob("good", max_attempts=1)
        )
        for job_id in submitted:
            assert (await client.until(job_id, "completed", "failed")).status == "completed"
    assert seen == set(submitted)


def reaper(database: Database) -> Reaper:
    return Reaper(database, Silence(), Metrics(), 1.0, 0.0, 3600.0)  # type: ignore[arg-type]


async def poisoned(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, is_bad: Callable[..., bool]
) -> None:
    real = getattr(module, name)

    async def broken(connection: Connection, *arguments: Any, **named: Any) -> Any:
        if is_bad(*arguments, **named):
            await connection.execute("SELECT 1 / 0")
        return await real(connection, *arguments, **named)

    monkeypatch.setattr(module, name, broken)


async def test_the_reaper_sets_a_job_aside_that_cannot_be_ended(
    a: Connection, pool: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = await put(a, NewJob("task", max_attempts=1), NewJob("task", max_attempts=1))
    for _ in range(2):
        await take_one(a)
    await a.execute("UPDATE kalla.jobs SET heartbeat_at = kalla.clock() - interval '1 hour'")
    await poisoned(monkeypatch, jobs, "end_exhausted", lambda **row: row["job_id"] == bad)
    service = reaper(pool)
    for _ in range(3):
        await service.tick()
    statuses = [(await jobs.get(a, each)).status for each in (bad, good)]
    assert statuses == ["claimed", "failed"]


async def test_the_reaper_does_the_rest_when_one_of_its_duties_fails(
    a: Connection, pool: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = await put(a, NewJob("task", max_attempts=1))
    await take_one(a)
    await a.execute("UPDATE kalla.jobs SET heartbeat_at = kalla.clock() - interval '1 hour'")
    await poisoned(monkeypatch, jobs, "reap", lambda *_: True)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await reaper(pool).tick()
    assert (await jobs.get(a, job_id)).status == "failed"


async def test_the_reaper_sets_a_run_aside_that_cannot_be_ended(
    a: Connection, pool: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[int]()

    async def late(_: Connection) -> list[int]:
        return [1, 2, 3]

    async def end_late(connection: Connection, run_id: int) -> bool:
        if run_id == 1:
            await connection.execute("SELECT 1 / 0")
        ended.append(run_id)
        return True

    monkeypatch.setattr(runs, "late", late)
    monkeypatch.setattr(runs, "end_late", end_late)
    service = reaper(pool)
    for _ in range(2):
        await service.tick()
    assert set(ended) == {2, 3}


async def test_the_cleaner_sweeps_the_rest_when_one_sweep_fails(
    a: Connection, pool: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = list[str]()

    async def bad(connection: Connection, _: Retention) -> None:
        await connection.execute("SELECT 1 / 0")

    async def good(_: Connection, __: Retention) -> None:
        swept.append("good")

    await poisoned(monkeypatch, jobs, "sweep", lambda *_: True)
    cleaner = Cleaner(pool, Settings().retention, [bad, good])
    with pytest.raises(psycopg.errors.DivisionByZero):
        await cleaner.tick()
    assert swept == ["good"]


@pytest_asyncio.fixture
async def apart(database_url: str) -> AsyncIterator[Database]:
    """A database that no other test shares."""
    async with Database(DatabaseSettings(url=SecretStr(database_url))) as database:
        yield database


async def test_scaling_decides_for_the_other_roles_when_one_cannot_be_decided(
    apart: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ROLES[0]
    await poisoned(
        monkeypatch, scaling_store, "record", lambda _, decision: decision.inputs.role == bad
    )
    await ScalingDecisions(Settings(), apart, ScalingGauges()).tick()
    async with apart.transaction() as connection:
        decided = {each.role for each in await scaling_store.decisions(connection)}
    assert decided == set(ROLES) - {bad}


DEFINITION = {
    "lag_seconds": 60.0,
    "initialize": "ON_CREATE",
    "strategy": "AUTO",
    "strict": False,
    "deduplication": False,
    "cardinality_threshold": 0.3,
}


async def put_table(connection: Connection, folder: Path, name: str, definition: Any) -> int:
    place = folder / f"{name}_rows"
    write_deltalake(place, pa.table({"n": [1]}))
    await table_store.put_source(
        connection, SourceDefinition(place.name, str(place), "delta", False, (), None), "test"
    )
    cursor = await connection.execute(
        table_store.sql.insert_table,
        {
            "name": name,
            "definition": Jsonb(definition),
            "query": f"SELECT n FROM {place.name}",
            "hash": name,
            "columns": ["n"],
            "reads": [place.name],
            "by": "test",
        },
    )
    (row,) = await cursor.fetchall()
    table_id: int = row["table_id"]
    return table_id


async def test_dynamic_tables_are_refreshed_beside_one_that_cannot_be_scheduled(
    apart: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with apart.transaction() as connection:
        await put_table(connection, tmp_path, "unreadable", {"lag_seconds": "a minute"})
        stuck = await put_table(connection, tmp_path, "stuck", DEFINITION)
        unopened = await put_table(connection, tmp_path, "unopened", DEFINITION)
        await put_table(connection, tmp_path, "zoo", DEFINITION)
    await poisoned(
        monkeypatch, table_store, "set_entry", lambda _, table_id, *_rest: table_id == stuck
    )
    await poisoned(
        monkeypatch, table_store, "open_tick", lambda table_ids, *_rest: unopened in table_ids
    )
    settings = Settings(data_dir=tmp_path)
    await TableScheduler(settings, apart, JOB_TYPES, Silence()).tick()  # type: ignore[arg-type]
    async with apart.transaction() as connection:
        cursor = await connection.execute("SELECT payload->>'name' AS name FROM kalla.jobs")
        queued = [row["name"] for row in await cursor.fetchall()]
    assert queued == ["zoo"]


async def test_pipelines_are_carried_beside_one_that_cannot_be_read(apart: Database) -> None:
    async with apart.transaction() as connection:
        for name in ("bad", "good"):
            document = {
                "name": name,
                "kafka": {"bootstrap_servers": "127.0.0.1:1", "topic": name},
                "clickhouse": {"url": "http://127.0.0.1:1", "table": name},
                "mapping": [{"path": "n", "column": "n", "type": "Int64"}],
            }
            await sink_store.apply(connection, Pipeline.model_validate(document), "test")
            await sink_store.set_state(connection, name, "test", desired="started")
        spoil = "UPDATE kalla.kafka_configs SET config = '{}' WHERE pipeline = 'bad'"
        await connection.execute(spoil)
    slots = Slots(Settings(), apart, "here", SecretStr)
    await slots.start()
    try:

        async def carried() -> list[str]:
            return [each.record.pipeline for each in slots._carriers.values()]

        assert await eventually(carried) == ["good"]
    finally:
        await slots.stop()


async def test_a_row_is_set_aside_for_a_while_and_a_server_that_is_away_is_not_its_fault() -> None:
    aside, tried = SetAside("test"), list[str]()

    def act(row: str, error: Exception | None) -> Callable[[], Awaitable[str]]:
        async def attempt() -> str:
            tried.append(row)
            if error is not None:
                raise error
            return row

        return attempt

    assert await aside.attempt("bad", act("bad", ValueError("no"))) is None
    assert await aside.attempt("bad", act("bad", None)) is None
    assert await aside.attempt("good", act("good", None)) == "good"
    with pytest.raises(psycopg.OperationalError):
        await aside.attempt("away", act("away", psycopg.OperationalError("gone")))
    assert (tried, aside.current()) == (["bad", "good", "away"], {"bad"})
    # An OperationalError too, but of the row and not of the server.
    await aside.attempt("large", act("large", psycopg.errors.ProgramLimitExceeded("no")))
    collided = psycopg.errors.UniqueViolation("again")
    for _ in range(4):
        with pytest.raises(psycopg.errors.UniqueViolation):
            await aside.attempt("twice", act("twice", collided))
    await aside.attempt("twice", act("twice", None))
    for _ in range(4):
        with pytest.raises(psycopg.errors.UniqueViolation):
            await aside.attempt("twice", act("twice", collided))
    assert await aside.attempt("twice", act("twice", collided)) is None
    assert aside.current() == {"bad", "large", "twice"}


async def test_steps_after_one_that_fails_are_taken() -> None:
    taken = list[int]()

    async def step(number: int) -> None:
        taken.append(number)
        if number == 1:
            raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        await each_step(lambda number=number: step(number) for number in range(3))  # type: ignore[misc]
    assert taken == [0, 1, 2]
