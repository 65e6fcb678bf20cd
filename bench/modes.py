"""Seconds of the same reconciliation in Kalla's three ways to run, beside DuckDB by hand.

Alone is the whole command, with the start of its private Spark. On one machine and on a cluster of
two executors Spark is there already, and warm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pydantic import SecretStr

from bench import reconcile_data
from bench.reconcile import measure
from bench.reconcile_data import Pair
from bench.reconcile_peers import Apart, Contender, Kalla, OnSpark, Seen, with_duckdb
from kalla import logs
from kalla.local import ports
from kalla.local.servers.spark import Spark
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from tests.cluster import standalone

DUCKDB, ALONE, MACHINE, CLUSTER = "DuckDB", "alone", "one machine", "cluster of two executors"
SIZES = {"100k": 100_000, "1m": 1_000_000, "5m": 5_000_000}


class Alone(OnSpark):
    """`kalla reconcile`, from typing it to its report."""

    name = ALONE

    def run(self, pair: Pair, folder: Path) -> Seen:
        recipe = folder / "recipe.json"
        recipe.write_text(
            json.dumps(
                reconcile_data.recipe({"uri": str(pair.left)}, {"uri": str(pair.right)}, "number")
            )
        )
        command = [sys.executable, "-m", "kalla.cli.main", "reconcile", str(recipe)]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--output", str(folder / "evidence"), "--format", "json"],
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode != 1:  # exceptions are found in these data
            raise SystemExit(f"kalla reconcile ended with {done.returncode}")
        return Seen(time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100k,1m,5m", help=", ".join(SIZES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--data", type=Path, help="keep the made-up rows here")
    chosen = parser.parse_args()
    logs.configure("warning", "text")
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as folder, ExitStack() as stack:
        place = Path(folder)
        rivals = contenders(stack, place)
        for size in chosen.sizes.split(","):
            pair = reconcile_data.make(chosen.data or place / "data", SIZES[size])
            seen = measure(rivals, pair, place / "out", chosen.repeat)
            peer = statistics.median(each.seconds for each in seen[DUCKDB])
            for mode in (ALONE, MACHINE, CLUSTER):
                print(json.dumps(line(f"{mode.replace(' ', '_')}_{size}", seen[mode], peer)))


def contenders(stack: ExitStack, folder: Path) -> list[Contender]:
    spark = Spark(folder / "machine", ports.choose_free(), memory="1g")
    spark.start()
    stack.callback(spark.stop)
    machine = connect(SparkSettings(remote=spark.remote, token=SecretStr(spark.token)))
    stack.callback(machine.stop)
    cluster = connect(stack.enter_context(standalone(folder / "cluster")).spark)
    stack.callback(cluster.stop)
    found = [Apart(DUCKDB, with_duckdb, "number"), Alone(), Kalla(machine, "number")]
    found.append(Kalla(cluster, "number"))
    found[2].name, found[3].name = MACHINE, CLUSTER
    for each in found:
        stack.callback(each.close)
    return found


def line(name: str, seen: Sequence[Seen], peer: float) -> dict[str, object]:
    ours = statistics.median(each.seconds for each in seen)
    return {
        "name": name,
        "ours": round(ours, 3),
        "peer": round(peer, 3),
        "peer_name": DUCKDB,
        "unit": "s",
        "ratio": round(ours / peer, 3),
    }


if __name__ == "__main__":
    main()
