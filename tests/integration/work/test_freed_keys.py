"""A running key that comes free wakes whoever can claim the next job of it. Trap 6."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from kalla.database import Connection
from kalla.errors import Unavailable
from kalla.settings import Wake as WakeSettings
from kalla.work.handler import Context
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.state import jobs, runs
from kalla.work.state.job_insertion import Woken
from kalla.work.wake.nats_channel import NatsWake
from tests.work_kit import Clock, complete, put, rows, start_run, take, take_one
from tests.worker_kit import NEVER, Calls, Site

LANE = NewJob("task", running_key="lane")


def chunk(job: Job, context: Context) -> Outcome:
    context.wait(0.3)  # until the worker has looked at every queue again, and sleeps
    return Outcome()


class SettledChunk:
    def run(self, job: Job, context: Context) -> Outcome:
        return chunk(job, context)

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        await connection.execute("SELECT 1")


@pytest.fixture(params=["postgres", "nats"])
def site(request: pytest.FixtureRequest, database_url: str) -> Site:
    nats_url = request.getfixturevalue("nats_url") if request.param == "nats" else None
    site = Site(database_url, nats_url)
    # Nobody sets the stream's depth right: who is not woken, sleeps.
    wake = site.settings.wake.model_copy(update={"sync_seconds": NEVER})
    site.settings = site.settings.model_copy(update={"wake": wake})
    return site


@pytest.mark.parametrize("settled", [False, True], ids=["plain", "settled"])
async def test_jobs_of_one_key_follow_each_other(site: Site, settled: bool) -> None:
    site.handlers["chunk"] = SettledChunk() if settled else Calls(chunk)
    async with site.client() as client, site.worker():
        submitted = await client.submit(*[NewJob("chunk", running_key="lane")] * 4)
        for job_id in submitted:
            await client.until(job_id, "completed")


async def test_a_job_that_fails_or_is_put_off_leaves_its_key_to_the_next(site: Site) -> None:
    def broken(job: Job, context: Context) -> Outcome:
        chunk(job, context)
        if job.payload["breaks"] == "away":
            raise Unavailable("it is away")
        if job.payload["breaks"]:
            raise ValueError("it broke")
        return Outcome()

    site.handle("chunk", broken)
    slow = site.settings.policy("default").model_copy(update={"backoff_seconds": NEVER})
    site.settings = site.settings.model_copy(update={"jobs": {"default": slow}})
    async with site.client() as client, site.worker():
        (*_, last) = await client.submit(
            *[
                NewJob("chunk", {"breaks": breaks}, running_key="lane")
                for breaks in ("yes", "away", "")
            ]
        )
        await client.until(last, "completed")


async def test_of_each_key_that_comes_free_one_waiting_job_is_woken(a: Connection) -> None:
    other = NewJob("refresh", running_key="other")
    await put(a, LANE, LANE, LANE, other, NewJob("refresh", running_key="other"), NewJob("task"))
    held = [*await take(a, 4), *await take(a, 4, "refresh")]
    assert len(held) == 3
    keys = [job.running_key for job in held]
    assert await jobs.next_of_keys(a, keys) == Woken(), "others hold them"
    await jobs.complete_plain(a, [(job, Outcome()) for job in held])
    assert await jobs.next_of_keys(a, keys) == Woken(["exec", "refresh"])


async def test_nobody_is_woken_for_a_key_that_nobody_waits_for(a: Connection, clock: Clock) -> None:
    await put(a, LANE, NewJob("task", running_key="lane", delay_seconds=60))
    job = await take_one(a)
    assert await jobs.next_of_keys(a, [job.running_key]) == Woken()
    assert await complete(a, job) == Woken()


async def test_a_chunk_of_a_run_wakes_the_next_of_its_lane(a: Connection) -> None:
    run_id = await start_run(a, [LANE, LANE])
    assert await complete(a, await take_one(a)) == Woken(["exec"])
    assert await complete(a, await take_one(a)) == Woken()
    assert (await runs.get(a, run_id)).status == "completed"


async def test_the_last_loss_of_a_job_leaves_its_key_to_the_next(
    a: Connection, clock: Clock
) -> None:
    await put(a, NewJob("task", running_key="lane", max_attempts=1), LANE)
    await take_one(a)
    await clock.jump(3600)
    (found,) = await jobs.exhausted(a)
    async with a.transaction():
        ended = await jobs.end_exhausted(a, **found)
    assert ended == Woken(["exec"])


async def test_who_waits_for_a_key_is_found_by_an_index(a: Connection) -> None:
    """Else each chunk that ends would look through all that wait."""
    await put(a, *[LANE] * 500, *[NewJob("task")] * 500)
    await a.execute("ANALYZE kalla.jobs")
    plan = await rows(
        a, "EXPLAIN " + jobs.sql.next_of_keys.decode().replace("%(keys)s", "ARRAY['lane']")
    )
    assert "jobs_keyed" in str(plan)


async def test_a_nudge_ends_the_rest_from_tokens_that_led_to_nothing(nats_url: str) -> None:
    """Tokens of jobs whose key is taken wake in vain; that of a freed key must not."""
    wake = NatsWake(WakeSettings(nats_url=SecretStr(nats_url)), ["exec"])
    await wake.start()
    try:
        await wake.nudge({"exec": 30})
        for _ in range(16):  # from here on it rests for a second each time
            assert await wake.wait(["exec"], 5) == {"exec"}
        await wake.nudge({"exec": 1})
        assert await wake.wait(["exec"], 0.5) == {"exec"}
    finally:
        await wake.stop()
