"""`python -m tests.chaos`: a chaos run, short by default; exit code 1 if the promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos import report as reports
from tests.chaos.faults import SOUND_WEIGHTS, WEIGHTS
from tests.chaos.run import Wish, carry_out


def main() -> int:
    default = Wish()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("--jobs", type=int, default=default.jobs, help="at least so many jobs")
    add("--faults", type=int, default=default.faults, help="at least so many faults")
    add("--kills", type=int, default=default.kills, help="at least so many of them kill a worker")
    add("--workers", type=int, default=default.workers)
    add("--concurrency", type=int, default=default.concurrency, help="jobs a worker runs at once")
    add("--seed", type=int, default=default.seed, help="decides the faults and the jobs")
    add("--every", type=float, default=default.every, help="seconds between faults, on average")
    add("--rate", type=float, default=default.rate, help="jobs a second")
    add("--channel", choices=("nats", "postgres"), default=default.channel, help="wake-ups by")
    add("--quick", action="store_true", help="timeouts of 3 s instead of the product's own")
    add("--once", action="store_true", help="jobs of one attempt, and faults that cost none")
    add("--only", type=_listed, default=default.only, help="kinds of faults, comma-separated")
    add("--report", type=Path, help="write the figures to this file, as JSON")
    add("--folder", type=Path, help="keep data, logs and ledger here; must not exist yet")
    given = vars(parser.parse_args())
    report_to, folder = given.pop("report"), given.pop("folder")
    wish = Wish(**given)
    known = SOUND_WEIGHTS if wish.once else WEIGHTS
    if unknown := set(wish.only) - known.keys():
        parser.error(f"--only: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if wish.once and (wish.quick or wish.kills):
        parser.error("--once: no worker is killed, and the timeouts are the product's own")
    print(f"chaos: {wish.jobs:,} jobs, {wish.faults:,} faults, seed {wish.seed}", flush=True)
    if folder is not None:
        folder.mkdir(parents=True)
        return _run(wish, folder.resolve(), report_to)
    with tempfile.TemporaryDirectory(prefix="kalla-chaos-") as temporary:
        return _run(wish, Path(temporary), report_to)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(kind.strip() for kind in text.split(","))


def _run(wish: Wish, folder: Path, report_to: Path | None) -> int:
    try:
        report = asyncio.run(carry_out(wish, folder))
    except KeyboardInterrupt:
        print("Stopped before the end: nothing was checked.")
        return 130
    if report_to is not None:
        reports.write(report_to, report)
    print(reports.summary(report))
    if not report["violations"]["total"]:
        return 0
    evidence = report_to or Path(f"chaos-seed-{wish.seed}.json")
    reports.write(evidence, report)
    print(f"The promise was broken. The rows and the ledger lines are in {evidence}.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
