"""Rows that have several partners: bounds are of components, and work is of few keys at once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.reconcile import kernel
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.digests import combined
from kalla.reconcile.kernel import Facts
from kalla.reconcile.matching import component_decisions, contested_keys, one_to_one
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.runs.execute import check_conservation, check_evidence
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_session import MatchSession

TYPES = {"id": "BIGINT", "ref": "BIGINT", "amount": "DECIMAL(12,2)"}
KEY = {"left": "ref", "op": "eq", "right": "ref"}
CLOSE = {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0.02"}

Row = tuple[int, int, Decimal]


def match(folder: Path, sides: Mapping[Side, Sequence[Row]], *conditions: Any, **how: Any) -> Facts:
    """Rows of id, ref and amount."""
    folder.mkdir(exist_ok=True)
    inputs: dict[Side, Input] = {}
    kinds = (pa.int64(), pa.int64(), pa.decimal128(12, 2))
    for side, rows in sides.items():
        columns = [pa.array(*each) for each in zip(zip(*rows, strict=True), kinds, strict=True)]
        pq.write_table(pa.table(dict(zip(TYPES, columns, strict=True))), folder / side)
        inputs[side] = Input("parquet", (str(folder / side),), TYPES)
    source = {"uri": "-", "primary_key": ["id"]}
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": source, "right": source},
            "rules": [{"name": "only", "conditions": conditions}],
        }
        | how
    )
    resources = Resources("500MB", 1, folder / "temp")
    facts = kernel.match(
        plan.make(wanted, inputs), folder / "evidence", resources, "2026-01-01 00:00:00Z"
    )
    check_conservation(facts.sides)
    check_evidence(facts)
    return facts


def digests(facts: Facts) -> dict[str, str]:
    return {
        name: combined([each.digest for each in facts.written if each.dataset == name])
        for name in DATASETS
    }


def crowded(seed: int, count: int = 600) -> list[Row]:
    """Few amounts for many rows of few keys, of which some have very many."""
    chance = random.Random(seed)
    return [
        (
            number,
            min(chance.randrange(40), chance.randrange(40)),
            Decimal(chance.randrange(90)) / 50,
        )
        for number in range(count)
    ]


def test_a_rule_without_a_key_matches_however_many_pairs_it_finds(tmp_path: Path) -> None:
    rows = [(number, 0, Decimal(number)) for number in range(200_001)]
    facts = match(tmp_path, {"left": rows, "right": rows}, CLOSE)
    assert facts.sides["left"].states["matched"].rows == len(rows)


@pytest.mark.parametrize(("absolute", "state"), [("1", "matched"), ("9", "ambiguous")])
def test_a_range_is_searched_that_holds_few_pairs_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: str, state: str
) -> None:
    """Amounts one apart, of which a second check leaves the same ones."""
    monkeypatch.setattr(contested_keys, "_HOT_PAIRS", 0)
    monkeypatch.setattr(contested_keys, "_HOT_RANGE", 100)
    rows = [(number, 0, Decimal(number)) for number in range(200)]
    near = CLOSE | {"absolute": absolute}
    same = [{"left": "id", "op": op, "right": "id"} for op in ("lte", "gte")]
    facts = match(tmp_path, {"left": rows, "right": rows}, near, *same)
    assert facts.sides["left"].states[state].rows == len(rows)


@pytest.mark.parametrize("conditions", [[KEY, CLOSE], [CLOSE]], ids=["key", "no key"])
@pytest.mark.parametrize("few", [5_000, 6])
def test_keys_and_edges_looked_at_few_at_once_give_the_same_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conditions: list[Any], few: int
) -> None:
    sides: dict[Side, list[Row]] = {"left": crowded(1), "right": crowded(2)}
    bounds = {"bounds": {"component_edges": few}}
    together = match(tmp_path / "together", sides, *conditions, **bounds)
    assert together.sides["left"].states["ambiguous"].rows > 50
    monkeypatch.setattr(one_to_one, "_BUCKET_PAIRS", 0)
    monkeypatch.setattr(contested_keys, "_HOT_PAIRS", 600)
    monkeypatch.setattr(contested_keys, "_PAIRS_AT_ONCE", 500)
    monkeypatch.setattr(component_decisions, "_EDGES_AT_ONCE", 7)
    monkeypatch.setattr(component_decisions, "_ROWS_AT_ONCE", 3)
    assert digests(match(tmp_path / "apart", sides, *conditions, **bounds)) == digests(together)


def test_edges_of_many_keys_are_never_held_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty keys of thirty rows a side that are all candidates of each other: 36,000 edges."""
    rows = [(number, number % 40, Decimal(number) / 100) for number in range(1_200)]
    held: list[int] = []
    decide = component_decisions.decide

    def counting(session: MatchSession, *given: Any, **how: Any) -> None:
        held.extend(session.row("SELECT count(*) FROM edges"))
        decide(session, *given, **how)

    monkeypatch.setattr(component_decisions, "decide", counting)
    monkeypatch.setattr(contested_keys, "_PAIRS_AT_ONCE", 3_000)
    sides: dict[Side, list[Row]] = dict.fromkeys(SIDES, rows)
    bounds = {"bounds": {"component_edges": 100}}
    facts = match(tmp_path, sides, KEY, CLOSE | {"absolute": 100}, **bounds)
    assert facts.sides["right"].states["ambiguous"].rows == len(rows)
    assert sum(held) == 36_000
    assert max(held) < 4_000


def test_the_candidates_of_a_row_are_the_first_of_all_classes(tmp_path: Path) -> None:
    """Thirty classes of two rows each, whose keys are far from each other."""
    right = [(number, 0, Decimal(number % 30) / 100) for number in range(60)]
    left = [(number, 0, Decimal(0)) for number in range(3)]
    match(tmp_path, {"left": left, "right": right}, KEY, CLOSE | {"absolute": 1})
    found = pq.read_table(tmp_path / "evidence" / "ambiguous").to_pylist()
    said = [row for row in found if row["side"] == "left"]
    first = sorted(str(number) for number in range(60))[:20]
    assert [(row["candidates"], row["candidate_count"]) for row in said] == [(first, 60)] * 3
