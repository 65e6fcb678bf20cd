"""Gates: counted once, opened once, in the same transaction as the last completion, never early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from kalla.database import Connection, Database
from kalla.errors import Conflict, InvalidInput
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.state import jobs, runs
from kalla.work.state.job_insertion import Woken
from tests.work_kit import (
    JOB_TYPES,
    NOTHING,
    TIMEOUT,
    Clock,
    Waiting,
    complete,
    connect,
    fail,
    is_lost,
    members,
    reap,
    rows,
    start_run,
    take,
    take_one,
)

PLAN = NewJob("plan", gate="staged")
CHUNK = NewJob("chunk", gate="staged")
MATCH = NewJob("match")


async def staging(connection: Connection, plans: int = 1) -> int:
    """A run as reconcile makes it: plans fan out into chunks, and what they staged is matched."""
    return await start_run(connection, [PLAN] * plans, {"staged": [MATCH]})


async def gate(connection: Connection, run_id: int, name: str = "staged") -> tuple[int, int, bool]:
    (row,) = await rows(
        connection, "SELECT * FROM kalla.gates WHERE run_id = %s AND gate = %s", run_id, name
    )
    return row["arrived"], row["expected"], row["opened_at"] is not None


async def matches(connection: Connection, run_id: int) -> list[str]:
    """The jobs that the gate inserted, by their status."""
    return [each.status for each in await members(connection, run_id) if each.type == "match"]


async def test_a_source_of_zero_chunks_opens_the_gate(a: Connection) -> None:
    """Trap 5: the plan itself counts towards the gate, so that an empty source does not hang."""
    run_id = await staging(a)
    assert await complete(a, await take_one(a, "stage")) == {"exec": 1}
    assert await gate(a, run_id) == (1, 1, True)
    assert await complete(a, await take_one(a)) == {}
    assert (await runs.get(a, run_id)).status == "completed"


async def test_one_chunk_opens_the_gate(a: Connection) -> None:
    run_id = await staging(a)
    assert await complete(a, await take_one(a, "stage"), CHUNK) == {"stage": 1}
    assert await gate(a, run_id) == (1, 2, False)
    assert await complete(a, await take_one(a, "stage")) == {"exec": 1}
    assert await gate(a, run_id) == (2, 2, True)


async def test_the_last_of_many_chunks_opens_the_gate_and_no_other(a: Connection) -> None:
    """Trap 3, trap 4."""
    run_id = await staging(a)
    await complete(a, await take_one(a, "stage"), *[CHUNK] * 5)
    chunks = await take(a, limit=5, queue="stage")
    for number, chunk in enumerate(reversed(chunks), 1):
        assert await matches(a, run_id) == []
        assert (await complete(a, chunk) == {}) == (number < 5)
        assert await gate(a, run_id) == (1 + number, 6, number == 5)
    assert await matches(a, run_id) == ["pending"]


async def test_a_quick_plan_does_not_open_the_gate_for_a_slow_one(a: Connection) -> None:
    """Trap 4: the total is not known while any plan still fans out."""
    run_id = await staging(a, plans=2)
    quick, slow = await take(a, limit=2, queue="stage")
    await complete(a, quick, CHUNK, CHUNK)
    for chunk in await take(a, limit=2, queue="stage"):
        await complete(a, chunk)
    assert await gate(a, run_id) == (3, 4, False)
    await complete(a, slow, CHUNK)
    assert await gate(a, run_id) == (4, 5, False)
    assert await matches(a, run_id) == []
    await complete(a, await take_one(a, "stage"))
    assert await matches(a, run_id) == ["pending"]


async def test_a_plan_of_another_gate_holds_up_only_its_own(a: Connection) -> None:
    run_id = await start_run(
        a,
        [NewJob("plan", gate="left"), NewJob("plan", gate="right")],
        {"left": [NewJob("match", payload={"side": "left"})], "right": [MATCH]},
    )
    left, right = await take(a, limit=2, queue="stage")
    await complete(a, right, NewJob("chunk", gate="right"))
    assert await complete(a, left) == {"exec": 1}
    assert (await gate(a, run_id, "left"))[2]
    assert not (await gate(a, run_id, "right"))[2]
    (opened,) = await take(a, limit=5)
    assert (opened.payload, opened.opened_by) == ({"side": "left"}, "left")
    assert await complete(a, await take_one(a, "stage")) == {"exec": 1}
    (opened,) = await take(a, limit=5)
    assert opened.opened_by == "right"


async def test_a_chunk_that_is_delivered_twice_counts_once(a: Connection, clock: Clock) -> None:
    """Trap 3: the zombie's completion is refused before anything is counted."""
    run_id = await staging(a)
    await complete(a, await take_one(a, "stage"), CHUNK, CHUNK)
    first, other = await take(a, limit=2, queue="stage")
    await clock.jump(TIMEOUT + 1)
    await reap(a)
    again = {job.job_id: job for job in await take(a, limit=2, queue="stage")}
    await complete(a, again[first.job_id])
    assert await is_lost(complete(a, first))
    assert await is_lost(complete(a, again[first.job_id]))
    assert await is_lost(complete(a, other))
    assert await gate(a, run_id) == (2, 3, False)
    assert await matches(a, run_id) == []
    await complete(a, again[other.job_id])
    assert await matches(a, run_id) == ["pending"]


async def test_a_plan_that_is_tried_again_after_a_crash_fans_out_once(
    a: Connection, clock: Clock, store_url: str
) -> None:
    """Trap 3, trap 5: what a cut transaction inserted and counted is gone with it."""
    run_id = await staging(a)
    plan = await take_one(a, "stage")
    doomed = await connect(store_url)

    async def die(_: Connection) -> None:
        await rows(a, "SELECT pg_terminate_backend(%s)", doomed.info.backend_pid)

    fanned_out = Outcome(follow_ups=(CHUNK,) * 3)
    with pytest.raises(psycopg.OperationalError):
        await _complete_and(die, doomed, plan, fanned_out)
    await doomed.close()
    assert await gate(a, run_id) == (0, 1, False)
    await clock.jump(TIMEOUT + 1)
    await reap(a)
    await complete(a, await take_one(a, "stage"), CHUNK, CHUNK)
    assert await is_lost(complete(a, plan, CHUNK, CHUNK, CHUNK))
    assert await gate(a, run_id) == (1, 3, False)
    assert len(await members(a, run_id)) == 3


async def test_a_crash_before_the_commit_of_the_last_chunk_leaves_it_to_be_done_again(
    a: Connection, b: Connection, clock: Clock
) -> None:
    """Trap 5: counting the last chunk and inserting what follows are one transaction."""
    run_id = await staging(a)
    await complete(a, await take_one(a, "stage"), CHUNK)
    chunk = await take_one(a, "stage")
    async with a.transaction(force_rollback=True):
        woken = await jobs.complete(a, JOB_TYPES, NOTHING, chunk, Outcome())
        assert woken == {"exec": 1}
        assert await gate(b, run_id) == (1, 2, False)
        assert await matches(b, run_id) == []
    assert await gate(a, run_id) == (1, 2, False)
    assert (await jobs.get(a, chunk.job_id)).status == "claimed"
    await clock.jump(TIMEOUT + 1)
    await reap(a)
    await complete(a, await take_one(a, "stage"))
    assert (await gate(a, run_id), await matches(a, run_id)) == ((2, 2, True), ["pending"])


async def test_nobody_sees_the_gate_open_before_its_jobs_wait(a: Connection, b: Connection) -> None:
    """Trap 5: from outside, the last completion and the opened jobs appear together."""
    run_id = await staging(a)
    plan = await take_one(a, "stage")
    async with a.transaction():
        await jobs.complete(a, JOB_TYPES, NOTHING, plan, Outcome())
        assert (await gate(b, run_id), await matches(b, run_id)) == ((0, 1, False), [])
    assert (await gate(b, run_id), await matches(b, run_id)) == ((1, 1, True), ["pending"])


async def test_two_last_chunks_that_finish_at_the_same_instant_open_the_gate_once(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    """Trap 3, trap 4: the second waits for the run's row, and then sees the first."""
    run_id = await staging(a)
    await complete(a, await take_one(a, "stage"), CHUNK, CHUNK)
    first, second = await take(a, limit=2, queue="stage")
    async with a.transaction():
        assert await jobs.complete(a, JOB_TYPES, NOTHING, first, Outcome()) == {}
        later = await waiting(complete(b, second))
    assert await later == {"exec": 1}
    assert await gate(a, run_id) == (3, 3, True)
    assert await matches(a, run_id) == ["pending"]


async def test_two_last_chunks_at_once_when_the_first_one_rolls_back(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    run_id = await staging(a)
    await complete(a, await take_one(a, "stage"), CHUNK, CHUNK)
    first, second = await take(a, limit=2, queue="stage")
    async with a.transaction(force_rollback=True):
        await jobs.complete(a, JOB_TYPES, NOTHING, first, Outcome())
        later = await waiting(complete(b, second))
    assert await later == {}
    assert await gate(a, run_id) == (2, 3, False)
    assert await complete(a, first) == {"exec": 1}


async def test_many_chunks_that_finish_together_open_the_gate_once(
    a: Connection, pool: Database
) -> None:
    """Trap 3, trap 5: thirty rounds of eight last chunks, all let go by one barrier."""
    for _ in range(30):
        run_id = await staging(a)
        await complete(a, await take_one(a, "stage"), *[CHUNK] * 8)
        barrier = asyncio.Barrier(8)

        async def finish(chunk: Job, barrier: asyncio.Barrier = barrier) -> Woken:
            async with pool.transaction() as connection:
                await barrier.wait()
                return await jobs.complete(connection, JOB_TYPES, NOTHING, chunk, Outcome())

        chunks = await take(a, limit=8, queue="stage")
        woken = await asyncio.gather(*[finish(chunk) for chunk in chunks])
        assert sorted(each.total() for each in woken) == [0] * 7 + [1]
        assert await gate(a, run_id) == (9, 9, True)
        assert await matches(a, run_id) == ["pending"]
        await complete(a, await take_one(a))
        record = await runs.get(a, run_id)
        assert (record.status, record.jobs, record.completed) == ("completed", 10, 10)


@pytest.mark.parametrize("way", ["failed", "handed back", "silent"])
async def test_an_attempt_that_did_not_complete_counts_for_nothing(
    a: Connection, clock: Clock, way: str
) -> None:
    """Trap 3."""
    run_id = await staging(a)
    plan = await take_one(a, "stage")
    if way == "failed":
        await fail(a, plan)
    elif way == "handed back":
        await jobs.hand_back(a, [plan])
    else:
        await clock.jump(TIMEOUT + 1)
        await reap(a)
    assert await gate(a, run_id) == (0, 1, False)
    await complete(a, await take_one(a, "stage"))
    assert await gate(a, run_id) == (1, 1, True)


async def test_gates_may_follow_each_other(a: Connection) -> None:
    run_id = await start_run(
        a, [PLAN], {"staged": [NewJob("match", gate="matched")] * 2, "matched": [NewJob("task")]}
    )
    await complete(a, await take_one(a, "stage"))
    first, second = await take(a, limit=5)
    assert await complete(a, first) == {}
    assert await complete(a, second) == {"exec": 1}
    last = await take_one(a)
    assert (last.type, last.opened_by) == ("task", "matched")
    await complete(a, last)
    assert (await runs.get(a, run_id)).status == "completed"


async def test_a_gate_waits_for_what_an_earlier_gate_will_insert(a: Connection) -> None:
    """Trap 4: jobs that a closed gate is to insert are expected from the beginning."""
    run_id = await start_run(
        a,
        [PLAN, NewJob("task", gate="matched")],
        {"staged": [NewJob("match", gate="matched")], "matched": [NewJob("refresh")]},
    )
    assert await complete(a, await take_one(a)) == {}
    assert await gate(a, run_id, "matched") == (1, 2, False)
    assert await complete(a, await take_one(a, "stage")) == {"exec": 1}
    assert await complete(a, await take_one(a)) == {"refresh": 1}
    assert await gate(a, run_id, "matched") == (2, 2, True)


async def test_an_opened_job_gets_the_results_that_came_through_its_gate(a: Connection) -> None:
    await staging(a)
    await complete(a, await take_one(a, "stage"), CHUNK, CHUNK)
    for number, chunk in enumerate(await take(a, limit=2, queue="stage")):
        async with a.transaction():
            await jobs.complete(a, JOB_TYPES, NOTHING, chunk, Outcome({"path": f"part-{number}"}))
    match = await take_one(a)
    assert await jobs.inputs(a, match) == ({"by": 1}, {"path": "part-0"}, {"path": "part-1"})


async def test_a_fan_out_to_an_opened_gate_is_refused_and_nothing_is_half_done(
    a: Connection,
) -> None:
    run_id = await start_run(a, [PLAN, NewJob("task")], {"staged": [MATCH]})
    await complete(a, await take_one(a, "stage"))
    late = await take_one(a)
    assert late.type == "task"
    before = await _everything(a)
    with pytest.raises(Conflict, match="no closed gate named staged"):
        await complete(a, late, NewJob("refresh"), CHUNK)
    assert await _everything(a) == before
    await complete(a, late, NewJob("refresh"))
    assert len(await members(a, run_id)) == 4


async def test_a_fan_out_to_an_unknown_gate_is_refused_and_nothing_is_half_done(
    a: Connection,
) -> None:
    await staging(a)
    plan = await take_one(a, "stage")
    before = await _everything(a)
    with pytest.raises(Conflict, match="no closed gate named stagd"):
        await complete(a, plan, CHUNK, NewJob("chunk", gate="stagd"))
    assert await _everything(a) == before


async def test_a_fan_out_with_bad_input_is_refused_and_nothing_is_half_done(a: Connection) -> None:
    await staging(a)
    plan = await take_one(a, "stage")
    before = await _everything(a)
    with pytest.raises(InvalidInput, match=r"jobs\[1\].type: there is no job type 'chunck'"):
        await complete(a, plan, CHUNK, NewJob("chunck", gate="staged"))
    with pytest.raises(InvalidInput, match="dedupe_key"):
        await complete(a, plan, NewJob("chunk", gate="staged", dedupe_key="k"))
    assert await _everything(a) == before


@pytest.mark.parametrize(
    ("first", "gates", "reason"),
    [
        ([], {}, "at least one job"),
        ([CHUNK], {}, "no gate named staged"),
        ([PLAN], {"staged": [NewJob("match", gate="gone")]}, "no gate named gone"),
        ([NewJob("plan")], {"staged": [MATCH]}, "nothing counts towards gate staged"),
        ([PLAN], {"staged": [NewJob("match", gate="staged")]}, "gate staged waits for itself"),
        (
            [PLAN],
            {
                "staged": [NewJob("match", gate="matched")],
                "matched": [NewJob("match", gate="staged")],
            },
            "waits for itself",
        ),
        (
            [PLAN],
            {
                "staged": [MATCH],
                "x": [NewJob("match", gate="y")],
                "y": [NewJob("match", gate="x")],
            },
            "waits for itself",
        ),
    ],
)
async def test_a_run_whose_gates_could_never_open_is_refused(
    a: Connection, first: list[NewJob], gates: dict[str, Any], reason: str
) -> None:
    """Else it would complete without the work behind the gate, or hang."""
    with pytest.raises(Conflict, match=reason):
        await start_run(a, first, gates)
    assert await rows(a, "SELECT FROM kalla.runs") == []


async def test_counters_cannot_pass_what_is_expected(a: Connection) -> None:
    """Trap 3: the table itself refuses a second arrival."""
    run_id = await staging(a)
    await complete(a, await take_one(a, "stage"))
    with pytest.raises(psycopg.errors.CheckViolation):
        await rows(a, "UPDATE kalla.gates SET arrived = 2 WHERE run_id = %s RETURNING 1", run_id)


async def _complete_and(
    act: Callable[[Connection], Awaitable[None]], connection: Connection, job: Job, outcome: Outcome
) -> None:
    async with connection.transaction():
        await jobs.complete(connection, JOB_TYPES, NOTHING, job, outcome)
        await act(connection)
        await connection.execute("SELECT 1")


async def _everything(connection: Connection) -> list[list[dict[str, Any]]]:
    return [
        await rows(connection, f"SELECT * FROM kalla.{table} ORDER BY 1, 2")
        for table in ("runs", "gates", "jobs", "attempts")
    ]
