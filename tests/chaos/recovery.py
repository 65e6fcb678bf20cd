"""How long a killed worker's jobs took to run elsewhere: a pure function over facts and faults."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.chaos.facts import Facts
from tests.chaos.faults import KILL, POSTGRES_AWAY, Fault


@dataclass(frozen=True)
class Recovery:
    """One job of one killed worker, from the kill to its next start."""

    pid: int
    job_id: int
    fence: int
    seconds: float
    was_running: bool  # its handler had begun and not ended; otherwise it was claimed, or unsettled
    postgres_away: bool  # Postgres was restarted in between
    others: tuple[str, ...] = ()  # the other faults in between


@dataclass(frozen=True)
class Spread:
    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Nearest rank: the p99 of 200 values is the 198th."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(len(ordered), _rank(ordered, 0.5), _rank(ordered, 0.99), ordered[-1])


def recoveries(facts: Facts, faults: Sequence[Fault]) -> list[Recovery]:
    """Of every job that was lost with a killed worker and had to run again."""
    names = {life.pid: life.worker for life in facts.lives}
    poisoned = {run.run_id for run in facts.submitted_runs if run.poison}
    held: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for attempt in facts.attempts:
        job = facts.jobs.get(attempt.job_id)
        if job is not None and job.run_id in poisoned:
            continue  # such a run ends, and starts again when the operator says so
        if attempt.ending == "lost" and attempt.worker is not None:
            held[attempt.worker].append((attempt.job_id, attempt.fence))
    starts: dict[int, list[tuple[int, float]]] = defaultdict(list)
    running: set[tuple[int, int]] = set()
    killed = {names.get(fault.pid or 0) for fault in faults if fault.kind == KILL}
    for attempt in facts.attempts:
        # Taken over by a worker that was killed before it could begin: the next kill's matter.
        if attempt.ending == "lost" and attempt.worker in killed and attempt.claimed is not None:
            starts[attempt.job_id].append((attempt.fence, attempt.claimed))
    for execution in facts.executions:
        starts[execution.job_id].append((execution.fence, execution.started))
        if execution.ending is None:
            running.add((execution.job_id, execution.fence))
    found = []
    for kill in faults:
        if kill.kind != KILL or kill.pid not in names:
            continue
        for job_id, fence in held[names[kill.pid]]:
            later = sorted(start for start in starts[job_id] if start[0] > fence)
            if not later:
                continue  # cancelled meanwhile, or out of attempts: it does not run again
            resumed = min(at for _, at in later)
            between = _between(faults, kill, resumed)
            found.append(
                Recovery(
                    pid=kill.pid,
                    job_id=job_id,
                    fence=fence,
                    seconds=resumed - kill.began,
                    was_running=(job_id, fence) in running,
                    postgres_away=any(kind in POSTGRES_AWAY for kind in between),
                    others=tuple(between),
                )
            )
    # A claim that was lost before the kill, and resumed before it, is none of the kill's doing.
    return [recovery for recovery in found if recovery.seconds > 0]


def slowest_of_each_kill(found: Sequence[Recovery]) -> list[float]:
    slowest: dict[int, float] = {}
    for recovery in found:
        slowest[recovery.pid] = max(slowest.get(recovery.pid, 0.0), recovery.seconds)
    return list(slowest.values())


def share_within(values: Sequence[float], seconds: float) -> float:
    ordered = sorted(values)
    return bisect.bisect_right(ordered, seconds) / len(ordered) if ordered else 1.0


def _between(faults: Sequence[Fault], kill: Fault, resumed: float) -> list[str]:
    return [
        fault.kind
        for fault in faults
        if fault is not kill and fault.began < resumed and fault.ended > kill.began
    ]


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
