"""The fenced commit: a claim that was paused at any step changes nothing once another took over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake

from kalla.tables.delta import housekeeping
from kalla.tables.delta.commit import (
    Committed,
    FencedTable,
    Frontier,
    Stale,
    committed_frontier,
)
from kalla.tables.delta.data_files import DataFile, written
from kalla.tables.delta.housekeeping import tidy, tidy_if_due
from kalla.tables.delta.log_commit import NO_CHANGE, FileChange
from kalla.tables.delta.row_changes import difference, rewritten
from kalla.tables.delta.workspace import Workspace

FIRST = Frontier(table_id=1, definition="d", tick=1, refresh="1.1", data_version=0, inputs={})
Act = Callable[[FencedTable, Frontier], object]


def rows(*values: int | None) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def changed(fenced: FencedTable, new: pa.Table) -> FileChange:
    """What makes these the rows of the table, as files."""
    table = fenced.files()
    assert table is not None
    assert table.schema is not None
    with Workspace(fenced.folder) as workspace:
        old = workspace.placed_files("old_values", table.paths, table.schema.names)
        change = difference(workspace, old, workspace.arrow("new_values", new))
        return rewritten(workspace, table, change)


def by_change(fenced: FencedTable, frontier: Frontier) -> object:
    return fenced.commit(changed(fenced, rows(1, 9)), frontier)


def by_overwrite(fenced: FencedTable, frontier: Frontier) -> object:
    return overwritten(fenced, rows(9), frontier)


def overwritten(fenced: FencedTable, new: pa.Table, frontier: Frontier) -> object:
    files = written(fenced.folder / "rows", new.schema, new.to_batches(), even_empty=True)
    schema = Schema.from_arrow(new.select(["a"]).schema).to_json()
    return fenced.overwrite([each.path for each in files], schema, frontier)


def without_rows(fenced: FencedTable, frontier: Frontier) -> object:
    return fenced.commit(NO_CHANGE, frontier)


ACTS = pytest.mark.parametrize("act", [by_change, by_overwrite, without_rows])


def claim(folder: Path, number: int, tick: int) -> tuple[FencedTable, Frontier]:
    fenced = FencedTable(str(folder / "t"), number)
    fenced.raise_barrier()
    return fenced, replace(FIRST, tick=tick, refresh=f"{number}.1")


def stored(folder: Path) -> list[int | None]:
    column = DeltaTable(folder / "t").to_pyarrow_table().column("a").to_pylist()
    return sorted(column, key=lambda value: (value is None, value or 0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a table of rows 1 and 2, committed by claim 1."""
    fenced, frontier = claim(tmp_path, 1, 1)
    assert not fenced.existed
    overwritten(fenced, rows(1, 2), frontier)
    return tmp_path


@ACTS
def test_a_claim_paused_before_its_barrier_is_refused(folder: Path, act: Act) -> None:
    act(*claim(folder, 3, 3))
    after = stored(folder)
    with pytest.raises(Stale, match="held by claim 3"):
        claim(folder, 2, 2)
    assert stored(folder) == after


@ACTS
def test_a_claim_paused_after_its_barrier_commits_nothing(folder: Path, act: Act) -> None:
    paused = claim(folder, 2, 2)
    claim(folder, 3, 3)
    version = DeltaTable(folder / "t").version()
    with pytest.raises(Stale, match="held by claim 3"):
        act(*paused)
    assert (DeltaTable(folder / "t").version(), stored(folder)) == (version, [1, 2])


@ACTS
def test_a_claim_paused_after_the_other_committed_commits_nothing(folder: Path, act: Act) -> None:
    paused = claim(folder, 2, 2)
    by_change(*claim(folder, 3, 3))
    with pytest.raises(Stale):
        act(*paused)
    assert stored(folder) == [1, 9]
    found = committed_frontier(str(folder / "t"))
    assert found is not None
    assert found.frontier.refresh == "3.1"


@ACTS
@pytest.mark.parametrize("other_commits", [False, True])
def test_a_claim_paused_between_check_and_commit_commits_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, act: Act, other_commits: bool
) -> None:
    paused, frontier = claim(folder, 2, 2)
    checked = FencedTable._checked

    def stopped_here(fenced: FencedTable) -> int:
        version = checked(fenced)
        monkeypatch.setattr(FencedTable, "_checked", checked)
        other = claim(folder, 3, 3)
        if other_commits:
            by_overwrite(*other)
        return version

    monkeypatch.setattr(FencedTable, "_checked", stopped_here)
    with pytest.raises(Stale, match="came first"):
        act(paused, frontier)
    assert stored(folder) == ([9] if other_commits else [1, 2])
    assert DeltaTable(folder / "t").transaction_version("kalla-refresh") == 6 + other_commits


@ACTS
def test_a_commit_that_another_followed_before_it_was_verified_is_not_claimed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    paused, frontier = claim(folder, 2, 2)
    verified = FencedTable._verified

    def stopped_here(fenced: FencedTable, own: Frontier) -> object:
        monkeypatch.setattr(FencedTable, "_verified", verified)
        adopting = FencedTable(str(folder / "t"), 3)
        found = adopting.raise_barrier()
        # The later claim finds the commit and adopts it.
        assert found is not None
        assert (found.refresh, found.tick) == ("2.1", 2)
        return verified(fenced, own)

    monkeypatch.setattr(FencedTable, "_verified", stopped_here)
    with pytest.raises(Stale, match="after this one"):
        act(paused, frontier)


def test_of_two_claims_that_make_the_table_one_succeeds(tmp_path: Path) -> None:
    late, early = claim(tmp_path, 1, 1), claim(tmp_path, 2, 2)
    by_overwrite(*early)
    with pytest.raises(Stale):
        by_overwrite(*late)
    assert stored(tmp_path) == [9]


def test_a_foreign_commit_between_check_and_commit_is_no_lost_update(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced, frontier = claim(folder, 2, 2)
    checked = FencedTable._checked

    def stopped_here(one: FencedTable) -> int:
        version = checked(one)
        write_deltalake(folder / "t", rows(5), mode="append")
        return version

    monkeypatch.setattr(FencedTable, "_checked", stopped_here)
    with pytest.raises(Stale, match="came first"):
        by_change(fenced, frontier)
    assert stored(folder) == [1, 2, 5]


def test_a_barrier_repeats_the_frontier_however_many_claims_were_lost(folder: Path) -> None:
    for number in range(2, 12):
        fenced = FencedTable(str(folder / "t"), number)
        found = fenced.raise_barrier()
        assert found is not None
        assert found.refresh == "1.1"
    by_change(fenced, replace(FIRST, tick=9, refresh="11.1"))
    found = FencedTable(str(folder / "t"), 12).raise_barrier()
    assert found is not None
    assert (found.refresh, found.tick) == ("11.1", 9)
    assert found.data_version == 11


def test_rows_are_compared_by_value_and_their_copies_counted(tmp_path: Path) -> None:
    for number, (old, new) in enumerate(
        [
            (rows(1, 1, None, 2), rows(1, None, 3)),
            (rows(None, None), rows(None, None, None)),
            (rows(1, 2), rows(1, 2)),
            (rows(1, 2), rows()),
            (rows(), rows(1, 1)),
        ]
    ):
        folder = tmp_path / str(number)
        fence, first = claim(folder, 1, 1)
        overwritten(fence, old, first)
        fenced, frontier = claim(folder, 2, 2)
        change = changed(fenced, new)
        fenced.commit(change, frontier)
        assert stored(folder) == sorted(
            new.column("a").to_pylist(), key=lambda value: (value is None, value or 0)
        )


def test_readers_of_the_change_feed_see_the_changed_rows_alone(folder: Path) -> None:
    by_change(*claim(folder, 2, 2))
    feed = pa.table(DeltaTable(folder / "t").load_cdf(starting_version=1).read_all())
    seen = zip(feed.column("a").to_pylist(), feed.column("_change_type").to_pylist(), strict=True)
    assert sorted(seen) == [(2, "delete"), (9, "insert")]


def test_what_the_table_keeps_for_itself_is_no_column_of_it(tmp_path: Path) -> None:
    fenced, frontier = claim(tmp_path, 1, 1)
    kept = rows(1, 2).append_column("__kalla_rows", pa.array([5, 6]))
    overwritten(fenced, kept, frontier)
    again, _ = claim(tmp_path, 2, 2)
    table = again.files()
    assert table is not None
    assert (table.columns, table.hidden) == (("a",), ("__kalla_rows",))
    place = tmp_path / "t"
    read = [
        DeltaTable(place).to_pyarrow_table().column_names,
        pl.read_delta(str(place)).columns,
        pl.scan_delta(str(place)).filter(pl.col("a") > 1).collect().columns,
        pa.table(
            QueryBuilder().register("t", DeltaTable(place)).execute("SELECT * FROM t").read_all()
        ).column_names,
    ]
    assert read == [["a"]] * 4
    # Another writer knows nothing of it: then the table keeps it no longer.
    DeltaTable(place).update(updates={"a": "a + 1"}, predicate="a = 1")
    after, _ = claim(tmp_path, 3, 3)
    table = after.files()
    assert table is not None
    assert table.hidden == ()


def test_a_later_claim_removes_what_an_earlier_one_left_behind(folder: Path) -> None:
    paused, frontier = claim(folder, 2, 2)
    left = written(paused.folder / "rows", rows(7).schema, rows(7).to_batches())
    claim(folder, 3, 3)
    assert not Path(left[0].path).exists()
    with pytest.raises(Stale):
        paused.commit(NO_CHANGE, frontier)


def test_a_claim_paused_after_its_barrier_leaves_the_files_of_a_later_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = FencedTable._put
    later: list[DataFile] = []

    def stopped_here(fenced: FencedTable, *given: Any) -> None:
        put(fenced, *given)
        monkeypatch.setattr(FencedTable, "_put", put)
        other, _ = claim(folder, 3, 3)
        later.extend(written(other.folder / "rows", rows(7).schema, rows(7).to_batches()))

    monkeypatch.setattr(FencedTable, "_put", stopped_here)
    claim(folder, 2, 2)
    assert Path(later[0].path).exists()


def test_many_small_files_are_put_together(folder: Path) -> None:
    for number in range(2, 24):
        fenced, frontier = claim(folder, number, number)
        fenced.commit(changed(fenced, rows(*range(number))), frontier)
    assert stored(folder) == list(range(23))
    assert len(DeltaTable(folder / "t").file_uris()) < 20


def test_readers_find_the_version_of_a_table_whose_rows_did_not_change_for_days(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "_EVERY", 8)
    location = str(folder / "t")
    log = folder / "t" / "_delta_log"
    for number in range(2, 14):
        found = commit_without_change(folder, number)
        tidy_if_due(location, found.version)
        for path in log.glob("*.json"):
            os.utime(path, (time.time() - 2 * 86_400,) * 2)
    assert not (log / f"{0:020d}.json").exists()
    version = found.frontier.data_version
    assert DeltaTable(location, version=version).to_pyarrow_table().num_rows == 2


def commit_without_change(folder: Path, number: int) -> Committed:
    fenced = FencedTable(str(folder / "t"), number)
    known = fenced.raise_barrier()
    assert known is not None
    return fenced.commit(NO_CHANGE, replace(known, tick=number, refresh=f"{number}.1"))


def test_old_files_go_and_the_table_is_refreshed_on(folder: Path) -> None:
    for number in range(2, 6):
        fenced, frontier = claim(folder, number, number)
        fenced.commit(changed(fenced, rows(number)), frontier)
    files = set((folder / "t").glob("*.parquet")) | set((folder / "t").glob("_change_data/*"))
    tidy(str(folder / "t"), kept_hours=0)
    left = set((folder / "t").glob("*.parquet")) | set((folder / "t").glob("_change_data/*"))
    assert len(left) < len(files)
    assert stored(folder) == [5]
    fenced = FencedTable(str(folder / "t"), 6)
    found = fenced.raise_barrier()
    assert found is not None
    assert found.tick == 5
    fenced.commit(changed(fenced, rows(5, 6)), replace(FIRST, tick=6, refresh="6.1"))
    assert stored(folder) == [5, 6]
