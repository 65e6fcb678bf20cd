"""What tests of durable work share: job types that do nothing, a clock moved by hand, races."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from kalla.database import Connection
from kalla.errors import Lost
from kalla.settings import JobPolicy, Settings
from kalla.work.handler import Context, Handler, Stateless
from kalla.work.job import Job, JobRecord, NewJob, Outcome
from kalla.work.job_type import JobType, JobTypes
from kalla.work.state import jobs, runs
from kalla.work.state.job_insertion import Woken

Result = TypeVar("Result")

TIMEOUT = 15.0  # seconds without a heartbeat
MAX_RUNTIME = 60.0
ATTEMPTS = 3
BACKOFF, BACKOFF_LIMIT = 2.0, 5.0  # of the type `flaky`; the others wait again at once
TOTAL_TIMEOUT = 3600.0
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
PATIENCE = 7200 if PROFILE == "long" else 600  # seconds; a failing model takes long to shrink
FROZEN = "2030-01-01 00:00:00+00"

SETTINGS = Settings(
    jobs={
        "default": JobPolicy(
            timeout_seconds=TIMEOUT,
            heartbeat_interval=3,
            max_runtime_seconds=MAX_RUNTIME,
            max_attempts=ATTEMPTS,
            backoff_seconds=0,
        ),
        "flaky": JobPolicy(backoff_seconds=BACKOFF, backoff_limit_seconds=BACKOFF_LIMIT),
    }
)


class Nothing(Stateless):
    """A handler that does nothing, at once."""

    def run(self, job: Job, context: Context) -> Outcome:
        return Outcome()


class Settling:
    """A handler that settles by the given act."""

    def __init__(self, act: Callable[[Connection], Awaitable[None]]) -> None:
        self._act = act

    def run(self, job: Job, context: Context) -> Outcome:
        return Outcome()

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        await self._act(connection)


NOTHING = Nothing()
JOB_TYPES = JobTypes(
    SETTINGS,
    [
        JobType("task", "exec", NOTHING),
        JobType("flaky", "exec", NOTHING),
        JobType("refresh", "refresh", NOTHING),
        JobType("plan", "stage", NOTHING),
        JobType("chunk", "stage", NOTHING),
        JobType("match", "exec", NOTHING),
    ],
)


async def connect(url: str) -> Connection:
    """A connection in autocommit: `transaction()` says where a transaction begins and ends.

    A statement that waits for the test itself ends after seconds, and the test is red.
    """
    return await AsyncConnection.connect(
        url,
        autocommit=True,
        row_factory=dict_row,
        options="-c deadlock_timeout=100ms -c statement_timeout=5s",
    )


async def put(connection: Connection, *new: NewJob) -> list[int]:
    return list((await jobs.insert(connection, JOB_TYPES, new or [NewJob("task")])).job_ids)


async def take(
    connection: Connection, limit: int = 1, queue: str = "exec", worker: str = "anna"
) -> list[Job]:
    return await jobs.claim(connection, queue, JOB_TYPES.types, worker, limit)


async def take_one(connection: Connection, queue: str = "exec", worker: str = "anna") -> Job:
    (job,) = await take(connection, 1, queue, worker)
    return job


async def complete(
    connection: Connection, job: Job, *follow_ups: NewJob, handler: Handler = NOTHING
) -> Woken:
    """The completion as the worker does it: all in one transaction."""
    outcome = Outcome({"by": job.fence}, follow_ups)
    async with connection.transaction():
        return await jobs.complete(connection, JOB_TYPES, handler, job, outcome)


async def fail(connection: Connection, job: Job, permanent: bool = False) -> str:
    async with connection.transaction():
        status, _ = await jobs.fail(connection, job, "it broke", permanent=permanent)
        return status


async def beats(connection: Connection, job: Job) -> bool:
    """Whether a heartbeat finds the claim still ours."""
    return not await jobs.heartbeat(connection, [job], [None])


async def is_lost(write: Awaitable[object]) -> bool:
    """Whether a write was refused because its claim is no longer held."""
    try:
        await write
    except Lost:
        return True
    return False


async def reap(connection: Connection) -> list[int]:
    """What the reaper does, without its loop: the ids of the jobs it took away."""
    found = [row["job_id"] for row in await jobs.reap(connection)]
    for row in await jobs.exhausted(connection):
        async with connection.transaction():
            if await jobs.end_exhausted(connection, **row) is not None:
                found.append(row["job_id"])
    return sorted(found)


async def start_run(
    connection: Connection,
    first: Sequence[NewJob],
    gates: dict[str, Sequence[NewJob]] | None = None,
    total_timeout: float = TOTAL_TIMEOUT,
) -> int:
    async with connection.transaction():
        run_id, _ = await runs.create(
            connection, JOB_TYPES, "reconcile", first, gates or {}, total_timeout
        )
        return run_id


async def members(connection: Connection, run_id: int) -> list[JobRecord]:
    """The jobs of a run, oldest first."""
    return (await jobs.listing(connection, run_id=run_id, limit=1000))[::-1]


async def rows(connection: Connection, statement: str, *values: object) -> list[dict[str, Any]]:
    return await (await connection.execute(statement.encode(), values)).fetchall()


async def install_clock(url: str) -> None:
    """Let kalla.clock() of this database be moved by hand."""
    async with await connect(url) as connection:
        await connection.execute(
            "CREATE TABLE public.test_clock AS"
            " SELECT NULL::timestamptz AS frozen, '0'::interval AS ahead"
        )
        await connection.execute(
            "CREATE OR REPLACE FUNCTION kalla.clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
            "'SELECT coalesce(frozen, clock_timestamp()) + ahead FROM public.test_clock'"
        )


class Clock:
    """kalla.clock() of a database in which it was installed. `freeze` stops it, for models."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def jump(self, seconds: float) -> None:
        """Forward, or back when negative."""
        await self._connection.execute(
            "UPDATE public.test_clock SET ahead = ahead + make_interval(secs => %s)", [seconds]
        )

    async def freeze(self) -> None:
        await self._connection.execute(
            f"UPDATE public.test_clock SET frozen = '{FROZEN}', ahead = '0'".encode()
        )


class Silence:
    """A wake channel that nobody listens to."""

    async def nudge(self, woken: Any) -> None: ...

    async def alarm(self) -> None: ...


class Waiting:
    """Starts a write beside the test and returns once it waits for somebody's lock."""

    def __init__(self, onlooker: Connection) -> None:
        self._onlooker = onlooker

    async def __call__(self, write: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(write)
        if not await waits(self._onlooker, task):
            raise AssertionError(f"it did not wait, but ended with {task}")
        return task


async def waits(onlooker: Connection, task: asyncio.Task[Any]) -> bool:
    """True once some statement of this database waits for a lock, False once the task ended."""
    async with asyncio.timeout(10):
        while not (await asyncio.wait([task], timeout=0.003))[0]:
            if await rows(
                onlooker,
                "SELECT FROM pg_stat_activity"
                " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0",
            ):
                return True
    return False


def effort(examples: int, long_examples: int, steps: int = 50) -> settings:
    """How much a property tries. HYPOTHESIS_PROFILE=long tries much; `mutants` is always the same
    and does not look for the smallest example."""
    long, mutants = PROFILE == "long", PROFILE == "mutants"
    return settings(
        max_examples=long_examples if long else examples,
        stateful_step_count=steps * 2 if long else steps,
        deadline=None,
        print_blob=True,
        derandomize=mutants,
        database=None,
        phases=(Phase.explicit, Phase.generate) if mutants else tuple(Phase),
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.function_scoped_fixture,  # the examples empty the database themselves
        ],
    )


async def empty(connection: Connection) -> None:
    """Nothing left of the last test or example, whatever became of it."""
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
    )
    # DELETE, not TRUNCATE: that makes forty new files each time.
    for table in ("jobs", "runs", "queues", "workers", "leases"):
        await connection.execute(f"DELETE FROM kalla.{table}".encode())
    await connection.execute("UPDATE public.test_clock SET frozen = NULL, ahead = '0'")
