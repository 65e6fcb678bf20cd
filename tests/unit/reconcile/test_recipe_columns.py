"""What of a recipe does not fit its sources' columns, and how these are looked at."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kalla.errors import InvalidInput, MissingSource
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.recipe.validation import check
from kalla.reconcile.sources import source_columns
from tests.recipe_kit import recipe, told, with_rule, with_source

LEFT = {"id": "integer", "amount": "decimal", "day": "date", "flag": "boolean", "note": "text"}
RIGHT = {"id": "integer", "amount": "float", "moment": "timestamp", "flag": "boolean", "x": "other"}
COLUMNS = {"left": LEFT, "right": RIGHT}


def test_every_column_that_is_named_exists() -> None:
    given = recipe(
        sources={
            "left": {
                "uri": "a", "primary_key": ["idd"], "amount": "amont", "currency": "c",
                "partition_key": "p", "filters": [{"column": "Note", "op": "is_null"}],
            },
            "right": {"uri": "b", "primary_key": ["id"], "currency": "c"},
        },
        rules=[
            {
                "name": "only", "cardinality": "1:N", "left_sum": "s", "right_sum": "amount",
                "conditions": [
                    {"left": "id", "op": "eq", "right": "i"},
                    {"left": "a", "op": "tolerance", "right": "amount", "absolute": 1},
                ],
                "right_filters": [{"column": "f", "op": "is_null"}],
            }
        ],
    )  # fmt: skip
    found = {each.field: each for each in check(given, COLUMNS)}  # type: ignore[arg-type]
    assert set(found) == {
        "sources.left.primary_key[0]", "sources.left.amount", "sources.left.currency",
        "sources.left.partition_key", "sources.left.filters[0].column", "sources.right.currency",
        "rules[0].left_sum", "rules[0].conditions[0].right", "rules[0].conditions[1].left",
        "rules[0].right_filters[0].column",
    }  # fmt: skip
    assert found["sources.left.amount"].suggestion == "did you mean amount?"
    assert found["sources.left.filters[0].column"].suggestion == "did you mean note?"
    assert found["sources.left.amount"].message == "is not a column of the left source"


@pytest.mark.parametrize(("only", "sign"), [("id;b", '";"'), ("id\tb", r'"\t"'), ("id|b", '"|"')])
def test_a_file_whose_only_column_holds_a_delimiter_is_told_so(only: str, sign: str) -> None:
    found = check(recipe(), {"left": {only: "text"}})
    assert found
    for each in found:
        assert each.suggestion == f"its only column is {only!r}: set csv.delimiter to {sign}"


def test_a_side_whose_columns_are_not_known_is_not_judged() -> None:
    given = with_rule({"left": "zzz", "op": "eq", "right": "id"})
    assert told(given, {"right": RIGHT}) == {}
    assert told(given, {}) == {}


@pytest.mark.parametrize(
    ("condition", "field"),
    [
        ({"left": "amount", "op": "eq", "right": "amount"}, None),
        ({"left": "day", "op": "eq", "right": "moment"}, None),
        ({"left": "note", "op": "eq", "right": "amount"}, None),
        ({"left": "day", "op": "eq", "right": "amount"}, ""),
        ({"left": "day", "op": "eq", "right": "amount", "derive_left": ["trim"]}, None),
        ({"left": "flag", "op": "ne", "right": "flag"}, None),
        ({"left": "flag", "op": "lt", "right": "amount"}, ".left"),
        ({"left": "amount", "op": "gt", "right": "moment"}, ""),
        ({"left": "amount", "op": "tolerance", "right": "flag", "absolute": 1}, ".right"),
        ({"left": "day", "op": "tolerance", "right": "amount", "absolute": 1}, ".left"),
        ({"left": "note", "op": "tolerance", "right": "amount", "absolute": 1}, None),
        ({"left": "amount", "op": "date_window", "right": "moment", "days": 1}, ".left"),
        ({"left": "note", "op": "date_window", "right": "moment", "days": 1}, None),
        ({"left": "amount", "op": "contains", "right": "id"}, None),
        ({"left": "note", "op": "eq", "right": "x"}, ".right"),
        ({"left": "amount", "op": "eq", "right": "id", "derive_left": [{"date_part": "day"}]},
         ".left"),
    ],
)  # fmt: skip
def test_types_fit_their_condition(condition: dict[str, Any], field: str | None) -> None:
    key = {"left": "id", "op": "eq", "right": "id"}
    found = told(with_rule(key, condition), COLUMNS)
    assert list(found) == ([] if field is None else [f"rules[0].conditions[1]{field}"])


@pytest.mark.parametrize(
    ("column", "value", "is_right"),
    [
        ("amount", "1.5", True),
        ("amount", 0, True),
        ("amount", "0", True),
        ("amount", "a", False),
        ("amount", True, False),
        ("day", "2026-01-31", True),
        ("day", "2026-02-30", False),
        ("day", 5, False),
        ("day", "2026-01-31T10:00:00", False),
        ("day", datetime(2026, 1, 31, tzinfo=UTC), False),
        ("flag", True, True),
        ("flag", "yes", False),
        ("note", 5, True),
    ],
)
def test_a_filter_compares_with_what_the_column_holds(
    column: str, value: object, is_right: bool
) -> None:
    each = {"column": column, "op": "eq", "value": value}
    found = told(with_source(filters=[each]), COLUMNS)
    assert list(found) == ([] if is_right else ["sources.left.filters[0].value"])


def test_each_value_of_a_list_fits_its_column() -> None:
    each = {"column": "amount", "op": "in", "value": [1, "a"]}
    (problem,) = check(with_source(filters=[each]), {"left": LEFT})
    assert (problem.field, problem.value) == ("sources.left.filters[0].value", "a")
    assert problem.suggestion == "write it as 1234.56"


@pytest.mark.parametrize(
    ("op", "value", "is_right"),
    [("gte", "1000", True), ("gte", "1.000,00", False), ("contains", "n/a", True)],
)
def test_a_filter_compares_the_amount_of_a_source_as_a_number(
    op: str, value: str, is_right: bool
) -> None:
    each = {"column": "note", "op": op, "value": value}
    assert list(told(with_source(filters=[each]), COLUMNS)) == []
    found = told(with_source(filters=[each], amount="note"), COLUMNS)
    assert list(found) == ([] if is_right else ["sources.left.filters[0].value"])
    uri = {"uri": "postgresql://db/bank", "table": "t"}
    assert list(told(with_source(filters=[each], amount="note", **uri), COLUMNS)) == []


def test_an_amount_is_no_date() -> None:
    assert list(told(with_source(amount="day"), COLUMNS)) == ["sources.left.amount"]


def source(path: Path | str, **fields: Any) -> Source:
    return Source.model_validate({"uri": str(path), "primary_key": ["id"]} | fields)


def test_the_columns_of_a_csv_are_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("id;bétrag\n1;2,50\n".encode("latin-1"))
    semicolons = {"csv": {"delimiter": ";", "encoding": "latin-1", "decimal": ","}}
    assert source_columns.columns_of(source(path, **semicolons)) == {"id": "text", "bétrag": "text"}
    assert source_columns.columns_of(source(path.as_uri(), **semicolons)) == {
        "id": "text",
        "bétrag": "text",
    }


def test_the_columns_of_a_parquet_file_have_its_types(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    duckdb.execute(
        "COPY (SELECT 1 AS i, 1::HUGEINT AS h, 1.5::DECIMAL(9, 2) AS d, 1.5::DOUBLE AS f, 'a' AS t,"
        " DATE '2026-01-31' AS day, TIMESTAMPTZ '2026-01-31' AS moment, true AS b, [1.5] AS l,"
        f" ['a'] AS words, {{'x': 1}} AS s) TO '{path}'"
    )
    wanted = {
        "i": "integer", "h": "float", "d": "decimal", "f": "float", "t": "text", "day": "date",
        "moment": "timestamp", "b": "boolean", "l": "other", "words": "other", "s": "other",
    }  # fmt: skip
    assert source_columns.columns_of(source(path)) == wanted
    assert source_columns.columns_of(source(tmp_path / "*.parquet")) == wanted
    assert source_columns.columns_of(source(tmp_path, format="parquet")) == wanted


def test_the_columns_of_json_lines_are_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
    assert source_columns.columns_of(source(path)) == {"id": "text", "name": "text"}


def test_a_source_that_is_missing_is_told_apart_from_one_that_no_run_could_read(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_text("not parquet")
    os.mkfifo(tmp_path / "pipe.csv")
    for each in (source(tmp_path / "none.csv"), source(tmp_path / "none-*.csv")):
        with pytest.raises(MissingSource):
            source_columns.columns_of(each)
    for each in (
        source(tmp_path),
        source(tmp_path / "pipe.csv"),
        source(broken),
        source("s3://bucket/rows.csv"),
        source(tmp_path / "none", format="delta"),
    ):
        with pytest.raises(InvalidInput) as caught:
            source_columns.columns_of(each)
        assert not isinstance(caught.value, MissingSource)
