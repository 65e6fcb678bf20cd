"""What commands about runs say and refuse, before anything is asked of anybody."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kalla.cli import reconcile
from kalla.cli.main import application
from kalla.cli.report import print_report
from kalla.errors import InvalidInput
from kalla.reconcile.evidence.report import Exceptional, Figures, Report
from kalla.reconcile.model import Recipe
from kalla.storage import LOCAL

RECIPES = Path(__file__).parents[1] / "recipes"


def test_nothing_in_a_report_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    escape = "\x1b[31m"
    figures = {"left": {"matched": Figures()}, "right": {"matched": Figures()}}
    now = datetime(2026, 5, 31, tzinfo=UTC)
    odd = Exceptional(
        side="left", record_key=f"{escape}L1", amount=None, closest_candidate=None, reason=escape
    )
    report = Report(
        name="r",
        recipe=f"{escape}r",
        recipe_hash="",
        sources={"left": "l.csv", "right": "r.csv"},
        started_at=now,
        finished_at=now,
        seconds=0,
        match_rate=0,
        exceptions=1,
        sides=figures,
        rules=[],
        largest_exceptions=[odd],
        troubles=[escape],
        evidence=f"/{escape}",
    )
    print_report(report, escape)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert said.count("\\x1b[31m") == 6


def test_a_version_goes_with_the_name_of_a_saved_recipe() -> None:
    asked = ["runs", "submit", str(RECIPES / "small.yaml"), "--version", "3"]
    with pytest.raises(InvalidInput, match="is that of a saved recipe: give its name"):
        CliRunner().invoke(application(["runs"]), asked, catch_exceptions=False)


def test_a_folder_is_named_after_its_recipe_whatever_its_name(tmp_path: Path) -> None:
    source = {"uri": "a.csv", "primary_key": ["id"]}
    for name in ("对账" * 100, "a/b: ../c", "\x1b", "x" * 200):
        recipe = Recipe.model_validate({"name": name, "sources": {"left": source, "right": source}})
        first, second = (Path(reconcile._place(recipe, None, LOCAL)) for _ in range(2))
        assert first != second
        assert first.parent == Path("evidence").absolute()
        (tmp_path / first.name).mkdir()
