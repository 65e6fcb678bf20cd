"""Kills and stops workers that refresh dynamic tables, while their sources change.

Spark is restarted on the way. Afterwards every table has to equal its query, no tick may have
refreshed a table twice, no refresh may have committed twice, and every table has to keep its lag
again after one such interval. Ends with an error otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pydantic import SecretStr

from kalla import database
from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.local.servers.spark import Spark
from kalla.settings import Database as DatabaseSettings
from kalla.spark.session import SparkSessions
from tests.runs_kit import open_runs, spark_settings
from tests.servers import PostgresServer, SparkServer, started
from tests.tables_kit import TablesSite

FEED = {"delta.enableChangeDataFeed": "true"}


class Workers:
    """Worker processes that are killed, stopped and replaced."""

    def __init__(self, count: int, environment: dict[str, str], log: Path) -> None:
        self._environment = environment
        self._log = log.open("ab")
        self._processes = [self._start() for _ in range(count)]
        self._stopped: dict[int, float] = {}
        self.faults: Counter[str] = Counter()

    def fault(self, choice: random.Random) -> None:
        """Kill one worker, or stop one for longer than its jobs live without a heartbeat."""
        for number, until in list(self._stopped.items()):
            if time.monotonic() > until:
                self._processes[number].send_signal(signal.SIGCONT)
                del self._stopped[number]
        number = choice.randrange(len(self._processes))
        if number in self._stopped:
            return
        if choice.random() < 0.5:
            self._processes[number].kill()
            self._processes[number].wait()
            self._processes[number] = self._start()
            self.faults["killed"] += 1
        else:
            self._processes[number].send_signal(signal.SIGSTOP)
            self._stopped[number] = time.monotonic() + choice.uniform(2, 12)
            self.faults["stopped"] += 1

    def calm(self) -> None:
        for number in self._stopped:
            self._processes[number].send_signal(signal.SIGCONT)
        self._stopped.clear()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "kalla.cli.main", "worker"]
        return subprocess.Popen(command, env=self._environment, stdout=self._log, stderr=self._log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--between", type=float, default=10, help="seconds between two faults")
    parser.add_argument("--lag", type=int, default=60, help="TARGET_LAG of all tables, seconds")
    parser.add_argument("--restarts", type=int, default=1, help="of Spark")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kalla-chaos-") as place, ExitStack() as stack:
        folder = Path(place)
        postgres = Postgres(folder / "postgres", ports.choose_free())
        spark = Spark(folder / "spark", ports.choose_free())
        stack.enter_context(started(postgres))
        stack.enter_context(started(spark))
        server = PostgresServer(postgres.url("postgres"))
        url = server.url(server.create())
        asyncio.run(database.migrate(DatabaseSettings(url=SecretStr(url))))
        report = asyncio.run(storm(chosen, folder, url, spark))
    print(json.dumps(report))
    if any(report[name] for name in ("different", "refreshed_twice", "committed_twice", "late")):
        raise SystemExit(1)


async def storm(
    chosen: argparse.Namespace, folder: Path, url: str, server: Spark
) -> dict[str, Any]:
    choice = random.Random(chosen.seed)
    spark = SparkServer(server.remote, server.token)
    sessions = SparkSessions(spark_settings(spark))
    environment = os.environ | {
        "KALLA_DATA_DIR": str(folder / "data"),
        "KALLA_DATABASE_URL": url,
        "KALLA_WAKE_CHANNEL": "postgres",
        "KALLA_SPARK_REMOTE": spark.remote,
        "KALLA_SPARK_TOKEN": spark.token,
        "KALLA_WORKER_PORT": "0",
        "KALLA_WORKER_ROLES": "refresh",
        "KALLA_WORKER_CONCURRENCY": "2",
        "KALLA_JOBS_DEFAULT_TIMEOUT_SECONDS": "4",
        "KALLA_JOBS_DEFAULT_HEARTBEAT_INTERVAL": "1",
        "KALLA_JOBS_DEFAULT_MAX_ATTEMPTS": "1000",
    }
    async with open_runs(url, spark, sessions, folder / "data") as runs:
        site = TablesSite(runs)
        write_deltalake(folder / "orders", _orders(choice, 1000), configuration=FEED)
        await site.apply(_statements(folder, chosen.tables, chosen.lag))
        workers = Workers(chosen.workers, environment, folder / "workers.log")
        try:
            began = time.monotonic()
            deadline = began + chosen.seconds
            next_fault = began + chosen.between
            restarts = [
                began + chosen.seconds * (number + 1) / (chosen.restarts + 1)
                for number in range(chosen.restarts)
            ]
            while time.monotonic() < deadline:
                await asyncio.sleep(1)
                write_deltalake(folder / "orders", _orders(choice, 20), mode="append")
                if choice.random() < 0.3:
                    DeltaTable(folder / "orders").delete(f"id % 97 = {choice.randrange(97)}")
                if restarts and time.monotonic() > restarts[0]:
                    restarts.pop(0)
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(server.start)
                    workers.faults["spark restarted"] += 1
                if time.monotonic() > next_fault:
                    workers.fault(choice)
                    next_fault = time.monotonic() + chosen.between
            workers.calm()
            calm = time.monotonic()
            late, recovered = await _recovery(site, calm, chosen.lag)
            # The session of the audits is this process's own.
            async with site.worker():
                audits = {
                    f"t{number}": await site.audit(f"t{number}") for number in range(chosen.tables)
                }
            different = [name for name, each in audits.items() if not each["equal"]]
            twice = await runs.rows(
                "SELECT table_id, tick_id FROM kalla.refreshes WHERE status = 'completed'"
                " GROUP BY table_id, tick_id HAVING count(*) > 1"
            )
            done = await runs.rows(
                "SELECT count(*) AS n FROM kalla.refreshes WHERE status = 'completed'"
            )
        finally:
            workers.close()
            sessions.close()
        return {
            "tables": chosen.tables,
            "refreshes": done[0]["n"],
            "faults": dict(workers.faults),
            "seconds_until_all_were_refreshed": round(recovered, 1),
            "late": late,
            "different": different,
            "refreshed_twice": len(twice),
            "committed_twice": sum(
                _committed_twice(folder / "data" / "tables" / f"t{number}")
                for number in range(chosen.tables)
            ),
        }


async def _recovery(site: TablesSite, calm: float, lag: float) -> tuple[list[str], float]:
    """The tables that were late after one interval without faults, and when none was."""
    (row,) = await site.runs.rows("SELECT kalla.clock() AS now")
    late: list[str] | None = None
    while True:
        behind = await site.runs.rows(
            "SELECT name FROM kalla.dynamic_tables WHERE data_time IS NULL OR data_time <= %s",
            row["now"],
        )
        passed = time.monotonic() - calm
        if late is None and (passed > lag or not behind):
            late = sorted(each["name"] for each in behind)
        if not behind and late is not None:
            return late, passed
        if passed > lag + 600:
            raise SystemExit(f"never refreshed again: {[each['name'] for each in behind]}")
        await asyncio.sleep(0.5)


def _committed_twice(table: Path) -> int:
    """Refreshes with two commits that moved the table's version; barriers repeat the frontier."""
    versions: dict[str, set[int]] = {}
    for entry in DeltaTable(table).history():
        if "kalla.frontier" in entry:
            frontier = json.loads(entry["kalla.frontier"])
            versions.setdefault(frontier["refresh"], set()).add(frontier["data_version"])
    return sum(len(each) > 1 for each in versions.values())


def _orders(choice: random.Random, count: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([choice.randrange(1_000_000) for _ in range(count)], pa.int64()),
            "day": pa.array([choice.choice(["mon", "tue", "wed", None]) for _ in range(count)]),
            "amount": pa.array([choice.randrange(1, 100) for _ in range(count)], pa.int64()),
        }
    )


def _statements(folder: Path, tables: int, lag: int) -> str:
    """Chains of three: rows, their sums, the larger ones of them."""
    found = [f"CREATE SOURCE orders LOCATION '{folder}/orders';"]
    for number in range(tables):
        above = f"t{number - 1}"
        query = (
            f"SELECT id, day, amount FROM orders WHERE id % 7 <> {number % 7}",
            f"SELECT day, sum(amount) AS total, count(*) AS n FROM {above} GROUP BY day",
            f"SELECT day, total FROM {above} WHERE n > 10",
        )[number % 3]
        found.append(f"CREATE DYNAMIC TABLE t{number} TARGET_LAG = '{lag} seconds' AS {query};")
    return "\n".join(found)


if __name__ == "__main__":
    main()
