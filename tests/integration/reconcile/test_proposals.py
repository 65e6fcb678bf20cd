"""A proposed recipe matches about as much as one by somebody who knows the sources."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection

from kalla.errors import InvalidInput
from kalla.reconcile import kernel
from kalla.reconcile.plan import plan
from kalla.reconcile.propose import side_tables, trial_match
from kalla.reconcile.propose.proposal import propose
from kalla.reconcile.propose.reference_patterns import learn
from kalla.reconcile.propose.side_tables import SideTable
from kalla.reconcile.propose.trial_cache import TrialCache
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import SIDES, Recipe, Source
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import source_planning
from kalla.reconcile.sources.formats import converted_files
from kalla.reconcile.sources.source_planning import from_environment
from kalla.storage import LOCAL
from tests.pairs_of_sources import (
    PAIRS,
    Document,
    bank_and_ledger,
    intercompany,
    marked_ledger_and_bank,
    subscriptions_of_other_months,
)


def matched(recipe: Recipe, folder: Path) -> set[tuple[str, str]]:
    """The keys of both sides that a recipe matches with each other."""
    made = plan.make(
        recipe, {side: source_planning.inspect_files(recipe.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, folder / "temp")
    kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    found = pq.read_table(folder / "evidence" / "matched", columns=["left_key", "right_key"])
    return {(str(row["left_key"]), str(row["right_key"])) for row in found.to_pylist()}


def bare(uri: str) -> Source:
    return Source(uri=uri, primary_key=("?",))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_a_proposal_matches_nearly_what_the_known_recipe_does(
    tmp_path: Path, pair: Callable[[Path], Document]
) -> None:
    known = Recipe.model_validate(pair(tmp_path))
    found = propose(bare(known.sources.left.uri), bare(known.sources.right.uri))
    proposed = parsing.read(found.text)
    sources: dict[str, Source] = {
        side: proposed.sources[side].model_copy(
            update={"primary_key": known.sources[side].primary_key}
        )
        for side in SIDES
    }
    proposed = proposed.model_copy(update={"sources": proposed.sources.model_copy(update=sources)})
    best = matched(known, tmp_path / "known")
    own = matched(proposed, tmp_path / "proposed")
    assert len(own & best) >= 0.95 * len(best), found.text
    for side, rows in enumerate((found.trial.left_matched, found.trial.right_matched)):
        assert len({keys[side] for keys in own}) == rows
    if pair is bank_and_ledger:
        assert own >= best
    assert len(own - best) <= (0.02 * len(best)), f"it matches unrelated rows:\n{found.text}"


def test_a_rule_by_name_and_amount_is_a_comment_for_rows_without_a_reference(
    tmp_path: Path,
) -> None:
    known = subscriptions_of_other_months(tmp_path)["sources"]
    found = propose(bare(known["left"]["uri"]), bare(known["right"]["uri"]))
    assert [each.name for each in parsing.read(found.text).rules] == ["same reference and amount"]
    assert "# - name: same name and amount" in found.text.replace('"', "")
    assert "#   left_filters: [{column: reference, op: is_null}]" in found.text
    assert any("a rule for rows without a reference is a comment" in each for each in found.unsure)


def test_a_rule_for_the_other_sign_is_a_comment_where_no_column_says_which_rows_have_it(
    tmp_path: Path,
) -> None:
    known = marked_ledger_and_bank(tmp_path)["sources"]
    ledger = Path(known["left"]["uri"])
    marked = propose(bare(str(ledger)), bare(known["right"]["uri"]))
    assert 'left_filters: [{column: "S/H", op: eq, value: H}]' in marked.text
    lines = [line.split(";") for line in ledger.read_text().splitlines()]
    ledger.write_text("".join(";".join([line[0], *line[2:]]) + "\n" for line in lines))
    found = propose(bare(str(ledger)), bare(known["right"]["uri"]))
    assert [each.name for each in parsing.read(found.text).rules] == ["same reference and amount"]
    assert '# - name: "same reference and amount, other sign"' in found.text
    assert any("no column says in which" in each for each in found.unsure)


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


def test_a_sample_leaves_no_rule_out_that_it_is_too_small_to_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_match, "TRIED_ROWS", 5)
    known = bank_and_ledger(Path())["sources"]
    found = propose(bare(known["left"]["uri"]), bare(known["right"]["uri"]))
    assert found.trial.is_sample
    rules = [each.name for each in parsing.read(found.text).rules]
    assert rules == ["same reference and amount", "one against several"]
    assert "its sample has too few rows to try this rule" in found.text


def test_a_trial_reads_the_files_again_only_if_other_rows_are_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = intercompany(tmp_path)
    read: list[str] = []
    load = side_tables.load

    def counted(connection: DuckDBPyConnection, name: str, *given: Any, **more: Any) -> SideTable:
        read.append(name)
        return load(connection, name, *given, **more)

    monkeypatch.setattr(side_tables, "load", counted)
    trials = TrialCache()
    before: Recipe | None = None
    edits: tuple[tuple[dict[str, Any], bool], ...] = (
        ({}, False), ({"amount": "betrag"}, True), ({"primary_key": ["betrag"]}, False),
    )  # fmt: skip
    for edit, has_changes in edits:
        document["sources"]["left"] |= edit
        recipe = Recipe.model_validate(document)
        facts = trials.attempt(recipe, before, storage=LOCAL, resolve=from_environment)
        assert ("changes" in facts) == has_changes
        before = recipe
    assert read == ["left_rows", "right_rows"]


def test_the_rows_of_trials_are_swept_when_their_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trials = TrialCache()
    recipe = Recipe.model_validate(intercompany(tmp_path))
    trials.attempt(recipe, None, storage=LOCAL, resolve=from_environment)
    (left,) = tmp_path.glob("**/left.parquet")
    converted_files.sweep()
    assert left.exists()
    os.utime(left.parent, (0, 0))
    converted_files.sweep()
    assert not left.exists()


def test_sources_without_a_common_value_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1x,anna\n2x,bert\n3x,carl\n")
    (tmp_path / "b.csv").write_text("nr,city\n77-p,Ulm\n88-p,Bonn\n99-p,Kiel\n")
    with pytest.raises(InvalidInput, match="no columns whose values occur on both sides"):
        propose(bare(str(tmp_path / "a.csv")), bare(str(tmp_path / "b.csv")))


def test_a_date_that_no_window_names_is_the_date_of_its_source(tmp_path: Path) -> None:
    rows = [f"K-{number:04},{number}.50" for number in range(1, 20)]
    (tmp_path / "a.csv").write_text("ref,amount\n" + "\n".join(rows) + "\n")
    (tmp_path / "b.csv").write_text(
        "no,paid,on\n" + "".join(f"{row},2026-05-{day:02}\n" for day, row in enumerate(rows, 1))
    )
    sources = parsing.read(
        propose(*(bare(str(tmp_path / file)) for file in ("a.csv", "b.csv"))).text
    ).sources
    assert (sources.left.date, sources.right.date) == (None, "on")


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
        (
            ["Ä(1)-2026", "Ä(2)-2027"],
            [r"Ä\(\d{1}\)-\d{4}", r"[^A-Z0-9]{0,3}\d{1}[^A-Z0-9]{0,3}\d{4}"],
        ),
    ],
)
def test_patterns_are_learned_from_references(values: list[str], expressions: list[str]) -> None:
    assert [each.expression for each in learn(values)] == expressions
