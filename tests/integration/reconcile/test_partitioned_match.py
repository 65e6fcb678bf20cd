"""The match in several buckets: the evidence is that of one, digest by digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from kalla.errors import Permanent
from kalla.reconcile import kernel
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.digests import combined
from kalla.reconcile.kernel import Facts
from kalla.reconcile.partitioned import candidate_prefilter, partitioned_match, shuffle
from kalla.reconcile.partitioned.partitioned_match import Places
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input, Plan
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.runs.execute import check_conservation, check_evidence
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import source_planning
from kalla.storage import LOCAL
from tests.reference import matcher, through_kernel
from tests.reference.case import Case, eq, rule
from tests.reference.cases import CASES
from tests.reference.strategies import Chance

pytestmark = pytest.mark.timeout(600)

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("ref", pa.string()),
        ("day", pa.date32()),
        ("cur", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("bucket", pa.string()),
    ]
)
TYPES = {"id": "BIGINT", "ref": "VARCHAR", "day": "DATE", "cur": "VARCHAR",
         "amount": "DECIMAL(12,2)", "bucket": "VARCHAR"}  # fmt: skip
WHEN = "2026-01-01 00:00:00Z"
REF = {"left": "ref", "op": "eq", "right": "ref"}
LOOSE = {"left": "ref", "op": "eq", "right": "ref", "derive": ["digits"]}
DAY = {"left": "day", "op": "eq", "right": "day"}
UNLIKE = {"left": "bucket", "op": "ne", "right": "bucket"}
CENTS = {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0.02"}

Row = tuple[Any, ...]


def one_after_the_other(run: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return [run(task) for task in tasks]


def recipe(*rules: dict[str, Any]) -> Recipe:
    side = {"uri": "-", "primary_key": ["id"], "amount": "amount", "currency": "cur"}
    named = [{"name": f"rule {number}"} | rule for number, rule in enumerate(rules)]
    document = {"name": "test", "sources": {"left": side, "right": side}, "rules": named}
    return Recipe.model_validate(document)


RECIPES = {
    "one key, all cardinalities": recipe(
        {"conditions": [REF, CENTS]},
        {"conditions": [REF, CENTS], "cardinality": "1:N"},
        {"conditions": [REF, CENTS], "cardinality": "N:1", "subset": "confirm"},
        {"conditions": [REF, CENTS], "cardinality": "M:N"},
    ),
    "other keys, and none": recipe(
        {"conditions": [REF, DAY, CENTS]},
        {"conditions": [LOOSE, CENTS], "cardinality": "1:N"},
        {
            "conditions": [{"left": "amount", "op": "eq", "right": "amount"}, DAY],
            "ties": "first_in_first_out",
            "left_order": "id",
            "right_order": "id",
            "left_filters": [{"column": "bucket", "op": "eq", "value": "x"}],
        },
        {"conditions": [{"left": "day", "op": "date_window", "right": "day", "days": 1}, UNLIKE]},
    ),
}
TWO_KEYS = recipe({"conditions": [REF, CENTS]}, {"conditions": [DAY, CENTS]})
PLAIN = recipe({"conditions": [REF, UNLIKE]})


def rows(count: int, seed: int) -> list[Row]:
    """Few values for many rows: ties, groups that sum up, keys that are doubled or null."""
    chance = Random(seed)

    def some(*values: Any) -> Any:
        return chance.choice(values)

    return [
        (
            None if chance.random() < 0.02 else chance.randrange(count * 9 // 10),
            None if chance.random() < 0.05 else f"{some('R', 'r-')}{chance.randrange(count // 3)}",
            19_000 + chance.randrange(4),
            some("EUR", "EUR", "USD", None),
            None if chance.random() < 0.05 else Decimal(chance.randrange(1, 9)) / 100,
            some("x", "y", None),
        )
        for _ in range(count)
    ]


def write(given: Sequence[Row], folder: Path, files: int) -> Input:
    folder.mkdir(parents=True)
    paths = []
    for number in range(files):
        part = given[number::files]
        columns = list(zip(*part, strict=True)) if part else [()] * len(SCHEMA)
        arrays = [pa.array(values, each.type) for values, each in zip(columns, SCHEMA, strict=True)]
        paths.append(str(folder / f"{number}.parquet"))
        pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), paths[-1])
    return Input("parquet", tuple(paths), TYPES)


def places(folder: Path) -> Places:
    return Places(str(folder / "evidence"), str(folder / "work"))


def match(made: Plan, folder: Path, count: int) -> Facts:
    resources = Resources("500MB", 1, folder / "temp")
    if count == 1:
        return kernel.match(made, folder / "evidence", resources, WHEN)
    return partitioned_match.match(
        made, count, places(folder), resources, WHEN, one_after_the_other
    )


def told(facts: Facts) -> dict[str, Any]:
    """All that must not depend on the buckets."""
    check_conservation(facts.sides)
    for each in (tally for side in facts.sides.values() for tally in side.states.values()):
        assert sum(each.currencies.values()) == (each.amount or 0)
    return {
        "digests": {
            name: combined([each.digest for each in facts.written if each.dataset == name])
            for name in DATASETS
        },
        "rows": {
            name: sum(each.rows for each in facts.written if each.dataset == name)
            for name in DATASETS
        },
        "sides": facts.sides,
        "rules": [
            (each.name, each.matches, each.left, each.right, each.ambiguous_left,
             each.ambiguous_right, each.suggested)
            for each in facts.rules
        ],
    }  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_buckets_files_and_the_order_of_rows_change_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned_match, "_ASKING", 20)  # so that several tasks explain
    monkeypatch.setattr(partitioned_match, "_FEW_KEYS", 290 if name.startswith("one") else 1_000)
    given: Mapping[Side, list[Row]] = {"left": rows(300, 1), "right": rows(300, 2)}
    first: dict[str, Any] = {}
    for count, files in ((1, 1), (3, 4), (7, 2)):
        folder = tmp_path / str(count)
        shuffled = {side: Random(count).sample(given[side], 300) for side in SIDES}
        inputs = {side: write(shuffled[side], folder / side, files) for side in SIDES}
        found = told(match(plan.make(RECIPES[name], inputs), folder, count))
        first = first or found
        assert found == first
    assert all(first["rows"][name] > 20 for name in ("unmatched_left", "unmatched_right"))
    assert first["sides"]["left"].loaded.doubled_keys > 20
    assert first["rows"]["matched"] > 20
    assert first["rows"]["ambiguous"] > 5
    assert first["sides"]["left"].states["matched"].currencies.keys() >= {"EUR", "USD"}
    assert any(suggested for *_, suggested in first["rules"]) or name.startswith("one")


@pytest.mark.parametrize(
    "names",
    [
        ("kalla:ordinal", "kalla:rule", "kalla:reason", "kalla:bucket", "kalla:explained", "=p0"),
        ("KALLA:RULE", "kalla:candidates", "kalla:sum_mismatches", "=kalla:rule", "=", "h"),
        ("rowid", "row_id", "p0", "ordinal", "FILE_ROW_NUMBER", "filename"),
    ],
)
def test_columns_may_be_called_as_ours_are(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one bucket as in several, and what is found is what is found of other names."""
    monkeypatch.setattr(shuffle, "_PIECE_ROWS", 100)
    usual = {side: write(rows(150, seed), tmp_path / side, 1) for seed, side in enumerate(SIDES)}

    def under(names: Sequence[str], count: int) -> dict[str, Any]:
        folder = tmp_path / f"{names[0]} in {count}"
        folder.mkdir()
        inputs = {}
        for side in SIDES:
            path = folder / f"{side}.parquet"
            pq.write_table(pq.read_table(usual[side].files[0]).rename_columns(list(names)), path)
            types = dict(zip(names, TYPES.values(), strict=True))
            inputs[side] = Input("parquet", (str(path),), types)
        renamed = dict(zip(TYPES, names, strict=True))
        document = with_columns(RECIPES["other keys, and none"].model_dump(mode="json"), renamed)
        return told(match(plan.make(Recipe.model_validate(document), inputs), folder, count))

    found = under(names, 1)
    assert under(names, 3) == found
    # Rows whose key is doubled are in order by their columns, and these by their names.
    plain = under([f"column {sorted(names).index(each)}" for each in names], 1)
    assert all(found[each] == plain[each] for each in ("rows", "sides", "rules"))


def with_columns(document: Any, renamed: Mapping[str, str]) -> Any:
    """A recipe with other names for its columns, wherever one is named."""
    if isinstance(document, dict):
        return {field: with_columns(each, renamed) for field, each in document.items()}
    if isinstance(document, list):
        return [with_columns(each, renamed) for each in document]
    return renamed.get(document, document) if isinstance(document, str) else document


def test_files_whose_columns_differ_in_type_are_one_source_in_any_number_of_buckets(
    tmp_path: Path,
) -> None:
    """A piece that has some of the files alone reads them by the types of all."""
    numbers = list(range(60))
    texts = [*map(str, numbers[:-1]), "X1"]
    nothing = pa.nulls(60)
    for side, tables in {
        "left": [
            {"id": numbers[:30], "ref": pa.array(numbers[:30], pa.int32()), "day": nothing[:30]},
            {"id": numbers[30:], "ref": texts[30:], "day": nothing[30:]},
        ],
        "right": [{"id": numbers, "ref": texts, "day": nothing}],
    }.items():
        for number, columns in enumerate(tables):
            path = tmp_path / side / f"{number}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table(columns), path)
    sides = {side: {"uri": str(tmp_path / side), "primary_key": ["id"]} for side in SIDES}
    document = {"name": "test", "sources": sides, "rules": [{"name": "r", "conditions": [REF]}]}
    wanted = Recipe.model_validate(document)
    made = plan.make(
        wanted, {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    )
    found = [told(match(made, tmp_path / str(count), count)) for count in (1, 3, 7)]
    assert found[0]["rows"]["matched"] == 60
    assert found[1:] == found[:1] * 2


def test_a_delta_table_whose_older_files_lack_a_column_is_read_in_buckets(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"id": [1, 2]}))
    later = pa.table({"id": [3, 4], "ref": ["R3", "R4"]})
    write_deltalake(table, later, mode="append", schema_mode="merge")
    side = {"uri": table, "primary_key": ["id"]}
    document = {
        "name": "test",
        "sources": {"left": side, "right": side},
        "rules": [{"name": "r", "conditions": [REF]}],
    }
    wanted = Recipe.model_validate(document)
    made = plan.make(
        wanted, {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    )
    found = [told(match(made, tmp_path / str(count), count)) for count in (1, 3)]
    assert found[0]["rows"]["matched"] == 2
    assert found[1] == found[0]


def test_the_nearest_values_are_found_helping_by_helping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_prefilter, "_HELPING", 50)
    chance = np.random.default_rng(3)
    offered, wanted = chance.uniform(0, 100, 1_000), chance.uniform(-5, 105, 40)
    near = candidate_prefilter._nearest(np.split(offered, 40), wanted)
    for each in wanted:
        for side in (offered[offered <= each], -offered[offered > each]):
            assert not len(side) or abs(side.max()) in near


def in_buckets(wanted: Recipe, left: Any, right: Any, folder: Path, count: int) -> Any:
    tables = {"left": left, "right": right}
    inputs: dict[Side, Input] = {
        side: through_kernel.write(tables[side], folder / f"{side}.parquet") for side in SIDES
    }
    check_conservation(match(plan.make(wanted, inputs), folder, count).sides)
    return through_kernel.read(folder, wanted)


# In the last but one a key is null, and another the text that stands for it; in the last one dates
# in text are the key to points in time.
@pytest.mark.parametrize("seed", [*range(8), 66, 675])
def test_buckets_agree_with_the_reference(seed: int, tmp_path: Path) -> None:
    sample = Chance(Random(seed).randrange).sample()
    expected = matcher.reconcile(sample.recipe, sample.left, sample.right)
    assert in_buckets(sample.recipe, sample.left, sample.right, tmp_path, 3) == expected


OF_CURRENCIES = [case for case in CASES if case.recipe.sources.left.currency]


@pytest.mark.parametrize("case", OF_CURRENCIES, ids=lambda case: case.name)
@pytest.mark.parametrize("other_key", [False, True])
def test_currencies_are_told_as_in_one_bucket(case: Case, other_key: bool, tmp_path: Path) -> None:
    """Also where rows of the same key are only looked for at the end, since another rule has
    another."""
    more = [rule(eq("cur", "rref"), name="other")] if other_key else []
    wanted = case.recipe.model_copy(update={"rules": (*case.recipe.rules, *more)})
    expected = matcher.reconcile(wanted, case.left_rows, case.right_rows)
    assert in_buckets(wanted, case.left_rows, case.right_rows, tmp_path, 5) == expected


OF_SUMS = [
    case
    for case in CASES
    if any(each.rejection_reason == "sum_failed" for each in case.expected.unmatched)
]


@pytest.mark.parametrize("case", OF_SUMS, ids=lambda case: case.name)
@pytest.mark.parametrize("other_key", [False, True])
def test_sums_that_fail_are_told_as_in_one_bucket(
    case: Case, other_key: bool, tmp_path: Path
) -> None:
    """Also where they failed in one task, and another tells of it."""
    more = [rule(eq("id"), name="other")] if other_key else []
    wanted = case.recipe.model_copy(update={"rules": (*case.recipe.rules, *more)})
    expected = matcher.reconcile(wanted, case.left_rows, case.right_rows)
    assert in_buckets(wanted, case.left_rows, case.right_rows, tmp_path, 5) == expected


def test_rules_that_share_a_key_need_one_spreading() -> None:
    given = Input("parquet", ("-",), TYPES)
    inputs: dict[Side, Input] = {"left": given, "right": given}

    def shape(wanted: Recipe) -> list[tuple[int, int]]:
        made = plan.make(wanted, inputs)
        return [(len(each.rules), each.buckets) for each in partitioned_match.stages(made.rules, 5)]

    same, other = RECIPES.values()
    assert shape(same) == [(4, 5)]
    assert shape(other) == [(1, 5), (1, 5), (1, 5), (1, 1)]
    narrower = recipe({"conditions": [REF, CENTS]}, {"conditions": [REF, DAY, CENTS]})
    assert shape(narrower) == [(2, 5)]


def test_a_large_file_is_read_in_ranges_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle, "_PIECE_ROWS", 100)
    inputs = {side: write(rows(250, 3), tmp_path / side, 1) for side in SIDES}
    made = plan.make(PLAIN, inputs)
    assert len(shuffle.pieces(made, 8, LOCAL)) == 6
    facts = match(made, tmp_path, 2)
    assert told(facts)["sides"]["left"].loaded.rows == 250
    assert told(facts)["digests"] == told(match(made, tmp_path / "one", 1))["digests"]


def test_what_an_earlier_attempt_left_is_not_read(tmp_path: Path) -> None:
    """Every task is run twice, as Spark may do; only what the second found counts."""
    inputs = {side: write(rows(100, seed), tmp_path / side, 2) for seed, side in enumerate(SIDES)}
    made = plan.make(TWO_KEYS, inputs)

    def twice(run: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        one_after_the_other(run, tasks)
        return one_after_the_other(run, tasks)

    resources = Resources("500MB", 1, tmp_path / "temp")
    found = partitioned_match.match(made, 3, places(tmp_path), resources, WHEN, twice)
    assert told(found) == told(match(made, tmp_path / "one", 1))
    assert len({each.url for each in found.written}) == len(found.written)
    for name in DATASETS:
        listed = {path.name for path in (tmp_path / "evidence" / name).iterdir()}
        assert listed > {each.name for each in found.written if each.dataset == name}


def test_rows_that_get_lost_between_tasks_fail_the_match(tmp_path: Path) -> None:
    inputs = {side: write(rows(100, seed), tmp_path / side, 1) for seed, side in enumerate(SIDES)}
    made = plan.make(TWO_KEYS, inputs)

    def forgetful(run: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        found = one_after_the_other(run, tasks)
        for each in found:
            if isinstance(each, shuffle.Spread) and each.side == "left":
                batches = Path(each.place) / "buckets.npy"
                np.save(batches, np.load(batches)[:-1])
        return found

    resources = Resources("500MB", 1, tmp_path / "temp")
    found = partitioned_match.match(made, 3, places(tmp_path), resources, WHEN, forgetful)
    with pytest.raises(Permanent, match="conservation failed"):
        check_conservation(found.sides)


def test_evidence_that_gets_lost_fails_the_match(tmp_path: Path) -> None:
    inputs = {side: write(rows(100, seed), tmp_path / side, 1) for seed, side in enumerate(SIDES)}
    resources = Resources("500MB", 1, tmp_path / "temp")
    made = plan.make(TWO_KEYS, inputs)
    found = partitioned_match.match(made, 3, places(tmp_path), resources, WHEN, one_after_the_other)
    check_evidence(found)
    for lost in ("matched", "unmatched_right", "ambiguous"):
        kept = tuple(each for each in found.written if each.dataset != lost)
        with pytest.raises(Permanent, match=f"conservation failed: {lost} counts 0"):
            check_evidence(replace(found, written=kept))


def test_a_file_that_cannot_be_read_is_told_of_as_in_one_bucket(tmp_path: Path) -> None:
    lines = ["id,ref,note", *(f"{number},R{number},x" for number in range(5_000)), "1,2,3,4"]
    (tmp_path / "ragged.csv").write_text("\n".join(lines) + "\n")
    types = dict.fromkeys(("id", "ref", "bucket"), "VARCHAR")
    given = Input("csv", (str(tmp_path / "ragged.csv"),), types)
    sides = {side: {"uri": "-", "primary_key": ["id"]} for side in SIDES}
    document = {"name": "test", "sources": sides, "rules": [{"name": "r", "conditions": [REF]}]}
    made = plan.make(Recipe.model_validate(document), {"left": given, "right": given})
    said = []
    for count in (1, 3):
        with pytest.raises(
            Permanent, match=r"the left source .*ragged.csv.* cannot be read"
        ) as why:
            match(made, tmp_path / str(count), count)
        said.append(str(why.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("megabytes", "cores", "expected"), [(1, 8, 1), (200, 8, 8), (8_000, 8, 16)]
)
def test_buckets_follow_the_data_the_cores_and_the_memory(
    megabytes: int, cores: int, expected: int
) -> None:
    given = Input("parquet", ("-",), TYPES, bytes=megabytes * 10**6 // 2)
    inputs: dict[Side, Input] = {"left": given, "right": given}
    assert plan.buckets(inputs, "2GB", cores) == expected


@pytest.mark.parametrize(
    ("rows", "megabytes", "expected"),
    [(20_000_000, 4_000, 1), (100_000_000, 4_000, 7), (None, 100, 1), (None, 5_000, 7)],
)
def test_on_one_machine_the_rows_are_spread_when_their_pairs_would_not_fit(
    rows: int | None, megabytes: int, expected: int
) -> None:
    few = Input("parquet", ("-",), TYPES, rows=1, bytes=100)
    many = Input("parquet", ("-",), TYPES, rows=rows, bytes=megabytes * 10**6)
    assert plan.buckets_alone({"left": few, "right": many}, "2GB", 2) == expected
    assert plan.share("2GB", 2) == "1000MB"
