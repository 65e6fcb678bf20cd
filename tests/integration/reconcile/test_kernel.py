"""The match kernel on files: order, slices and cores change nothing; hot keys are bounded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import ROUND_DOWN, Decimal, localcontext
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import InvalidInput, Permanent
from kalla.reconcile import kernel
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.digests import combined
from kalla.reconcile.kernel import Facts, SideFacts, Tally
from kalla.reconcile.matching import contested_keys, subset_sum
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.runs.execute import check_conservation
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_progress import OF_TEXTS, STAGES
from kalla.reconcile.session.side_loading import Loaded
from kalla.reconcile.sql.conditions import Bound

SCHEMA = pa.schema([("id", pa.int64()), ("ref", pa.string()), ("amount", pa.decimal128(12, 2))])
TYPES = {"id": "BIGINT", "ref": "VARCHAR", "amount": "DECIMAL(12,2)"}


def recipe(**more: Any) -> Recipe:
    side = {"uri": "-", "primary_key": ["id"]}
    rule = {
        "name": "by reference",
        "conditions": [
            {"left": "ref", "op": "eq", "right": "ref"},
            {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0.01"},
        ],
    }
    document = {"name": "test", "sources": {"left": side, "right": side}, "rules": [rule]}
    return Recipe.model_validate(document | more)


def rows(count: int, seed: int) -> list[tuple[int, str, Decimal]]:
    """Few references for many rows, so that there is something to decide."""
    chance = random.Random(seed)
    return [
        (number, f"R{chance.randrange(count // 2)}", Decimal(chance.randrange(100, 108)) / 100)
        for number in range(count)
    ]


def write(given: Sequence[tuple[int, str, Decimal]], folder: Path, files: int) -> Input:
    folder.mkdir(parents=True)
    paths = []
    for number in range(files):
        part = given[number::files]
        columns = list(zip(*part, strict=True)) if part else [(), (), ()]
        arrays = [pa.array(values, each.type) for values, each in zip(columns, SCHEMA, strict=True)]
        paths.append(str(folder / f"{number}.parquet"))
        pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), paths[-1])
    return Input("parquet", tuple(paths), TYPES)


def match(
    folder: Path,
    left: Sequence[tuple[int, str, Decimal]],
    right: Sequence[tuple[int, str, Decimal]],
    *,
    files: int = 1,
    threads: int = 2,
    wanted: Recipe | None = None,
) -> Facts:
    inputs: dict[Side, Input] = {
        "left": write(left, folder / "left", files),
        "right": write(right, folder / "right", files),
    }
    made = plan.make(wanted or recipe(), inputs)
    resources = Resources("1GB", threads, folder / "temp")
    facts = kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    check_conservation(facts.sides)
    return facts


def digests(facts: Facts) -> dict[str, str]:
    return {
        name: combined([each.digest for each in facts.written if each.dataset == name])
        for name in DATASETS
    }


def test_row_order_slices_and_cores_change_nothing(tmp_path: Path) -> None:
    left, right = rows(600, 1), rows(600, 2)
    first = match(tmp_path / "first", left, right)
    assert first.sides["left"].states["matched"].rows > 50
    assert first.sides["left"].states["ambiguous"].rows > 10
    for number, (files, threads) in enumerate([(1, 1), (3, 2), (7, 4)]):
        chance = random.Random(number)
        again = match(
            tmp_path / str(number),
            chance.sample(left, len(left)),
            chance.sample(right, len(right)),
            files=files,
            threads=threads,
        )
        assert digests(again) == digests(first)


def test_another_row_is_another_digest(tmp_path: Path) -> None:
    left, right = rows(100, 1), rows(100, 2)
    changed = [*right[:-1], (right[-1][0], right[-1][1], right[-1][2] + 1)]
    before, after = match(tmp_path / "a", left, right), match(tmp_path / "b", left, changed)
    assert digests(before) != digests(after)


def test_a_hot_key_of_equal_rows_is_one_pair_of_classes(tmp_path: Path) -> None:
    hot = [(number, "HOT", Decimal("9.99")) for number in range(100_000)]
    facts = match(tmp_path, hot, hot)
    assert facts.sides["left"].states["matched"] == Tally(100_000, Decimal("999000.00"))
    found = pq.read_table(tmp_path / "evidence" / "matched" / "rule-0.parquet")
    assert set(found.column("interchangeable").to_pylist()) == {True}


def test_a_hot_key_of_rows_that_differ_is_bounded_and_says_so(tmp_path: Path) -> None:
    """Amounts a cent apart: each row has three candidates, all in one component."""
    hot = [(number, "HOT", Decimal(number) / 100) for number in range(100_000)]
    facts = match(tmp_path, hot, hot)
    assert facts.sides["left"].states["ambiguous"].rows == 100_000
    found = pq.read_table(tmp_path / "evidence" / "ambiguous" / "left.parquet")
    assert set(found.column("reason").to_pylist()) == {"too_large"}
    assert max(len(each) for each in found.column("candidates").to_pylist()) <= 20


@pytest.mark.parametrize(("apart", "state"), [(0, "ambiguous"), (1, "matched")])
def test_a_range_that_a_hot_key_shares_is_no_way_to_search_it(
    tmp_path: Path, apart: int, state: str
) -> None:
    """Only the second check tells rows apart; with equal amounts all would be held against all."""
    hot = [(number, "HOT", Decimal(number * apart)) for number in range(5_000)]
    (rule,) = recipe().model_dump(exclude_unset=True, mode="json")["rules"]
    rule["conditions"].append({"left": "id", "op": "lte", "right": "id"})
    rule["conditions"].append({"left": "id", "op": "gte", "right": "id"})
    facts = match(tmp_path, hot, hot, wanted=recipe(rules=[rule]))
    for side in SIDES:
        assert facts.sides[side].states[state].rows == 5_000
    if state == "ambiguous":
        found = pq.read_table(tmp_path / "evidence" / "ambiguous" / "left.parquet")
        assert set(found.column("reason").to_pylist()) == {"too_large"}


def within(**bounds: str) -> Recipe:
    (rule,) = recipe().model_dump(exclude_unset=True, mode="json")["rules"]
    key, amount = rule["conditions"]
    del amount["absolute"]
    return recipe(rules=[rule | {"conditions": [key, amount | bounds]}])


@pytest.mark.parametrize("has_key", [True, False])
def test_a_hot_key_and_a_rule_without_one_are_searched_by_a_percentage_too(
    tmp_path: Path, has_key: bool
) -> None:
    left = [(number, "HOT", Decimal(1000 + 10 * number)) for number in range(100_000)]
    right = [(number, "HOT", -amount - Decimal("0.05")) for number, _, amount in left]
    wanted = within(percent="0.0001", negate="right").model_dump(exclude_unset=True, mode="json")
    if not has_key:
        del wanted["rules"][0]["conditions"][0]
    facts = match(tmp_path, left, right, wanted=Recipe.model_validate(wanted))
    # Five cents are within a millionth of 50,000 and of all that is more.
    assert facts.sides["right"].states["matched"].rows == 95_100
    assert facts.sides["right"].states["unmatched"].rows == 4_900


@pytest.mark.parametrize(
    "bounds",
    [
        {"percent": "10"},
        {"percent": "33.3", "negate": "left"},
        {"percent": "0"},
        {"below_percent": "100", "above": "0.5"},
        {"below": "1", "above_percent": "250"},
    ],
)
def test_a_key_is_matched_alike_whether_it_is_hot_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, str]
) -> None:
    """Amounts of both signs, nothing among them, and many that lie on the very bound."""
    chance = random.Random(3)
    amounts = [Decimal(sign * each) for each in (0, 1, 10, 11, 100, 1000) for sign in (1, -1)]
    around = [Decimal(each) / 1000 for each in (0, 667, 900, 901, 999, 1000, 1100, 1333, 3500)]
    left, right = (
        [(number, f"R{number % 9}", round(chance.choice(amounts) * chance.choice(factors), 2))
         for number in range(200)]
        for factors in ([Decimal(1)], around)
    )  # fmt: skip
    cool = match(tmp_path / "cool", left, right, wanted=within(**bounds))
    monkeypatch.setattr(contested_keys, "_HOT_PAIRS", 0)
    hot = match(tmp_path / "hot", left, right, wanted=within(**bounds))
    assert digests(hot) == digests(cool)
    assert cool.sides["left"].states["matched"].rows > 0


@pytest.mark.parametrize("percent", ["0", "0.0001", "33.3", "100", "12345"])
@pytest.mark.parametrize("negate", [None, "left", "right"])
def test_no_pair_within_a_percentage_is_out_of_its_reach(percent: str, negate: Side | None) -> None:
    """Not even the last digit that a decimal has and a float has not."""
    chance, least = random.Random(4), Decimal("0.000000001")
    share = Decimal(percent)
    bound = Bound(None, None, share, share, negate)
    pairs = []
    with localcontext(prec=60):
        for _ in range(2_000):
            left = chance.choice((1, -1)) * Decimal(chance.randrange(10 ** chance.randrange(1, 28)))
            left *= least
            signed = -left if negate == "left" else left
            far = chance.choice((1, -1)) * (abs(signed) * share / 100).quantize(least, ROUND_DOWN)
            right = signed + far
            pairs.append((left, -right if negate == "right" else right))
    holds, reach = bound.holds("l", "r"), bound.reach("l", "r")
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE pairs (l DECIMAL(38, 9), r DECIMAL(38, 9))")
        arrow = pa.table(  # noqa: F841 -- by its name
            [pa.array(each, pa.decimal128(38, 9)) for each in zip(*pairs, strict=True)], ["l", "r"]
        )
        connection.execute("INSERT INTO pairs SELECT * FROM arrow")
        found = connection.execute(
            f"SELECT count(*) FILTER (WHERE {holds}), count(*) FILTER (WHERE {reach}) FROM pairs"
        ).fetchone()
    assert found == (len(pairs), len(pairs))


@pytest.mark.parametrize("ones", [1, 25])
def test_groups_that_are_too_large_are_known_by_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ones: int
) -> None:
    """Of many keys of some hundred rows, all pairs would not fit into memory."""

    def never(*_: object) -> None:
        raise AssertionError("a key that is too large was looked into")

    monkeypatch.setattr(subset_sum, "for_one", never)
    monkeypatch.setattr(subset_sum, "for_several", never)
    (rule,) = recipe().model_dump(exclude_unset=True, mode="json")["rules"]
    left = [(number, f"R{number % 3}", Decimal(7)) for number in range(3 * ones)]
    right = [(number, f"R{number % 3}", Decimal(number)) for number in range(78)]
    facts = match(tmp_path, left, right, wanted=recipe(rules=[rule | {"cardinality": "1:N"}]))
    assert facts.sides["left"].states["ambiguous"].rows == 3 * ones
    # An amount of nothing adds nothing: its row is in no doubt.
    assert facts.sides["right"].states["ambiguous"].rows == 77


@pytest.mark.timeout(120)  # to try every sum would take an hour
@pytest.mark.parametrize(("ones", "manys"), [(1, 19), (2, 12)])
def test_groups_that_do_not_add_up_are_no_work_however_many_they_are(
    tmp_path: Path, ones: int, manys: int
) -> None:
    chance = random.Random(1)
    left, right = (
        [(number, f"R{number // each}", Decimal(chance.randrange(10**6)) / 100 + extra)
         for number in range(1_500 * each)]
        for each, extra in ((ones, Decimal(10**6)), (manys, 0))
    )  # fmt: skip
    (rule,) = recipe().model_dump(exclude_unset=True, mode="json")["rules"]
    facts = match(tmp_path, left, right, wanted=recipe(rules=[rule | {"cardinality": "1:N"}]))
    assert facts.sides["left"].states["unmatched"].rows == 1_500 * ones


def many_to_many(check: dict[str, str]) -> Recipe:
    (rule,) = recipe().model_dump(exclude_unset=True, mode="json")["rules"]
    rule = rule | {"cardinality": "M:N", "conditions": [*rule["conditions"], check]}
    return recipe(rules=[rule])


def test_a_hot_key_of_many_to_many_is_compared_by_kinds_of_rows(tmp_path: Path) -> None:
    hot = [(number, "HOT", Decimal(1)) for number in range(100_000)]
    check = {"left": "ref", "op": "startswith", "right": "ref"}
    facts = match(tmp_path, hot, hot, wanted=many_to_many(check))
    assert facts.sides["left"].states["matched"].rows == 100_000
    assert facts.rules[0].matches == 1


@pytest.mark.parametrize(
    ("count", "check"),
    [(100_000, {"op": "lte"}), (2_000, {"op": "fuzzy", "threshold": "1"})],
    ids=["in order", "alike"],
)
def test_a_hot_key_of_many_to_many_with_too_many_kinds_says_so(
    tmp_path: Path, count: int, check: dict[str, str]
) -> None:
    hot = [(number, "HOT", Decimal(1)) for number in range(count)]
    others = [(count + number, "COOL", Decimal(1)) for number in range(5)]
    wanted = many_to_many({"left": "id", "right": "id"} | check)
    facts = match(tmp_path, hot + others, hot + others, wanted=wanted)
    for side in SIDES:
        assert facts.sides[side].states["ambiguous"].rows == count
        assert facts.sides[side].states["matched"].rows == 5
    found = pq.read_table(tmp_path / "evidence" / "ambiguous" / "right.parquet")
    assert set(found.column("reason").to_pylist()) == {"too_large"}


@pytest.mark.parametrize(
    ("kind", "type_", "amount"),
    [
        (pa.uint64(), "UBIGINT", 2**64 - 1),
        (pa.int64(), "BIGINT", -(2**63)),
        (pa.decimal128(38, 0), "DECIMAL(38,0)", 10**35 + 1),
    ],
)
def test_an_amount_of_many_digits_is_in_the_evidence_to_the_last_one(
    tmp_path: Path, kind: pa.DataType, type_: str, amount: int
) -> None:
    path = str(tmp_path / "rows.parquet")
    schema = pa.schema([("id", pa.int64()), ("ref", pa.string()), ("amount", kind)])
    pq.write_table(pa.table([[1, 2], ["a", "b"], [amount, 1]], schema=schema), path)
    left = Input("parquet", (path,), TYPES | {"amount": type_})
    made = plan.make(recipe(), {"left": left, "right": write([], tmp_path / "right", 1)})
    facts = kernel.match(
        made, tmp_path / "evidence", Resources("1GB", 1, tmp_path / "temp"), "2026-01-01 00:00:00Z"
    )
    check_conservation(facts.sides)
    found = pq.read_table(tmp_path / "evidence" / "unmatched_left")
    assert sorted(found.column("amount").to_pylist()) == sorted([amount, 1])
    assert facts.sides["left"].loaded.amount == amount + 1


@pytest.mark.parametrize("type_", ["HUGEINT", "UHUGEINT"])
@pytest.mark.parametrize("column", ["id", "ref", "amount"])
def test_a_type_that_parquet_has_not_is_refused(type_: str, column: str) -> None:
    inputs: dict[Side, Input] = {
        "left": Input("parquet", ("-",), TYPES),
        "right": Input("parquet", ("-",), TYPES | {column: type_}),
    }
    with pytest.raises(
        InvalidInput, match=rf"{column}: its type {type_.lower()} cannot be written"
    ):
        plan.make(recipe(), inputs)


def test_an_empty_side_leaves_the_other_unmatched(tmp_path: Path) -> None:
    facts = match(tmp_path, [], rows(10, 1))
    assert facts.sides["left"].states["unmatched"].rows == 0
    assert facts.sides["right"].states["unmatched"].rows == 10


def test_columns_may_have_the_names_the_kernel_uses_itself(tmp_path: Path) -> None:
    names = ("row_id", "p0", "v0")
    schema = pa.schema([(name, field.type) for name, field in zip(names, SCHEMA, strict=True)])
    table = pa.Table.from_arrays(
        [
            pa.array([1], schema[0].type),
            pa.array(["a"]),
            pa.array([Decimal("1.00")], schema[2].type),
        ],
        schema=schema,
    )
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path)
    types = dict(zip(names, TYPES.values(), strict=True))
    given = Input("parquet", (str(path),), types)
    side = {"uri": "-", "primary_key": ["row_id"]}
    wanted = recipe(
        sources={"left": side, "right": side},
        rules=[{"name": "r", "conditions": [{"left": "p0", "op": "eq", "right": "p0"}]}],
    )
    made = plan.make(wanted, {"left": given, "right": given})
    resources = Resources("1GB", 1, tmp_path / "temp")
    facts = kernel.match(made, tmp_path / "evidence", resources, "2026-01-01 00:00:00Z")
    assert facts.sides["left"].states["matched"].rows == 1


def side_facts(rows_in: int, amount: str, matched: int, matched_amount: str) -> SideFacts:
    loaded = Loaded(rows_in, 0, Decimal(amount), None, 0, ())
    return SideFacts(loaded, {"matched": Tally(matched, Decimal(matched_amount))})


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (side_facts(10, "5", 9, "5"), "of 10 left rows 9 are accounted for, a difference of -1"),
        (side_facts(10, "5", 11, "5"), "of 10 left rows 11 are accounted for, a difference of 1"),
        (side_facts(10, "5", 10, "4.99"), "sum up to 5, those accounted for to 4.99"),
    ],
)
def test_a_row_unaccounted_for_fails_the_run(facts: SideFacts, sentence: str) -> None:
    good = side_facts(1, "1", 1, "1")
    with pytest.raises(Permanent, match=sentence):
        check_conservation({"left": facts, "right": good})


def test_sums_of_many_digits_are_compared_exactly() -> None:
    wide = "12345678901234567890123456789.000000001"
    near = "12345678901234567890123456789.000000002"
    check_conservation(dict.fromkeys(SIDES, side_facts(1, wide, 1, wide)))
    with pytest.raises(Permanent, match="a difference of"):
        check_conservation(dict.fromkeys(SIDES, side_facts(1, wide, 1, near)))


def test_to_load_counts_for_more_of_a_match_where_a_side_is_text(tmp_path: Path) -> None:
    kept = {side: write(rows(40, seed), tmp_path / side, 1) for seed, side in enumerate(SIDES)}
    texts = str(tmp_path / "left.csv")
    duckdb.sql(f"COPY (FROM '{kept['left'].files[0]}') TO '{texts}' (HEADER)")
    csv = Input("csv", (texts,), dict.fromkeys(TYPES, "VARCHAR"))

    def loaded(left: Input) -> float:
        told: list[float] = []
        made = plan.make(recipe(), {"left": left, "right": kept["right"]})
        resources = Resources("500MB", 1, tmp_path / "temp")
        folder = tmp_path / f"of {left.format}"
        kernel.match(made, folder, resources, "2026-01-01 00:00:00Z", progress_callback=told.append)
        assert told[-1] == pytest.approx(100)
        return told[2]  # after both sides

    assert [loaded(kept["left"]), loaded(csv)] == [STAGES["load"], OF_TEXTS["load"]]
