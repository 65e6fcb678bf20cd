"""Faults of query workers and of an API, timed: `make chaos-query`.

Every fault meets a worker in the middle of a query, whose answer must be the one from before. A
worker that falls silent is given up within 3.5 s, one whose stream closes at once. An API that is
killed leaves every worker idle within a second. Ends with an error otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import httpx
from pydantic import SecretStr

from kalla import database
from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.settings import Database as DatabaseSettings
from tests.metrics_kit import metrics_settings
from tests.query_cluster_kit import FAULTS, KALLA, QUERY, Cluster, Seen, carry_out, open_cluster
from tests.servers import UNSAFE_BUT_FAST, started

# Seconds until a worker is given up. A closed stream is an event; the rest is the machine's.
MOST_SECONDS = {"stop": 3.5, "cut": 3.5, "kill": 0.5, "drain": 0.5}
IDLE_SECONDS = 1.0
_CALLERS = 24


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--api-kills", type=int, default=5)
    parser.add_argument("--report", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kalla-chaos-") as folder:
        server = Postgres(Path(folder), ports.choose_free(), options=UNSAFE_BUT_FAST)
        with started(server):
            url = server.url("postgres")
            asyncio.run(database.migrate(DatabaseSettings(url=SecretStr(url))))
            report = asyncio.run(run(url, Path(folder), chosen.faults, chosen.api_kills))
    if chosen.report:
        chosen.report.parent.mkdir(parents=True, exist_ok=True)
        chosen.report.write_text(json.dumps(report, indent=2))
    print(json.dumps(report, indent=2))
    return 1 if report["violations"] else 0


async def run(url: str, folder: Path, faults: int, api_kills: int) -> dict[str, object]:
    settings = metrics_settings(url, folder / "metrics", shards=8)
    violations: list[str] = []
    seen: list[Seen] = []
    idle: list[float] = []
    async with open_cluster(settings, folder) as cluster:
        wanted = await cluster.answer()
        names = list(cluster.workers)
        for number in range(faults):
            fault, name = FAULTS[number % len(FAULTS)], names[number % len(names)]
            try:
                one = await carry_out(cluster, fault, name, wanted)
            except AssertionError as problem:
                violations.append(f"fault {number}, {fault} of {name}: {problem}")
                continue
            seen.append(one)
            if one.seconds > MOST_SECONDS[fault]:
                violations.append(f"fault {number}, {fault} of {name}: {one.seconds:.2f} s")
            print(f"{number + 1:3} {fault:5} {name:6} {one.seconds:.3f} s", file=sys.stderr)
        for _ in range(api_kills):
            idle.append(await killed_api(cluster, folder))
            print(f"    API killed, workers idle after {idle[-1]:.3f} s", file=sys.stderr)
    if idle and max(idle) > IDLE_SECONDS:
        violations.append(f"workers were idle only {max(idle):.2f} s after their API was killed")
    return {
        "faults": len(seen),
        "seconds": _by_fault(seen),
        "api_kills": len(idle),
        "idle_seconds": {"max": round(max(idle, default=0.0), 3)},
        "violations": violations,
    }


async def killed_api(cluster: Cluster, folder: Path) -> float:
    """Seconds until no worker has work or a stream of an API that was killed under load."""
    port = ports.choose_free()
    settings = cluster.site.settings
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KALLA_")}
    with (folder / "api.log").open("ab") as log:
        api = subprocess.Popen(
            [*KALLA, "api", "--port", str(port)],
            env=kept
            | {
                "KALLA_DATABASE_URL": settings.database.url.get_secret_value(),
                "KALLA_WAKE_CHANNEL": "postgres",
                "KALLA_API_METRICS_PORT": "0",
                "KALLA_STORAGE_METRICS": settings.storage.metrics,
                "KALLA_QUERY_WORKERS": settings.query.workers,
                "KALLA_DATA_DIR": str(folder),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    callers: Sequence[asyncio.Task[None]] = ()
    try:
        for name in cluster.workers:
            await cluster.until_metric("kalla_query_worker_streams", name, 2)
        token = cluster.site.tokens["viewer"]
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120
        ) as client:
            callers = [asyncio.create_task(_keep_asking(client)) for _ in range(_CALLERS)]

            async def busy() -> bool:
                return await _load(cluster) > 0

            for _ in range(3):  # the engine is loaded by then, and work is always under way
                await cluster.until_true(busy, "the workers work for it")
                await asyncio.sleep(0.5)
            began = time.monotonic()
            api.kill()

            async def idle() -> bool:
                streams = [
                    await cluster.metric("kalla_query_worker_streams", name)
                    for name in cluster.workers
                ]
                return max(streams) == 1 and await _load(cluster) == 0

            await cluster.until_true(idle, "the workers are idle")
            return time.monotonic() - began
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        api.kill()
        api.wait(30)


async def _keep_asking(client: httpx.AsyncClient) -> None:
    while True:
        try:
            await client.get("/api/v1/query_range", params=QUERY)
        except httpx.HTTPError:
            await asyncio.sleep(0.05)


async def _load(cluster: Cluster) -> float:
    found = 0.0
    for name in cluster.workers:
        for metric in ("kalla_query_worker_running", "kalla_query_worker_queue_depth"):
            found += await cluster.metric(metric, name)
    return found


def _by_fault(seen: Sequence[Seen]) -> dict[str, dict[str, float]]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for one in seen:
        times[one.fault].append(one.seconds)
    return {
        fault: {
            "count": len(some),
            "median": round(sorted(some)[len(some) // 2], 3),
            "max": round(max(some), 3),
        }
        for fault, some in times.items()
    }


if __name__ == "__main__":
    sys.exit(main())
