"""`python -m tests.chaos_sinks`: faults while messages flow; exit 1 if one is lost or doubled."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.chaos_sinks.faults import WEIGHTS
from tests.chaos_sinks.run import Wish, carry_out


def main() -> int:
    default = Wish()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos_sinks", description=__doc__)
    add = parser.add_argument
    add("--messages", type=int, default=default.messages)
    add("--faults", type=int, default=default.faults)
    add("--workers", type=int, default=default.workers)
    add("--every", type=float, default=default.every, help="seconds between faults, on average")
    add("--rate", type=float, default=default.rate, help="messages a second")
    add("--batch-rows", type=int, default=default.batch_rows)
    add("--seed", type=int, default=default.seed)
    add("--only", type=lambda text: tuple(text.split(",")), default=default.only,
        help=f"kinds of faults: {', '.join(WEIGHTS)}")  # fmt: skip
    add("--report", type=Path, help="write the figures to this file, as JSON")
    given = vars(parser.parse_args())
    report_to = given.pop("report")
    wish = Wish(**given)
    print(f"chaos: {wish.messages:,} messages, {wish.faults} faults, seed {wish.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="kalla-chaos-sinks-") as folder:
        report = asyncio.run(carry_out(wish, Path(folder)))
    text = json.dumps(report, indent=2)
    print(text)
    if report_to is not None:
        report_to.parent.mkdir(parents=True, exist_ok=True)
        report_to.write_text(text)
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
