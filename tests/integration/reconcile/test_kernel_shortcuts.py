"""What the match kernel does to be quick changes nothing of what it says."""

from __future__ import annotations

import hashlib
import random
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import Permanent
from kalla.reconcile import kernel
from kalla.reconcile.arrays import array_path, nearest_values
from kalla.reconcile.arrays.arrow_numbers import as_decimal, halves, numbers
from kalla.reconcile.evidence.writing import datasets, differences
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.digests import combined
from kalla.reconcile.kernel import Facts
from kalla.reconcile.matching import one_to_one
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.runs.execute import check_conservation, check_evidence
from kalla.reconcile.session.duckdb_engine import Resources, streamed
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.row_status import RowStatus
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Columns
from kalla.reconcile.unmatched import nearest_candidates

DIFFERENCE = "difference.tolerance(amount, amount)"
DOCS = Path(__file__).parents[3] / "docs" / "evidence.md"
TYPES = {"id": "BIGINT", "ref": "VARCHAR", "amount": "DECIMAL(12,2)", "currency": "VARCHAR"}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ref", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("currency", pa.string()),
    ]
)


def rows(seed: int, count: int = 400) -> list[dict[str, Any]]:
    """Few references for many rows, some of them in no other currency's company."""
    chance = random.Random(seed)
    return [
        {
            "id": number * seed,
            "ref": f"R{chance.randrange(count)}",
            "amount": Decimal(chance.randrange(100, 160)) / 100,
            "currency": chance.choice(["EUR", "USD", "CHF"]),
        }
        for number in range(count)
    ]


def match(
    folder: Path,
    *,
    cardinality: str = "1:1",
    threads: int = 1,
    more: Decimal = Decimal(0),
    given: Mapping[Side, Sequence[dict[str, Any]]] | None = None,
) -> Facts:
    """Every amount is larger by `more`; of rows that are `given` none is."""
    side = {"uri": "-", "primary_key": ["id"], "currency": "currency"}
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side, "right": side},
            "rules": [
                {
                    "name": "by reference",
                    "cardinality": cardinality,
                    "conditions": [
                        {"left": "ref", "op": "eq", "right": "ref"},
                        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0.1"},
                    ],
                }
            ],
        }
    )
    inputs = {}
    folder.mkdir()
    for seed, name in enumerate(SIDES, 1):
        path = folder / f"{name}.parquet"
        amounts = pa.decimal128(38, 2) if more else pa.decimal128(12, 2)
        with localcontext(prec=38):
            larger = [row | {"amount": row["amount"] + more} for row in rows(seed)]
        found = given[name] if given else larger
        pq.write_table(
            pa.Table.from_pylist(found, SCHEMA.set(2, pa.field("amount", amounts))), path
        )
        kind = f"DECIMAL({amounts.precision},2)"
        inputs[name] = Input("parquet", (str(path),), TYPES | {"amount": kind})
    resources = Resources("500MB", threads, folder / "temp")
    made = plan.make(wanted, inputs)
    facts = kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    check_conservation(facts.sides)
    check_evidence(facts)
    return facts


def digests(facts: Facts) -> dict[str, str]:
    return {
        name: combined([each.digest for each in facts.written if each.dataset == name])
        for name in DATASETS
    }


def test_keys_joined_row_by_row_or_set_aside_give_the_same_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = match(tmp_path / "joined")
    assert joined.sides["left"].states["matched"].rows > 20
    monkeypatch.setattr(one_to_one, "_BUCKET_PAIRS", 0)
    assert digests(match(tmp_path / "aside")) == digests(joined)


def test_rows_without_amounts_in_several_currencies_have_no_candidate(tmp_path: Path) -> None:
    both = ("EUR", "USD")
    lonely = [
        {"id": number, "ref": "none", "amount": None, "currency": currency}
        for number, currency in enumerate(both)
    ]
    others = [
        {"id": n, "ref": "R", "amount": Decimal(190 * n), "currency": both[n % 2]}
        for n in range(100)
    ]
    match(tmp_path / "run", given={"left": lonely, "right": others})
    said = pq.read_table(tmp_path / "run" / "evidence" / "unmatched_left").to_pylist()
    assert [row["rejection_reason"] for row in said] == ["no_candidate"] * 2


@pytest.mark.parametrize("currencies", [0, 20])
def test_candidates_found_by_value_or_by_rank_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, currencies: int
) -> None:
    by_value = match(tmp_path / "value")
    near = pq.read_table(tmp_path / "value" / "evidence" / "unmatched_left")
    assert near.column("closest_candidate").null_count < near.num_rows
    monkeypatch.setattr(nearest_values, "comparable", lambda *_: False)
    monkeypatch.setattr(nearest_values, "MOST_CURRENCIES", currencies)
    assert digests(match(tmp_path / "rank")) == digests(by_value)


def test_rows_alike_find_together_what_each_finds_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    day = {"left": "day", "op": "date_window", "right": "day", "days": 0}
    part = {"left": "branch", "op": "contains", "right": "branch"}
    conditions = {
        "by both": [{"left": name, "op": "eq", "right": name} for name in ("ref", "branch")],
        "by memo": [{"left": "memo", "op": "eq", "right": "memo"}, part],
    }
    source = {"uri": "-", "primary_key": ["id"]}
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": dict.fromkeys(SIDES, source),
            "rules": [{"name": name, "conditions": [*c, day]} for name, c in conditions.items()],
        }
    )
    types = {"id": "BIGINT", "ref": "BIGINT", "branch": "VARCHAR", "memo": "VARCHAR"}
    inputs = {}
    for side in SIDES:
        known = pa.table(
            {
                "id": pa.array(chance.sample(range(1000), 150)),
                "ref": pa.array([chance.randrange(200) for _ in range(150)]),
                "branch": pa.array([chance.choice(["A", "AB", "C", None]) for _ in range(150)]),
                "memo": pa.array([chance.choice(["x", "y", side, None]) for _ in range(150)]),
                "day": pa.array(
                    [
                        chance.choice([date(2026, 1, 1 + 9 * n) for n in range(3)] + [None])
                        for _ in range(150)
                    ],
                    pa.date32(),
                ),
            }
        )
        pq.write_table(known, tmp_path / f"{side}.parquet")
        inputs[side] = Input(
            "parquet", (str(tmp_path / f"{side}.parquet"),), types | {"day": "DATE"}
        )
    made = plan.make(wanted, inputs)
    found = {}
    run, asked = MatchSession.run, Counter[str]()

    def counted(session: MatchSession, sql: str) -> None:
        asked[few] += " TABLE alike " in sql
        run(session, sql)

    monkeypatch.setattr(MatchSession, "run", counted)
    for few, most in (("all are alone", 10**9), ("some are alike", 0)):
        monkeypatch.setattr(nearest_candidates, "_FEW", most)
        resources = Resources("500MB", 1, tmp_path / "temp")
        found[few] = digests(kernel.match(made, tmp_path / few, resources, "2026-01-01 00:00:00Z"))
    assert not asked["all are alone"]
    assert asked["some are alike"] > 4  # by key and by value, of both sides
    assert found["some are alike"] == found["all are alone"]


def test_amounts_beyond_64_bits_have_the_candidates_of_small_ones(tmp_path: Path) -> None:
    for name, more in (("small", "0"), ("large", "3e19"), ("larger", "-9e32")):
        match(tmp_path / name, more=Decimal(more))

    def found(name: str) -> list[tuple[Any, ...]]:
        told = "record_key, closest_candidate, failing_condition, difference"
        files = tmp_path / name / "evidence" / "unmatched_*" / "*.parquet"
        with duckdb.connect() as database:
            return database.sql(f"SELECT {told} FROM '{files}' ORDER BY ALL").fetchall()

    assert found("large") == found("small")
    assert found("larger") == found("small")


@pytest.mark.parametrize("failing", SIDES)
def test_a_side_that_cannot_be_explained_fails_the_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    search = array_path.candidates

    def fail(
        session: MatchSession, side: Side, **options: bool
    ) -> list[array_path.NearestCandidates] | None:
        if side == failing:
            session.run("SELECT * FROM nowhere")
        return search(session, side, **options)

    monkeypatch.setattr(array_path, "candidates", fail)
    with pytest.raises(Permanent, match="nowhere"):
        match(tmp_path / "run")


def test_a_late_row_that_cannot_be_said_is_a_failure_of_the_match() -> None:
    late = "SELECT CASE WHEN n = 200000 THEN error('no words') END AS said FROM range(300000) t(n)"
    with duckdb.connect() as database:
        batches = database.sql(late).to_arrow_reader(1000)
        with pytest.raises(duckdb.Error, match="no words"):
            list(streamed(batches))


@pytest.mark.parametrize("cardinality", ["1:1", "1:N", "M:N"])
def test_the_digest_of_matches_can_be_made_from_the_files_alone(
    tmp_path: Path, cardinality: str
) -> None:
    facts = match(tmp_path / "run", cardinality=cardinality)
    total = 0
    for row in pq.read_table(tmp_path / "run" / "evidence" / "matched").to_pylist():
        who = UUID(bytes=row["match_id"]) if isinstance(row["match_id"], bytes) else row["match_id"]
        mark = "i" if row["interchangeable"] else "f" if row["fifo"] else ""
        how = [row[name] for name in ("rule", "status", "cardinality")]
        apart = [row[name] for name in row if name.startswith("difference.")]
        how += ["∅" if each is None else f"{each.normalize():f}" for each in apart]
        keys = [row["left_key"] or "∅", row["right_key"] or "∅"]
        number = who.int if row["cardinality"] == "1:1" else md5(str(who), *keys)
        total += number * (md5(*how, more=mark) | 1)
    assert total
    assert f"{total % 2**128:032x}" == digests(facts)["matched"]


def md5(*parts: str, more: str = "") -> int:
    text = "\x1f".join(parts) + more
    return int.from_bytes(hashlib.md5(text.encode()).digest(), "little")  # noqa: S324


def test_differences_spelled_once_or_row_by_row_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = match(tmp_path / "once")
    found = pq.read_table(tmp_path / "once" / "evidence" / "matched").column(DIFFERENCE)
    assert 1 < len(set(found.to_pylist())) < len(found)
    monkeypatch.setattr(differences, "FEW", 1)
    assert digests(match(tmp_path / "by-row")) == digests(once)


def test_pairs_written_by_several_hands_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = match(tmp_path / "alone")
    monkeypatch.setattr(datasets, "_LARGE", 5)
    together = match(tmp_path / "together", threads=3)
    assert [each.dataset for each in together.written].count("matched") == 3
    assert digests(together) == digests(alone)


def test_an_id_is_the_one_that_the_docs_compute_whatever_type_keys_have(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) == 5
    documented: dict[str, Any] = {"hashlib": hashlib, "uuid": uuid}
    exec(code, documented)  # noqa: S102 -- it is ours
    whole = [(1, 2), (2, 1), (0, -7), (2**63 - 1, -(2**63))]
    as_text = [(str(left), str(right)) for left, right in whole]
    other = [("1", "2"), ("01", "3"), ("A-1", "4"), ("-0", "5"), (str(2**63), "6")]
    for name, keys in (("numbers", whole), ("texts", as_text), ("others", other)):
        due = [documented["match_id"]("test", "together", [a], [b]) for a, b in keys]
        assert ids(tmp_path / name, keys) == [each.int for each in due]


def ids(folder: Path, keys: Sequence[tuple[int | str, int | str]]) -> list[int]:
    """Those of the matches of rows with these keys, each pair of them matched."""
    side = {"uri": "-", "primary_key": ["id"]}
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side, "right": side},
            "rules": [
                {"name": "together", "conditions": [{"left": "n", "op": "eq", "right": "n"}]}
            ],
        }
    )
    inputs = {}
    folder.mkdir()
    for place, name in enumerate(SIDES):
        path = folder / f"{name}.parquet"
        own = [pair[place] for pair in keys]
        pq.write_table(pa.table({"id": own, "n": range(len(own))}), path)
        kind = "BIGINT" if isinstance(own[0], int) else "VARCHAR"
        inputs[name] = Input("parquet", (str(path),), {"id": kind, "n": "BIGINT"})
    made = plan.make(wanted, inputs)
    resources = Resources("500MB", 1, folder / "temp")
    kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    found = {
        (row["left_key"], row["right_key"]): UUID(str(row["match_id"])).int
        for row in pq.read_table(folder / "evidence" / "matched").to_pylist()
    }
    return [found[str(left), str(right)] for left, right in keys]


def test_texts_are_trimmed_of_all_white_whatever_stands_at_their_ends() -> None:
    white = ["", " ", "\t", "\x1f", "\x85", "\xa0", "\u2003", "\u3000"]
    inner = ["", "a", "~!", "a b", "é", "e\u0301", "\u0301", "\u200b", "\x00", "a\xa0b", "😀"]
    texts = [before + text + after for before in white for text in inner for after in white]
    trimmed = column_values.value(Columns({"x": "VARCHAR"}), "x", ("trim",))
    with duckdb.connect() as database:
        given = f"SELECT unnest(?::VARCHAR[]) AS {column_values.held('x')}"
        found = database.execute(
            f"SELECT {trimmed.sql} FROM ({given})", [[*texts, None]]
        ).fetchall()
    assert found == [(text.strip(),) for text in texts] + [(None,)]


def test_a_row_settled_twice_fails_the_match() -> None:
    fates = RowStatus("left", 5)
    fates.settle([np.array([1, 2])], "matched", 0)
    with pytest.raises(Permanent, match="1 left rows were matched more than once"):
        fates.settle([np.array([2, 3])], "suggested", 1)
    with pytest.raises(Permanent, match="more than once"):
        RowStatus("left", 5).settle([np.array([4, 4])], "matched", 0)


def test_amounts_of_many_digits_are_counted_exactly() -> None:
    amounts = [Decimal("-99999999999999999999999999999.999999999"), Decimal("0.000000001")] * 3
    fates = RowStatus("left", len(amounts))
    fates.settle([np.array([0, 2, 4])], "matched", 3)
    table = pa.table(
        {
            "row_id": pa.array(range(len(amounts)), pa.int64()),
            "amount": pa.array(amounts, pa.decimal128(38, 9)),
        }
    )
    found = fates.count(
        (numbers(batch.column(0)), *halves(batch.column(1)).T)
        for batch in table.to_batches(max_chunksize=4)
    )
    assert {place: (rows, as_decimal(units, 9)) for place, (rows, units) in found.items()} == {
        ("matched", 3): (3, Decimal("-299999999999999999999999999999.999999997")),
        ("open", 0): (3, Decimal("0.000000003")),
    }
