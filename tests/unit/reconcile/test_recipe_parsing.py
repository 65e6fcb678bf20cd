"""Reading recipes: what a text says, what it must not say, and how every problem is told."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
import yaml

from kalla.errors import InvalidInput
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import Filter, Recipe, Side, Tolerance
from kalla.reconcile.recipe.parsing import RecipeProblem
from tests.recipe_kit import ROOT, SMALL, filter_value, problems, sample, small_with_filter

MONTH = {"month": "2026-01-01"}


def test_a_recipe_that_says_everything_is_read() -> None:
    recipe = parsing.read(sample("invoices.yaml"), MONTH)
    assert recipe.version == "1"
    assert [rule.cardinality for rule in recipe.rules] == ["1:1", "1:N", "1:1"]
    assert recipe.sources.left.uri == "data/no/invoices.csv"
    assert recipe.sources.left.filters == (
        Filter(column="issued", op="gte", value=date(2026, 1, 1)),
        Filter(column="state", op="in", value=("open", "007", "no", "on")),
    )
    tolerance = recipe.rules[0].conditions[1]
    assert isinstance(tolerance, Tolerance)
    assert tolerance.absolute == Decimal("0.01")


def test_json_says_the_same_as_yaml() -> None:
    document = yaml.safe_load(SMALL)
    as_json = json.dumps(document, indent="\t")
    assert parsing.read(as_json) == parsing.read(SMALL)
    assert parsing.read(sample("sql.json")).match_sql is not None


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0.1", Decimal("0.1")),
        ("0.1000", Decimal("0.1000")),
        ("1e-2", Decimal("0.01")),
        ("12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
        ("-7", -7),
        ("007", "007"),
        ("1:30", "1:30"),
        ("0x1F", "0x1F"),
        (".5", Decimal("0.5")),
        ("5.", Decimal("5")),
        ("+5", 5),
        ("'1_000'", "1_000"),
        (".inf", ".inf"),
        ("no", "no"),
        ("on", "on"),
        ("NO", "NO"),
        ("yes", "yes"),
        ("true", True),
        ("'5'", "5"),
        ('"2026-01-31"', "2026-01-31"),
        ("2026-01-31", date(2026, 1, 31)),
        ("2026-01-31T10:00:00Z", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-02-30", "2026-02-30"),
        ("!!str 5", "5"),
    ],
)
def test_a_plain_value_is_what_it_looks_like(written: str, value: object) -> None:
    found = filter_value(small_with_filter(written))
    assert (type(found), found) == (type(value), value)
    assert str(found) == str(value), "digits are kept as written"


@pytest.mark.parametrize("written", ["1_000", "-1_000.50", "12_34"])
def test_a_number_that_is_a_text_to_some_is_refused(written: str) -> None:
    told = problems(small_with_filter(written))
    (problem,) = told.values()
    assert problem.field == "sources.left.filters[0].value"
    assert problem.suggestion == f'write {written.replace("_", "")}, or "{written}" for a text'


def test_amounts_in_json_are_exact() -> None:
    text = json.dumps(yaml.safe_load(small_with_filter("0")))
    assert filter_value(text.replace('"value": 0', '"value": 0.10')) == Decimal("0.10")
    assert str(filter_value(text.replace('"value": 0', '"value": 0.10'))) == "0.10"


def test_a_cardinality_is_not_a_time_of_day() -> None:
    text = SMALL.replace("- name: only", "- name: only\n    cardinality: 1:1")
    assert parsing.read(text).rules[0].cardinality == "1:1"


def test_everything_wrong_is_told_once_with_path_value_and_suggestion() -> None:
    told = problems(sample("broken.yaml"))
    condition = "rules[0].conditions"
    assert set(told) == {
        "nam", "name", "version", "sources.left.primary_key", "sources.left.password",
        "sources.right.uri", "rules[0].cardinality", "rules[0].left_filters[0].value",
        f"{condition}[0].op", f"{condition}[0].left", f"{condition}[1].derive[0]",
        f"{condition}[1].derive[1].regx", f"{condition}[1].derive_left",
        f"{condition}[2].absolute", f"{condition}[2].threshold", f"{condition}[3].days",
        f"{condition}[4].absolute", f"{condition}[4].percent", f"{condition}[5].op",
    }  # fmt: skip
    assert told["nam"].suggestion == "did you mean name?"
    assert told["sources.right.uri"].message == "is given twice, in line 10 and in line 12"
    assert told["sources.left.primary_key"].suggestion == "write [id]"
    assert told["rules[0].cardinality"].value == "1:X"
    assert told[f"{condition}[0].op"].suggestion == "did you mean eq?"
    assert told[f"{condition}[1].derive[0]"].suggestion == "did you mean trim?"
    assert told[f"{condition}[2].threshold"].suggestion == "did you mean absolute?"
    assert told[f"{condition}[4].percent"].message == "must be at least 0"
    assert told[f"{condition}[4].percent"].value == -1
    words = " ".join(map(str, told.values()))
    assert "Input should" not in words
    assert "valid" not in words


def test_a_secret_in_a_wrong_place_is_not_repeated() -> None:
    told = problems(sample("broken.yaml"))
    assert told["sources.left.password"].message == "must name a secret"
    assert told["sources.left.password"].value == "***"
    assert "hunter2" not in str(problems(sample("senseless.yaml")))


def test_a_recipe_of_sound_structure_may_make_no_sense() -> None:
    told = problems(sample("senseless.yaml"))
    assert set(told) == {
        "match_sql", "time_zone", "sources.left.uri", "sources.left.primary_key[1]",
        "sources.right.uri", "sources.right.currency", "rules[1].name",
        "rules[1].conditions[0].derive[0].regex", "rules[1].conditions[1].days",
        "rules[1].conditions[2].threshold", "rules[1].left_sum", "rules[1].right_sum",
        "rules[1].ties", "rules[1].left_order", "rules[1].right_order",
        "rules[1].right_filters[0].value",
    }  # fmt: skip


UNSOUND = """
name: Unsound
colour: red
parameters: {slack: {type: number}}
sources:
  left: {uri: left.csv, primary_key: [idd], amount: amonut, read: fast}
  right: {uri: right.csv, primary_key: [], formt: csv}
rules:
  - name: one
    cardinality: "2:3"
    left_sum: amount
    conditions:
      - {left: reff, op: eq, right: ref}
      - {left: ref, op: tolerence, right: ref}
      - {left: amount, op: tolerance, right: amount}
      - {left: refff, op: fuzzy, right: ref, threshold: 3}
      - {left: ref, op: eq, right: ref, derive: [uper, {regex: "("}]}
      - {left: amount, op: tolerance, right: amount, absolute: "${slak}"}
    left_filters: [{column: reference, op: is, value: 3}, {column: ref, op: in, value: 3}]
  - {name: one, conditions: [], ties: random}
"""


def test_sense_and_columns_are_judged_also_where_the_structure_is_not_sound() -> None:
    asked: list[Collection[Side]] = []

    def look(_: Recipe, sides: Collection[Side]) -> dict[Side, dict[str, str]]:
        asked.append(sides)
        return {"left": {"id": "integer", "ref": "text", "amount": "decimal"}}

    with pytest.raises(InvalidInput) as caught:
        parsing.read(UNSOUND, columns=look)
    one = "rules[0].conditions"
    assert sorted(each.field for each in caught.value.problems) == sorted({
        "colour", "sources.left.primary_key[0]", "sources.left.amount", "sources.left.read",
        "sources.right.primary_key", "sources.right.formt", "rules[0].cardinality",
        f"{one}[0].left", f"{one}[1].op", f"{one}[2]", f"{one}[3].left", f"{one}[3].threshold",
        f"{one}[4].derive[0]", f"{one}[4].derive[1].regex", f"{one}[5].absolute",
        "rules[0].left_filters[0].op", "rules[0].left_filters[0].column",
        "rules[0].left_filters[1].value", "rules[1].name", "rules[1].conditions", "rules[1].ties",
    })  # fmt: skip
    # How the right source is to be read is not understood.
    assert asked == [("left",)]


def test_json_names_given_twice_are_told_with_their_lines() -> None:
    text = '{\n\t"name": "a",\n\t"sources": {"left": {"uri": "a",\n\t\t"uri": "b"}}}'
    assert problems(text)["sources.left.uri"].message == "is given twice, in line 3 and in line 4"
    assert "uri" in problems(text.replace('"b"', r'"\ud83d\ude00"'))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the document is empty"),
        ("# nothing\n", "the document is empty"),
        ("[a, b]", "the document must be fields and their values"),
        ("just text", "the document must be fields and their values"),
        ("name: a\n\tb: c", "a tab where spaces belong (line 2, column 1)"),
        ("name: [a\nb: c", "(line 2, column 2)"),
        ('{"name": "a",\n "b" 1}', "is not valid JSON: Expecting ':' delimiter (line 2, column 5)"),
        ('{"a": 1,\n "b": 2\n\n "c": 3}', "Expecting ',' delimiter (line 2, column 8)"),
        ('{"a": 1,\n "b":\n}}', "Expecting value (line 2, column 6)"),
        ('{"a": 1,\n "b": nope]', "Expecting value (line 2, column 7)"),
        ("name: a\n---\nname: b", "holds a second document from line 2 on"),
        ("? [a]\n: b", "has a name that is not text, in line 1"),
        ("name: \x07", "U+0007"),
        ("name: \udcff", "is not UTF-8 (line 1, column 7)"),
        ('{"\\ud800": 1}', "has a name that is not Unicode text"),
        ("name: " + "x" * 1_000_000, "is larger than 250,000 bytes"),
        ("a: " + "[" * 40 + "]" * 40, "is nested more than 32 levels deep"),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "is nested more than 32 levels deep"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested more than 32 levels deep"),
    ],
)
def test_what_is_no_document_is_refused_with_the_place(text: str, sentence: str) -> None:
    (told,) = problems(text).values()
    assert sentence in str(told)


def test_aliases_are_refused_so_that_none_can_grow() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{after}: &{after} [*{before}, *{before}]\n"
        for before, after in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert problems(bomb)["b[0]"].message == "is an alias (line 2), which recipes do not have"


def test_tags_are_refused() -> None:
    told = problems("name: !!python/object:os.system x\n")
    assert told["name"].message == "has a tag (line 1), which recipes do not have"


def test_half_a_character_is_told_where_it_stands() -> None:
    text = json.dumps(yaml.safe_load(SMALL)).replace('"Small"', r'"\ud800"')
    assert problems(text)["name"].message.startswith("is not Unicode text")


def test_a_flood_of_problems_is_cut() -> None:
    told = problems("\n".join(f"field{number}: 1" for number in range(5000)))
    assert len(told) == 201
    assert told[""].message == "there are more problems; these are the first 200"
    conditions = [{"left": f"c{number}", "op": "date_window", "right": "d"} for number in range(40)]
    rules = [{"name": f"r{number}", "conditions": conditions} for number in range(100)]
    source = {"uri": "a.csv", "primary_key": ["id"]}
    document = {"name": "x", "sources": {"left": source, "right": source}, "rules": rules}
    assert len(problems(json.dumps(document))) == 201


def test_what_is_missing_is_answered_with_an_example() -> None:
    told = problems(
        "{sources: {left: {primary_key: []}}, parameters: {x: 5},"
        " rules: [{name: '', conditions: [{op: fuzzy, left: a}]}, {name: b, conditions: []}]}"
    )
    assert {field: each.suggestion for field, each in told.items()} == {
        "name": "any text that identifies it",
        "sources.left.uri": "a path, s3://…, postgresql://… or source://NAME",
        "sources.left.primary_key":
            "name the columns that identify a row, such as primary_key: [id]",
        "sources.right": "such as {uri: invoices.csv, primary_key: [id]}",
        "parameters.x": "such as {type: number, default: 0.01}",
        "rules[0].name": "any text that identifies it",
        "rules[0].conditions[0].right": "name a column",
        "rules[0].conditions[0].threshold": "such as 0.9",
        "rules[1].conditions": "such as [{left: ref, op: eq, right: ref}]",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (SMALL.partition("rules:")[0].replace("name: Small\n", ""), ["name", "rules"]),
        (SMALL.partition("rules:")[0] + "version: 7\n", ["version", "rules"]),
        (SMALL.replace("rules:", "rulez:"), ["rulez"]),
        (SMALL.partition("rules:")[0] + "match_sql: 5\n", ["match_sql"]),
        (SMALL.partition("rules:")[0] + "rules: 5\n", ["rules"]),
        (SMALL.partition("rules:")[0] + "match_sql: SELECT ${x}\n", ["match_sql"]),
    ],
    ids=range(6),
)
def test_that_nothing_says_what_matches_is_told_unless_something_may_have(
    text: str, fields: list[str]
) -> None:
    assert list(problems(text)) == fields


@pytest.mark.parametrize(
    ("field", "suggestion"),
    [
        ("op: tolerance, absolute: -1", "such as 0.01"),
        ("op: tolerance, above_percent: -1, below: 0", "such as 0.01"),
        ("op: date_window, days: -1", "such as 3"),
        ("op: fuzzy, threshold: 2", "such as 0.9"),
    ],
)
def test_what_is_out_of_its_bounds_is_answered_with_an_example(field: str, suggestion: str) -> None:
    (told,) = problems(SMALL.replace("op: eq", field)).values()
    assert told.suggestion == suggestion


HOSTILE = "SELECT reflect('java.lang.System', 'exit', 0), l.totl AS t FROM left_src l, nowhere"


def test_what_is_wrong_with_sql_is_told_before_anything_runs() -> None:
    document = json.loads(sample("sql.json"))

    def said(sql: str) -> list[tuple[str, object, str]]:
        columns: dict[Side, dict[str, str]] = {"left": {"order_id": "text", "total": "decimal"}}
        with pytest.raises(InvalidInput) as caught:
            parsing.read(json.dumps(document | {"match_sql": sql}), columns=lambda *_: columns)
        assert {each.field for each in caught.value.problems} == {"match_sql"}
        told = [each for each in caught.value.problems if isinstance(each, RecipeProblem)]
        assert len(told) == len(caught.value.problems)
        return [(each.message.split(" (")[0], each.value, each.suggestion) for each in told]

    outside = "SQL here reaches nothing but the given tables"
    assert said(HOSTILE) == [
        (f"the function reflect is not allowed: {outside}", "reflect",
         "use the functions of Spark SQL"),
        ("there is no table nowhere", "nowhere", "read left_src and right_src"),
        ("l has no column totl", "l.totl", "did you mean total?"),
    ]  # fmt: skip
    assert said("SELECT l.order_id FROM left_src l") == [
        ("the right primary key shipment_id is missing from its result", "shipment_id",
         "select it once, AS right_shipment_id"),
    ]  # fmt: skip
    assert said("SELECT l.*, l.total AS order_id, 1 AS shipment_id FROM left_src l") == [
        ("the left primary key order_id occurs more than once in its result", "order_id",
         "select it once, AS left_order_id"),
    ]  # fmt: skip
    # Of the right side nobody knows the columns: its key may be among them.
    parsing.read(
        json.dumps(document | {"match_sql": "SELECT l.order_id, r.* FROM left_src l, right_src r"}),
        columns=lambda *_: {"left": {"order_id": "text"}},
    )


def test_other_sources_take_the_place_of_the_recipes() -> None:
    recipe = parsing.read(SMALL, left="other.parquet", right="s3://bucket/right.csv")
    assert recipe.sources.left.uri == "other.parquet"
    assert recipe.sources.right.uri == "s3://bucket/right.csv"
    without = SMALL.replace("uri: left.csv, ", "")
    assert parsing.read(without, left="x.csv").sources.left.uri == "x.csv"


def test_the_published_schema_is_up_to_date() -> None:
    published = json.loads((ROOT / "docs" / "recipe.schema.json").read_text("utf-8"))
    remedy = "run `.venv/bin/kalla recipe schema > docs/recipe.schema.json`"
    assert published == parsing.json_schema(), remedy


def test_the_schema_lets_numbers_be_parameters() -> None:
    schema = parsing.json_schema()
    filled = {"$ref": "#/$defs/Filled"}
    assert filled in schema["$defs"]["Tolerance"]["properties"]["absolute"]["anyOf"]
    assert filled in schema["$defs"]["Bounds"]["properties"]["subset_rows"]["anyOf"]
    assert schema["required"] == ["name", "sources"]
