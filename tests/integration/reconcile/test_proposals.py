"""A proposed recipe matches about as much as one by somebody who knows the sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile import kernel
from kalla.reconcile.plan import plan
from kalla.reconcile.propose.proposal import propose
from kalla.reconcile.propose.reference_patterns import learn
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import SIDES, Recipe, Source
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import source_planning
from tests.pairs_of_sources import PAIRS, Document, bank_and_ledger


def matched(recipe: Recipe, folder: Path) -> int:
    """Rows of both sides that a recipe matches."""
    made = plan.make(
        recipe, {side: source_planning.inspect_files(recipe.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, folder / "temp")
    facts = kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    states = [facts.sides[side].states for side in SIDES]
    return sum(each["matched"].rows + each["suggested"].rows for each in states)


def bare(uri: str) -> Source:
    return Source(uri=uri, primary_key=("?",))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_a_proposal_matches_nearly_what_the_known_recipe_does(
    tmp_path: Path, pair: Callable[[Path], Document]
) -> None:
    known = Recipe.model_validate(pair(tmp_path))
    found = propose(bare(known.sources.left.uri), bare(known.sources.right.uri))
    proposed = parsing.read(found.text)
    best = matched(known, tmp_path / "known")
    own = matched(proposed, tmp_path / "proposed")
    assert own >= 0.95 * best, found.text
    assert own == found.trial.left_matched + found.trial.right_matched
    if pair is bank_and_ledger:
        assert own >= best
    wrong = own - best
    assert wrong <= 0.05 * best, f"it matches far more than what is right:\n{found.text}"


def test_the_same_files_give_the_same_text_and_say_why() -> None:
    known = bank_and_ledger(Path())["sources"]
    first, second = (
        propose(bare(known["left"]["uri"]), bare(known["right"]["uri"])) for _ in range(2)
    )
    assert first.text == second.text
    assert (
        "94.2% of the rows of left have their Invoice no in Verwendungszweck of right"
        in (first.evidence[0])
    )
    assert 'regex: "RE-\\\\d{4}-\\\\d{4}"' in first.text
    assert "# 'Summe' begins a line of sums" in first.text
    assert {each.option: each.value for each in first.decisions["right"]}["skip"] == 3


def test_sources_without_a_common_value_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1x,anna\n2x,bert\n3x,carl\n")
    (tmp_path / "b.csv").write_text("nr,city\n77-p,Ulm\n88-p,Bonn\n99-p,Kiel\n")
    with pytest.raises(InvalidInput, match="no columns whose values occur on both sides"):
        propose(bare(str(tmp_path / "a.csv")), bare(str(tmp_path / "b.csv")))


def test_names_of_columns_cannot_leave_the_comments_of_a_proposal(tmp_path: Path) -> None:
    name = '"ref\nname: hacked # \x01"'
    rows = "".join(f"K-{number:04},{number}.50\n" for number in range(20))
    for file in ("a.csv", "b.csv"):
        (tmp_path / file).write_text(f"{name},amount\n{rows}")
    found = propose(bare(str(tmp_path / "a.csv")), bare(str(tmp_path / "b.csv")))
    recipe = parsing.read(found.text)
    assert recipe.name == "left and right"
    assert recipe.sources.left.primary_key == ("ref\nname: hacked # \x01",)
    assert found.trial.match_rate == 1


@pytest.mark.parametrize(
    ("values", "expressions"),
    [
        (
            ["RE-2026-0101", "RE-2026-0202"],
            [r"RE-\d{4}-\d{4}", r"RE[^A-Z0-9]{0,3}\d{4}[^A-Z0-9]{0,3}\d{4}"],
        ),
        (["INV9", "INV10"], []),
        (["10001", "10002"], [r"(?:^|[^A-Z0-9])(\d{5})(?:[^0-9]|$)"]),
        (["anna", "bert"], []),
    ],
)
def test_patterns_are_learned_from_references(values: list[str], expressions: list[str]) -> None:
    assert [each.expression for each in learn(values)] == expressions
