"""The SQL sandbox: what an accountant writes passes and keeps its meaning, an attack does not.

The texts are in `good_sql` and `hostile_sql`, by kind; a line `---` stands between two of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from kalla.errors import InvalidInput, Problem
from kalla.spark.sandbox import LONGEST, hold
from kalla.spark.sandbox.allowed_functions import FUNCTIONS, REASONS
from kalla.spark.sandbox.grammar import NODES, Held
from kalla.spark.sandbox.searches import bounded

HERE = Path(__file__).parent
KNOWN = {
    "left_src": ["id", "invoice", "amount", "currency", "booked", "memo", "status"],
    "right_src": ["id", "reference", "amount", "currency", "paid", "memo", "created"],
}
UNKNOWN: dict[str, list[str]] = {"left_src": [], "right_src": []}

# The only words that are not in quotes in what comes out, besides functions.
KEYWORDS = set(
    """
    ALL AND ANTI AS ASC BETWEEN BY CASE CROSS CURRENT DESC DISTINCT DIV ELSE END ESCAPE EXCEPT
    EXISTS FALSE FILTER FIRST FOLLOWING FROM FULL GROUP HAVING IGNORE ILIKE IN INNER INTERSECT
    INTERVAL IS JOIN LAST LEFT LIKE LIMIT NATURAL NOT NULL NULLS OFFSET ON OR ORDER OUTER OVER
    PARTITION PRECEDING RANGE RESPECT RIGHT RLIKE ROW ROWS SELECT SEMI THEN TO TRUE UNBOUNDED
    UNION USING WHEN WHERE WINDOW WITH
    BIGINT BOOLEAN DATE DECIMAL DOUBLE FLOAT INT SMALLINT STRING TIMESTAMP TIMESTAMP_LTZ
    TIMESTAMP_NTZ TINYINT
    YEAR QUARTER MONTH WEEK DAY HOUR MINUTE SECOND MILLISECOND MICROSECOND YEARS QUARTERS MONTHS
    WEEKS DAYS HOURS MINUTES SECONDS MILLISECONDS MICROSECONDS DAYOFWEEK DAYOFYEAR DOW DOY
    YEAROFWEEK
    """.split()  # noqa: SIM905 -- a list of words reads better as words
)


def texts(folder: str) -> Iterator[str]:
    for path in sorted((HERE / folder).glob("*.sql")):
        yield from path.read_text(encoding="utf-8").removesuffix("\n").split("\n---\n")


GOOD = list(texts("good_sql"))
HOSTILE = list(texts("hostile_sql"))


def refused(sql: str, tables: dict[str, list[str]] = KNOWN) -> tuple[Problem, ...]:
    with pytest.raises(InvalidInput) as caught:
        hold(sql, tables)
    assert all(problem.field == "match_sql" for problem in caught.value.problems)
    return caught.value.problems


def problems(sql: str, tables: dict[str, list[str]] = KNOWN) -> list[str]:
    return [problem.message for problem in refused(sql, tables)]


def bare_words(sql: str) -> set[str]:
    """What is left of a text without its quoted names, its texts and its numbers."""
    rest = re.sub(r"'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`", " ", sql, flags=re.DOTALL)
    assert not re.search(r"--|/\*|\*/|;|\"|\|>|[:@$?{}#]", rest), rest
    return set(re.findall(r"[^\W\d]\w*", re.sub(r"\b\d+\.?\d*(e[+-]?\d+)?", " ", rest, flags=re.I)))


# What passes


@pytest.mark.parametrize("sql", GOOD)
def test_what_an_accountant_writes_passes_and_comes_out_the_same_again(sql: str) -> None:
    held = hold(sql, KNOWN)
    assert hold(held, KNOWN) == held
    assert hold(sql, UNKNOWN) == held


@pytest.mark.parametrize("sql", GOOD)
def test_what_comes_out_is_keywords_listed_functions_and_quoted_names(sql: str) -> None:
    words = {word.upper() for word in bare_words(hold(sql, KNOWN))}
    assert words <= KEYWORDS | {name.upper() for name in FUNCTIONS} | {"TOLERANCE_MATCH"}


def test_every_node_on_the_list_is_one_that_an_accountant_needs() -> None:
    used = {
        type(node)
        for sql in GOOD
        for tree in Held().parse(sql)
        if tree is not None
        for node in tree.walk()
    }
    # A unit becomes one node of its own on the way.
    assert used | {exp.Var} == set(NODES)


def test_comments_stay_behind() -> None:
    held = hold("SELECT id /* one */ FROM left_src -- two\n/* three */", UNKNOWN)
    assert held == "SELECT `id` FROM `left_src`"


def test_a_text_keeps_its_meaning() -> None:
    held = hold(r"""SELECT 'it''s', "a""b", r'\d', '\\', '\t' FROM left_src""", UNKNOWN)
    assert held == r"""SELECT 'it\'s', 'a"b', '\\d', '\\', '\t' FROM `left_src`"""


def test_the_two_signs_of_a_variable_may_be_put_together() -> None:
    held = hold("SELECT id FROM left_src WHERE memo = '$' || '{x}'", KNOWN)
    assert held == "SELECT `id` FROM `left_src` WHERE `memo` = '$' || '{x}'"


def test_a_with_stays_in_its_scope() -> None:
    held = hold(
        "WITH a AS (SELECT id FROM left_src)"
        " SELECT * FROM a WHERE id IN (WITH a AS (SELECT id FROM right_src) SELECT id FROM a)",
        KNOWN,
    )
    assert "IN (WITH `a` AS (SELECT `id` FROM `right_src`) SELECT" in held


def test_other_functions_are_allowed_by_name() -> None:
    assert "F1(" in hold("SELECT f1(id) FROM left_src", UNKNOWN, functions={"f1": 1})
    with pytest.raises(InvalidInput, match="tolerance_match"):
        hold("SELECT tolerance_match(1, 2, 3) FROM left_src", UNKNOWN, functions={})


def test_a_function_of_ours_has_its_arguments() -> None:
    with pytest.raises(InvalidInput, match="tolerance_match takes 3 arguments, not 2"):
        hold("SELECT tolerance_match(1, 2) FROM left_src", UNKNOWN)


@pytest.mark.parametrize("rows", ["VALUES (1)", "UNNEST(array(1))", "LATERAL (SELECT 1)"])
def test_rows_from_elsewhere_are_refused_for_what_they_are(rows: str) -> None:
    with pytest.raises(InvalidInput, match=f"{rows.split('(')[0].strip()} is not allowed"):
        hold(f"SELECT 1 FROM left_src, {rows}", UNKNOWN)


def test_names_do_not_depend_on_case() -> None:
    hold("SELECT L.ID, Lower(MEMO) FROM LEFT_SRC l", KNOWN)


def test_a_column_with_fields_may_be_read() -> None:
    tables = {"left_src": ["id", "address"], "right_src": []}
    hold("SELECT l.address.city, address.city FROM left_src l", tables)


# What does not


def test_the_corpus_is_large_enough_to_mean_something() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 120
    assert len(set(GOOD)) == len(GOOD) >= 30


@pytest.mark.parametrize("sql", HOSTILE)
def test_an_attack_is_refused_whether_the_columns_are_known_or_not(sql: str) -> None:
    assert problems(sql, KNOWN)
    assert problems(sql, UNKNOWN)


@pytest.mark.parametrize("name", sorted(REASONS))
def test_a_dangerous_function_is_refused_wherever_it_stands(name: str) -> None:
    for sql in (
        f"SELECT {name}(l.id) FROM left_src l",
        f"SELECT abs(`{name.upper()}`(l.id)) FROM left_src l",
        f"SELECT l.id FROM left_src l JOIN right_src r ON {name}(l.id) = r.id",
        f"SELECT l.id FROM left_src l WHERE l.id IN (SELECT {name}(r.id) FROM right_src r)",
        f"SELECT l.id FROM left_src l GROUP BY l.id HAVING count(*) > {name}()",
        f"SELECT l.id FROM left_src l ORDER BY {name}(1)",
        f"SELECT sum(l.id) OVER (PARTITION BY {name}(1)) FROM left_src l",
        f"SELECT CASE WHEN {name}(1) THEN 1 END FROM left_src l",
        f"WITH t AS (SELECT {name}(id) AS x FROM left_src) SELECT x FROM t",
        f"SELECT * FROM {name}(1)",
    ):
        assert any(name in message.lower() for message in problems(sql, UNKNOWN)), sql


def test_no_listed_function_is_known_to_be_dangerous() -> None:
    assert not FUNCTIONS & set(REASONS)


@pytest.mark.parametrize(
    ("sql", "said", "value", "suggestion"),
    [
        ("SELECT l.amunt FROM left_src l", "l has no column amunt", "l.amunt",
         "did you mean amount?"),
        ("SELECT amunt FROM left_src", "there is no column amunt", "amunt", "did you mean amount?"),
        ("SELECT zzz FROM left_src", "there is no column zzz", "zzz",
         "known: amount, booked, currency, id, invoice, memo, status"),
        ("SELECT lft.id FROM left_src l", "there is no table or alias lft", "lft.id", "known: l"),
        ("SELECT * FROM lft_src", "there is no table lft_src", "lft_src", "did you mean left_src?"),
        ("SELECT coalese(id, 1) FROM left_src", "the function coalese is not allowed", "coalese",
         "did you mean coalesce?"),
        ("WITH t AS (SELECT id AS key FROM left_src) SELECT t.kex FROM t", "t has no column kex",
         "t.kex", "did you mean key?"),
        ("SELECT x.memmo FROM (SELECT l.* FROM left_src l) x", "x has no column memmo", "x.memmo",
         "did you mean memo?"),
        ("SELECT 1; DROP TABLE t", "only one statement is allowed", "DROP TABLE t",
         "keep the first alone, without its semicolon"),
        ("DROP TABLE t", "only one SELECT is allowed, this begins with DROP", "DROP",
         "write SELECT … FROM left_src l JOIN right_src r ON …"),
        ("SELECT TRANSFORM(id) USING 'x' FROM left_src", "TRANSFORM is not allowed", "TRANSFORM",
         "use functions, such as upper or regexp_replace"),
        ("SELECT * FROM text.`/etc/passwd`", "the table text./etc/passwd cannot be read",
         "text./etc/passwd", "read left_src and right_src"),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", "a cyclic definition is not allowed", "t",
         "name each WITH after those it reads"),
        ("SELECT uuid() FROM left_src", "may differ from run to run", "uuid",
         "use md5 or hash of the row's key"),
        ("SELECT id FROM left_src LIMIT 3", "need ORDER BY", "LIMIT",
         "order by columns that tell all rows apart"),
        ("SELECT rank() FROM left_src", "rank needs an order", "rank",
         "write rank(…) OVER (… ORDER BY column)"),
        ("SELECT lpad(memo,\n  5000, 'x') FROM left_src", "the length of lpad must be a number",
         "lpad(memo, 5000, 'x')", "write the number itself"),
        ("SELECT id FROM left_src QUALIFY id = 1", "QUALIFY is not allowed", "id = 1",
         "filter the window's result in a SELECT around it"),
        ("SELECT CAST(id AS BINARY) FROM left_src", "the type BINARY is not allowed", "BINARY",
         "use one of BIGINT, BOOLEAN, DATE, DECIMAL, DOUBLE, INT, STRING, TIMESTAMP"),
        ("SELECT id AS `a${x}` FROM left_src", "${ is not allowed", "${x}` FROM left_src",
         "put the two signs together, '$' || '{'"),
        ("SELECT id FRM left_src", "not valid SQL near 'left_src'", "left_src",
         "a word, comma or bracket may be missing before it"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_thing_and_what_to_write(
    sql: str, said: str, value: str, suggestion: str
) -> None:
    found = [each for each in refused(sql) if said in each.message]
    assert [(each.value, each.suggestion) for each in found] == [(value, suggestion)]


@pytest.mark.parametrize("sql", [*HOSTILE, "SELECT '" + "x" * LONGEST + "'"])
def test_every_refusal_shows_the_piece_that_is_refused(sql: str) -> None:
    for tables in (KNOWN, UNKNOWN):
        for each in refused(sql, tables):
            assert isinstance(each.value, str)
            assert 0 < len(each.value) <= 201
            assert (each.message + each.value).isprintable()


def test_every_problem_is_told_at_once_with_its_place() -> None:
    sql = """SELECT l.amunt, uuid(),
  rand() AS x
FROM left_src l
JOIN secrets s ON l.id = s.id"""
    unlike = "its result may differ from run to run"
    assert sorted(problems(sql)) == [
        "l has no column amunt (line 1, column 8)",
        f"the function rand is not allowed: {unlike} (line 2, column 3)",
        f"the function uuid is not allowed: {unlike} (line 1, column 17)",
        "there is no table secrets (line 4, column 6)",
    ]


def test_there_is_an_end_to_telling_problems() -> None:
    sql = "SELECT " + ", ".join(f"f{number}(1)" for number in range(500)) + " FROM left_src"
    told = problems(sql)
    assert len(told) == 51
    assert told[-1] == "and 450 more problems"


def test_a_refused_text_leaves_nothing_behind_for_the_next() -> None:
    problems("SELECT id FROM left_src START WITH id = 1 CONNECT BY PRIOR", UNKNOWN)
    hold("SELECT prior, start, connect FROM left_src", UNKNOWN)


# What nobody thought of

WORDS = [
    *KEYWORDS, *sorted(FUNCTIONS), *sorted(REASONS), "left_src", "right_src", "l", "r", "id",
    "amount", "secrets", "tolerance_match", "(", ")", "()", ",", ".", "*", "+", "-", "--", "/*",
    "*/", "/*+", ";", "'", '"', "`", "'a'", '"b"', "`c`", "r'", "1", "0.5", "1e3", "10L", "=",
    "<", ">", "<=>", "<>", "!", "||", "|>", "::", ":", "?", "@", "$", "${x}", "'$", "{'",
    "\\u0024", "{", "}", "[", "]", "[0]", "->", "=>", "\\", "\n", "“", "’", "\u200b", "é",
    "text.`/etc/passwd`", "IDENTIFIER",
    "TRANSFORM", "LATERAL", "VIEW", "PIVOT", "QUALIFY", "VALUES", "TABLESAMPLE", "RECURSIVE",
    "INTO", "INSERT", "DROP", "TABLE", "SET", "CREATE", "ADD JAR", "BEGIN", "EXECUTE IMMEDIATE",
    "CUBE", "ROLLUP", "ARRAY<", "STRUCT<", "MAP", "CONNECT BY", "PRIOR", "FOR UPDATE", "CLUSTER BY",
    "ANY", "SOME", "COLLATE", "AT TIME ZONE", "VERSION AS OF", "UNPIVOT", "STREAM", "DECLARE",
]  # fmt: skip

soup = st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """A good text into which something got that does not belong there."""
    parts = re.findall(r"\w+|\s+|[^\w\s]", draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(parts)))
        taken = draw(st.integers(0, 2))
        parts[place : place + taken] = draw(st.lists(st.sampled_from(WORDS), max_size=3))
    return draw(st.sampled_from(["", " "])).join(parts)


@given(sql=st.one_of(soup, soup.map(lambda words: f"SELECT {words} FROM left_src"), spoilt()))
@settings(max_examples=600, deadline=None)
def test_any_text_is_refused_or_comes_out_safe(sql: str) -> None:
    try:
        held = hold(sql, UNKNOWN)
    except InvalidInput:
        return
    assert hold(held, UNKNOWN) == held
    assert "${" not in held
    words = {word.upper() for word in bare_words(held)}
    assert words <= KEYWORDS | {name.upper() for name in FUNCTIONS} | {"TOLERANCE_MATCH"}, held


@pytest.mark.attack
@pytest.mark.parametrize(
    ("sql", "instead"),
    [
        (
            "SELECT id FROM left_src QUALIFY row_number() OVER (ORDER BY id) = 1",
            "filter the window's result in a SELECT around it",
        ),
        (
            "SELECT id FROM left_src JOIN (VALUES ('EUR')) AS v(c) ON currency = v.c",
            "write CASE WHEN … THEN … END, or keep the values in a source",
        ),
        (
            "SELECT id FROM left_src WHERE memo LIKE ANY ('a%', 'b%')",
            "write several conditions with OR between them",
        ),
        (
            "SELECT id FROM left_src WHERE memo LIKE ALL ('a%', 'b%')",
            "write several conditions with AND between them",
        ),
        ("SELECT min_by(id, amount) AS a FROM left_src", "use min or max, or first_value"),
        ("SELECT any_value(id) AS a FROM left_src", "use min or max, or first_value"),
    ],
)
def test_harmless_sql_that_is_refused_says_what_to_write(sql: str, instead: str) -> None:
    assert any(instead in (each.suggestion or "") for each in refused(sql, KNOWN))


@pytest.mark.attack
def test_what_a_pattern_is_searched_in_is_bounded_by_its_tries() -> None:
    held = hold(
        "SELECT id FROM left_src WHERE memo RLIKE '.*.*y' AND upper(memo) LIKE '%a%b%c%'"
        " AND levenshtein(memo, status) < 3 AND memo LIKE 'a%' AND memo RLIKE '^[A-Z]+-'",
        KNOWN,
    )
    assert re.findall(r"KALLA_SEARCHED\(CAST\(([^)]+)\)? AS STRING\), (\d+)\)", bounded(held)) == [
        ("`memo`", "1356"),
        ("UPPER(`memo`", "1709"),
        ("`memo`", "70710"),
        ("`status`", "70710"),
    ]
    with pytest.raises(InvalidInput):  # it is ours alone
        hold("SELECT kalla_searched(memo, 5) AS a FROM left_src", KNOWN)
