"""The checker: a pure function from facts to violations of the promise. No violation, no list."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.facts import AttemptFact, EffectFact, Facts, JobFact
from tests.chaos.job_types import CHUNK, EXEC, GATE, PLAN, SETTLING, WRITE
from tests.chaos.ledger import Execution
from tests.chaos.load import SubmittedRun

_ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class Violation:
    """One breach: which rule, a sentence, and whom it is about."""

    rule: str
    sentence: str
    job_id: int | None = None
    run_id: int | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


def check(facts: Facts) -> list[Violation]:
    return [
        *_nothing_lost(facts),
        *_nothing_left_open(facts),
        *_nothing_completed_twice(facts),
        *_no_stale_write(facts),
        *_every_fence_accounted_for(facts),
        *_every_execution_alone(facts),
        *_fan_outs_happened_once(facts),
        *_runs_count_right(facts),
        *_gates_opened_right(facts),
        *_processes_lived_and_ended_well(facts),
        *_channel_is_empty(facts),
        *_no_attempt_charged(facts),
    ]


def _nothing_lost(facts: Facts) -> Iterator[Violation]:
    rule = "nothing is lost"
    for wanted in facts.submitted_jobs:
        job = facts.jobs.get(wanted.job_id)
        if job is None:
            yield Violation(rule, f"job {wanted.job_id} was submitted and is gone", wanted.job_id)
        elif job.status in _ENDED and job.status not in wanted.ends:
            yield Violation(
                rule,
                f"job {job.job_id} is {job.status}, but was to be {' or '.join(wanted.ends)}",
                job.job_id,
            )
    for expected in facts.submitted_runs:
        run = facts.runs.get(expected.run_id)
        if run is None:
            sentence = f"run {expected.run_id} was submitted and is gone"
            yield Violation(rule, sentence, run_id=expected.run_id)
        elif run.status not in expected.ends:
            yield Violation(
                rule,
                f"run {run.run_id} is {run.status}, but was to be {' or '.join(expected.ends)}",
                run_id=run.run_id,
            )


def _nothing_left_open(facts: Facts) -> Iterator[Violation]:
    for job in facts.jobs.values():
        if job.status not in _ENDED:
            yield Violation(
                "every job ends", f"job {job.job_id} is still {job.status}", job.job_id, job.run_id
            )


def _nothing_completed_twice(facts: Facts) -> Iterator[Violation]:
    rule = "a job completes once"
    effects: dict[int, list[EffectFact]] = defaultdict(list)
    for effect in facts.effects:
        effects[effect.job_id].append(effect)
    for job in facts.jobs.values():
        expected = 1 if job.status == "completed" and job.type in SETTLING else 0
        settled = len(effects.pop(job.job_id, ()))
        if settled != expected:
            yield Violation(
                rule,
                f"{job.status} {job.type} {job.job_id} was settled {settled} times, not {expected}",
                job.job_id,
                job.run_id,
            )
    for job_id in effects:
        yield Violation(rule, f"job {job_id} was settled, but has no row", job_id)


def _no_stale_write(facts: Facts) -> Iterator[Violation]:
    """What stands in the tables was written under the last fence that was issued."""
    rule = "no stale write is accepted"
    for effect in facts.effects:
        job = facts.jobs.get(effect.job_id)
        if job is not None and effect.fence != job.fence:
            yield Violation(
                rule,
                f"job {job.job_id} was settled under fence {effect.fence}, "
                f"but {job.fence} was issued",
                job.job_id,
                job.run_id,
            )
    for job in facts.jobs.values():
        written = {"result": job.result_fence, "progress": job.progress_fence}
        if job.status != "completed":
            del written["result"]
        for what, fence in written.items():
            if fence != job.fence and (what == "result" or fence is not None):
                yield Violation(
                    rule,
                    f"job {job.job_id} has a {what} of fence {fence}, but {job.fence} was issued",
                    job.job_id,
                    job.run_id,
                )


def _every_fence_accounted_for(facts: Facts) -> Iterator[Violation]:
    """Each number from 1 on was issued once and ended once: as an attempt or as the completion."""
    rule = "a fence is issued once and ends once"
    attempts: dict[int, list[AttemptFact]] = defaultdict(list)
    for attempt in facts.attempts:
        attempts[attempt.job_id].append(attempt)
    for job in facts.jobs.values():
        endings = sorted(attempt.fence for attempt in attempts.pop(job.job_id, ()))
        if job.status == "completed":
            endings.append(job.fence)
        if job.status in _ENDED and endings != list(range(1, job.fence + 1)):
            yield Violation(
                rule,
                f"job {job.job_id} has fence {job.fence}, but its attempts ended under {endings}",
                job.job_id,
                job.run_id,
            )
    for job_id in attempts:
        yield Violation(rule, f"job {job_id} has attempts, but no row", job_id)


def _every_execution_alone(facts: Facts) -> Iterator[Violation]:
    """Nobody works under another's fence, and what completed was really done under its fence."""
    rule = "one fence, one execution"
    runs = Counter((each.job_id, each.fence) for each in facts.executions)
    done = {(e.job_id, e.fence) for e in facts.executions if e.ending == "completed"}
    for (job_id, fence), count in runs.items():
        job = facts.jobs.get(job_id)
        if count > 1:
            yield Violation(rule, f"job {job_id} ran {count} times under fence {fence}", job_id)
        if job is None:
            yield Violation(rule, f"job {job_id} ran, but has no row", job_id)
        elif not 1 <= fence <= job.fence:
            yield Violation(
                rule,
                f"job {job_id} ran under fence {fence}, but only {job.fence} were issued",
                job_id,
            )
    for job in facts.jobs.values():
        if job.status == "completed" and (job.job_id, job.fence) not in done:
            yield Violation(
                rule,
                f"job {job.job_id} is completed under fence {job.fence}, "
                "but no execution ended well under it",
                job.job_id,
                job.run_id,
            )


def _fan_outs_happened_once(facts: Facts) -> Iterator[Violation]:
    rule = "follow-ups are inserted once, with the completion"
    children: dict[int, list[int | None]] = defaultdict(list)
    for job in facts.jobs.values():
        if job.parent is not None:
            children[job.parent].append(job.index)
    chunks = {run.run_id: run.chunks for run in facts.submitted_runs}
    for job in facts.jobs.values():
        if job.type == PLAN and job.run_id in chunks:
            expected = chunks[job.run_id]
        else:
            expected = job.follow_ups if job.type == WRITE else 0
        if job.status != "completed":
            expected = 0
        got = children.pop(job.job_id, [])
        if sorted(got, key=lambda index: -1 if index is None else index) != list(range(expected)):
            yield Violation(
                rule,
                f"{job.status} {job.type} {job.job_id} was to have {expected} follow-ups and has "
                f"{got}",
                job.job_id,
                job.run_id,
            )
    for parent in children:
        yield Violation(rule, f"job {parent} has follow-ups, but no row", parent)


def _runs_count_right(facts: Facts) -> Iterator[Violation]:
    rule = "counters equal the truth"
    members: dict[int, list[JobFact]] = defaultdict(list)
    for job in facts.jobs.values():
        if job.run_id is not None:
            members[job.run_id].append(job)
    for run in facts.runs.values():
        jobs = members[run.run_id]
        completed = sum(job.status == "completed" for job in jobs)
        if (run.jobs, run.completed) != (len(jobs), completed):
            yield Violation(
                rule,
                f"run {run.run_id} counts {run.completed} of {run.jobs} jobs, "
                f"but {completed} of {len(jobs)} are completed",
                run_id=run.run_id,
            )
        if (run.status == "completed") != (completed == len(jobs)):
            yield Violation(
                rule,
                f"run {run.run_id} is {run.status} with {completed} of {len(jobs)} jobs completed",
                run_id=run.run_id,
            )
    for gate in facts.gates:
        before = [job for job in members[gate.run_id] if job.gate == gate.gate]
        arrived = sum(job.status == "completed" for job in before)
        if (gate.expected, gate.arrived) != (len(before), arrived):
            yield Violation(
                rule,
                f"gate {gate.gate} of run {gate.run_id} counts {gate.arrived} of {gate.expected}, "
                f"but {arrived} of {len(before)} arrived",
                run_id=gate.run_id,
            )
        if (gate.opened_at is not None) != (arrived == len(before)):
            state = "open" if gate.opened_at else "closed"
            yield Violation(
                rule,
                f"gate {gate.gate} of run {gate.run_id} is {state} with {arrived} of "
                f"{len(before)} arrived",
                run_id=gate.run_id,
            )


def _gates_opened_right(facts: Facts) -> Iterator[Violation]:
    """Behind the gate stands one job if all before it completed, none otherwise, and none early."""
    of_run: dict[int, list[JobFact]] = defaultdict(list)
    for job in facts.jobs.values():
        if job.run_id is not None:
            of_run[job.run_id].append(job)
    executions: dict[int, list[Execution]] = defaultdict(list)
    for execution in facts.executions:
        if execution.type in (PLAN, CHUNK, EXEC):
            executions[execution.job_id].append(execution)
    for run in facts.submitted_runs:
        before = [job for job in of_run[run.run_id] if job.gate == GATE]
        behind = [job for job in of_run[run.run_id] if job.opened_by == GATE]
        yield from _one_behind(run, before, behind)
        for job in behind:
            yield from _not_early(run, before, job, executions)


def _one_behind(
    run: SubmittedRun, before: Sequence[JobFact], behind: Sequence[JobFact]
) -> Iterator[Violation]:
    complete = len(before) == run.chunks + 1 and all(job.status == "completed" for job in before)
    if len(behind) != complete:
        yield Violation(
            "a gate opens once, when all have arrived",
            f"the gate of run {run.run_id} inserted {len(behind)} jobs, "
            f"with {sum(job.status == 'completed' for job in before)} of {run.chunks + 1} arrived",
            run_id=run.run_id,
        )
    if behind and run.poison:
        yield Violation(
            "a gate opens once, when all have arrived",
            f"run {run.run_id} has a poisoned chunk, and yet its gate opened",
            run_id=run.run_id,
        )


def _not_early(
    run: SubmittedRun,
    before: Sequence[JobFact],
    behind: JobFact,
    executions: dict[int, list[Execution]],
) -> Iterator[Violation]:
    """By the database's clock and by the ledger's: the work behind began after all before ended."""
    rule = "no gate opens early"
    starts = [execution.started for execution in executions[behind.job_id]]
    for job in before:
        late = job.finished_at is None or job.finished_at > behind.created_at
        for execution in executions[job.job_id]:
            if execution.ended is not None and execution.fence == job.fence and starts:
                late = late or execution.ended > min(starts)
        if late:
            yield Violation(
                rule,
                f"job {behind.job_id} behind the gate of run {run.run_id} came before "
                f"job {job.job_id} had ended",
                behind.job_id,
                run.run_id,
            )
    wanted = sorted(range(run.chunks))
    for execution in executions[behind.job_id]:
        if execution.inputs is None:
            continue
        came = sorted(index for index in execution.inputs if index is not None)
        if came != wanted or len(execution.inputs) != run.chunks + 1:
            yield Violation(
                rule,
                f"job {behind.job_id} of run {run.run_id} was given {execution.inputs}, "
                f"not the results of {run.chunks} chunks and their plan",
                behind.job_id,
                run.run_id,
            )


def _processes_lived_and_ended_well(facts: Facts) -> Iterator[Violation]:
    rule = "a worker survives what is not aimed at it"
    for life in facts.lives:
        for death in life.deaths:
            yield Violation(rule, f"in worker {life.worker}: {death}")
    codes = {"SIGKILL": -9, "SIGTERM": 0}
    for ending in facts.endings:
        if ending.asked is None or ending.code != codes[ending.asked]:
            asked = f"after {ending.asked}" if ending.asked else "though nobody asked"
            yield Violation(rule, f"process {ending.pid} ended with {ending.code} {asked}")


def _channel_is_empty(facts: Facts) -> Iterator[Violation]:
    for queue, count in facts.left_in_channel.items():
        yield Violation(
            "the channel's depth settles on the waiting jobs",
            f"queue {queue} has {count} wake-ups left, though no job waits",
        )


def _no_attempt_charged(facts: Facts) -> Iterator[Violation]:
    """In a sound run. A claim may be handed back, since that counts nothing."""
    rule = "no attempt is charged that no job caused"
    if not facts.sound:
        return
    for job in facts.jobs.values():
        if job.failures:
            sentence = f"{job.status} {job.type} {job.job_id} was charged {job.failures} attempts"
            yield Violation(rule, sentence, job.job_id, job.run_id)
    for attempt in facts.attempts:
        if attempt.ending != "handed back":
            yield Violation(
                rule,
                f"fence {attempt.fence} of job {attempt.job_id} ended as {attempt.ending}",
                attempt.job_id,
            )
