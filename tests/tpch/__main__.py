"""Runs the 22 queries of TPC-H as dynamic tables over batches of changes, each against a fresh run.

Orders and their lines are held back and come in as inserts; the oldest ones are deleted. Prints one
line a query: the strategies that AUTO took, and the reason of the last one. Ends with an error as
soon as a table differs from its query.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pydantic import SecretStr

from kalla.local import ports
from kalla.local.servers.spark import Spark
from kalla.settings import Spark as SparkSettings
from kalla.spark.sandbox import hold
from kalla.spark.session import connect
from kalla.tables.incremental.cost import Sample
from kalla.tables.refresh.payload import Refreshed, RefreshPayload
from kalla.tables.refresh.run import refresh
from kalla.tables.sources.snapshots import Pin, columns, pin
from tests.tables_kit import recomputed
from tests.tpch.queries import QUERIES, TABLES

FEED = {"delta.enableChangeDataFeed": "true"}
_HELD_BACK = 0.1  # of the orders


class Workload:
    def __init__(self, spark: Any, folder: Path, scale: float, batches: int) -> None:
        self.spark = spark
        self.folder = folder
        self.batches = batches
        made = folder / "made"
        generate = str(Path(sys.executable).with_name("tpchgen-cli"))
        subprocess.run(
            [generate, "parquet", "-s", str(scale), f"--output-dir={made}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self._rows = {name: _plain(pq.read_table(_file(made, name))) for name in TABLES}
        keys = self._rows["orders"].column("o_orderkey").sort().to_pylist()
        self._keys = keys
        self._kept = keys[int(len(keys) * (1 - _HELD_BACK))]
        for name in TABLES:
            rows = self._between(name, -1, self._kept) if _key(name) else self._rows[name]
            write_deltalake(folder / name, rows, configuration=FEED)

    def change(self, batch: int) -> None:
        """The next orders come, the oldest ones go."""
        size = max(1, int(len(self._keys) * _HELD_BACK) // self.batches)
        first = self._keys.index(self._kept) + 1 + (batch - 1) * size
        low, high = self._keys[first - 1], self._keys[min(first + size - 1, len(self._keys) - 1)]
        gone = self._keys[batch * size]
        for name in ("orders", "lineitem"):
            write_deltalake(self.folder / name, self._between(name, low, high), mode="append")
            DeltaTable(self.folder / name).delete(f"{_key(name)} <= {gone}")

    def _between(self, name: str, low: int, high: int) -> pa.Table:
        column = self._rows[name].column(_key(name))
        return self._rows[name].filter(
            pc.and_(pc.greater(column, low), pc.less_equal(column, high))
        )


class Query:
    """One query as a dynamic table."""

    def __init__(self, workload: Workload, name: str, number: int) -> None:
        self.workload = workload
        self.name = name
        self.number = number
        self.reads = sorted(
            each for each in TABLES if re.search(rf"\b{each}\b", QUERIES[name].lower())
        )
        known = {
            each: columns(pin(each, str(workload.folder / each), "delta")) for each in self.reads
        }
        self.query = hold(QUERIES[name], known, name, {})
        self.used: Counter[str] = Counter()
        self.reason = ""
        self.rows: int | None = None
        self.samples: list[Sample] = []

    def refresh(self, tick: int) -> None:
        pins = {each: pin(each, str(self.workload.folder / each), "delta") for each in self.reads}
        asked = RefreshPayload(
            name=self.name, table_id=self.number, tick=tick,
            location=str(self.workload.folder / self.name), query=self.query, definition="d",
            inputs={name: each.as_json() for name, each in pins.items()}, strategy="AUTO",
            strict=False, deduplication=True, cardinality_threshold=0.3, rows=self.rows,
            samples=tuple(self.samples[:10]),
        )  # fmt: skip
        found = refresh(self.workload.spark, asked, tick, f"r{tick}")
        if not isinstance(found, Refreshed):
            raise SystemExit(f"{self.name} was adopted: {found}")
        self.rows = found.rows
        if tick > 1:
            self.used[found.strategy] += 1
            self.reason = found.reason
            self.samples.insert(
                0,
                Sample(
                    strategy=found.strategy,
                    seconds=found.seconds,
                    changed_rows=found.changed_rows,
                    affected_keys=found.affected_keys,
                ),
            )
        self._require_equal(tick, pins)

    def _require_equal(self, tick: int, pins: dict[str, Pin]) -> None:
        fresh = recomputed(self.workload.spark, self.query, pins)
        table = pa.table(DeltaTable(self.workload.folder / self.name).to_pyarrow_table())
        stored = table
        left, right = (Counter(map(repr, each.to_pylist())) for each in (fresh, stored))
        if left != right:
            missing, extra = sum((left - right).values()), sum((right - left).values())
            raise SystemExit(
                f"{self.name} differs at tick {tick}: {missing} missing, {extra} extra"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--queries", default=",".join(QUERIES))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kalla-tpch-") as place:
        server = Spark(Path(place) / "spark", ports.choose_free())
        server.start()
        spark = connect(SparkSettings(remote=server.remote, token=SecretStr(server.token)))
        try:
            run(Workload(spark, Path(place) / "data", chosen.scale, chosen.batches), chosen.queries)
        finally:
            spark.stop()
            server.stop()


def run(workload: Workload, names: str) -> None:
    tables = [Query(workload, name, n) for n, name in enumerate(names.split(","), 1)]
    for tick in range(1, workload.batches + 2):
        if tick > 1:
            workload.change(tick - 1)
        for table in tables:
            table.refresh(tick)
    for table in tables:
        used = ", ".join(f"{name} {count}" for name, count in table.used.most_common())
        print(f"| {table.name} | {used} | {table.reason} |")


def _key(name: str) -> str:
    return {"orders": "o_orderkey", "lineitem": "l_orderkey"}.get(name, "")


def _file(folder: Path, name: str) -> Path:
    return next(iter(sorted(folder.rglob(f"{name}*.parquet"))))


def _plain(rows: pa.Table) -> pa.Table:
    """Without views of texts, which Delta does not store."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return rows.cast(
        pa.schema([each.with_type(plain.get(each.type, each.type)) for each in rows.schema])
    )


if __name__ == "__main__":
    main()
