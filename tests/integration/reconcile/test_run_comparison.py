"""Two runs compared: every row of both is in exactly one change, by what became of it."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kalla.cli.main import application
from kalla.errors import InvalidInput, NotFound
from kalla.reconcile.evidence.reading.run_comparison import CHANGES, Change, Difference, compare
from kalla.reconcile.recipe.model import SIDES
from kalla.storage import LOCAL
from tests.evidence_kit import Row, invoices_and_payments, make_evidence

LEFT: list[Row] = [
    ("late", "r1", "100"),  # its payment comes in the second run
    ("broken", "r2", "90"),  # its payment changes
    ("same", "r3", "80"),
    ("missing", "r4", "70"),  # in both
    ("other", "r5", "60"),  # its partner is another one
    ("parts", "r6", "50"),
    ("twice", "r7", "40"),  # ambiguous first, then settled
    ("old", "r8", "30"),
]
RIGHT: list[Row] = [
    ("p2", "r2", "90"),
    ("p3", "r3", "80"),
    ("p5", "r5", "60"),
    ("p6a", "r6", "20"),
    ("p6b", "r6", "30"),
    ("p7a", "r7", "40"),
    ("p7b", "r7", "40"),
]
LATER_LEFT = [*LEFT[:-1], ("new", "r9", "20")]
LATER_RIGHT: list[Row] = [
    ("p1", "r1", "100"),
    ("p2", "r2", "85"),
    ("p3", "r3", "80"),
    ("p5-again", "r5", "60"),
    ("p6a", "r6", "20"),
    ("p6b", "r6", "30"),
    ("p7a", "r7", "40"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    return (
        make_evidence(folder / "a", LEFT, RIGHT),
        make_evidence(folder / "b", LATER_LEFT, LATER_RIGHT),
    )


def changed(found: Difference, change: Change) -> set[str]:
    return {each.record_key for each in found.examples[change]}


def test_every_row_is_told_what_became_of_it(runs: tuple[str, str]) -> None:
    found = compare(*runs, LOCAL)
    assert changed(found, "newly_matched") == {"late", "twice", "p7a"}
    assert changed(found, "newly_broken") == {"broken", "p2"}
    assert changed(found, "changed") == {"other"}
    assert changed(found, "only_in_a") == {"old", "p5", "p7b"}
    assert changed(found, "only_in_b") == {"new", "p1", "p5-again"}
    assert found.counts["left"] == {
        "newly_matched": 2, "newly_broken": 1, "changed": 1, "unchanged": 3, "only_in_a": 1,
        "only_in_b": 1,
    }  # fmt: skip
    assert found.counts["right"]["unchanged"] == 3  # p3, p6a, p6b
    assert not found.is_empty


def test_an_example_says_what_a_row_was_and_is(runs: tuple[str, str]) -> None:
    found = compare(*runs, LOCAL)
    said = {
        each.record_key: (each.amount, each.sentence())
        for examples in found.examples.values()
        for each in examples
    }
    full = "'paid in full'"
    assert said["late"][0] == Decimal(100)
    assert said["late"][1].endswith(f", is matched with p1 by {full}")
    assert said["broken"] == (
        Decimal(90),
        f"was matched with p2 by {full}, is unmatched (tolerance(amount, amount) fails by -5)",
    )
    assert said["other"] == (
        None,
        f"was matched with p5 by {full}, is matched with p5-again by {full}",
    )
    assert said["twice"] == (
        Decimal(40),
        f"was ambiguous (unequal), is matched with p7a by {full}",
    )
    assert said["old"][1].startswith("was unmatched (")
    assert found.examples["newly_matched"][0].record_key == "late"


def test_the_other_way_round_is_the_opposite(runs: tuple[str, str]) -> None:
    forth, back = compare(*runs, LOCAL), compare(runs[1], runs[0], LOCAL)
    opposite: dict[Change, Change] = {
        "newly_matched": "newly_broken",
        "newly_broken": "newly_matched",
        "only_in_a": "only_in_b",
        "only_in_b": "only_in_a",
    }
    for side in SIDES:
        for change in CHANGES:
            assert back.counts[side][opposite.get(change, change)] == forth.counts[side][change]


def test_a_run_does_not_differ_from_itself_or_from_its_like(tmp_path: Path) -> None:
    rows = invoices_and_payments(40)
    a = make_evidence(tmp_path / "a", *rows)
    b = make_evidence(tmp_path / "b", rows[0][::-1], rows[1][::-1])
    for other in (a, b):
        found = compare(a, other, LOCAL)
        assert found.is_empty
        assert [found.counts[side]["unchanged"] for side in SIDES] == [len(each) for each in rows]


def test_groups_are_compared_by_all_their_partners(tmp_path: Path) -> None:
    """Same keys in another group: the sum still fits, but a part has changed."""
    left: list[Row] = [("i", "r", "50")]
    a = make_evidence(tmp_path / "a", left, [("x", "r", "20"), ("y", "r", "30")])
    b = make_evidence(tmp_path / "b", left, [("x", "r", "20"), ("z", "r", "30")])
    found = compare(a, b, LOCAL)
    assert changed(found, "changed") == {"i"}
    assert found.counts["right"]["unchanged"] == 1
    (example,) = found.examples["changed"]
    assert example.sentence() == (
        "was matched with x, y by 'paid in parts', is matched with x, z by 'paid in parts'"
    )


def test_a_match_by_another_rule_has_changed(tmp_path: Path) -> None:
    rows: list[Row] = [("k", "r", "1")]
    conditions = [{"left": "ref", "op": "eq", "right": "ref"}]
    a = make_evidence(tmp_path / "a", rows, rows)
    b = make_evidence(
        tmp_path / "b", rows, rows, rules=[{"name": "by reference", "conditions": conditions}]
    )
    found = compare(a, b, LOCAL)
    assert changed(found, "changed") == {"k"}
    assert found.notes == [
        "The recipe, its parameters or its sources are not the same in both runs."
    ]


def test_suggestions_count_as_matched_where_the_recipe_accepts_them(tmp_path: Path) -> None:
    left: list[Row] = [("i", "r", "50")]
    right: list[Row] = [("x", "r", "20"), ("y", "r", "30"), ("z", "r", "7")]
    kept = make_evidence(tmp_path / "kept", left, right)
    accepted = make_evidence(tmp_path / "accepted", left, right, accept_suggested=True)
    found = compare(kept, accepted, LOCAL)
    assert changed(found, "newly_matched") == {"i", "x", "y"}
    assert compare(accepted, accepted, LOCAL).is_empty


def test_runs_of_different_recipes_are_compared_and_it_is_said(tmp_path: Path) -> None:
    rows: list[Row] = [("k", "r", "1")]
    a = make_evidence(tmp_path / "a", rows, rows)
    b = make_evidence(tmp_path / "b", rows, rows, name="another")
    found = compare(a, b, LOCAL)
    assert found.is_empty
    assert found.notes == [
        "The runs are of different recipes: 'invoices and payments', then 'another'."
    ]


def test_examples_are_bounded_and_the_largest(tmp_path: Path) -> None:
    left: list[Row] = [(f"k{number:02}", f"r{number}", str(number)) for number in range(30)]
    a, b = make_evidence(tmp_path / "a", left, []), make_evidence(tmp_path / "b", left, left)
    found = compare(a, b, LOCAL, examples=3)
    assert found.counts["left"]["newly_matched"] == 30
    assert [each.record_key for each in found.examples["newly_matched"]] == ["k29", "k28", "k27"]


def test_a_folder_without_evidence_is_told(runs: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"has no metadata\.json"):
        compare(runs[0], str(tmp_path), LOCAL)


def test_folders_are_compared_and_exported_by_command(
    runs: tuple[str, str], tmp_path: Path
) -> None:
    runner = CliRunner()
    app = application(["runs"])
    text = runner.invoke(app, ["runs", "diff", *runs], catch_exceptions=False).output
    assert "newly matched" in text
    assert "left late 100.00: was unmatched" in text
    assert "\nOnly in B:\n" in text
    answer = runner.invoke(app, ["runs", "diff", *runs, "--format", "json"], catch_exceptions=False)
    assert json.loads(answer.output)["counts"]["left"]["newly_matched"] == 2

    def export(output: str) -> str:
        arguments = ["unmatched_left", "--filter", "amount:gt:80", "--output", output]
        given = ["runs", "export", runs[0], *arguments]
        return runner.invoke(app, given, catch_exceptions=False).output

    target = tmp_path / "late.csv"
    export(str(target))
    keys = [line.split(",")[0] for line in target.read_text().splitlines()]
    assert keys == ["record_key", "late"]
    assert export("-") == target.read_text()
    with pytest.raises(InvalidInput, match="there is no folder"):
        export(str(tmp_path / "none" / "late.csv"))
    with pytest.raises(InvalidInput, match="is a folder: name the file, such as unmatched_left"):
        export(str(tmp_path))
    assert list(tmp_path.iterdir()) == [target]
