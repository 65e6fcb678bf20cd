"""Predictions of what a refresh takes, and the sums that DELTA adds; without any server."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.tables.delta.workspace import FILE, Workspace
from kalla.tables.incremental.cost import Sample, Size, choose, predict
from kalla.tables.incremental.delta import delta_shape
from kalla.tables.incremental.delta_merge import merge
from kalla.tables.incremental.structure import NotIncremental, structure

FULL = Sample(strategy="FULL", seconds=10.0, changed_rows=1000)
SMALL = Size(changed_rows=10, source_rows=1_000_000, table_rows=1000)


def test_a_small_change_of_a_large_source_is_predicted_to_be_cheaper() -> None:
    choice = choose(["DELTA", "AFFECTED_KEYS"], SMALL, [FULL], 0.3)
    assert choice.strategy == "DELTA"
    assert choice.predicted_seconds == pytest.approx(1.5, rel=0.01)


def test_a_change_of_every_row_is_predicted_to_cost_more_than_full() -> None:
    large = Size(changed_rows=1_000_000, source_rows=1_000_000, table_rows=10_000_000)
    assert choose(["DELTA", "AFFECTED_KEYS"], large, [FULL], 0.3).strategy == "FULL"


def test_what_a_strategy_took_counts_more_than_what_was_expected_of_it() -> None:
    slow = Sample(strategy="DELTA", seconds=40.0, changed_rows=10)
    assert choose(["DELTA"], SMALL, [slow, FULL], 0.3).strategy == "FULL"
    # Once it is no longer among the newest refreshes, it is tried again.
    assert choose(["DELTA"], SMALL, [FULL], 0.3).strategy == "DELTA"


def test_more_rows_are_predicted_to_take_longer() -> None:
    sample = Sample(strategy="DELTA", seconds=1.0, changed_rows=10)
    more = Size(changed_rows=500_000, source_rows=1_000_000, table_rows=1000)
    small, large = predict("DELTA", SMALL, [sample]), predict("DELTA", more, [sample])
    assert small is not None
    assert large is not None
    assert small < large


def test_too_many_affected_keys_are_not_recomputed_one_by_one() -> None:
    many = Size(changed_rows=400, source_rows=1_000_000, table_rows=1000)
    choice = choose(["AFFECTED_KEYS"], many, [FULL], 0.3)
    assert choice.strategy == "FULL"
    assert "CARDINALITY_THRESHOLD = 0.3" in choice.reason
    # Clustered changes affect fewer keys than they have rows.
    few = Sample(strategy="AFFECTED_KEYS", seconds=1.0, changed_rows=400, affected_keys=4)
    assert choose(["AFFECTED_KEYS"], many, [few, FULL], 0.3).strategy == "AFFECTED_KEYS"


SHAPE = delta_shape(
    structure(
        "SELECT day, count(*) AS n, avg(amount) AS mean, min(id) AS least FROM orders GROUP BY day",
        {"orders": ["id", "day", "amount"]},
    )
)
DECIMAL = pa.decimal128(22, 2)


def stored(*rows: tuple[str | None, int, str, int, str]) -> pa.Table:
    days, counts, means, least, sums = zip(*rows, strict=True)
    return pa.table(
        {
            "day": pa.array(days, pa.string()),
            "n": pa.array(counts, pa.int64()),
            "mean": pa.array([Decimal(each) for each in means], pa.decimal128(16, 6)),
            "least": pa.array(least, pa.int64()),
            "__kalla_rows": pa.array(counts, pa.int64()),
            "__kalla_n2": pa.array(counts, pa.int64()),
            "__kalla_s2": pa.array([Decimal(each) for each in sums], DECIMAL),
        }
    )


def signed(day: str | None, rows: int, total: str, least: int | None, gone: int | None) -> pa.Table:
    return pa.table(
        {
            "day": pa.array([day], pa.string()),
            "__kalla_rows": pa.array([rows], pa.int64()),
            "n": pa.array([rows], pa.int64()),
            "__kalla_s2": pa.array([Decimal(total)], DECIMAL),
            "__kalla_n2": pa.array([rows], pa.int64()),
            "least": pa.array([least], pa.int64()),
            "__kalla_gone_least": pa.array([gone], pa.int64()),
        }
    )


@dataclass
class Found:
    """The rows that a merge found, in memory."""

    old: pa.Table
    new: pa.Table
    recompute: pa.Table


def merged(folder: Path, table: pa.Table, delta: pa.Table) -> Found:
    pq.write_table(table, folder / "table.parquet")
    with Workspace(folder / "work") as workspace:
        paths = [str(folder / "table.parquet")]
        rows = workspace.placed_files("table_rows", paths, table.column_names)
        found = merge(workspace, SHAPE, rows, workspace.arrow("delta_rows", delta), table.schema)
        return Found(
            *(
                workspace.read(f"SELECT * FROM {each.name}")
                for each in (found.old, found.new, found.recompute)
            )
        )


def test_signed_changes_are_added_and_an_average_is_rounded_once(tmp_path: Path) -> None:
    table = stored(("mon", 2, "0.500000", 5, "1.00"), (None, 1, "3.000000", 1, "3.00"))
    found = merged(tmp_path, table, signed(None, 2, "-1.00", 7, None))
    assert found.old.num_rows == 1
    (row,) = found.new.to_pylist()
    assert (row["day"], row["n"], row["least"]) == (None, 3, 1)
    assert row["mean"] == Decimal("0.666667")
    assert row[FILE] == str(tmp_path / "table.parquet")


def test_a_group_without_rows_is_gone(tmp_path: Path) -> None:
    table = stored(("mon", 2, "0.500000", 5, "1.00"))
    found = merged(tmp_path, table, signed("mon", -2, "-1.00", None, 5))
    assert (found.old.num_rows, found.new.num_rows, found.recompute.num_rows) == (1, 0, 0)


def test_a_group_whose_least_value_is_gone_is_recomputed(tmp_path: Path) -> None:
    table = stored(("mon", 2, "0.500000", 5, "1.00"))
    found = merged(tmp_path, table, signed("mon", -1, "-0.50", None, 5))
    assert found.new.num_rows == 0
    assert found.recompute.to_pylist() == [{"day": "mon"}]
    kept = merged(tmp_path, table, signed("mon", -1, "-0.50", None, 6))
    assert (kept.new.num_rows, kept.recompute.num_rows) == (1, 0)


def test_changes_that_do_not_fit_the_table_are_a_reason_for_full(tmp_path: Path) -> None:
    table = stored(("mon", 1, "0.500000", 5, "0.50"))
    with pytest.raises(NotIncremental, match="more rows than the table counted"):
        merged(tmp_path, table, signed("mon", -2, "-1.00", None, 5))
