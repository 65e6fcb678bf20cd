"""`python -m tests.promqltest FILE...`: runs script files; exit code 1 if an eval failed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.promqltest.runner import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.promqltest", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--shards", type=int, default=1, help="spread the series over so many")
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="ask each instant query also with @, at other times, and as a range query",
    )
    wish = parser.parse_args()
    outcome = run(wish.files, shards=wish.shards, thorough=wish.thorough)
    for failure in outcome.failures:
        print(failure)
    for rule, count in sorted(outcome.skipped.items()):
        print(f"skipped by rule: {rule}: {count}")
    print(outcome)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
