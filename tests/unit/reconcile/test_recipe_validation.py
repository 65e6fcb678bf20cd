"""What makes no sense in a recipe of sound structure."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.recipe.validation import check
from kalla.reconcile.sources import source_planning
from tests.recipe_kit import AMOUNT, KEY, recipe, told, with_condition, with_rule, with_source


def test_a_sensible_recipe_has_no_problem() -> None:
    assert told(recipe()) == {}


@pytest.mark.parametrize("uri", ["postgresql://[::1/db", "s3://bu[ck/x.csv", "postgres://a]/db"])
def test_an_address_whose_host_cannot_be_read_is_told(uri: str) -> None:
    given = with_source(uri=uri)
    assert told(given) == {"sources.left.uri": "is not an address: its host cannot be read"}
    assert source_planning.is_staged(given.sources.left) == uri.startswith("postgres")


def test_a_path_may_hold_brackets() -> None:
    assert told(with_source(uri="//[x/*.csv")) == {}
    assert told(with_source(uri="postgresql://u@[::1]:5432/db", table="t")) == {}
    assert not source_planning.is_staged(with_source(uri="//[x/*.csv").sources.left)


def test_a_recipe_has_either_rules_or_sql() -> None:
    assert told(recipe(match_sql="SELECT 1")) == {"match_sql": "cannot be combined with rules"}
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
        ("%d.%m.", "such as %d.%m.%Y"),  # without a year, which would be 1900
        ("%H:%M", "such as %d.%m.%Y"),
        ("%d.%m.%Y", None),
        ("%x", None),
        ("%Y-%j", None),
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
