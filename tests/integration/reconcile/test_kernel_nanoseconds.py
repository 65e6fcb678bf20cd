"""Points in time that are finer than microseconds: never equal to others, but counted and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.reconcile import kernel
from kalla.reconcile.kernel import Facts
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import SIDES, Recipe
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import source_planning

SECOND = 1_700_000_000_000_000_000  # 2023-11-14T22:13:20Z
NAIVE, ZONED = pa.timestamp("ns"), pa.timestamp("ns", "UTC")


def match(folder: Path, left: list[Any], right: list[Any], **how: Any) -> Facts:
    """Rows that agree where their points in time do; of whole numbers a Parquet, of text a CSV."""
    zone, type_ = how.get("time_zone", "UTC"), how.get("type", NAIVE)
    sources = {}
    for side, times in zip(SIDES, (left, right), strict=True):
        sources[side] = {"uri": f"{folder / side}.csv", "primary_key": ["id"]}
        if isinstance(times[0], int):
            table = pa.table({"id": range(len(times)), "at": pa.array(times, type_)})
            sources[side]["uri"] = f"{folder / side}.parquet"
            pq.write_table(table, str(sources[side]["uri"]))
        else:
            lines = "".join(f"{number},{time}\n" for number, time in enumerate(times))
            (folder / f"{side}.csv").write_text(f"id,at\n{lines}")
            sources[side]["csv"] = how.get("csv", {})
    rule = {"name": "r", "conditions": [{"left": "at", "op": "eq", "right": "at"}]}
    recipe = Recipe.model_validate(
        {"name": "t", "sources": sources, "rules": [rule], "time_zone": zone}
    )
    made = plan.make(
        recipe, {side: source_planning.inspect_files(recipe.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, folder / "temp")
    return kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")


def matched(facts: Facts) -> int:
    return facts.sides["left"].states["matched"].rows


def unreadable(facts: Facts) -> list[tuple[str, str, int]]:
    return [(each[0], each[1], each[2]) for each in facts.sides["left"].loaded.unreadable]


@pytest.mark.parametrize("type_", [NAIVE, ZONED], ids=["naive", "zoned"])
@pytest.mark.parametrize("time_zone", ["UTC", "Europe/Paris"])
def test_columns_of_nanoseconds(tmp_path: Path, type_: pa.DataType, time_zone: str) -> None:
    left, right = [SECOND, SECOND + 1, SECOND + 5000], [SECOND, SECOND + 2, SECOND + 5000]
    facts = match(tmp_path, left, right, type=type_, time_zone=time_zone)
    assert matched(facts) == 2
    assert unreadable(facts) == [("at", "timestamp", 1)]


@pytest.mark.parametrize("time_zone", ["UTC", "Europe/Paris"])
def test_texts_that_tell_nanoseconds(tmp_path: Path, time_zone: str) -> None:
    texts = [
        "2023-11-14T22:13:20Z", "2023-11-14T22:13:21.123456000Z", "2023-11-14T22:13:22.123456001Z",
        "2023-11-14 22:13:23.1234560", "2023-11-14 22:13:24.1234567",
    ]  # fmt: skip
    times = [SECOND, SECOND + 1_123_456_000, SECOND + 2_123_456_000]
    facts = match(tmp_path, texts, times, type=ZONED, time_zone=time_zone)
    assert matched(facts) == 2
    assert unreadable(facts) == [("at", "timestamp", 2)]


@pytest.mark.parametrize("zone", ["", "%z"])
def test_texts_whose_format_tells_nanoseconds(tmp_path: Path, zone: str) -> None:
    offset = "+0000" if zone else ""
    texts = [f"2023-11-14 22:13:20.{part}{offset}" for part in ("123456000", "123456001")]
    times = [SECOND + 123_456_000, SECOND + 123_456_001]
    csv = {"date_format": f"%Y-%m-%d %H:%M:%S.%n{zone}"}
    facts = match(tmp_path, texts, times, csv=csv)
    assert matched(facts) == 1
    assert unreadable(facts) == [("at", "timestamp", 1)]
