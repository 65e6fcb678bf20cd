"""What commands about runs say and refuse, before anything is asked of anybody."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kalla.cli.client import print_table
from kalla.cli.main import application
from kalla.cli.reconcile import reconcile, run_evidence, runs
from kalla.cli.reconcile.report import print_report
from kalla.errors import InvalidInput, Unavailable
from kalla.reconcile.evidence.reading.run_report import Exceptional, Figures, Report, RuleFigures
from kalla.reconcile.recipe.model import Recipe
from kalla.storage import LOCAL
from kalla.web.text_format import money

RECIPES = Path(__file__).parents[1] / "recipes"


def _report(**given: Any) -> Report:
    now = datetime(2026, 5, 31, tzinfo=UTC)
    fields = {
        "name": "r",
        "recipe": "r",
        "recipe_hash": "",
        "sources": {"left": "l.csv", "right": "r.csv"},
        "started_at": now,
        "finished_at": now,
        "seconds": 0,
        "match_rate": 0,
        "exceptions": 1,
        "sides": {"left": {"matched": Figures()}, "right": {"matched": Figures()}},
        "rules": [],
        "largest_exceptions": [],
        "troubles": [],
        "evidence": "/e",
    }
    return Report.model_validate(fields | given)


def test_nothing_in_a_report_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    escape = "\x1b[31m"
    odd = Exceptional(
        side="left", record_key=f"{escape}L1", amount=None, closest_candidate=None, reason=escape
    )
    report = _report(
        name=f"{escape}r",
        largest_exceptions=[odd],
        troubles=[escape],
        evidence=f"/{escape}",
    )
    print_report(report, escape)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert said.count("\\x1b[31m") == 6


def test_a_run_took_as_long_as_it_was_waited_for_not_as_its_match_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = {
        "run_id": 7,
        "recipe_id": "r",
        "recipe_version": 1,
        "status": "completed",
        "error": None,
        "created_at": "2026-05-31T12:00:00Z",
        "finished_at": "2026-05-31T12:00:27Z",
        "report": _report(seconds=1.6).model_dump(mode="json"),
    }
    runs._print_run(run, "text", "http://kalla")
    assert capsys.readouterr().out.endswith("  27.0 s\n")


def test_no_figure_of_a_report_is_cut_short_and_no_row_fills_the_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    large = Figures(rows=10**9, amount=Decimal("9" * 29 + ".123456789"))
    rule = RuleFigures(
        name="paid " * 50, cardinality="1:1", matches=10**9, left=large, right=large, ambiguous=0
    )
    odd = Exceptional(
        side="left",
        record_key="K" * 20_000,
        amount=Decimal("1.50"),
        closest_candidate=None,
        reason="closest is CCC",
    )
    sides = {side: {"matched": large} for side in ("left", "right")}
    print_report(_report(sides=sides, rules=[rule], largest_exceptions=[odd]), "")
    lines = capsys.readouterr().out.splitlines()
    (head,) = (line for line in lines if line.startswith("rule"))
    assert head.split("  ")[-1].strip() == "ambiguous"
    assert sum(line.count(money(large.amount or Decimal(0))) for line in lines) == 4
    (told,) = (line for line in lines if line.startswith("  left K"))
    assert " … 1.50: closest is CCC" in told
    assert max(map(len, lines)) < 300


def test_no_cell_of_a_table_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of a source are shown in one, and names that others have chosen."""
    print_table(["\x1b[31mid", "[red]"], [["a\x1b]0;b\x07", ""], ["completed", ""]], "")
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "a\\x1b]0;b\\x07" in said
    assert "[red]" in said, "a name is not markup"


def test_no_recipe_and_no_source_commands_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,a,b,\x1b[31mc\n1,2,2,2\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        (RECIPES / "small.yaml").read_text().replace("name: ", 'name: "\\e[31m" #', 1)
    )
    sides = [f"--{side}={tmp_path / 'a.csv'}" for side in ("left", "right")]
    for command in (["recipe", "check"], ["reconcile", "--dry-run"]):
        done = CliRunner().invoke(application(command), [*command, str(recipe), *sides], color=True)
        assert "\x1b" not in done.output
        assert "\\x1b[31m" in done.output


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


def _export(output: Path, fetch: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(run_evidence, "write", fetch)
    given = ["runs", "export", "folder", "matched", "--output", str(output)]
    return CliRunner().invoke(application(["runs"]), given, catch_exceptions=False).output


def _writes(text: str) -> Callable[..., None]:
    return lambda _url, _part, _rows, _style, file, _storage, **_: file.write_text(text)


def test_an_export_writes_to_a_pipe_and_through_a_link_instead_of_replacing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(file)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _export(pipe, _writes("a,b"), monkeypatch)
    assert os.read(reader, 100) == b"a,b"
    os.close(reader)
    assert pipe.is_fifo()
    assert "has 3 bytes" in _export(link, _writes("c,d"), monkeypatch)
    assert (link.is_symlink(), file.read_text()) == (True, "c,d")


@pytest.mark.parametrize(
    ("given", "style"),
    [("LATE.XLSX", "xlsx"), ("a.Parquet", "parquet"), ("a.csv", "csv"), ("a.xls", "csv")],
)
def test_a_file_has_the_format_that_its_name_says_in_whatever_letters(
    given: str, style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def notes(*given: Any, **_: Any) -> None:
        asked.append(given[3])
        given[4].write_text("")

    _export(tmp_path / given, notes, monkeypatch)
    assert asked == [style]


def test_two_exports_to_one_file_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.csv"

    def slow(*given: Any, **_: Any) -> None:
        with given[4].open("w") as opened:
            opened.write("first, ")
            opened.flush()
            _export(file, _writes("second"), monkeypatch)
            opened.write("whole")

    _export(file, slow, monkeypatch)
    assert file.read_text() == "first, whole"
    assert list(tmp_path.iterdir()) == [file]


def test_an_export_that_cannot_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any, **_: Any) -> None:
        given[4].write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "out.csv"
    file.write_text("before")
    for target, fetch, reason in (
        (file, fails, "No space left on device"),
        (tmp_path / ("x" * 300), _writes(""), "File name too long"),
    ):
        with pytest.raises(Unavailable, match=f"^the export cannot be written: .*: {reason}$"):
            _export(target, fetch, monkeypatch)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_the_command_that_shows_the_evidence_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("id,a,b\n1,2,2\n")
    monkeypatch.setattr(reconcile, "reconcile", lambda *_: _report(evidence="/my books/may"))
    sides = [f"--{side}={tmp_path / 'a.csv'}" for side in ("left", "right")]
    given = ["reconcile", str(RECIPES / "small.yaml"), *sides]
    done = CliRunner().invoke(application(given), given)
    (line,) = (line for line in done.output.splitlines() if "runs import" in line)
    assert shlex.split(line)[-4:] == ["kalla", "runs", "import", "/my books/may"]
