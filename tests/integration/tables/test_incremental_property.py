"""Whatever the query and the changes: after every refresh the table equals its query run fresh.

KALLA_TEST_TABLES_CASES says how many random cases; `make tables-property` runs a thousand.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kalla.spark.session import connect
from kalla.tables.delta.commit import Committed
from kalla.tables.refresh.payload import Refreshed, RefreshPayload
from kalla.tables.refresh.run import refresh
from kalla.tables.sources.snapshots import Pin, frame, pin
from tests.query_grammar import Data, Grammar, Query
from tests.runs_kit import spark_settings
from tests.servers import SparkServer

pytestmark = pytest.mark.spark

CASES = int(os.environ.get("KALLA_TEST_TABLES_CASES", "6"))
FIRST = int(os.environ.get("KALLA_TEST_TABLES_FIRST", "28"))
BATCHES = 3
NAMES = ("orders", "customers", "first")


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[Any]:
    session = connect(spark_settings(spark_server))
    yield session
    session.stop()


class Table:
    def __init__(self, spark: Any, folder: Path, name: str, number: int, query: Query) -> None:
        self.spark = spark
        self.folder = folder
        self.name = name
        self.number = number
        self.query = query

    def refresh(self, tick: int, strategy: str) -> Refreshed:
        words = self.query.sql.replace("(", " ").replace(")", " ").split()
        inputs = {
            name: pin(name, str(self.folder / name), "delta").as_json()
            for name in NAMES
            if name in words and name != self.name
        }
        asked = RefreshPayload(
            name=self.name,
            table_id=self.number,
            tick=tick,
            location=str(self.folder / self.name),
            query=self.query.sql,
            definition="d",
            inputs=inputs,
            strategy=strategy,
            strict=False,
            deduplication=tick % 2 == 0,
            cardinality_threshold=1.0,
        )
        result = refresh(self.spark, asked, tick, f"r{tick}")
        assert not isinstance(result, Committed)
        self.require_equal(inputs)
        return result

    def require_equal(self, inputs: dict[str, Any]) -> None:
        """EXCEPT ALL both ways, at the versions that the refresh read."""
        for name, each in inputs.items():
            frame(self.spark, Pin.from_json(each)).createOrReplaceTempView(name)
        fresh = pa.table(self.spark.sql(self.query.sql).toArrow())
        stored = pa.table(DeltaTable(self.folder / self.name).to_pyarrow_table())
        assert stored.column_names == fresh.column_names
        left, right = (
            Counter(map(repr, each.select(fresh.column_names).to_pylist()))
            for each in (fresh, stored)
        )
        assert left - right == Counter(), f"missing in the table of {self.query.sql}"
        assert right - left == Counter(), f"too many in the table of {self.query.sql}"


@pytest.mark.timeout(60 + 60 * CASES)
def test_incremental_equals_full_after_every_change(spark: Any, tmp_path: Path) -> None:
    used: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + CASES):
        grammar = Grammar(seed)
        folder = tmp_path / str(seed)
        data = Data(folder, seed)
        first = grammar.query()
        tables = [Table(spark, folder, "first", 1, first)]
        if seed % 2:
            tables.append(Table(spark, folder, "second", 2, grammar.query(first)))
        for tick in range(1, BATCHES + 2):
            if tick > 1:
                data.change()
            for table in tables:
                strategy = ("DELTA", "AFFECTED_KEYS", "AUTO")[(seed + tick) % 3]
                try:
                    found = table.refresh(tick, strategy)
                except Exception as error:
                    error.add_note(f"seed {seed}, tick {tick}, {strategy}: {table.query.sql}")
                    raise
                used[found.strategy] += 1
    # Otherwise the cases above would prove nothing.
    assert {"DELTA", "AFFECTED_KEYS", "FULL"} <= used.keys(), used
