"""What came out of a chaos run: figures as JSON for machines, a table for people."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.checker import Violation
from tests.chaos.facts import Facts
from tests.chaos.faults import KILL, ON_ALL, Fault
from tests.chaos.recovery import Recovery, Spread, share_within, slowest_of_each_kill

PROMISED_SECONDS = 22.0
_MOST_SHOWN = 20


@dataclass(frozen=True)
class Circumstances:
    """How the run was made."""

    seed: int
    once: bool  # every job had one attempt, and none was to be charged
    channel: str
    workers: int
    concurrency: int
    timeout_seconds: float
    heartbeat_interval: float
    reaper_interval: float
    seconds: float
    idle_after_seconds: float | None  # from the last fault until nothing was left; None: never
    commands: Mapping[str, int]


def figures(
    circumstances: Circumstances,
    facts: Facts,
    faults: Sequence[Fault],
    found: Sequence[Recovery],
    violations: Sequence[Violation],
) -> dict[str, Any]:
    kills = {recovery.pid for recovery in found}
    running = [recovery for recovery in found if recovery.was_running]
    seconds = [recovery.seconds for recovery in found]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": psutil.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30),
            "system": platform.platform(terse=True),
            "python": platform.python_version(),
        },
        "run": asdict(circumstances),
        "jobs": {
            "total": len(facts.jobs),
            "by_status": _counted(job.status for job in facts.jobs.values()),
            "by_type": _counted(job.type for job in facts.jobs.values()),
            "executions": len(facts.executions),
            "executions_cut_off": sum(each.ending is None for each in facts.executions),
            "attempts_by_ending": _counted(attempt.ending for attempt in facts.attempts),
            "highest_fence": max((job.fence for job in facts.jobs.values()), default=0),
        },
        "runs": {
            "total": len(facts.runs),
            "by_status": _counted(run.status for run in facts.runs.values()),
            "gates_opened": sum(gate.opened_at is not None for gate in facts.gates),
            "by_chunks": _counted(str(run.chunks) for run in facts.submitted_runs),
        },
        "faults": {
            "total": len(faults),
            "by_kind": _counted(fault.kind for fault in faults),
            "fewest_jobs_in_hand": _fewest_in_hand(facts, faults),
        },
        "workers": {"processes": len(facts.lives)},
        "recovery": {
            "promised_seconds": PROMISED_SECONDS,
            "kills": sum(fault.kind == KILL for fault in faults),
            "kills_with_jobs": len(kills),
            "kills_with_running_jobs": len({recovery.pid for recovery in running}),
            "jobs": _spread(seconds),
            "share_of_jobs_within_promise": round(share_within(seconds, PROMISED_SECONDS), 5),
            "running_jobs": _spread(recovery.seconds for recovery in running),
            "slowest_job_of_each_kill": _spread(slowest_of_each_kill(found)),
            "jobs_while_postgres_stayed": _spread(
                recovery.seconds for recovery in found if not recovery.postgres_away
            ),
            "jobs_while_postgres_was_away": _spread(
                recovery.seconds for recovery in found if recovery.postgres_away
            ),
            "slowest": [
                asdict(recovery)
                for recovery in sorted(found, key=lambda each: -each.seconds)[:_MOST_SHOWN]
            ],
        },
        "violations": {
            "total": len(violations),
            "by_rule": _counted(violation.rule for violation in violations),
            "first": [str(violation) for violation in violations[:_MOST_SHOWN]],
        },
    }


def summary(report: Mapping[str, Any]) -> str:
    run, jobs, recovery = report["run"], report["jobs"], report["recovery"]
    idle = run["idle_after_seconds"]
    lines = [
        ("seed", run["seed"]),
        ("attempts", "one a job" if run["once"] else "as many as a job needs"),
        ("wake-ups by", run["channel"]),
        ("workers", f"{run['workers']} of {run['concurrency']} jobs each"),
        ("seconds", f"{run['seconds']:.0f}"),
        ("jobs", f"{jobs['total']:,} ({_listed(jobs['by_status'])})"),
        ("executions", f"{jobs['executions']:,} ({jobs['executions_cut_off']:,} cut off)"),
        ("attempts that ended", _listed(jobs["attempts_by_ending"])),
        ("runs", f"{report['runs']['total']:,} ({_listed(report['runs']['by_status'])})"),
        ("faults", f"{report['faults']['total']:,}"),
        *((f"  {kind}", f"{count:,}") for kind, count in report["faults"]["by_kind"].items()),
        *(
            (f"jobs in hand, {kind}", f"at least {count}")
            for kind, count in report["faults"]["fewest_jobs_in_hand"].items()
        ),
        ("worker processes", report["workers"]["processes"]),
        ("idle after", "never" if idle is None else f"{idle:.1f} s"),
        ("kills", f"{recovery['kills']} ({recovery['kills_with_running_jobs']} while jobs ran)"),
        *(
            (f"  {name.replace('_', ' ')}", _told(recovery[name]))
            for name in (
                "jobs",
                "running_jobs",
                "slowest_job_of_each_kill",
                "jobs_while_postgres_stayed",
                "jobs_while_postgres_was_away",
            )
        ),
        ("violations", report["violations"]["total"]),
    ]
    width = max(len(name) for name, _ in lines) + 2
    text = "\n".join(f"  {name:<{width}}{value}" for name, value in lines)
    shown = "\n".join(f"  ! {sentence}" for sentence in report["violations"]["first"])
    return f"{text}\n{shown}" if shown else text


def write(path: Path, report: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, default=str) + "\n", "utf-8")


def _fewest_in_hand(facts: Facts, faults: Sequence[Fault]) -> dict[str, int]:
    """How many handlers ran when a fault came to all and when it was over, where it was fewest."""
    fewest: dict[str, int] = {}
    for fault in faults:
        if fault.kind in ON_ALL:
            ran = sum(
                each.started < fault.began and (each.ended is None or each.ended > fault.ended)
                for each in facts.executions
            )
            fewest[fault.kind] = min(ran, fewest.get(fault.kind, ran))
    return fewest


def _counted(values: Any) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def _spread(values: Any) -> dict[str, float] | None:
    spread = Spread.of(values)
    if spread is None:
        return None
    return {name: round(value, 3) for name, value in asdict(spread).items()}


def _told(spread: Mapping[str, float] | None) -> str:
    if spread is None:
        return "none"
    return (
        f"{spread['count']:,}: elsewhere after p50 {spread['p50']:.1f} s, "
        f"p99 {spread['p99']:.1f} s, at most {spread['most']:.1f} s"
    )
