"""A refresh on a real Spark: whatever its strategy, the table equals its query run fresh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kalla.spark.session import connect
from kalla.tables.commit import Committed, Stale, difference
from kalla.tables.run import Refreshed, RefreshPayload, StrictRefused, recomputed, refresh
from kalla.tables.snapshots import Pin, pin
from tests.runs_kit import spark_settings
from tests.servers import SparkServer

pytestmark = pytest.mark.spark

ORDERS = pa.schema(
    [("id", pa.int64()), ("customer", pa.string()), ("amount", pa.decimal128(12, 2))]
)
CUSTOMERS = pa.schema([("customer", pa.string()), ("region", pa.string())])
FEED = {"delta.enableChangeDataFeed": "true"}

GROUPED = (
    "SELECT c.region AS region, count(*) AS n, sum(o.amount) AS total FROM orders o"
    " LEFT JOIN customers c ON o.customer = c.customer GROUP BY c.region"
)
QUERIES = {
    "grouped": GROUPED,
    "inner": "SELECT o.customer AS customer, max(o.amount) AS most FROM orders o"
    " JOIN customers c ON o.customer = c.customer WHERE o.id > 1 GROUP BY o.customer",
    "rows": "SELECT o.customer AS customer, c.region AS region FROM orders o"
    " LEFT JOIN customers c ON o.customer = c.customer",
    "distinct": "SELECT DISTINCT customer FROM orders",
    "pairs": "SELECT a.customer AS customer, count(*) AS n FROM orders a"
    " JOIN orders b ON a.id = b.id GROUP BY a.customer",
    "two_outer": "SELECT c.region AS region, count(d.region) AS n FROM orders o"
    " LEFT JOIN customers c ON o.customer = c.customer"
    " LEFT JOIN customers d ON c.region = d.region GROUP BY c.region",
}


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[Any]:
    session = connect(spark_settings(spark_server))
    yield session
    session.stop()


class Shop:
    """Two Delta sources and the refreshes of one table over them."""

    def __init__(self, spark: Any, folder: Path, query: str, feed: bool = True) -> None:
        self.spark = spark
        self.folder = folder
        self.query = query
        self.ticks = 0
        configuration = FEED if feed else {}
        for name, schema in (("orders", ORDERS), ("customers", CUSTOMERS)):
            write_deltalake(folder / name, schema.empty_table(), configuration=configuration)

    def set(self, name: str, rows: list[tuple[Any, ...]], mode: Any = "overwrite") -> None:
        schema = ORDERS if name == "orders" else CUSTOMERS
        columns = list(zip(*rows, strict=True)) if rows else [() for _ in schema]
        arrays = [
            pa.array(list(column), pa.string()).cast(field.type)
            if pa.types.is_decimal(field.type)
            else pa.array(list(column), field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        write_deltalake(self.folder / name, pa.table(arrays, schema=schema), mode=mode)

    def payload(self, **changed: Any) -> RefreshPayload:
        self.ticks += 1
        names = [name for name in ("orders", "customers") if f" {name}" in self.query]
        fields: dict[str, Any] = {
            "name": "result",
            "table_id": 1,
            "tick": self.ticks,
            "location": str(self.folder / "result"),
            "query": self.query,
            "definition": "d",
            "inputs": {
                name: pin(name, str(self.folder / name), "delta").as_json() for name in names
            },
            "strategy": "AFFECTED_KEYS",
            "strict": False,
            "deduplication": True,
            "cardinality_threshold": 1.0,
        }
        return RefreshPayload(**{**fields, **changed})

    def refresh(self, **changed: Any) -> Refreshed:
        asked = self.payload(**changed)
        result = refresh(self.spark, asked, self.ticks, f"r{self.ticks}")
        assert isinstance(result, Refreshed)
        return result

    def require_equal(self) -> None:
        """The table equals its query, run fresh at the newest versions."""
        rows = pa.table(DeltaTable(self.folder / "result").to_pyarrow_table())
        inputs = {name: Pin.from_json(each) for name, each in self.payload().inputs.items()}
        fresh = recomputed(self.spark, self.query, inputs).cast(rows.schema)
        assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, fresh.to_pylist()))


@pytest.mark.parametrize("feed", [True, False])
def test_only_affected_keys_are_recomputed(spark: Any, tmp_path: Path, feed: bool) -> None:
    shop = Shop(spark, tmp_path, GROUPED, feed)
    shop.set("customers", [("ann", "north"), ("bob", "south")])
    shop.set("orders", [(1, "ann", "1.00"), (2, "bob", "2.00"), (3, None, "3.00")])
    first = shop.refresh()
    assert (first.strategy, first.reason) == ("FULL", "the first refresh")
    shop.require_equal()
    shop.set("orders", [(4, "ann", "5.00")], mode="append")
    second = shop.refresh()
    assert (second.strategy, second.reason) == ("AFFECTED_KEYS", "1 keys are affected")
    assert (second.deleted, second.inserted, second.rows) == (1, 1, 3)
    shop.require_equal()
    shop.set("customers", [("ann", "north")])  # bob's region is NULL now
    third = shop.refresh()
    assert third.strategy == "AFFECTED_KEYS"
    assert third.rows == 2
    shop.require_equal()


def test_rows_that_did_not_change_are_not_written(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, GROUPED)
    shop.set("customers", [("ann", "north")])
    shop.set("orders", [(1, "ann", "1.00"), (2, "zoe", "2.00"), (3, "ann", "3.00")])
    shop.refresh()
    shop.set("orders", [(1, "ann", "3.00"), (2, "zoe", "2.00"), (3, "ann", "1.00")])
    again = shop.refresh(strategy="FULL")
    assert (again.strategy, again.deleted, again.inserted) == ("FULL", 0, 0)
    assert again.committed.frontier.data_version == 0
    assert again.committed.frontier.tick == 2
    assert again.committed.version > 0


def test_strict_fails_instead_of_falling_to_full(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "SELECT count(*) AS n FROM orders")
    shop.set("orders", [(1, "ann", "1.00")])
    shop.refresh(strict=True)
    shop.set("orders", [(2, "ann", "1.00")], mode="append")
    with pytest.raises(StrictRefused, match="an aggregate without GROUP BY has no key"):
        shop.refresh(strict=True)


def test_a_table_that_is_at_its_tick_is_adopted(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, GROUPED)
    shop.set("orders", [(1, "ann", "1.00")])
    asked = shop.payload()
    refresh(spark, asked, 1, "first attempt")
    again = refresh(spark, asked, 2, "second attempt")
    assert isinstance(again, Committed)
    assert again.frontier.refresh == "first attempt"
    with pytest.raises(Stale):
        refresh(spark, shop.payload(), 1, "late attempt")


ORDER_ROWS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["ann", "bob", None]),
        st.sampled_from(["1.00", "2.50", None]),
    ),
    max_size=5,
)
CUSTOMER_ROWS = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", None]), st.sampled_from(["north", "south", None])),
    max_size=3,
)


@pytest.mark.parametrize("name", sorted(QUERIES))
@pytest.mark.timeout(170)
def test_incremental_equals_full_after_every_change(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    @settings(
        max_examples=2,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(
        feed=st.booleans(),
        batches=st.lists(st.tuples(ORDER_ROWS, CUSTOMER_ROWS), min_size=3, max_size=3),
    )
    def holds(feed: bool, batches: list[tuple[Any, Any]]) -> None:
        shop = Shop(spark, tmp_path_factory.mktemp("shop"), QUERIES[name], feed)
        for orders, customers in batches:
            shop.set("orders", orders)
            shop.set("customers", customers)
            shop.refresh()
            shop.require_equal()

    holds()


def test_the_difference_counts_copies_and_takes_nulls_as_equal() -> None:
    old = pa.table({"a": pa.array([1, 1, None, 2]), "b": pa.array(["x", "x", None, "y"])})
    new = pa.table({"a": pa.array([1, None, 3]), "b": pa.array(["x", None, "z"])})
    change = difference(old, new)
    assert sorted(map(str, change.deletes.to_pylist())) == sorted(
        map(str, [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    )
    assert sorted(map(str, change.inserts.to_pylist())) == sorted(
        map(str, [{"a": 1, "b": "x"}, {"a": 3, "b": "z"}])
    )
    assert change.deleted == 3
