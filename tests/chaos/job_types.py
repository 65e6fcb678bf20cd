"""The job types of the chaos run. Their payload says what they do, the ledger what they did."""

from __future__ import annotations

import math
import random
import time
from typing import Any

from pydantic import BaseModel, ConfigDict

from kalla.database import Connection
from kalla.errors import Cancelled
from kalla.settings import Settings
from kalla.work.handler import Context, Stateless
from kalla.work.job import Job, NewJob, Outcome
from kalla.work.job_type import JobType, JobTypes
from tests.chaos.ledger import Ledger

PLAIN, WRITE = "chaos_plain", "chaos_write"
PLAN, CHUNK, EXEC = "chaos_plan", "chaos_chunk", "chaos_exec"
SETTLING = (WRITE, PLAN, CHUNK, EXEC)  # those that leave a row in chaos.effects
GATE = "staged"
POISON_ATTEMPTS = 2
_INSTANT = 0.25  # jobs that end together end when the clock shows a multiple of this


class Payload(BaseModel):
    """How a job behaves. Every type has the same fields; each uses those that concern it."""

    model_config = ConfigDict(extra="forbid")

    sleep: float = 0
    fail_chance: float = 0  # of each attempt
    poison: bool = False  # fails every time
    deaf: bool = False  # does not notice that its job was taken away: a zombie's thread
    together: bool = False  # ends at the same instant as its siblings
    follow_ups: int = 0  # of a chaos_write
    parent: int | None = None  # the job whose follow-up or chunk this is
    chunks: int = 0  # of a chaos_plan and its chaos_exec
    poison_chunk: int | None = None
    chunk_sleep: float = 0
    index: int | None = None  # of a chaos_chunk or follow-up among its siblings


class _Recorded:
    """Runs what the payload says, with a line in the ledger before and after."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def run(self, job: Job, context: Context) -> Outcome:
        name = {"job": job.job_id, "fence": job.fence}
        self._ledger.write("start", type=job.type, **name)
        try:
            outcome, facts = self.act(job, Payload.model_validate(job.payload), context)
        except Cancelled:
            self._ledger.write("end", ending="taken away", **name)
            raise
        except BaseException:
            self._ledger.write("end", ending="failed", **name)
            raise
        self._ledger.write("end", ending="completed", **name, **facts)
        return outcome

    def act(self, job: Job, payload: Payload, context: Context) -> tuple[Outcome, dict[str, Any]]:
        _endure(job, payload, context)
        return Outcome({"fence": job.fence, "index": payload.index}), {}


class Plain(_Recorded, Stateless):
    """Nothing to settle: completions share a transaction."""


class Settled(_Recorded):
    """Leaves a row in a table without any constraint, so that a second settling shows."""

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        await connection.execute(
            "INSERT INTO chaos.effects (job_id, fence, type) VALUES (%s, %s, %s)",
            [job.job_id, job.fence, job.type],
        )


class Write(Settled):
    """A job outside any run, with follow-ups."""

    def act(self, job: Job, payload: Payload, context: Context) -> tuple[Outcome, dict[str, Any]]:
        _endure(job, payload, context)
        follow_ups = tuple(
            NewJob(PLAIN, {"parent": job.job_id, "index": index, "sleep": 0.01})
            for index in range(payload.follow_ups)
        )
        return Outcome({"fence": job.fence, "index": payload.index}, follow_ups), {}


class Plan(Settled):
    """Fans out chunks, from none to many."""

    def act(self, job: Job, payload: Payload, context: Context) -> tuple[Outcome, dict[str, Any]]:
        _endure(job, payload, context)
        chunks = tuple(
            NewJob(
                CHUNK,
                {
                    "parent": job.job_id,
                    "index": index,
                    "sleep": payload.chunk_sleep,
                    "fail_chance": payload.fail_chance,
                    "together": payload.together,
                    "poison": index == payload.poison_chunk,
                },
                gate=GATE,
                max_attempts=POISON_ATTEMPTS if index == payload.poison_chunk else None,
            )
            for index in range(payload.chunks)
        )
        return Outcome({"fence": job.fence, "index": None}, chunks), {}


class Exec(Settled):
    """Stands behind the gate, and says what came through it."""

    def act(self, job: Job, payload: Payload, context: Context) -> tuple[Outcome, dict[str, Any]]:
        came = tuple(None if each is None else each.get("index") for each in context.inputs)
        _endure(job, payload, context)
        return Outcome({"fence": job.fence, "index": None}), {"inputs": came}


def chaos_job_types(settings: Settings, ledger: Ledger) -> JobTypes:
    return JobTypes(
        settings,
        [
            JobType(PLAIN, "exec", Plain(ledger), Payload),
            JobType(WRITE, "exec", Write(ledger), Payload),
            JobType(PLAN, "stage", Plan(ledger), Payload),
            JobType(CHUNK, "stage", Settled(ledger), Payload),
            JobType(EXEC, "exec", Exec(ledger), Payload),
        ],
    )


def _endure(job: Job, payload: Payload, context: Context) -> None:
    """Take the time, fail by chance."""
    context.progress(fence=job.fence, stage="begun")
    chance = random.Random(f"{job.job_id}/{job.fence}")
    seconds = payload.sleep * (0.5 if chance.random() < 0.1 else 1.0)
    if payload.deaf:
        time.sleep(seconds)
    elif seconds:
        context.wait(seconds)
    if payload.together:
        context.wait(math.ceil(time.time() / _INSTANT) * _INSTANT - time.time())
    context.progress(fence=job.fence, stage="done")
    if payload.poison or chance.random() < payload.fail_chance:
        raise RuntimeError("poison" if payload.poison else "a passing failure")
