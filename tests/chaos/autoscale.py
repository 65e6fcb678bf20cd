"""Chaos for `kalla autoscale`: load rises and falls while workers and the scaler itself are killed.

What must hold: every job completes once, there are never more workers than allowed, and a worker
that the scaler drains ends in order, with its jobs completed or handed back at no counted failure.
A fault waits until there is something to disturb: killing workers that have no job proves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pydantic import SecretStr

from kalla import logs
from kalla.app.job_types import job_types
from kalla.database import Database, migrate
from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings
from kalla.spark.session import SparkSessions
from kalla.work.job import NewJob
from kalla.work.state import jobs

_MOST = 3
_LOOK = 0.1
_FAULTS = {
    "load rises": 20,
    "busy worker killed": 25,
    "scaler killed": 10,
    "load falls": 10,
    "busy worker frozen": 20,
    "scaler restarted": 10,
    "starting worker killed": 5,
}
_PATIENCE = 180.0  # seconds until what a fault waits for must have come


@dataclass
class Run:
    """What was done and seen so far."""

    folder: Path
    environment: dict[str, str]
    chance: random.Random
    scaler: subprocess.Popen[bytes] | None = None
    most: int = 0  # workers at once that were not told to go
    killed: int = 0
    disturbed_jobs: int = 0  # that ran when a fault ended or froze their worker
    job_ids: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    frozen: set[int] = field(default_factory=set)
    interrupted: set[int] = field(default_factory=set)  # workers that a fault ended, by pid

    @property
    def log(self) -> Path:
        return self.folder / "autoscale.log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.scaler = subprocess.Popen(
                [sys.executable, "-m", "kalla.cli.main", "autoscale", "--max", str(_MOST)],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def workers(self) -> list[psutil.Process]:
        found = []
        with suppress(psutil.NoSuchProcess):
            assert self.scaler is not None
            # Not recursive: a child that a worker has just forked looks like the worker.
            for child in psutil.Process(self.scaler.pid).children():
                with suppress(psutil.NoSuchProcess):
                    if "worker" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                        found.append(child)
        return found


async def carry_out(folder: Path, faults: int, seed: int) -> dict[str, Any]:
    """The report; `violations` in it says whether the promise held."""
    logs.configure("error", "text")
    postgres = Postgres(folder, ports.choose_free())
    postgres.start()
    try:
        postgres.create_database()
        url = postgres.url()
        settings = Settings(data_dir=folder, database=DatabaseSettings(url=SecretStr(url)))
        await migrate(settings.database)
        run = Run(folder, _environment(folder, url), random.Random(seed))
        run.start()
        async with Database(settings.database) as database:
            try:
                return await _disturbed(run, database, settings, faults)
            finally:
                _end(run)
    finally:
        postgres.stop()


async def _disturbed(
    run: Run, database: Database, settings: Settings, faults: int
) -> dict[str, Any]:
    known = job_types(settings, SparkSessions(settings.spark))

    async def submit(number: int) -> None:
        new = [
            NewJob("probe", {"sleep": run.chance.uniform(0.2, 3.0)}, max_attempts=100)
            for _ in range(number)
        ]
        async with database.transaction() as connection:
            run.job_ids += (await jobs.insert(connection, known, new)).job_ids

    began = time.monotonic()
    for number in range(faults):
        # The first ones in turn, so that a short run has each kind; then by chance.
        kinds = list(_FAULTS)
        kind = (
            kinds[number]
            if number < len(kinds)
            else run.chance.choices(kinds, list(_FAULTS.values()))[0]
        )
        await _watch(run, run.chance.uniform(0.1, 1.0))
        await submit(run.chance.randint(4, 12) if kind == "load rises" else 2)
        await _disturb(run, database, kind)
        run.faults[kind] += 1
    await submit(4)
    _thaw(run)
    statuses = await _settled(run, database)
    idle_by = time.monotonic() + 60
    while run.workers() and time.monotonic() < idle_by:
        await _watch(run, 0.5)
    left = len(run.workers())
    async with database.transaction() as connection:
        cursor = await connection.execute(
            "SELECT coalesce(sum(failures), 0)::integer AS failures, count(*)::integer AS jobs,"
            " count(*) FILTER (WHERE status = 'completed')::integer AS completed,"
            " coalesce(sum(fence - 1), 0)::integer AS repeated FROM kalla.jobs"
        )
        (totals,) = await cursor.fetchall()
    violations = _violations(run, statuses, totals, left)
    return {
        "jobs": len(run.job_ids),
        "faults": dict(run.faults),
        "most_workers": run.most,
        "failures_counted": totals["failures"],
        "repeated": totals["repeated"],
        "disturbed_jobs": run.disturbed_jobs,
        "drained": len(_drained(run)),
        "seconds": round(time.monotonic() - began, 1),
        "violations": violations,
    }


def _violations(run: Run, statuses: Counter[str], totals: dict[str, Any], left: int) -> list[str]:
    found = []
    if statuses != {"completed": len(run.job_ids)}:
        found.append(f"jobs ended as {dict(statuses)}")
    if run.most > _MOST:
        found.append(f"{run.most} workers at once, {_MOST} are allowed")
    if left:
        found.append(f"{left} workers stay though nothing waits")
    # A worker has two places: each kill or freeze costs at most two attempts, a drain none.
    if totals["failures"] > 2 * run.killed:
        found.append(f"{totals['failures']} failures by {run.killed} killed or frozen workers")
    if run.disturbed_jobs and not totals["repeated"]:
        found.append(f"{run.disturbed_jobs} running jobs were disturbed, and none began anew")
    lines = [
        line
        for log in (run.folder / "logs").glob("autoscaled-*.log*")
        for line in log.read_text("utf-8", "replace").splitlines()
        if "worker stopped" in line
    ]
    found += [
        f"worker process {pid} was told to go and did not end in order"
        for pid in _drained(run) - _interrupted(run)
        if not any(f"-{pid}-" in line for line in lines)
    ]
    return found


def _drained(run: Run) -> set[int]:
    return _pids(run, "worker drains")


def _interrupted(run: Run) -> set[int]:
    """Those that a fault ended before or while they drained."""
    return run.interrupted | _pids(run, "worker ended by itself")


def _pids(run: Run, event: str) -> set[int]:
    lines = run.log.read_text("utf-8", "replace").splitlines()
    found = (re.search(r'"process": (\d+)', line) for line in lines if event in line)
    return {int(each.group(1)) for each in found if each}


async def _disturb(run: Run, database: Database, kind: str) -> None:
    if kind == "load rises":
        return
    if kind == "load falls":
        drained = len(_drained(run))
        await _wait(run, lambda: _is(len(_drained(run)) > drained), "no idle worker was drained")
    elif kind == "scaler restarted":
        await _wait_for_busy(run, database)
        await asyncio.to_thread(_restart, run)
    elif kind == "scaler killed":
        busy = await _wait_for_busy(run, database)
        run.disturbed_jobs += sum(busy.values())
        assert run.scaler is not None
        # Its workers die with it: all of their jobs are lost at once.
        workers = run.workers()
        run.killed += len(workers)
        _note(run, workers)
        run.scaler.kill()
        run.scaler.wait()
        run.frozen.clear()
        run.start()
    elif kind == "starting worker killed":
        busy = await _busy(run, database)
        young = [worker for worker in run.workers() if worker.pid not in busy]
        _end_worker(run, young, frozen=False)
    else:
        busy = await _wait_for_busy(run, database)
        victims = [worker for worker in run.workers() if worker.pid in busy]
        run.disturbed_jobs += _end_worker(run, victims, frozen="frozen" in kind, jobs=busy)


def _end_worker(
    run: Run, among: list[psutil.Process], *, frozen: bool, jobs: dict[int, int] | None = None
) -> int:
    """Kill or freeze one of these workers; the jobs that it had."""
    if not among:
        return 0
    victim = run.chance.choice(among)
    run.killed += 1
    _note(run, [victim])
    with suppress(psutil.NoSuchProcess):
        if frozen:
            victim.suspend()
            run.frozen.add(victim.pid)
        else:
            victim.kill()
    return (jobs or {}).get(victim.pid, 0)


def _restart(run: Run) -> None:
    """SIGTERM: the scaler drains all of its workers before it ends."""
    assert run.scaler is not None
    _thaw(run)
    run.scaler.terminate()
    run.scaler.wait(_PATIENCE)
    run.start()


async def _busy(run: Run, database: Database) -> dict[int, int]:
    """How many jobs each worker has that is alive, awake and not on its way out, by its pid."""
    alive = {worker.pid for worker in run.workers()} - run.frozen
    async with database.transaction() as connection:
        cursor = await connection.execute(
            "SELECT workers.pid, count(*)::integer AS jobs FROM kalla.jobs"
            " JOIN kalla.workers USING (worker) WHERE status = 'claimed' GROUP BY 1"
        )
        rows = await cursor.fetchall()
    return {row["pid"]: row["jobs"] for row in rows if row["pid"] in alive}


async def _wait_for_busy(run: Run, database: Database) -> dict[int, int]:
    busy: dict[int, int] = {}

    async def some() -> bool:
        nonlocal busy
        busy = await _busy(run, database)
        return bool(busy)

    await _wait(run, some, "no worker became busy")
    return busy


async def _is(value: bool) -> bool:
    return value


async def _wait(run: Run, condition: Callable[[], Awaitable[bool]], complaint: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{complaint} within {_PATIENCE:g} s")
        await _watch(run, 2 * _LOOK)


def _note(run: Run, victims: list[psutil.Process]) -> None:
    run.interrupted |= {victim.pid for victim in victims}


def _thaw(run: Run) -> None:
    for pid in run.frozen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    run.frozen.clear()


async def _watch(run: Run, seconds: float) -> None:
    """Count the workers meanwhile; those that drain are on their way out and do not count."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        # The log last: a worker that goes meanwhile makes room for another at once.
        working = {worker.pid for worker in run.workers()}
        working -= _drained(run)
        run.most = max(run.most, len(working))
        if run.frozen and run.chance.random() < 0.1:
            _thaw(run)
        await asyncio.sleep(_LOOK)


async def _settled(run: Run, database: Database) -> Counter[str]:
    deadline = time.monotonic() + 180
    while True:
        async with database.transaction() as connection:
            rows = await (await connection.execute("SELECT status FROM kalla.jobs")).fetchall()
        found = Counter(row["status"] for row in rows)
        if not found["pending"] + found["claimed"] or time.monotonic() > deadline:
            return found
        await _watch(run, 0.5)


def _end(run: Run) -> None:
    if run.scaler is not None and run.scaler.poll() is None:
        _thaw(run)
        run.scaler.terminate()
        try:
            run.scaler.wait(60)
        except subprocess.TimeoutExpired:
            run.scaler.kill()
            run.scaler.wait()


def _environment(folder: Path, url: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KALLA_")}
    return kept | {
        "KALLA_DATA_DIR": str(folder),
        "KALLA_DATABASE_URL": url,
        "KALLA_WAKE_CHANNEL": "postgres",
        "KALLA_WORKER_CONCURRENCY": "2",
        "KALLA_WORKER_ROLES": "exec",
        "KALLA_WORKER_DRAIN_SECONDS": "10",
        "KALLA_SCALING_SCALE_DOWN_AFTER_SECONDS": "3",
        "KALLA_JOBS_DEFAULT_TIMEOUT_SECONDS": "4",
        "KALLA_JOBS_DEFAULT_HEARTBEAT_INTERVAL": "1",
        "KALLA_JOBS_DEFAULT_BACKOFF_SECONDS": "0.1",
        "KALLA_JOBS_DEFAULT_BACKOFF_LIMIT_SECONDS": "1",
        "KALLA_REAPER_INTERVAL_SECONDS": "0.5",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kalla-autoscale-") as folder:
        report = asyncio.run(carry_out(Path(folder), options.faults, options.seed))
    print(json.dumps(report))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
