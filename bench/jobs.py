"""Jobs per second and wake-up latency, against procrastinate on the same Postgres in the same run.

A job is a no-op: inserted, claimed, run and completed. Both sides insert in batches of the same
size while their workers, real processes, already wait; the clock stops when no job is open.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.contenders import Contender, contenders
from kalla import logs
from kalla.local import ports
from kalla.local.servers.nats import Nats
from kalla.local.servers.postgres import Postgres

BATCH = 1000
PEER = "procrastinate"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs a repetition")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--samples", type=int, default=500, help="of latency")
    chosen = parser.parse_args()
    logs.configure("warning", "text")
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as folder, ExitStack() as stack:
        postgres = Postgres(Path(folder), ports.choose_free())
        nats = Nats(Path(folder), ports.choose_free())
        for server in (postgres, nats):
            server.start()
            stack.callback(server.stop)
        lines = asyncio.run(
            measure(contenders(postgres, nats), chosen.jobs, chosen.repeat, chosen.samples)
        )
    for line in lines:
        print(json.dumps(line))


async def measure(
    rivals: Sequence[Contender], jobs: int, repeat: int, samples: int
) -> list[dict[str, object]]:
    """A line for each comparison; the headline, jobs/s with 4 workers, comes last."""
    for rival in rivals:
        await rival.open()
    try:
        lines = await latencies(rivals, samples)
        for workers in (1, 4):
            lines += await throughputs(rivals, workers, jobs, repeat)
    finally:
        for rival in rivals:
            await rival.close()
    return sorted(lines, key=lambda line: line["name"] == "jobs_per_second_4_workers")


async def throughputs(
    rivals: Sequence[Contender], workers: int, jobs: int, repeat: int
) -> list[dict[str, object]]:
    """Interleaved repetitions, so that a noisy minute hits all alike."""
    rates: dict[str, list[float]] = {rival.name: [] for rival in rivals}
    for _ in range(repeat):
        for rival in rivals:
            async with rival.workers(workers):
                await throughput(rival, BATCH)  # warm
                rates[rival.name].append(await throughput(rival, jobs))
            note(f"{workers} workers: {rival.name} {rates[rival.name][-1]:,.0f} jobs/s")
    name = f"jobs_per_second_{workers}_workers"
    return compare(name, rates, "jobs/s", jobs=jobs, workers=workers)


async def throughput(rival: Contender, jobs: int) -> float:
    started = time.monotonic()
    for first in range(0, jobs, BATCH):
        await rival.insert(min(BATCH, jobs - first))
    await rival.until_idle()
    return jobs / (time.monotonic() - started)


async def latencies(rivals: Sequence[Contender], samples: int) -> list[dict[str, object]]:
    """From just before the insert to the first line of the handler, one job at a time, idle."""
    p50: dict[str, list[float]] = {}
    p99: dict[str, list[float]] = {}
    for rival in rivals:
        async with rival.workers(1):
            await throughput(rival, 100)  # warm
            seconds = sorted(await rival.latencies(samples))
        p50[rival.name] = [statistics.median(seconds) * 1000]
        p99[rival.name] = [seconds[int(len(seconds) * 0.99) - 1] * 1000]
        note(f"latency: {rival.name} p50 {p50[rival.name][0]:.1f} p99 {p99[rival.name][0]:.1f} ms")
    return [
        *compare("wake_p50", p50, "ms", samples=samples),
        *compare("wake_p99", p99, "ms", samples=samples),
    ]


def compare(
    name: str, figures: dict[str, list[float]], unit: str, **facts: object
) -> list[dict[str, object]]:
    """Kalla over Postgres alone is the like-for-like match; over NATS it does one thing more."""
    peer = statistics.median(figures[PEER])
    return [
        {
            "name": name + rival.removeprefix("kalla"),
            "ours": round(statistics.median(seen), 2),
            "peer": round(peer, 2),
            "peer_name": PEER,
            "unit": unit,
            "ratio": round(statistics.median(seen) / peer, 3),
            "seen": [round(value, 2) for value in seen],
            **facts,
        }
        for rival, seen in figures.items()
        if rival != PEER
    ]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
