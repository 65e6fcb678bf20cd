"""Sources that are not as they should be: a clear error, or a counted and named exception."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import InvalidInput, KallaError
from kalla.reconcile import kernel
from kalla.reconcile.kernel import Facts
from kalla.reconcile.partitioned import partitioned_match
from kalla.reconcile.partitioned.partitioned_match import Places
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import SIDES, Filter, Recipe, Source
from kalla.reconcile.runs.execute import check_conservation
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import source_planning

GOOD = "id,ref,amount\nR1,a,10.00\nR2,b,20.00\n"


def recipe(folder: Path, left: dict[str, Any] | None = None) -> Recipe:
    side = {"primary_key": ["id"], "amount": "amount"}
    return Recipe.model_validate(
        {
            "name": "test",
            "sources": {
                "left": {"uri": str(folder / "left.csv")} | side | (left or {}),
                "right": {"uri": str(folder / "right.csv")} | side,
            },
            "rules": [
                {
                    "name": "r",
                    "conditions": [
                        {"left": "ref", "op": "eq", "right": "ref"},
                        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "0"},
                    ],
                }
            ],
        }
    )


def match(folder: Path, left: str | bytes, **options: Any) -> Facts:
    (folder / "left.csv").write_bytes(left.encode() if isinstance(left, str) else left)
    (folder / "right.csv").write_text(GOOD)
    wanted = recipe(folder, options)
    made = plan.make(
        wanted, {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, folder / "temp")
    facts = kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    check_conservation(facts.sides)
    return facts


def test_a_header_without_rows_leaves_the_other_side_unmatched(tmp_path: Path) -> None:
    facts = match(tmp_path, "id,ref,amount\n")
    assert facts.sides["left"].loaded.rows == 0
    assert facts.sides["right"].states["unmatched"].rows == 2


def test_an_empty_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"left"):
        match(tmp_path, "")


@pytest.mark.parametrize("line", ["L2,b", "L2,b,20.00,more"], ids=["too short", "too long"])
def test_a_ragged_line_is_an_error_that_names_the_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(KallaError, match=r"left\.csv.*[Ll]ine"):
        match(tmp_path, f"id,ref,amount\nL1,a,10.00\n{line}\n")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    facts = match(tmp_path, b"\xef\xbb\xbfid,ref,amount\nL1,a,10.00\n")
    assert facts.sides["left"].states["matched"].rows == 1


def test_the_wrong_encoding_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KallaError, match="left"):
        match(tmp_path, "id,ref,amount\nL1,caf\u00e9,10.00\n".encode("latin-1"))


def test_the_named_encoding_is_read(tmp_path: Path) -> None:
    text = "id,ref,amount\nL1,a,10.00\nL2,caf\u00e9,1.00\n"
    facts = match(tmp_path, text.encode("latin-1"), csv={"encoding": "latin-1"})
    assert facts.sides["left"].loaded.rows == 2


def test_a_character_that_is_not_read_from_utf_16_is_told_as_what_it_is(tmp_path: Path) -> None:
    text = "id,ref,amount\nL1,\U0001f600,10.00\n".encode("utf-16")
    with pytest.raises(KallaError, match=r"left\.csv.*a character of four bytes.*to UTF-8"):
        match(tmp_path, text, csv={"encoding": "utf-16"})


def test_empty_values_beyond_the_last_column_are_nothing(tmp_path: Path) -> None:
    facts = match(tmp_path, "id,ref,amount\nL1,a,10.00,,,\nL2,b,20.00\n")
    assert facts.sides["left"].states["matched"].rows == 2


def test_lines_that_end_differently_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(KallaError, match=r"left\.csv.*do not all end alike"):
        match(tmp_path, "id,ref,amount\nL1,a,10.00\nL2,b,20.00\r\n")


def test_doubled_and_null_keys_are_counted_and_take_part(tmp_path: Path) -> None:
    facts = match(tmp_path, "id,ref,amount\nL1,a,10.00\nL1,b,20.00\n,c,1.00\n")
    assert facts.sides["left"].loaded.doubled_keys == 3
    assert facts.sides["left"].states["matched"].rows == 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_one_rule_cannot_read_is_counted_though_another_can(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """The digits of a reference are a number, the reference as it stands is none."""
    (tmp_path / "left.csv").write_text("id,ref\nL1,N12\nL2,13\n")
    pq.write_table(pa.table({"id": ["R1"], "ref": pa.array([12])}), tmp_path / "right.parquet")
    plain: dict[str, Any] = {"left": "ref", "op": "eq", "right": "ref"}
    ways = [plain, plain | {"derive_left": ["digits"]}]
    wanted = Recipe.model_validate(
        {
            "name": "test",
            "sources": {
                "left": {"uri": str(tmp_path / "left.csv"), "primary_key": ["id"]},
                "right": {"uri": str(tmp_path / "right.parquet"), "primary_key": ["id"]},
            },
            "rules": [
                {"name": f"rule {place}", "conditions": [ways[place]], "priority": number}
                for number, place in enumerate(order)
            ],
        }
    )
    made = plan.make(
        wanted, {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, tmp_path / "temp")
    facts = kernel.match(made, tmp_path / "evidence", resources, "2026-01-01 00:00:00Z")
    ((column, kind, rows, _),) = facts.sides["left"].loaded.unreadable
    assert (column, kind, rows) == ("ref", "number", 1)


def test_an_amount_that_is_none_is_counted_and_named(tmp_path: Path) -> None:
    facts = match(tmp_path, 'id,ref,amount\nL1,a,"1.234,56"\nL2,b,20.00\n')
    assert facts.sides["left"].loaded.unreadable == (("amount", "number", 1, ("1.234,56",)),)
    assert facts.sides["left"].states["matched"].rows == 1
    assert facts.sides["left"].states["unmatched"].rows == 1


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_filter_cannot_read_is_counted_and_named_though_its_row_is_left_out(
    tmp_path: Path, count: int
) -> None:
    rows = [
        "1;a;900,00;01.05.2026;x",
        "2;b;2.000,00;02.05.2026;x",  # no number
        "3;c;-5,00;xx;x",  # no date, but left out for its amount
        "4;d;7,00;yy;x",  # no date
        "5;e;;03.05.2026;x",  # empty
        "6;f;1.000,00;03.05.2026;z",  # no number, but left out for its kind
    ]
    (tmp_path / "left.csv").write_text("\n".join(["id;ref;amount;day;kind", *rows]) + "\n")
    (tmp_path / "right.csv").write_text(GOOD)
    options = {
        "csv": {"delimiter": ";", "decimal": ",", "date_format": "%d.%m.%Y"},
        "filters": [
            {"column": "amount", "op": "gt", "value": 0},
            {"column": "day", "op": "gte", "value": "2026-01-01"},
            {"column": "kind", "op": "ne", "value": "z"},
        ],
    }
    wanted = recipe(tmp_path, options)
    made = plan.make(
        wanted, {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, tmp_path / "temp")
    work, when = tmp_path / "evidence", "2026-01-01 00:00:00Z"
    if count == 1:
        facts = kernel.match(made, work, resources, when)
    else:
        facts = partitioned_match.match(
            made,
            count,
            Places(str(work), str(work / "rows")),
            resources,
            when,
            lambda run, tasks: [*map(run, tasks)],
        )
    check_conservation(facts.sides)
    loaded = facts.sides["left"].loaded
    assert (loaded.rows, loaded.filtered) == (1, 5)
    assert loaded.unreadable == ()
    assert loaded.filtered_unreadable == (
        ("amount", "number", 2, ("1.000,00", "2.000,00")),
        ("day", "date", 2, ("xx", "yy")),
    )
    assert loaded.filtered_unread == 2


def test_a_decimal_comma_is_read_where_the_recipe_says_so(tmp_path: Path) -> None:
    facts = match(tmp_path, 'id,ref,amount\nL1,a,"10,00"\n', csv={"decimal": ","})
    assert facts.sides["left"].states["matched"].amount == Decimal(10)


def parquet(folder: Path, name: str, **columns: Any) -> Source:
    """A Parquet file of these columns as a source."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / name)
    return Source(uri=str(folder / name), primary_key=("id",))


@pytest.mark.parametrize(
    ("metric", "most"), [("jaro_winkler", 10_000), ("damerau_levenshtein", 1_000)]
)
def test_a_text_too_long_for_similarity_is_counted_and_named(
    tmp_path: Path, metric: str, most: int
) -> None:
    texts = ["ä" * most, "b" * (most + 1), None]
    left, right = (parquet(tmp_path, f"{name}.parquet", id=[1, 2, 3], memo=texts) for name in SIDES)
    fuzzy = {"op": "fuzzy", "left": "memo", "right": "memo", "threshold": "0.5", "metric": metric}
    rule = {"name": "r", "conditions": [BY_ID, fuzzy]}
    wanted = Recipe.model_validate(
        {"name": "long", "sources": {"left": left, "right": right}, "rules": [rule]}
    )
    made = plan.make(
        wanted, {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, tmp_path / "temp")
    facts = kernel.match(made, tmp_path / "evidence", resources, "2026-01-01 00:00:00Z")
    for side in SIDES:
        assert facts.sides[side].loaded.unreadable == (
            ("memo", f"text of at most {most:,} characters", 1, ("b" * 40 + "…",)),
        )


def matched(folder: Path, left: Source, right: Source, **rule: Any) -> list[dict[str, Any]]:
    """The matched rows of one rule."""
    wanted = Recipe.model_validate(
        {"name": "100%", "sources": {"left": left, "right": right}, "rules": [{"name": "r"} | rule]}
    )
    made = plan.make(
        wanted, {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, folder / "temp")
    kernel.match(made, folder / "evidence", resources, "2026-01-01 00:00:00Z")
    return list(pq.read_table(folder / "evidence" / "matched" / "rule-0.parquet").to_pylist())


BY_ID = {"op": "eq", "left": "id", "right": "id"}


def test_a_folder_named_like_a_partition_changes_no_column(tmp_path: Path) -> None:
    left = parquet(tmp_path, "id=9/left.parquet", id=[1, 2])
    right = parquet(tmp_path, "right.parquet", id=[1, 2])
    assert len(matched(tmp_path, left, right, conditions=[BY_ID])) == 2


def test_a_file_is_read_by_its_name_and_not_as_a_pattern(tmp_path: Path) -> None:
    parquet(tmp_path, "pay1.parquet", id=[7])
    left = parquet(tmp_path, "pay[1].parquet", id=[1])
    right = parquet(tmp_path, "right.parquet", id=[1])
    assert len(matched(tmp_path, left, right, conditions=[BY_ID])) == 1


def test_a_float_is_the_amount_that_was_meant(tmp_path: Path) -> None:
    amounts = [4477127.82, 77767901900.29, 0.1, 1e20]
    left = parquet(tmp_path, "left.parquet", id=[1, 2, 3, 4], amount=amounts)
    exact = pa.array([Decimal(str(each)) for each in amounts], pa.decimal128(38, 2))
    right = parquet(tmp_path, "right.parquet", id=[1, 2, 3, 4], amount=exact)
    same = {"op": "tolerance", "left": "amount", "right": "amount", "absolute": "0"}
    assert len(matched(tmp_path, left, right, conditions=[BY_ID, same])) == 4


def test_whole_numbers_do_not_overflow(tmp_path: Path) -> None:
    left = parquet(tmp_path, "left.parquet", id=[1], amount=pa.array([2_000_000_000], pa.int32()))
    right = parquet(tmp_path, "right.parquet", id=[1], amount=pa.array([3], pa.uint32()))
    within = {"op": "tolerance", "left": "amount", "right": "amount", "percent": "100"}
    assert len(matched(tmp_path, left, right, conditions=[BY_ID, within])) == 1


def test_a_percent_sign_in_a_name_is_a_name(tmp_path: Path) -> None:
    left = parquet(tmp_path, "left.parquet", id=[1], amount=[3])
    right = parquet(tmp_path, "right.parquet", id=[1], amount=[3])
    sums = {"op": "tolerance", "left": "amount", "right": "amount", "absolute": "0"}
    rule = {"name": "within 5%s", "cardinality": "1:N", "conditions": [BY_ID, sums]}
    assert [row["rule"] for row in matched(tmp_path, left, right, **rule)] == ["within 5%s"]


def test_a_date_filters_points_in_time_by_their_day_in_the_recipes_zone(tmp_path: Path) -> None:
    moments = pa.array(
        [datetime(2026, 1, 30, 23, 30, tzinfo=UTC), datetime(2026, 1, 31, 23, 30, tzinfo=UTC)],
        pa.timestamp("us", "UTC"),
    )
    left = parquet(tmp_path, "left.parquet", id=[1, 2], at=moments)
    right = parquet(tmp_path, "right.parquet", id=[1, 2])
    filters = (Filter(column="at", op="eq", value=date(2026, 1, 31)),)
    wanted = Recipe.model_validate(
        {
            "name": "r",
            "time_zone": "Europe/Paris",
            "sources": {"left": left.model_copy(update={"filters": filters}), "right": right},
            "rules": [{"name": "r", "conditions": [BY_ID]}],
        }
    )
    made = plan.make(
        wanted, {side: source_planning.inspect_files(wanted.sources[side], side) for side in SIDES}
    )
    resources = Resources("500MB", 1, tmp_path / "temp")
    facts = kernel.match(made, tmp_path / "evidence", resources, "2026-01-01 00:00:00Z")
    assert facts.sides["left"].states["filtered"].rows == 1
    assert facts.sides["left"].states["matched"].rows == 1


def test_a_column_that_comes_late_in_json_lines_is_there(tmp_path: Path) -> None:
    lines = ['{"id": "1"}'] * 30_000 + ['{"id": "2", "note": "x", "amount": 0.1}']
    (tmp_path / "left.jsonl").write_text("\n".join(lines) + "\n")
    seen = source_planning.inspect_files(
        Source(uri=str(tmp_path / "left.jsonl"), primary_key=("id",)), "left"
    )
    assert seen.types == {"id": "VARCHAR", "note": "VARCHAR", "amount": "VARCHAR"}


def test_a_header_with_names_that_differ_by_case_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="column"):
        match(tmp_path, "id,Ref,ref\n")


def test_a_filter_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    given = parquet(tmp_path, "left.parquet", id=[1])
    filters = (Filter(column="id", op="gt", value="much"),)
    with pytest.raises(InvalidInput, match="'much' is not a number"):
        matched(tmp_path, given.model_copy(update={"filters": filters}), given, conditions=[BY_ID])


@pytest.mark.parametrize("column", ["ref", "amount"])
def test_a_column_in_which_there_is_no_value_matches_nothing(tmp_path: Path, column: str) -> None:
    """Arrow, and so pandas, has a type of its own for such a column."""
    rows = {"id": ["L1", "L2"], "ref": ["a", "b"], "amount": ["10.00", "20.00"]}
    pq.write_table(pa.table({**rows, column: pa.nulls(2)}), tmp_path / "left.parquet")
    facts = match(tmp_path, "", uri=str(tmp_path / "left.parquet"))
    assert facts.sides["left"].states["unmatched"].rows == 2
