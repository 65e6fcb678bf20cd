"""How far a match is, as it goes from the process that makes it to the one that waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kalla.errors import Cancelled
from kalla.reconcile.session import match_progress
from kalla.reconcile.session.match_progress import (
    FETCHING,
    OF_TEXTS,
    SQL,
    STAGES,
    Account,
    MatchProgress,
)
from kalla.storage import LOCAL
from tests.waiting import until


@pytest.mark.parametrize("stages", [STAGES, OF_TEXTS, FETCHING], ids=["files", "texts", "tables"])
def test_stages_add_up_to_a_hundred_parts(stages: dict[str, int]) -> None:
    told: list[float] = []
    made = MatchProgress(told.append, stages)
    for stage in stages:
        made.made(stage, 0.25)
        made.made(stage, 0.75)
    assert told[0] == 0
    assert told == sorted(told)
    assert told[-1] == sum(stages.values()) == 100


def test_what_is_written_is_passed_on_while_the_match_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_progress, "_BETWEEN_LOOKS", 0.01)
    told: list[float] = []
    tell = match_progress.progress_file(str(tmp_path / "reached"), LOCAL)
    with match_progress.follow_progress_file(str(tmp_path / "reached"), LOCAL, told.append):
        tell(12.5)
        until(lambda: told == [12.5], "the first number")
    assert told == [12.5]


def test_what_was_written_last_is_told_at_the_end(tmp_path: Path) -> None:
    told: list[float] = []
    with match_progress.follow_progress_file(str(tmp_path / "reached"), LOCAL, told.append):
        match_progress.progress_file(str(tmp_path / "reached"), LOCAL)(100)
    assert told == [100]
    assert [path.name for path in tmp_path.iterdir()] == ["reached"]


def test_a_job_that_was_taken_away_ends_the_waiting(tmp_path: Path) -> None:
    def cancelled(_: float) -> None:
        raise Cancelled("by a person")

    match_progress.progress_file(str(tmp_path / "reached"), LOCAL)(1)
    with (
        pytest.raises(Cancelled, match="by a person"),
        match_progress.follow_progress_file(str(tmp_path / "reached"), LOCAL, cancelled),
    ):
        pass


def test_a_match_that_fails_says_why_itself(tmp_path: Path) -> None:
    def broken(_: float) -> None:
        raise ValueError("nobody listens")

    match_progress.progress_file(str(tmp_path / "reached"), LOCAL)(1)
    with (
        pytest.raises(Cancelled, match="the reason"),
        match_progress.follow_progress_file(str(tmp_path / "reached"), LOCAL, broken),
    ):
        raise Cancelled("the reason")


def test_an_account_counts_from_the_first_part_and_holds_what_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(match_progress, "monotonic", lambda: float(next(clock)))
    told: list[dict[str, Any]] = []
    account = Account(lambda **facts: told.append(facts), rows=7)
    account.reach("match", 0, 100)
    account.reach("match", 15, 100)
    account.tasks(0, 1)
    assert told[-2] == {
        "rows": 7, "stage": "match", "parts": 100, "parts_done": 15, "seconds": 3.0, "since": 1.0,
    }  # fmt: skip
    assert told[-1] == told[-2] | {"tasks": 1, "tasks_done": 0, "since": 2.0}


def test_tasks_tell_how_far_sql_is_and_nothing_of_the_match_after_it() -> None:
    told: list[dict[str, Any]] = []
    account = Account(lambda **facts: told.append(facts))
    account.reach(SQL, 0, 200)
    account.tasks(30, 40)
    assert (told[-1]["parts_done"], told[-1]["parts"]) == (75, 200)
    account.reach("match", 100, 200)
    account.tasks(0, 1)
    assert told[-1]["parts_done"] == 100
