"""The real store against the model: claims, losses, endings, runs, leases, races, clock jumps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from kalla.database import Connection
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.state import jobs, leases, queues, runs
from kalla.work.state.leases import Lease
from tests.integration.work import model, model_leases
from tests.integration.work.mirror import LEAVE, Mirrored, Stage
from tests.integration.work.model_rows import Claim, JobRow, RunRow, View
from tests.work_kit import JOB_TYPES, NOTHING, PATIENCE, effort, rows

Leave = tuple[int, bool]

TTL = 15.0
TOTAL_TIMEOUT = 100.0
PATIENT = 15.0  # seconds that something may be away
PLAN = NewJob("plan", gate="staged")
SHAPES: list[tuple[list[NewJob], dict[str, list[NewJob]]]] = [
    ([PLAN], {"staged": [NewJob("match")]}),
    ([PLAN, PLAN], {"staged": [NewJob("match"), NewJob("task")]}),
    (
        [PLAN, NewJob("task", gate="matched")],
        {"staged": [NewJob("match", gate="matched")], "matched": [NewJob("refresh")]},
    ),
    ([NewJob("task", max_attempts=1), NewJob("refresh", running_key="r")], {}),
]
SHAPE = st.sampled_from(range(len(SHAPES)))

PICK = st.integers(0, 30)
NEW_JOBS = st.builds(
    NewJob,
    st.sampled_from(["task", "flaky", "refresh"]),
    priority=st.sampled_from([0, 0, 1]),
    delay_seconds=st.sampled_from([0, 0, 0, 20]),
    dedupe_key=st.sampled_from([None, None, "k", "l"]),
    running_key=st.sampled_from([None, "r"]),
    max_attempts=st.sampled_from([None, 1, 2]),
)
FOLLOW_UPS = st.lists(
    st.builds(
        NewJob,
        st.sampled_from(["chunk", "task"]),
        gate=st.sampled_from([None, "staged", "staged", "matched"]),
    ),
    max_size=1,
)
HOLDERS = st.sampled_from(["anna", "ben"])


class Jobs(Mirrored):
    """Jobs and runs."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[Job] = []

    @initialize(new=st.lists(NEW_JOBS, min_size=2, max_size=4), shape=SHAPE)
    def begin(self, new: list[NewJob], shape: int) -> None:
        self.insert((0, True), new)
        self.start_run((0, True), shape)
        self.claim((0, True), 0, 3)

    @rule(leave=LEAVE, new=st.lists(NEW_JOBS, min_size=1, max_size=3))
    def insert(self, leave: Leave, new: list[NewJob]) -> None:
        async def act(connection: Connection) -> Any:
            inserted = await jobs.insert(connection, JOB_TYPES, new)
            return list(inserted.job_ids), inserted.woken

        self.both(leave, act, lambda view: model.insert(view, new))

    @rule(leave=LEAVE, pick=PICK, limit=st.integers(1, 3))
    def claim(self, leave: Leave, pick: int, limit: int) -> None:
        queue = self.busy_queue(pick)
        taken: list[Job] = []

        async def act(connection: Connection) -> Any:
            taken[:] = await jobs.claim(connection, queue, JOB_TYPES.types, "anna", limit)
            return named(taken)

        def keep() -> None:
            self.claims += taken
            self.issue(named(taken))

        self.both(leave, act, lambda view: model.claim(view, queue, limit), True, keep)

    @precondition(lambda self: self.claims)
    @rule(leave=LEAVE, picks=st.lists(PICK, min_size=1, max_size=3))
    def heartbeat(self, leave: Leave, picks: list[int]) -> None:
        held = self.picked(picks)

        async def act(connection: Connection) -> set[int]:
            return await jobs.heartbeat(connection, held, [None] * len(held))

        self.both(leave, act, lambda view: model.heartbeat(view, named(held)), True)

    @precondition(lambda self: self.claims)
    @rule(leave=LEAVE, pick=PICK, follow_ups=FOLLOW_UPS)
    def complete(self, leave: Leave, pick: int, follow_ups: list[NewJob]) -> None:
        (job,) = self.picked([pick])
        if job.run_id is None:
            follow_ups = [NewJob(each.type) for each in follow_ups]
        outcome = Outcome({"fence": job.fence}, tuple(follow_ups))

        async def act(connection: Connection) -> Any:
            return await jobs.complete(connection, JOB_TYPES, NOTHING, job, outcome)

        self.both(leave, act, lambda view: model.complete(view, name(job), follow_ups))

    @rule(leave=LEAVE, pick=PICK, plans=st.lists(FOLLOW_UPS, min_size=1, max_size=5))
    def claim_and_complete(self, leave: Leave, pick: int, plans: list[list[NewJob]]) -> None:
        """A worker that gets something done: else no gate would ever open."""
        for follow_ups in plans:
            before = len(self.claims)
            self.claim((0, True), pick, 1)
            if len(self.claims) > before:
                self.complete(leave, 3 * (len(self.live()) - 1), follow_ups)

    @precondition(lambda self: self.claims)
    @rule(leave=LEAVE, pick=PICK, permanent=st.sampled_from([False, False, True]))
    def fail(self, leave: Leave, pick: int, permanent: bool) -> None:
        (job,) = self.picked([pick])
        chance = [0.0]

        async def act(connection: Connection) -> Any:
            ended = await jobs.fail(connection, job, "it broke", permanent=permanent)
            chance[0] = await waits(connection, job)
            return ended

        self.both(leave, act, lambda view: model.fail(view, name(job), permanent, chance[0]))

    @precondition(lambda self: self.claims)
    @rule(leave=LEAVE, pick=PICK, after=st.sampled_from([(0, False), (0, True), (16, False)]))
    def put_off(self, leave: Leave, pick: int, after: tuple[int, bool]) -> None:
        (job,) = self.picked([pick])
        seconds, broke_off = after
        chance = [0.0]

        async def act(connection: Connection) -> Any:
            done = await jobs.put_off(
                connection, job, "it is away", "", PATIENT, broke_off=broke_off
            )
            chance[0] = await waits(connection, job)
            return done

        self.jump(seconds)
        self.both(
            leave, act, lambda view: model.put_off(view, name(job), PATIENT, chance[0], broke_off)
        )

    @precondition(lambda self: self.claims)
    @rule(leave=LEAVE, picks=st.lists(PICK, min_size=1, max_size=3))
    def hand_back(self, leave: Leave, picks: list[int]) -> None:
        held = self.picked(picks)

        async def act(connection: Connection) -> Any:
            return await jobs.hand_back(connection, held)

        self.both(leave, act, lambda view: model.hand_back(view, named(held)))

    @rule(leave=LEAVE, seconds=st.sampled_from([0, 16, 61]))
    def reap(self, leave: Leave, seconds: int) -> None:
        async def act(connection: Connection) -> Any:
            return sorted(row["job_id"] for row in await jobs.reap(connection))

        self.jump(seconds)
        self.both(leave, act, model.reap, True)

    @rule(leave=LEAVE, seconds=st.sampled_from([0, 16]))
    def end_exhausted(self, leave: Leave, seconds: int) -> None:
        self.jump(seconds)
        found = self.stage.run(jobs.exhausted(self.stage.onlooker))
        claims = [(row["job_id"], row["fence"]) for row in found]
        assert claims == model.exhausted(View(self.rows, self.now))
        if not claims:
            return

        async def act(connection: Connection) -> Any:
            return await jobs.end_exhausted(connection, **found[0])

        self.both(leave, act, lambda view: model.end_exhausted(view, claims[0]))

    @rule(leave=LEAVE, seconds=st.sampled_from([0, 20]))
    def promote(self, leave: Leave, seconds: int) -> None:
        async def act(connection: Connection) -> Any:
            return await jobs.promote(connection)

        self.jump(seconds)
        self.both(leave, act, model.promote, True)

    @precondition(lambda self: len(self.job_ids("pending", "claimed")) > 5)
    @rule(leave=LEAVE, pick=PICK)
    def cancel(self, leave: Leave, pick: int) -> None:
        job_id = self.picked_id(pick)

        async def act(connection: Connection) -> Any:
            return (await jobs.cancel(connection, job_id, "olga")).status

        self.both(leave, act, lambda view: model.cancel(view, job_id))

    @precondition(lambda self: self.job_ids("failed", "cancelled"))
    @rule(leave=LEAVE, pick=PICK)
    def retry(self, leave: Leave, pick: int) -> None:
        job_id = self.picked_id(pick, "failed", "cancelled")

        async def act(connection: Connection) -> Any:
            return await jobs.retry(connection, job_id, TOTAL_TIMEOUT)

        self.both(leave, act, lambda view: model.retry(view, job_id, TOTAL_TIMEOUT))

    @precondition(lambda self: self.running_runs() < 3)
    @rule(leave=LEAVE, shape=SHAPE)
    def start_run(self, leave: Leave, shape: int) -> None:
        first, gates = SHAPES[shape]
        made = [0]

        async def act(connection: Connection) -> Any:
            made[0], woken = await runs.create(
                connection, JOB_TYPES, "reconcile", first, gates, TOTAL_TIMEOUT
            )
            return woken

        self.both(
            leave, act, lambda view: model.create_run(view, made[0], first, gates, TOTAL_TIMEOUT)
        )

    @precondition(lambda self: self.running_runs())
    @rule(leave=LEAVE, seconds=st.sampled_from([0, 0, 0, 101]))
    def end_late(self, leave: Leave, seconds: int) -> None:
        self.jump(seconds)
        found = self.stage.run(runs.late(self.stage.onlooker))
        assert sorted(found) == model.late(View(self.rows, self.now))
        if not found:
            return

        async def act(connection: Connection) -> Any:
            return await runs.end_late(connection, found[0])

        self.both(leave, act, lambda view: model.end_late(view, found[0]))

    @precondition(lambda self: self.job_ids("completed", "failed", "cancelled"))
    @rule(leave=LEAVE, seconds=st.sampled_from([0, 0, 51]))
    def sweep(self, leave: Leave, seconds: int) -> None:
        self.jump(seconds)

        async def act(connection: Connection) -> Any:
            return await jobs.sweep(connection, 50), await runs.sweep(connection, 50)

        self.both(leave, act, lambda view: model.sweep(view, 50), True)

    @rule(leave=LEAVE, queue=st.sampled_from(["exec", "stage"]), pause=st.sampled_from([0, 0, 1]))
    def pause_or_resume(self, leave: Leave, queue: str, pause: int) -> None:
        async def act(connection: Connection) -> None:
            if pause:
                await queues.pause(connection, queue, "olga")
            else:
                await queues.resume(connection, queue)

        self.both(leave, act, lambda view: (model.pause if pause else model.resume)(view, queue))

    def picked(self, picks: list[int]) -> list[Job]:
        """By turns a claim that lives, an old one of a job now claimed anew, and any there was."""
        live = self.live()
        alive = {job.job_id for job in live}
        zombies = [job for job in self.claims if job.job_id in alive and job not in live]
        found = {}
        for pick in picks:
            some = [live, zombies, self.claims][pick % 3] or self.claims
            job = some[pick // 3 % len(some)]
            found[name(job)] = job
        return list(found.values())

    def live(self) -> list[Job]:
        view = View(self.rows, self.now)
        return [job for job in self.claims if view.held(name(job))]

    def busy_queue(self, pick: int) -> str:
        waiting = {
            row.queue
            for row in self.rows.values()
            if isinstance(row, JobRow) and row.status == "pending" and row.due
        }
        return (sorted(waiting) or ["exec"])[pick % max(len(waiting), 1)]

    def job_ids(self, *statuses: str) -> list[int]:
        return sorted(
            row.job_id
            for row in self.rows.values()
            if isinstance(row, JobRow) and (not statuses or row.status in statuses)
        )

    def picked_id(self, pick: int, *statuses: str) -> int:
        ids = self.job_ids(*statuses)
        return ids[pick % len(ids)]

    def running_runs(self) -> int:
        return sum(
            isinstance(row, RunRow) and row.status == "running" for row in self.rows.values()
        )


class Leases(Mirrored):
    """Slots and their holders."""

    def __init__(self) -> None:
        super().__init__()
        self.seats: list[tuple[str, Lease]] = []

    @rule(
        leave=LEAVE,
        resource=st.sampled_from(["orders", "payments"]),
        holder=HOLDERS,
        replicas=st.integers(0, 3),
        cap=st.sampled_from([None, 1, 2]),
    )
    def acquire(
        self, leave: Leave, resource: str, holder: str, replicas: int, cap: int | None
    ) -> None:
        taken: list[Lease] = []

        async def act(connection: Connection) -> Any:
            lease = await leases.acquire(connection, resource, holder, replicas, TTL, cap)
            taken[:] = [lease] if lease else []
            return (lease.slot, lease.epoch) if lease else None

        def keep() -> None:
            self.seats += [(holder, lease) for lease in taken]
            self.issue([(resource, lease.slot, lease.epoch) for lease in taken])

        self.both(
            leave,
            act,
            lambda view: model_leases.acquire(view, resource, holder, replicas, TTL, cap),
            keep=keep,
        )

    @precondition(lambda self: self.seats)
    @rule(leave=LEAVE, holder=HOLDERS, picks=st.lists(PICK, min_size=1, max_size=3))
    def renew(self, leave: Leave, holder: str, picks: list[int]) -> None:
        held = {self.seats[-1 - pick % len(self.seats)][1] for pick in picks}

        async def act(connection: Connection) -> Any:
            renewed = await leases.renew(connection, holder, sorted(held), TTL)
            return {(each.resource, each.slot, each.epoch) for each in renewed}

        seats = [(each.resource, each.slot, each.epoch) for each in held]
        self.both(leave, act, lambda view: model_leases.renew(view, holder, seats, TTL))

    @precondition(lambda self: self.seats)
    @rule(leave=LEAVE, pick=PICK, stranger=st.sampled_from([False, False, True]))
    def release(self, leave: Leave, pick: int, stranger: bool) -> None:
        owner, lease = self.seats[-1 - pick % len(self.seats)]
        holder = "zoe" if stranger else owner

        async def act(connection: Connection) -> Any:
            return await leases.release(connection, holder, lease)

        seat = (lease.resource, lease.slot, lease.epoch)
        self.both(leave, act, lambda view: model_leases.release(view, holder, seat))


async def waits(connection: Connection, job: Job) -> float:
    """What chance made of its pause, in seconds."""
    found = await rows(
        connection,
        "SELECT extract(epoch FROM run_after - kalla.clock())::double precision AS waits"
        " FROM kalla.jobs WHERE job_id = %s",
        job.job_id,
    )
    return found[0]["waits"] if found else 0.0


def name(job: Job) -> Claim:
    return (job.job_id, job.fence)


def named(held: list[Job]) -> list[Claim]:
    return [name(job) for job in held]


@pytest.mark.timeout(PATIENCE)
def test_jobs_and_runs_do_what_the_model_does(store_url: str) -> None:
    class Staged(Jobs):
        stage = Stage(store_url)

    try:
        run_state_machine_as_test(Staged, settings=effort(60, 2000, steps=50))
    finally:
        Staged.stage.close()


@pytest.mark.timeout(PATIENCE)
def test_leases_do_what_the_model_does(store_url: str) -> None:
    class Staged(Leases):
        stage = Stage(store_url)

    try:
        run_state_machine_as_test(Staged, settings=effort(30, 1000, steps=40))
    finally:
        Staged.stage.close()
