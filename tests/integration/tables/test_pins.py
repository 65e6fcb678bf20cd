"""The newest version of a source, which a process looks up again only once it may be another."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from kalla.errors import Conflict
from kalla.tables.schedule.pins import PinCache, pin_source
from kalla.tables.sources.snapshots import Gap, Pin, changed_rows, columns, pin
from kalla.tables.store import Source


def source(folder: Path) -> Source:
    now = datetime.now(UTC)
    return Source("rows", str(folder / "rows"), "delta", [], None, None, None, None, None, now, "")


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def test_a_known_pin_is_the_newest_one_whatever_became_of_the_table(tmp_path: Path) -> None:
    cache, given = PinCache(), source(tmp_path)

    def newest() -> Pin:
        found = cache.of("", [given])[0]["rows"]
        assert found == pin_source("", given)
        return found

    write_deltalake(tmp_path / "rows", rows(1))
    first = newest()
    assert newest() is first
    write_deltalake(tmp_path / "rows", rows(2), mode="append")
    assert newest().version == 1
    DeltaTable(tmp_path / "rows").delete()
    assert newest().version == 2
    # Made anew with as many versions.
    shutil.rmtree(tmp_path / "rows")
    for value in range(3):
        write_deltalake(tmp_path / "rows", rows(value), mode="append")
    again = newest()
    assert again.version == 2
    assert again.table_id != first.table_id
    shutil.rmtree(tmp_path / "rows")
    pins, problems = cache.of("", [given])
    assert not pins
    assert "is not there" in problems["rows"]


def test_an_old_version_that_the_log_lost_is_a_gap(tmp_path: Path) -> None:
    given = source(tmp_path)
    write_deltalake(tmp_path / "rows", rows(1))
    old = pin_source("", given)
    write_deltalake(tmp_path / "rows", rows(2), mode="append")
    DeltaTable(tmp_path / "rows").create_checkpoint()
    (tmp_path / "rows" / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(Gap, match="no longer has its old version"):
        changed_rows(old, pin_source("", given))
    with pytest.raises(Conflict, match="does not exist any more"):  # as of a query
        columns(old)


def test_a_folder_that_spark_named_like_a_file_is_read_by_its_files(tmp_path: Path) -> None:
    part = tmp_path / "day.parquet" / "part-0.parquet"
    part.parent.mkdir()
    pq.write_table(rows(1), part)
    assert [path for path, _, _ in pin("rows", str(tmp_path), "parquet").files] == [str(part)]
