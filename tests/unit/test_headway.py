"""How far a match is, as it goes from the process that makes it to the one that waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalla.errors import Cancelled
from kalla.reconcile import headway
from kalla.reconcile.headway import STAGES, Headway
from tests.waiting import until


def test_stages_add_up_to_a_hundred_parts() -> None:
    told: list[float] = []
    made = Headway(told.append)
    for stage in STAGES:
        made.made(stage, 0.25)
        made.made(stage, 0.75)
    assert told[0] == 0
    assert told == sorted(told)
    assert told[-1] == sum(STAGES.values()) == 100


def test_what_is_written_is_passed_on_while_the_match_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headway, "_BETWEEN_LOOKS", 0.01)
    told: list[float] = []
    tell = headway.told_in(tmp_path / "reached")
    with headway.followed(tmp_path / "reached", told.append):
        tell(12.5)
        until(lambda: told == [12.5], "the first number")
    assert told == [12.5]


def test_what_was_written_last_is_told_at_the_end(tmp_path: Path) -> None:
    told: list[float] = []
    with headway.followed(tmp_path / "reached", told.append):
        headway.told_in(tmp_path / "reached")(100)
    assert told == [100]
    assert [path.name for path in tmp_path.iterdir()] == ["reached"]


def test_a_job_that_was_taken_away_ends_the_waiting(tmp_path: Path) -> None:
    def cancelled(_: float) -> None:
        raise Cancelled("by a person")

    headway.told_in(tmp_path / "reached")(1)
    with (
        pytest.raises(Cancelled, match="by a person"),
        headway.followed(tmp_path / "reached", cancelled),
    ):
        pass
