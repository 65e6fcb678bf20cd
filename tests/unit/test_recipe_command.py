"""`kalla recipe`: what it says of good and bad recipes, to people and to programs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kalla.cli.reconcile.recipe import Look, app
from kalla.errors import InvalidInput
from kalla.reconcile.recipe import parsing

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "tests" / "recipes"
SMALL = (RECIPES / "small.yaml").read_text("utf-8")


def run(*arguments: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, list(arguments))
    return outcome.exit_code, outcome.output


def test_the_command_sums_up_a_good_recipe() -> None:
    nobody = ("--right", "postgresql://reader@127.0.0.1:1/bank")
    code, output = run(
        "check", str(RECIPES / "invoices.yaml"), "--set", "month=2026-01-01", *nobody
    )
    assert code == 0
    assert "Invoices against payments is a valid recipe." in output
    assert "by reference (1:1): invoice eq reference" in output
    assert "Note: the left source's columns were not checked" in output
    assert "Note: the right source's columns were not checked: Postgres at 127.0.0.1:1" in output


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.xlsx", b"id,amount\n1,2.00\n", "rows.xlsx is not an XLSX file"),
        ("rows.csv", "id,Währung\n1,2\n".encode("cp1252"), "it looks like Windows-1252"),
        ("rows.csv", b"PK\x03\x04\x14\0\x08\0\xff\xfe", "a workbook: set format: xlsx"),
        ("rows.csv", gzip.compress(b"id,name\n1,a\n", mtime=0), "is compressed by gzip"),
        (
            "rows.csv",
            b"id,name\n1,a\n2\n",
            "rows.csv cannot be read: line 3 has 1 value, the header",
        ),
        ("rows.csv", b'id,name\n1,"a\n2,b\n', 'a quote in line 2 is not closed (1,"a)'),
        ("rows.csv", b"id;amount\n1;2,50\n", 'set csv.delimiter to ";" (1;2,50)'),
        (
            "rows.csv",
            b"id,name\n" + b"1,a\n" * 3000 + "2,ä\n".encode("cp1252"),
            "line 3002 is not in the encoding that csv.encoding says",
        ),
    ],
)
def test_a_source_that_a_run_could_not_read_is_a_problem(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    source = {"uri": str(tmp_path / name), "primary_key": ["id"]}
    gone = {"uri": str(tmp_path / "gone.csv"), "primary_key": ["id"]}
    rule = {"name": "same", "conditions": [{"left": "id", "op": "eq", "right": "id"}]}
    recipe = {"name": "t", "sources": {"left": source, "right": gone}, "rules": [rule]}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    code, output = run("check", str(tmp_path / "recipe.json"))
    assert code == 2
    assert "sources.left.uri: " in output
    assert message in output
    assert "Note: the right source's columns were not checked" in output


def test_the_command_tells_every_problem_and_exits_with_2() -> None:
    code, output = run("check", str(RECIPES / "broken.yaml"))
    assert code == 2
    assert "has 19 problems" in output
    assert "rules[0].conditions[0].op = eqal: is not an operation (did you mean eq?)" in output
    assert "hunter2" not in output


def test_the_command_tells_programs_in_json() -> None:
    code, output = run("check", str(RECIPES / "broken.yaml"), "--format", "json")
    assert code == 2
    told = json.loads(output)
    assert told["valid"] is False
    assert {
        "path": "rules[0].conditions[4].percent",
        "message": "must be at least 0",
        "value": -1,
        "suggestion": "such as 0.01",
    } in told["problems"]


def test_the_command_reads_the_columns_of_files_that_are_here(tmp_path: Path) -> None:
    (tmp_path / "left.csv").write_text("id,a\n1,2\n")
    (tmp_path / "right.csv").write_text("id,bb\n1,2\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(SMALL)
    sides = ("--left", str(tmp_path / "left.csv"), "--right", str(tmp_path / "right.csv"))
    code, output = run("check", str(recipe), *sides)
    assert code == 2
    assert (
        "rules[0].conditions[0].right = b: is not a column of the right source (did you mean bb?)"
        in output
    )
    (tmp_path / "right.csv").write_text("id,b\n1,2\n")
    assert run("check", str(recipe), *sides)[0] == 0


def test_a_registered_source_is_for_the_api_which_is_told_where_a_recipe_is_run() -> None:
    with pytest.raises(InvalidInput, match="run it with `kalla runs submit`") as caught:
        parsing.read(SMALL, left="source://books", columns=Look())
    assert [each.field for each in caught.value.problems] == ["sources.left.uri"]
    code, output = run("check", str(RECIPES / "small.yaml"), "--left", "source://books")
    assert code == 0, "it may be meant for the API"
    assert "source://books is inspected by the API only" in output


def test_the_command_shows_the_piece_of_sql_that_is_refused(tmp_path: Path) -> None:
    """In one line, and none of its characters commands the terminal."""
    (tmp_path / "left.csv").write_text("id,amount\n1,2\n")
    recipe = tmp_path / "recipe.yaml"
    sides = ("--left", str(tmp_path / "left.csv"), "--right", str(tmp_path / "left.csv"))
    before = SMALL.partition("rules:")[0]
    sql = "SELECT l.amunt, rpad(l.id,\n    9000, '-') FROM left_src l"
    recipe.write_text(before + f"match_sql: |\n    {sql}\n")
    code, output = run("check", str(recipe), *sides)
    assert code == 2
    assert (
        "match_sql = l.amunt: l has no column amunt (line 1, column 8) (did you mean amount?)"
        in output
    )
    assert "match_sql = rpad(l.id, 9000, '-'): the length of rpad must be a number" in output
    recipe.write_text(before + 'time_zone: "a\\e[31m\\nb"\nmatch_sql: SELECT 1\n')
    code, output = run("check", str(recipe), *sides)
    assert (code, "\x1b" in output) == (2, False)
    assert r"time_zone = a\x1b[31m b: is not a time zone" in output


def test_the_command_refuses_a_value_without_a_name(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["check", str(RECIPES / "invoices.yaml"), "--set", "month"])
    assert isinstance(outcome.exception, InvalidInput)
    outcome = CliRunner().invoke(app, ["check", str(tmp_path / "none.yaml")])
    assert "cannot be read" in str(outcome.exception)


def test_the_command_refuses_a_name_that_is_given_twice() -> None:
    twice = ["--set", "month=2026-01-01", "--set", "month=2026-02-01"]
    outcome = CliRunner().invoke(app, ["check", str(RECIPES / "invoices.yaml"), *twice])
    assert str(outcome.exception) == "--set: 'month' is given twice"


def test_the_command_prints_the_schema() -> None:
    code, output = run("schema")
    assert (code, json.loads(output)) == (0, parsing.json_schema())
