"""Chaos for `kalla autoscale`: load rises and falls while workers and the scaler itself are killed.

What must hold: every job completes once, there are never more workers than allowed, and a worker
that the scaler drains ends in order, with its jobs completed or handed back at no counted failure.
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
from kalla.local.postgres import Postgres
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings
from kalla.spark.session import SparkSessions
from kalla.work import jobs
from kalla.work.job import NewJob

_MOST = 3
_LOOK = 0.1
_FAULTS = ("worker killed", "worker frozen", "scaler killed", "load rises")


@dataclass
class Run:
    """What was done and seen so far."""

    folder: Path
    environment: dict[str, str]
    chance: random.Random
    scaler: subprocess.Popen[bytes] | None = None
    most: int = 0  # workers at once that were not told to go
    killed: int = 0
    job_ids: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    frozen: set[int] = field(default_factory=set)
    interrupted: set[str] = field(default_factory=set)  # workers that a fault ended, by name

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
            for child in psutil.Process(self.scaler.pid).children(recursive=True):
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
            NewJob("probe", {"sleep": run.chance.uniform(0.05, 1.0)}, max_attempts=100)
            for _ in range(number)
        ]
        async with database.transaction() as connection:
            run.job_ids += (await jobs.insert(connection, known, new)).job_ids

    began = time.monotonic()
    await submit(8)
    for _ in range(faults):
        await _watch(run, run.chance.uniform(0.3, 2.0))
        kind = run.chance.choice(_FAULTS)
        if kind == "load rises":
            await submit(run.chance.randint(1, 12))
        else:
            _disturb(run, kind)
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
            " count(*) FILTER (WHERE status = 'completed')::integer AS completed FROM kalla.jobs"
        )
        (totals,) = await cursor.fetchall()
    violations = _violations(run, statuses, totals, left)
    return {
        "jobs": len(run.job_ids),
        "faults": dict(run.faults),
        "most_workers": run.most,
        "failures_counted": totals["failures"],
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
    for name in _drained(run):
        text = (run.folder / "logs" / f"{name}.log").read_text("utf-8", "replace")
        if "worker stopped" not in text and name not in _interrupted(run):
            found.append(f"{name} was told to go and did not end in order")
    return found


def _drained(run: Run) -> set[str]:
    return set(_names(run, "worker drains"))


def _interrupted(run: Run) -> set[str]:
    """Those that a fault ended before or while they drained."""
    return run.interrupted | set(_names(run, "worker ended by itself"))


def _names(run: Run, event: str) -> list[str]:
    lines = run.log.read_text("utf-8", "replace").splitlines()
    found = (re.search(r"autoscaled-\d+-\d+", line) for line in lines if event in line)
    return [each.group() for each in found if each]


def _disturb(run: Run, kind: str) -> None:
    workers = run.workers()
    if kind == "scaler killed":
        assert run.scaler is not None
        # Its workers die with it: all of their jobs are lost at once.
        run.killed += len(workers)
        _note(run, workers)
        run.scaler.kill()
        run.scaler.wait()
        run.frozen.clear()
        run.start()
    elif workers:
        victim = run.chance.choice(workers)
        run.killed += 1
        _note(run, [victim])
        with suppress(psutil.NoSuchProcess):
            if kind == "worker killed":
                victim.kill()
            else:
                victim.suspend()
                run.frozen.add(victim.pid)


def _note(run: Run, victims: list[psutil.Process]) -> None:
    for victim in victims:
        with suppress(psutil.Error, OSError):
            run.interrupted.add(_name_of(victim))


def _name_of(worker: psutil.Process) -> str:
    """A worker writes to a log of its own name."""
    return Path(f"/proc/{worker.pid}/fd/1").readlink().stem


def _thaw(run: Run) -> None:
    for pid in run.frozen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    run.frozen.clear()


async def _watch(run: Run, seconds: float) -> None:
    """Count the workers meanwhile; those that drain are on their way out and do not count."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        draining = _drained(run)
        standing = 0
        for worker in run.workers():
            with suppress(psutil.Error, OSError):
                standing += _name_of(worker) not in draining
        run.most = max(run.most, standing)
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
