"""Seconds of a refresh by each strategy, against a full recompute in Spark SQL and in DuckDB.

A fact table joined with a dimension and grouped by its key. A share of the fact's rows changes,
spread over all groups (uniform) or in neighbouring ones (clustered). Every strategy starts from the
same rows; AUTO knows of its own refreshes alone. The last line is the headline: 1 % uniform, the
strategy that AUTO takes against FULL.

With --folder the sources are kept, and a later run continues from them: the cases of one size can
be measured one by one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pydantic import SecretStr

from kalla import logs
from kalla.local import ports
from kalla.local.servers.spark import Spark
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from kalla.tables.delta.commit import Committed
from kalla.tables.incremental.cost import Sample
from kalla.tables.refresh.payload import Refreshed, RefreshPayload
from kalla.tables.refresh.run import refresh
from kalla.tables.sources.snapshots import pin

QUERY = (
    "SELECT d.item, d.category, count(*) AS lines, sum(f.amount) AS total,"
    " sum(f.quantity) AS quantity FROM fact f JOIN dimension d ON f.item = d.item"
    " GROUP BY d.item, d.category"
)
FEED = {"delta.enableChangeDataFeed": "true"}
SHARES = (0.0001, 0.001, 0.01, 0.1, 1.0)
Strategy = Literal["AUTO", "DELTA", "AFFECTED_KEYS", "FULL"]
STRATEGIES: tuple[Strategy, ...] = ("DELTA", "AFFECTED_KEYS", "FULL", "AUTO")
BASE, FULL_BASE = "base", "full_base"


@dataclass
class Warehouse:
    """The two sources, the table as it stood before the newest change, and AUTO's refreshes."""

    spark: Any
    folder: Path
    rows: int
    groups: int
    ticks: int = 0
    history: list[Sample] = field(default_factory=list)

    def make(self) -> None:
        numbers = np.random.default_rng(1)
        items = np.sort(numbers.integers(0, self.groups, self.rows))
        amounts = pa.array(numbers.integers(1, 100_000, self.rows)).cast(pa.decimal128(19, 0))
        fact = pa.table(
            {
                "id": pa.array(np.arange(self.rows)),
                "item": pa.array(items),
                "amount": amounts.cast(pa.decimal128(21, 2)),
                "quantity": pa.array(numbers.integers(1, 9, self.rows)),
            }
        )
        write_deltalake(self.folder / "fact", fact, configuration=FEED)
        names = pa.array([f"category {n % 50}" for n in range(self.groups)])
        dimension = pa.table({"item": pa.array(np.arange(self.groups)), "category": names})
        write_deltalake(self.folder / "dimension", dimension, configuration=FEED)

    def refresh_bases(self) -> None:
        """The table from which the strategies start; FULL needs no counts beside the rows."""
        for each in (BASE, FULL_BASE):
            shutil.rmtree(self.folder / each, ignore_errors=True)
        self.refresh("AUTO", BASE)
        self.refresh("FULL", FULL_BASE)

    def change(self, share: float, layout: str) -> int:
        """Raise the quantity of a share of the rows."""
        if layout == "uniform":
            step = round(1 / share)
            met = f"id % {step} = {self.ticks % step}"
        else:
            met = f"item < {max(1, round(share * self.groups))}"
        found = DeltaTable(self.folder / "fact").update(
            updates={"quantity": "quantity + 1"}, predicate=met
        )
        return int(found["num_updated_rows"])

    def refresh(self, strategy: Strategy, name: str) -> Refreshed:
        self.ticks = max(self.ticks + 1, int(time.time()))  # above those of an earlier run
        inputs = {
            each: pin(each, str(self.folder / each), "delta").as_json()
            for each in ("fact", "dimension")
        }
        asked = RefreshPayload(
            name=name, table_id=1, tick=self.ticks, location=str(self.folder / name), query=QUERY,
            definition="d", inputs=inputs, strategy=strategy, strict=False, deduplication=True,
            cardinality_threshold=0.3 if strategy == "AUTO" else 1.0, rows=self.groups,
            samples=self.samples() if strategy == "AUTO" else (),
        )  # fmt: skip
        found = refresh(self.spark, asked, self.ticks, f"r{self.ticks}")
        if isinstance(found, Committed):
            raise SystemExit(f"{name} was adopted: {found}")
        if strategy == "AUTO":
            sample = Sample(
                strategy=found.strategy,
                seconds=found.seconds,
                changed_rows=found.changed_rows,
                affected_keys=found.affected_keys,
            )
            self.history.insert(0, sample)
        return found

    def samples(self) -> tuple[Sample, ...]:
        """As many as a refresh gets of its table's history: the newest, and the last FULL ones."""
        newest, older = self.history[:10], self.history[10:]
        return (*newest, *[each for each in older if each.strategy == "FULL"][:3])

    def by_spark(self) -> float:
        began = time.monotonic()
        for each in ("fact", "dimension"):
            files = DeltaTable(self.folder / each).file_uris()
            self.spark.read.parquet(*files).createOrReplaceTempView(each)
        self.spark.sql(QUERY).write.mode("overwrite").parquet(str(self.folder / "by_spark"))
        return time.monotonic() - began

    def by_duckdb(self) -> float:
        began = time.monotonic()
        with duckdb.connect() as connection:
            connection.execute("SET threads = 2")
            for each in ("fact", "dimension"):
                files = [
                    uri.removeprefix("file://")
                    for uri in DeltaTable(self.folder / each).file_uris()
                ]
                connection.execute(f"CREATE VIEW {each} AS SELECT * FROM read_parquet({files})")
            target = self.folder / "by_duckdb.parquet"
            connection.execute(f"COPY ({QUERY}) TO '{target}' (FORMAT parquet)")
        return time.monotonic() - began

    def rows_of(self, name: str) -> pa.Table:
        return pa.table(DeltaTable(self.folder / name).to_pyarrow_table())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument("--layouts", default="uniform,clustered")
    parser.add_argument("--folder", type=Path, help="keep the sources here, or use those there")
    chosen = parser.parse_args()
    logs.configure("warning", "text")
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as place:
        server = Spark(Path(place) / "spark", ports.choose_free(), memory="4g")
        server.start()
        spark = connect(SparkSettings(remote=server.remote, token=SecretStr(server.token)))
        try:
            folder = chosen.folder or Path(place) / "data"
            warehouse = Warehouse(spark, folder, chosen.rows, chosen.groups)
            if not (folder / "dimension").exists():
                warehouse.make()
            warehouse.by_spark()  # warm
            warehouse.refresh_bases()
            measure(
                warehouse,
                [float(each) for each in chosen.shares.split(",")],
                chosen.layouts.split(","),
                chosen.repeat,
            )
        finally:
            spark.stop()
            server.stop()


def measure(warehouse: Warehouse, shares: list[float], layouts: list[str], repeat: int) -> None:
    headline = None
    for layout in layouts:
        for share in shares:
            seconds: dict[str, list[float]] = {}
            taken = ""
            changed = 0
            for _ in range(repeat):
                changed = warehouse.change(share, layout)
                for strategy in STRATEGIES:
                    found = _one(warehouse, strategy)
                    seconds.setdefault(strategy, []).append(found.seconds)
                    if strategy == "AUTO":
                        taken = found.strategy
                seconds.setdefault("spark", []).append(warehouse.by_spark())
                seconds.setdefault("duckdb", []).append(warehouse.by_duckdb())
                _require_equal(warehouse)
                for name, base in (("auto", BASE), ("full", FULL_BASE)):
                    shutil.rmtree(warehouse.folder / base)
                    (warehouse.folder / name).rename(warehouse.folder / base)
            middle = {name: statistics.median(each) for name, each in seconds.items()}
            for strategy in STRATEGIES:
                line = _line(f"{strategy.lower()}_{share:g}_{layout}", middle[strategy], middle)
                line |= {
                    "changed_rows": changed,
                    "taken": taken if strategy == "AUTO" else strategy,
                }
                print(json.dumps(line), flush=True)
                if (strategy, share, layout) == ("AUTO", 0.01, "uniform"):
                    headline = line | {"name": "tables_refresh_1_percent"}
    if headline is not None:
        print(json.dumps(headline))


def _one(warehouse: Warehouse, strategy: Strategy) -> Refreshed:
    """From the same state as the other strategies."""
    target = warehouse.folder / strategy.lower()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(warehouse.folder / (FULL_BASE if strategy == "FULL" else BASE), target)
    return warehouse.refresh(strategy, strategy.lower())


def _require_equal(warehouse: Warehouse) -> None:
    full = warehouse.rows_of("full")
    for strategy in STRATEGIES:
        rows = warehouse.rows_of(strategy.lower())
        with duckdb.connect() as connection:
            connection.register("a", full)
            connection.register("b", rows)
            for one, other in (("a", "b"), ("b", "a")):
                query = f"SELECT count(*) FROM (FROM {one} EXCEPT ALL FROM {other})"
                if connection.execute(query).fetchall() != [(0,)]:
                    raise SystemExit(f"{strategy} and FULL differ")


def _line(name: str, ours: float, middle: dict[str, float]) -> dict[str, object]:
    return {
        "name": name,
        "ours": round(ours, 3),
        "peer": round(middle["FULL"], 3),
        "peer_name": "FULL",
        "unit": "s",
        "ratio": round(ours / middle["FULL"], 3),
        "spark_sql": round(middle["spark"], 3),
        "duckdb": round(middle["duckdb"], 3),
    }


if __name__ == "__main__":
    main()
