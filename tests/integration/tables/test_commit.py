"""The fenced commit: a claim that was paused at any step changes nothing once another took over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kalla.tables.delta.commit import (
    Change,
    FencedTable,
    Frontier,
    Stale,
    committed_frontier,
    difference,
    of_keys,
)

FIRST = Frontier(table_id=1, definition="d", tick=1, refresh="1.1", data_version=0, inputs={})
Act = Callable[[FencedTable, Frontier], object]


def rows(*values: int | None) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def by_merge(fenced: FencedTable, frontier: Frontier) -> object:
    return fenced.commit(difference(rows(1, 2), rows(1, 9)), frontier)


def by_overwrite(fenced: FencedTable, frontier: Frontier) -> object:
    return fenced.replace(rows(9), frontier)


def without_rows(fenced: FencedTable, frontier: Frontier) -> object:
    return fenced.commit(Change(rows(), rows(), 0), frontier)


ACTS = pytest.mark.parametrize("act", [by_merge, by_overwrite, without_rows])


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
    fenced.replace(rows(1, 2), frontier)
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
    by_merge(*claim(folder, 3, 3))
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

    def stopped_here(fenced: FencedTable) -> DeltaTable:
        table = checked(fenced)
        monkeypatch.setattr(FencedTable, "_checked", checked)
        other = claim(folder, 3, 3)
        if other_commits:
            by_overwrite(*other)
        return table

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

    def stopped_here(one: FencedTable) -> DeltaTable:
        table = checked(one)
        write_deltalake(folder / "t", rows(5), mode="append")
        return table

    monkeypatch.setattr(FencedTable, "_checked", stopped_here)
    with pytest.raises(Stale, match="came first"):
        by_merge(fenced, frontier)
    assert stored(folder) == [1, 2, 5]


def test_a_barrier_repeats_the_frontier_however_many_claims_were_lost(folder: Path) -> None:
    for number in range(2, 12):
        fenced = FencedTable(str(folder / "t"), number)
        found = fenced.raise_barrier()
        assert found is not None
        assert found.refresh == "1.1"
    by_merge(fenced, replace(FIRST, tick=9, refresh="11.1"))
    found = FencedTable(str(folder / "t"), 12).raise_barrier()
    assert found is not None
    assert (found.refresh, found.tick) == ("11.1", 9)
    assert found.data_version == 11


def test_rows_of_a_key_are_found_with_nulls_as_equal() -> None:
    assert of_keys(rows(1, None, 2, None), rows(None, 2)).column("a").to_pylist().count(None) == 2
