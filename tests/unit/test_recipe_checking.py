"""What makes no sense in a recipe of sound structure, and what does not fit its sources."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kalla.errors import InvalidInput, Unavailable
from kalla.reconcile import plan
from kalla.reconcile.model import SIDES, Recipe, Side, Source
from kalla.reconcile.plan import Input
from kalla.reconcile.recipes import checking
from kalla.reconcile.recipes.checking import check
from kalla.reconcile.sources import origins

KEY = {"left": "id", "op": "eq", "right": "id"}
AMOUNT = {"left": "a", "op": "tolerance", "right": "b", "absolute": "0.01"}


def recipe(**fields: Any) -> Recipe:
    side = {"uri": "rows.csv", "primary_key": ["id"]}
    rule = {"name": "only", "conditions": [KEY]}
    return Recipe.model_validate(
        {"name": "x", "sources": {"left": side, "right": side}, "rules": [rule]} | fields
    )


def with_source(**fields: Any) -> Recipe:
    left = {"uri": "rows.csv", "primary_key": ["id"]} | fields
    return recipe(sources={"left": left, "right": {"uri": "rows.csv", "primary_key": ["id"]}})


def with_rule(*conditions: dict[str, Any], **fields: Any) -> Recipe:
    return recipe(rules=[{"name": "only", "conditions": conditions or [KEY]} | fields])


def with_condition(**fields: Any) -> Recipe:
    return with_rule(KEY, {"left": "a", "right": "b"} | fields)


def told(given: Recipe, columns: Any = None) -> dict[str, str]:
    problems = check(given, columns)
    assert len({each.field for each in problems}) == len(problems)
    for each in problems:
        assert each.suggestion, each
        assert each.value is not None or " missing" in each.message, each
    return {each.field: each.message for each in problems}


def test_a_sensible_recipe_has_no_problem() -> None:
    assert told(recipe()) == {}


@pytest.mark.parametrize("uri", ["postgresql://[::1/db", "s3://bu[ck/x.csv", "postgres://a]/db"])
def test_an_address_whose_host_cannot_be_read_is_told(uri: str) -> None:
    given = with_source(uri=uri)
    assert told(given) == {"sources.left.uri": "is no address: its host cannot be read"}
    assert origins.is_staged(given.sources.left) == uri.startswith("postgres")


def test_a_path_may_hold_brackets() -> None:
    assert told(with_source(uri="//[x/*.csv")) == {}
    assert told(with_source(uri="postgresql://u@[::1]:5432/db", table="t")) == {}
    assert not origins.is_staged(with_source(uri="//[x/*.csv").sources.left)


def test_a_recipe_has_either_rules_or_sql() -> None:
    assert told(recipe(match_sql="SELECT 1")) == {"match_sql": "cannot stand beside rules"}
    assert list(told(recipe(rules=[]))) == ["rules"]
    assert list(told(recipe(rules=[], match_sql=" "))) == ["match_sql"]
    assert told(recipe(rules=[], match_sql="SELECT 1")) == {}


def test_rules_have_names_of_their_own() -> None:
    rule = {"name": "same", "conditions": [KEY]}
    assert told(recipe(rules=[rule, rule | {"name": "other"}, rule])) == {
        "rules[2].name": "is given twice"
    }


@pytest.mark.parametrize(
    ("bounds", "fields"),
    [
        ({}, [""]),
        ({"absolute": 1}, []),
        ({"percent": 1}, []),
        ({"below": 1, "above": 2}, []),
        ({"below": 1, "above_percent": 2}, []),
        ({"below": 0, "above": 0}, []),
        ({"below": 1}, [".above"]),
        ({"above_percent": 1}, [".below"]),
        ({"absolute": 1, "percent": 1}, [".percent"]),
        ({"absolute": 1, "below": 1}, [".below"]),
        ({"below": 1, "below_percent": 1, "above": 1}, [".below_percent"]),
    ],
)
def test_a_tolerance_has_one_bound_in_each_direction(
    bounds: dict[str, int], fields: list[str]
) -> None:
    found = told(with_condition(op="tolerance", **bounds))
    assert list(found) == [f"rules[0].conditions[1]{field}" for field in fields]


@pytest.mark.parametrize(
    ("bound", "size", "is_right"),
    [
        ("absolute", "1" + "0" * 27, True),
        ("absolute", "1" + "0" * 28, False),
        ("absolute", "0.0000000001", False),
        ("percent", "33.333333333", True),
        ("percent", "0.333333333333333333333333333333", False),
        ("percent", "1" + "0" * 9, False),
    ],
)
def test_a_bound_has_no_more_digits_than_amounts(bound: str, size: str, is_right: bool) -> None:
    found = told(with_condition(op="tolerance", **{bound: size}))
    assert list(found) == ([] if is_right else [f"rules[0].conditions[1].{bound}"])


@pytest.mark.parametrize(
    ("threshold", "is_right"),
    [("0.9", True), ("0.9123", True), ("0.91230", True), ("0.91234", False), ("1", True)],
)
def test_a_similarity_has_at_most_four_decimals(threshold: str, is_right: bool) -> None:
    found = told(with_condition(op="fuzzy", threshold=Decimal(threshold)))
    assert list(found) == ([] if is_right else ["rules[0].conditions[1].threshold"])


@pytest.mark.parametrize(
    ("window", "is_right"),
    [
        ({}, False),
        ({"days": 0}, True),
        ({"before": 1}, True),
        ({"before": 1, "after": 2}, True),
        ({"days": 1, "after": 2}, False),
    ],
)
def test_a_date_window_says_its_days_once(window: dict[str, int], is_right: bool) -> None:
    found = told(with_condition(op="date_window", **window))
    assert list(found) == ([] if is_right else ["rules[0].conditions[1].days"])


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        (r"INV-(\d+)", ""),
        (r"(?i)inv", ""),
        (r"(?P<number>\d+)", ""),
        (r"\(?=", ""),
        (r"\\1", ""),
        (r"a(?=b)", "looks ahead or behind"),
        (r"a(?!b)", "looks ahead or behind"),
        (r"(?<=a)b", "looks ahead or behind"),
        (r"(?<!a)b", "looks ahead or behind"),
        (r"(a)\1", "refers back to a group"),
        (r"(?P<n>a)(?P=n)", "refers back to a group"),
        (r"(a", "is not a regular expression"),
        (r"a{2000}", "is not a regular expression"),
        (r"\d++", "is not a regular expression"),
        (r"\pL", "is not a regular expression"),
    ],
)
def test_an_expression_is_one_that_the_engine_knows(pattern: str, sentence: str) -> None:
    found = told(with_condition(op="eq", derive_left=["trim", {"regex": pattern}]))
    if not sentence:
        assert found == {}
    else:
        (field,) = found
        assert field == "rules[0].conditions[1].derive_left[1].regex"
        assert found[field].startswith(sentence)


def test_a_part_of_a_date_is_compared_as_a_date() -> None:
    month = [{"date_part": "month"}]
    assert told(with_condition(op="eq", derive=month)) == {}
    assert told(with_condition(op="date_window", days=1, derive=month)) == {}
    for other in ({"op": "tolerance", "absolute": 1}, {"op": "contains"}):
        found = told(with_condition(**other, derive=month))
        assert list(found) == ["rules[0].conditions[1].derive[0].date_part"]


def test_sums_come_in_pairs_with_a_tolerance() -> None:
    both = {"left_sum": "a", "right_sum": "b"}
    assert told(with_rule(KEY, cardinality="1:N")) == {}
    assert told(with_rule(KEY, AMOUNT, cardinality="1:N", **both)) == {}
    assert list(told(with_rule(KEY, AMOUNT, cardinality="M:N", left_sum="a"))) == [
        "rules[0].right_sum"
    ]
    assert list(told(with_rule(KEY, cardinality="N:1", **both))) == [
        "rules[0].left_sum",
        "rules[0].right_sum",
    ]
    assert list(told(with_rule(KEY, AMOUNT, **both))) == ["rules[0].left_sum", "rules[0].right_sum"]


def test_first_in_first_out_needs_both_dates_and_pairs() -> None:
    fifo = {"ties": "first_in_first_out"}
    orders = {"left_order": "d", "right_order": "d"}
    assert told(with_rule(**fifo, **orders)) == {}
    assert list(told(with_rule(**fifo))) == ["rules[0].left_order", "rules[0].right_order"]
    assert list(told(with_rule(**fifo, **orders, cardinality="1:N"))) == ["rules[0].ties"]


@pytest.mark.parametrize(
    ("condition", "is_bounded"),
    [
        (AMOUNT, True),
        ({"left": "a", "op": "tolerance", "right": "b", "below": 1, "above": 1}, True),
        ({"left": "a", "op": "tolerance", "right": "b", "percent": 1}, True),
        ({"left": "a", "op": "date_window", "right": "b", "days": 1}, True),
        ({"left": "a", "op": "contains", "right": "b"}, False),
        ({"left": "a", "op": "gt", "right": "b"}, False),
    ],
)
def test_a_rule_without_a_key_is_bounded_otherwise_or_for_few_rows(
    condition: dict[str, Any], is_bounded: bool
) -> None:
    wanted = with_rule(condition)
    assert told(wanted) == {}

    def sources(rows: int | None) -> dict[Side, Input]:
        types = dict.fromkeys(("id", "a", "b", "amount"), "VARCHAR")
        return {side: Input("csv", (), types, rows=rows) for side in SIDES}

    later = recipe(rules=[{"name": "first", "conditions": [KEY]}, *wanted.model_dump()["rules"]])
    for possible, rows in ((wanted, 1_000), (wanted, None), (later, 1_001)):
        plan.make(possible, sources(rows))
    if is_bounded:
        plan.make(wanted, sources(1_001))
        return
    with pytest.raises(InvalidInput, match=r"each of 1,001 rows .* add an `eq`") as caught:
        plan.make(wanted, sources(1_001))
    assert [each.field for each in caught.value.problems] == ["rules[0].conditions"]


@pytest.mark.parametrize(
    "zone",
    ["Europe/Pariss", "", "/etc/passwd", "../UTC", "Europe", "a\0b", "localtime", "posixrules",
     "posix/Europe/Paris", "right/Europe/Paris"],
)  # fmt: skip
def test_a_time_zone_exists(zone: str) -> None:
    assert list(told(recipe(time_zone=zone))) == ["time_zone"]


def test_the_nearest_time_zone_is_suggested() -> None:
    (problem,) = check(recipe(time_zone="europe/pariss"))
    assert problem.suggestion == "did you mean Europe/Paris?"
    (problem,) = check(recipe(time_zone="posix/Europe/Paris"))
    assert problem.suggestion == "did you mean Europe/Paris?"
    assert check(recipe(time_zone="America/Argentina/Buenos_Aires")) == []


@pytest.mark.parametrize(
    ("date_format", "suggestion"),
    [
        ("%Q", "such as %d.%m.%Y"),
        ("%d.%m.%", "such as %d.%m.%Y"),
        ("", "such as %d.%m.%Y"),
        ("foo", "such as %d.%m.%Y"),
        ("100%%", "such as %d.%m.%Y"),
        ("dd.MM.yyyy", "did you mean %d.%m.%Y?"),
        ("dd/mm/yy", "did you mean %d/%m/%y?"),
        ("YYYY-MM-DD HH:mm:ss", "did you mean %Y-%m-%d %H:%M:%S?"),
        ("%d.%m.%Y", None),
        ("%-d %b %y, %H:%M %z", None),
    ],
)
def test_a_format_of_dates_is_one_that_the_engine_knows(
    date_format: str, suggestion: str | None
) -> None:
    found = check(with_source(csv={"date_format": date_format}))
    assert [each.suggestion for each in found] == ([suggestion] if suggestion else [])
    assert {each.field for each in found} <= {"sources.left.csv.date_format"}


def test_a_primary_key_names_each_column_once() -> None:
    assert list(told(with_source(primary_key=["a", "b", "a"]))) == ["sources.left.primary_key[2]"]


def test_currencies_are_named_on_both_sides_or_on_neither() -> None:
    assert list(told(with_source(currency="c"))) == ["sources.right.currency"]


@pytest.mark.parametrize(
    ("op", "value", "is_right"),
    [
        ("eq", "x", True),
        ("eq", None, False),
        ("eq", ["x"], False),
        ("in", ["x", 1], True),
        ("in", "x", False),
        ("not_in", [], False),
        ("is_null", None, True),
        ("not_null", "x", False),
        ("contains", "x", True),
        ("startswith", 5, False),
        ("lt", 10**28 - 1, True),
        ("lt", 10**28, False),
        ("lt", Decimal("0.1234567890"), True),
        ("lt", Decimal("1e-10"), False),
        ("in", ["a", Decimal("1e30")], False),
        ("lt", Decimal("0"), True),
    ],
)
def test_a_filter_has_the_value_that_it_needs(op: str, value: object, is_right: bool) -> None:
    each = {"column": "c", "op": op, "value": value}
    in_source = told(with_source(filters=[each]))
    assert list(in_source) == ([] if is_right else ["sources.left.filters[0].value"])
    in_rule = told(with_rule(right_filters=[each]))
    assert list(in_rule) == ([] if is_right else ["rules[0].right_filters[0].value"])


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ({"uri": "rows.csv"}, None),
        ({"uri": "/data/rows.csv"}, None),
        ({"uri": "file:///data/rows.csv"}, None),
        ({"uri": "s3://bucket/rows.csv"}, None),
        ({"uri": "source://bank"}, None),
        ({"uri": "source://"}, "uri"),
        ({"uri": "postgresql://db/bank", "table": "t"}, None),
        ({"uri": "postgres://me@db/bank", "table": "t", "format": "postgres"}, None),
        ({"uri": "postgresql://db/bank"}, "table"),
        ({"uri": "postgresql://db/bank", "table": "t", "format": "csv"}, "format"),
        ({"uri": "rows.csv", "format": "postgres"}, "uri"),
        ({"uri": "postgresql://db/x", "table": "t", "password": "secret://bank"}, None),
        ({"uri": "postgresql://me:secret://bank@db/x", "table": "t"}, "uri"),
        ({"uri": "postgresql://me@db/x?password=secret://bank", "table": "t"}, "uri"),
        ({"uri": "postgresql://me:hunter2@db/x", "table": "t"}, "uri"),
        ({"uri": "postgresql://me@db/x?password=hunter2", "table": "t"}, "uri"),
        ({"uri": "s3://key:hunter2@bucket/rows.csv"}, "uri"),
        ({"uri": "http://host/rows.csv"}, "uri"),
        ({"uri": "postgresql://[::1/x", "table": "t"}, "uri"),
    ],
)
def test_a_uri_is_of_a_known_kind_and_holds_no_password(
    source: dict[str, str], field: str | None
) -> None:
    problems = check(with_source(**source))
    assert [each.field for each in problems] == ([f"sources.left.{field}"] if field else [])
    assert "hunter2" not in str(problems)


def test_a_password_is_answered_with_the_way_to_name_a_secret() -> None:
    (problem,) = check(with_source(uri="postgresql://me:hunter2@db/x", table="t"))
    assert "password: secret://name" in problem.suggestion
    assert problem.value == "postgresql://me:***@db/x"


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


def test_an_amount_is_no_date() -> None:
    assert list(told(with_source(amount="day"), COLUMNS)) == ["sources.left.amount"]


def source(path: Path | str, **fields: Any) -> Source:
    return Source.model_validate({"uri": str(path), "primary_key": ["id"]} | fields)


def test_the_columns_of_a_csv_are_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("id;bétrag\n1;2,50\n".encode("latin-1"))
    semicolons = {"csv": {"delimiter": ";", "encoding": "latin-1", "decimal": ","}}
    assert checking.columns_of(source(path, **semicolons)) == {"id": "text", "bétrag": "text"}
    assert checking.columns_of(source(path.as_uri(), **semicolons)) == {
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
    assert checking.columns_of(source(path)) == wanted
    assert checking.columns_of(source(tmp_path / "*.parquet")) == wanted
    assert checking.columns_of(source(tmp_path, format="parquet")) == wanted


def test_the_columns_of_json_lines_are_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
    assert checking.columns_of(source(path)) == {"id": "text", "name": "text"}


def test_what_cannot_be_looked_at_is_unavailable(tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_text("not parquet")
    os.mkfifo(tmp_path / "pipe.csv")
    for each in (
        source(tmp_path / "none.csv"),
        source(tmp_path),
        source(tmp_path / "none-*.csv"),
        source(tmp_path / "pipe.csv"),
        source(broken),
        source("rows.bin"),
        source("s3://bucket/rows.csv"),
        source(tmp_path / "none", format="delta"),
    ):
        with pytest.raises(Unavailable):
            checking.columns_of(each)
