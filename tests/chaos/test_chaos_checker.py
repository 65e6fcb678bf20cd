"""The checker finds every breach: each test forges one into the facts of a run that went well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.facts import AttemptFact, EffectFact, Facts, GateFact, JobFact, RunFact
from tests.chaos.fleet import Ending
from tests.chaos.job_types import CHUNK, EXEC, GATE, PLAIN, PLAN, WRITE
from tests.chaos.ledger import Execution, Life
from tests.chaos.load import SubmittedJob, SubmittedRun

START = datetime(2030, 1, 1, tzinfo=UTC)
PLAIN_JOB, WRITE_JOB, FOLLOW_UP, POISON_JOB = 1, 2, 3, 4
PLAN_JOB, FIRST_CHUNK, SECOND_CHUNK, EXEC_JOB = 11, 12, 13, 14
RUN = 7


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def completed(job_id: int, job_type: str, fence: int, end: float, **more: Any) -> JobFact:
    return JobFact(
        job_id=job_id,
        type=job_type,
        status="completed",
        fence=fence,
        created_at=more.pop("created_at", START),
        finished_at=at(end),
        result_fence=fence,
        progress_fence=fence,
        **more,
    )


def done(job_id: int, fence: int, job_type: str, start: float, end: float) -> Execution:
    return Execution(job_id, fence, job_type, "anna", start, end, "completed")


def good() -> Facts:
    """A plain job lost once, a job with a follow-up, a poisoned job, and a run of two chunks."""
    in_run = {"run_id": RUN}
    jobs = [
        completed(PLAIN_JOB, PLAIN, 2, 20),
        completed(WRITE_JOB, WRITE, 1, 2, follow_ups=1),
        completed(FOLLOW_UP, PLAIN, 1, 3, parent=WRITE_JOB, index=0),
        JobFact(POISON_JOB, PLAIN, "failed", 2, START, finished_at=at(5)),
        completed(PLAN_JOB, PLAN, 1, 1, gate=GATE, **in_run),
        completed(FIRST_CHUNK, CHUNK, 1, 2, gate=GATE, parent=PLAN_JOB, index=0, **in_run),
        completed(SECOND_CHUNK, CHUNK, 1, 3, gate=GATE, parent=PLAN_JOB, index=1, **in_run),
        completed(EXEC_JOB, EXEC, 1, 5, opened_by=GATE, created_at=at(3.1), **in_run),
    ]
    return Facts(
        submitted_jobs=[
            SubmittedJob(PLAIN_JOB, ("completed",)),
            SubmittedJob(WRITE_JOB, ("completed",), follow_ups=1),
            SubmittedJob(POISON_JOB, ("failed",)),
        ],
        submitted_runs=[SubmittedRun(RUN, ("completed",), chunks=2)],
        jobs={job.job_id: job for job in jobs},
        runs={RUN: RunFact(RUN, "completed", jobs=4, completed=4)},
        gates=[GateFact(RUN, GATE, expected=3, arrived=3, opened_at=at(3))],
        attempts=[
            AttemptFact(PLAIN_JOB, 1, "lost", "boris"),
            AttemptFact(POISON_JOB, 1, "failed", "anna"),
            AttemptFact(POISON_JOB, 2, "failed", "anna"),
        ],
        effects=[
            EffectFact(job_id, 1)
            for job_id in (WRITE_JOB, PLAN_JOB, FIRST_CHUNK, SECOND_CHUNK, EXEC_JOB)
        ],
        executions=[
            Execution(PLAIN_JOB, 1, PLAIN, "boris", 0.5),
            done(PLAIN_JOB, 2, PLAIN, 18, 19),
            done(WRITE_JOB, 1, WRITE, 1, 2),
            done(FOLLOW_UP, 1, PLAIN, 2.5, 3),
            Execution(POISON_JOB, 1, PLAIN, "anna", 1, 2, "failed"),
            Execution(POISON_JOB, 2, PLAIN, "anna", 4, 5, "failed"),
            done(PLAN_JOB, 1, PLAN, 0, 1),
            done(FIRST_CHUNK, 1, CHUNK, 1, 2),
            done(SECOND_CHUNK, 1, CHUNK, 1, 3),
            replace(done(EXEC_JOB, 1, EXEC, 4, 5), inputs=(None, 0, 1)),
        ],
        lives=[Life("anna", 101, 0), Life("boris", 102, 0)],
        endings=[Ending(102, -9, "SIGKILL"), Ending(101, 0, "SIGTERM")],
    )


def with_job(facts: Facts, job_id: int, **changes: Any) -> Facts:
    return replace(facts, jobs={**facts.jobs, job_id: replace(facts.jobs[job_id], **changes)})


def without_job(facts: Facts, job_id: int) -> Facts:
    return replace(facts, jobs={key: job for key, job in facts.jobs.items() if key != job_id})


def with_gate(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, gates=[replace(facts.gates[0], **changes)])


def with_execution(facts: Facts, job_id: int, **changes: Any) -> Facts:
    changed = [
        replace(each, **changes) if each.job_id == job_id else each for each in facts.executions
    ]
    return replace(facts, executions=changed)


def with_more(facts: Facts, **more: Any) -> Facts:
    longer: dict[str, Any] = {name: [*getattr(facts, name), item] for name, item in more.items()}
    return replace(facts, **longer)


def two_behind(facts: Facts) -> Facts:
    """The whole of a gate that opened twice, with all its traces."""
    second = replace(facts.jobs[EXEC_JOB], job_id=15)
    facts = replace(facts, jobs={**facts.jobs, 15: second})
    facts = replace(facts, runs={RUN: RunFact(RUN, "completed", jobs=5, completed=5)})
    execution = replace(done(15, 1, EXEC, 4, 5), inputs=(None, 0, 1))
    return with_more(facts, effects=EffectFact(15, 1), executions=execution)


def opened_early(facts: Facts) -> Facts:
    """The job behind the gate came while the second chunk still ran."""
    return with_job(facts, EXEC_JOB, created_at=at(2.1))


def poisoned_yet_open(facts: Facts) -> Facts:
    run = SubmittedRun(RUN, ("completed",), chunks=2, poison=True)
    return replace(facts, submitted_runs=[run])


def chunk_twice(facts: Facts) -> Facts:
    """A redelivered plan fanned out again, and everything counts it faithfully."""
    twin = replace(facts.jobs[SECOND_CHUNK], job_id=16)
    facts = replace(facts, jobs={**facts.jobs, 16: twin})
    facts = replace(facts, runs={RUN: RunFact(RUN, "completed", jobs=5, completed=5)})
    facts = with_gate(facts, expected=4, arrived=4)
    return with_more(facts, effects=EffectFact(16, 1), executions=done(16, 1, CHUNK, 1, 2))


def sound(facts: Facts) -> Facts:
    """A run in which nothing may cost an attempt: the poisoned job is gone, a claim came back."""
    return replace(
        without_job(facts, POISON_JOB),
        submitted_jobs=[each for each in facts.submitted_jobs if each.job_id != POISON_JOB],
        attempts=[AttemptFact(PLAIN_JOB, 1, "handed back", "boris")],
        executions=[each for each in facts.executions if each.job_id != POISON_JOB],
        sound=True,
    )


def lost_attempt(facts: Facts) -> Facts:
    return replace(sound(facts), attempts=[AttemptFact(PLAIN_JOB, 1, "lost", "boris")])


Forge = Callable[[Facts], Facts]
FORGERIES: dict[str, tuple[str, Forge]] = {
    "a submitted job has vanished": (
        "nothing is lost",
        lambda facts: without_job(facts, PLAIN_JOB),
    ),
    "a submitted run has vanished": ("nothing is lost", lambda facts: replace(facts, runs={})),
    "a sound job failed": (
        "nothing is lost",
        lambda facts: with_job(facts, PLAIN_JOB, status="failed"),
    ),
    "a poisoned job completed": (
        "nothing is lost",
        lambda facts: with_job(facts, POISON_JOB, status="completed"),
    ),
    "a run hangs": (
        "nothing is lost",
        lambda facts: replace(facts, runs={RUN: replace(facts.runs[RUN], status="running")}),
    ),
    "a job waits for ever": (
        "every job ends",
        lambda facts: with_job(facts, PLAIN_JOB, status="pending"),
    ),
    "a job stays claimed": (
        "every job ends",
        lambda facts: with_job(facts, FIRST_CHUNK, status="claimed"),
    ),
    "a job was settled twice": (
        "a job completes once",
        lambda facts: with_more(facts, effects=EffectFact(WRITE_JOB, 1)),
    ),
    "a completed job was not settled": (
        "a job completes once",
        lambda facts: replace(facts, effects=facts.effects[1:]),
    ),
    "a failed job was settled": (
        "a job completes once",
        lambda facts: with_more(facts, effects=EffectFact(POISON_JOB, 2)),
    ),
    "an unknown job was settled": (
        "a job completes once",
        lambda facts: with_more(facts, effects=EffectFact(99, 1)),
    ),
    "a zombie's settling counted": (
        "no stale write is accepted",
        lambda facts: with_job(facts, WRITE_JOB, fence=2, result_fence=2, progress_fence=2),
    ),
    "a zombie's result counted": (
        "no stale write is accepted",
        lambda facts: with_job(facts, PLAIN_JOB, result_fence=1),
    ),
    "a result was never written": (
        "no stale write is accepted",
        lambda facts: with_job(facts, PLAIN_JOB, result_fence=None),
    ),
    "a zombie's progress counted": (
        "no stale write is accepted",
        lambda facts: with_job(facts, PLAIN_JOB, progress_fence=1),
    ),
    "a fence was issued twice": (
        "a fence is issued once and ends once",
        lambda facts: with_more(facts, attempts=AttemptFact(PLAIN_JOB, 2, "lost", "anna")),
    ),
    "a fence was skipped": (
        "a fence is issued once and ends once",
        lambda facts: replace(facts, attempts=facts.attempts[1:]),
    ),
    "two workers ran under one fence": (
        "one fence, one execution",
        lambda facts: with_more(facts, executions=done(PLAIN_JOB, 2, PLAIN, 18, 19)),
    ),
    "somebody ran under a fence nobody issued": (
        "one fence, one execution",
        lambda facts: with_more(facts, executions=done(PLAIN_JOB, 3, PLAIN, 30, 31)),
    ),
    "somebody ran a job that is not there": (
        "one fence, one execution",
        lambda facts: with_more(facts, executions=done(99, 1, PLAIN, 30, 31)),
    ),
    "a job completed that nobody did": (
        "one fence, one execution",
        lambda facts: with_execution(facts, FOLLOW_UP, ending=None, ended=None),
    ),
    "a follow-up is missing": (
        "follow-ups are inserted once, with the completion",
        lambda facts: without_job(facts, FOLLOW_UP),
    ),
    "a job that failed has a follow-up": (
        "follow-ups are inserted once, with the completion",
        lambda facts: with_job(facts, FOLLOW_UP, parent=POISON_JOB),
    ),
    "a chunk was fanned out twice": (
        "follow-ups are inserted once, with the completion",
        chunk_twice,
    ),
    "a run's counter is off": (
        "counters equal the truth",
        lambda facts: replace(facts, runs={RUN: replace(facts.runs[RUN], completed=3)}),
    ),
    "a gate counted a chunk twice": (
        "counters equal the truth",
        lambda facts: with_gate(facts, arrived=4),
    ),
    "a gate did not count a chunk": (
        "counters equal the truth",
        lambda facts: with_gate(facts, expected=2, arrived=2),
    ),
    "a gate stayed closed": (
        "counters equal the truth",
        lambda facts: with_gate(facts, opened_at=None),
    ),
    "a gate opened twice": ("a gate opens once, when all have arrived", two_behind),
    "a gate opened and inserted nothing": (
        "a gate opens once, when all have arrived",
        lambda facts: without_job(facts, EXEC_JOB),
    ),
    "a gate opened with a chunk missing": (
        "a gate opens once, when all have arrived",
        lambda facts: with_job(facts, SECOND_CHUNK, status="cancelled"),
    ),
    "a gate opened behind a poisoned chunk": (
        "a gate opens once, when all have arrived",
        poisoned_yet_open,
    ),
    "a gate opened early by the database's clock": ("no gate opens early", opened_early),
    "a gate opened early by the ledger's clock": (
        "no gate opens early",
        lambda facts: with_execution(facts, EXEC_JOB, started=2.5),
    ),
    "the job behind the gate missed an input": (
        "no gate opens early",
        lambda facts: with_execution(facts, EXEC_JOB, inputs=(None, 0)),
    ),
    "the job behind the gate got an input twice": (
        "no gate opens early",
        lambda facts: with_execution(facts, EXEC_JOB, inputs=(None, 0, 0)),
    ),
    "a service died": (
        "a worker survives what is not aimed at it",
        lambda facts: with_more(facts, lives=Life("carla", 103, 0, ("reaper died: KeyError",))),
    ),
    "a worker ended by itself": (
        "a worker survives what is not aimed at it",
        lambda facts: with_more(facts, endings=Ending(103, 1, None)),
    ),
    "a drain ended badly": (
        "a worker survives what is not aimed at it",
        lambda facts: with_more(facts, endings=Ending(103, -9, "SIGTERM")),
    ),
    "wake-ups stay behind": (
        "the channel's depth settles on the waiting jobs",
        lambda facts: replace(facts, left_in_channel={"exec": 3}),
    ),
    "a job was lost by a worker that lived": (
        "no attempt is charged that no job caused",
        lost_attempt,
    ),
    "a failure was counted that no attempt tells of": (
        "no attempt is charged that no job caused",
        lambda facts: with_job(sound(facts), PLAIN_JOB, failures=1),
    ),
}


def test_a_run_that_went_well_has_no_violation() -> None:
    assert check(good()) == []


def test_a_sound_run_that_went_well_has_no_violation() -> None:
    assert check(sound(good())) == []


@pytest.mark.parametrize("name", FORGERIES)
def test_the_checker_finds(name: str) -> None:
    rule, forge = FORGERIES[name]
    assert rule in {violation.rule for violation in check(forge(good()))}


def test_every_rule_is_forged() -> None:
    forged = {rule for rule, _ in FORGERIES.values()}
    found = {
        violation.rule for _, forge in FORGERIES.values() for violation in check(forge(good()))
    }
    assert found == forged
