"""A refresh on a real Spark: whatever its strategy, the table equals its query run fresh."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from kalla.spark.session import connect
from kalla.tables.delta.commit import Committed, Stale
from kalla.tables.refresh.payload import StrictRefused
from kalla.tables.refresh.run import refresh
from tests.runs_kit import spark_settings
from tests.servers import SparkServer
from tests.tables_shop import FEED, GROUPED, ORDERS, Shop

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[Any]:
    session = connect(spark_settings(spark_server))
    yield session
    session.stop()


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
    assert second.strategy == "AFFECTED_KEYS"
    assert second.reason.startswith("1 keys are affected")
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


SUMS = (
    "SELECT c.region AS region, count(*) AS n, sum(o.amount) AS total, avg(o.amount) AS mean,"
    " min(o.amount) AS least FROM orders o JOIN customers c ON o.customer = c.customer"
    " GROUP BY c.region"
)


def test_delta_adds_signed_changes_of_both_sides_of_a_join(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, SUMS)
    shop.set("customers", [("ann", "north"), ("bob", "south"), ("cy", None)])
    shop.set("orders", [(1, "ann", "1.00"), (2, "bob", "2.00"), (3, "cy", None)])
    assert shop.refresh(strategy="AUTO").strategy == "FULL"
    shop.set("orders", [(4, "ann", "5.01"), (5, "cy", "0.02")], mode="append")
    shop.set("customers", [("ann", "south")], mode="append")
    second = shop.refresh(strategy="DELTA")
    assert (second.strategy, second.affected_keys, second.rows) == ("DELTA", 3, 3)
    shop.require_equal()
    # The least amount of two groups is gone, and with it all rows of the last one.
    DeltaTable(tmp_path / "orders").delete("amount = 1.00 OR customer = 'cy'")
    third = shop.refresh(strategy="DELTA", strict=True)
    assert (third.strategy, third.rows) == ("DELTA", 2)
    shop.require_equal()


def test_a_version_without_changed_rows_is_no_data(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, GROUPED)
    shop.set("orders", [(1, "ann", "1.00")])
    shop.set("orders", [(2, "bob", "1.00")], mode="append")
    first = shop.refresh()
    DeltaTable(tmp_path / "orders").optimize.compact()
    version = DeltaTable(tmp_path / "result").version()
    second = shop.refresh()
    assert (second.strategy, second.rows) == ("NO_DATA", 0)
    assert DeltaTable(tmp_path / "result").version() == version
    assert second.committed.frontier.data_version == first.committed.frontier.data_version
    shop.set("orders", [(3, "cy", "1.00")], mode="append")
    assert shop.refresh().strategy == "AFFECTED_KEYS"
    shop.require_equal()


def test_what_is_not_known_of_the_old_version_leads_to_full(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, GROUPED)
    shop.set("orders", [(1, "ann", "1.00")])
    shop.refresh()
    shop.set("orders", [(2, "bob", "1.00")])
    DeltaTable(tmp_path / "orders").vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    vacuumed = shop.refresh()
    assert vacuumed.strategy == "FULL"
    assert "vacuumed" in vacuumed.reason
    shop.require_equal()
    shutil.rmtree(tmp_path / "orders")
    write_deltalake(tmp_path / "orders", ORDERS.empty_table(), configuration=FEED)
    replaced = shop.refresh()
    assert (replaced.strategy, replaced.reason) == ("FULL", "a source was replaced")
    shop.require_equal()


def test_strict_fails_instead_of_falling_to_full(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, "SELECT count(*) AS n FROM orders")
    shop.set("orders", [(1, "ann", "1.00")])
    shop.refresh(strict=True)
    shop.set("orders", [(2, "ann", "1.00")], mode="append")
    with pytest.raises(StrictRefused, match="an aggregate without GROUP BY has no key"):
        shop.refresh(strict=True)
    shop.query = "SELECT sum(id) AS n FROM orders"
    rebuilt = shop.refresh(strict=True, definition="e")
    assert (rebuilt.strategy, rebuilt.rows) == ("FULL", 1)


def test_a_table_that_is_at_its_tick_is_adopted(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, GROUPED)
    shop.set("orders", [(1, "ann", "1.00")])
    asked = shop.payload()
    refresh(spark, asked, 1, "first attempt")
    again = refresh(spark, asked, 2, "second attempt")
    assert isinstance(again, Committed)
    assert again.frontier.refresh == "first attempt"
    shop.set("orders", [(2, "bob", "1.00")], mode="append")
    with pytest.raises(Stale):
        refresh(spark, shop.payload(), 1, "late attempt")


def test_an_average_whose_sum_is_too_large_is_refreshed_without_it(
    spark: Any, tmp_path: Path
) -> None:
    query = "SELECT customer AS c, avg(id) AS mean FROM orders GROUP BY customer"
    shop = Shop(spark, tmp_path, query)
    shop.set("orders", [(4 * 10**18 + number, "ann", "1.00") for number in range(3)])
    first = shop.refresh(strategy="AUTO")
    assert first.strategy == "FULL"
    assert "without the counts for DELTA" in first.reason
    shop.require_equal()
    shop.set("orders", [(1, "bob", "1.00")], mode="append")
    assert shop.refresh(strategy="DELTA").strategy == "FULL"
    shop.require_equal()


EVERY_TYPE = (
    "SELECT id, customer, amount, id = 1 AS flag, CAST(id AS TINYINT) AS small,"
    " CAST(id AS DOUBLE) / 3 AS share, double('NaN') AS nan, DATE '2026-01-01' AS day,"
    " TIMESTAMP '2026-01-01 10:00:00' AS at, TIMESTAMP_NTZ '2026-01-01 10:00:00' AS local,"
    " CAST(customer AS BINARY) AS bytes, array(id, NULL) AS ids,"
    " named_struct('x', id, 'y', customer) AS pair, map('id', id) AS by_name FROM orders"
)


def test_values_of_every_type_survive_a_rewrite(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, EVERY_TYPE)
    kept = [(number, "dee", "4.00") for number in range(10, 20)]
    shop.set("orders", [(1, "ann", "1.00"), (2, "bob", "2.00"), (3, "cy", "3.00"), *kept])
    shop.refresh(strategy="AUTO")
    shop.set("orders", [(1, "ann", "1.00"), (2, "bob", "2.50"), (3, None, "3.00"), *kept])
    found = shop.refresh(strategy="AUTO")
    # Spark does not compare maps, so the whole row is no key.
    assert (found.strategy, found.deleted, found.inserted) == ("FULL", 2, 2)
    assert "Spark refuses its SQL" in found.reason
    shop.require_equal()
