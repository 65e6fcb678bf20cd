"""Patterns, searches and numbers in the SQL sandbox: what people need passes, what Java would try
for years does not, and no pattern makes a text of any length.
"""

from __future__ import annotations

import pytest

from kalla.spark.sandbox import hold, searches
from tests.unit.test_sandbox import KNOWN, problems


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{1,3}(,\d{3})*$", "^(INV|RE)-[0-9]+$", "[^0-9]", r"(\d+)-(\d+)", "(?i)paid",
        "(a|b)c+", r"\(\d+\)+", "[(+]+", "(ab){2}", ".*x.*", "^INV-0*([0-9]+)$",
        r"\d{4}-\d{2}-\d{2}", r"[A-Z]{2,3}-?\d+", r"^\s*(.*?)\s*$", r"^\s*(\d+)\s*EUR\s*$",
        r"^[A-Z]{2}\d{2}\s?(\d{4}\s?){4}\d{0,2}$", r"^-?\d{1,3}([.,]\d{3})*([.,]\d{2})?$",
        "^[A-Z]+[0-9]+-[A-Z]+[0-9]+$", "^([^,]*),([^,]*),([^,]*),([^,]*),([^,]*)$",
        r"^\s+|\s+$", r"(?i)\b(inv|re|rg)[-_ ]?\d{4,10}\b", "^0+(?!$)", r"[^\p{L}\d]+",
        r"(\d{1,3}\.){3}\d{1,3}", r"^(.*?)\s*-\s*(.*)$", "", r"[\x00-\x1f]",
        r"^[\w.+-]+@[\w-]+\.[\w.]+$", r"\||a|b", "^.*INV.*-.*$", "(.*)-(.*)-(.*)", "[]x-]*+y",
        r"\u00a0|\x{1F600}", "(?>a+)b", "(?<year>[0-9]{4})", "(?<=INV-)[0-9]+", "(?i:Paid)",
        "^(?:a.)*+$", ".{2,1000}", r"\S{5}\S*", "(?:[0-9][a-z])*",
    ],
)  # fmt: skip
def test_a_pattern_that_people_need_passes(pattern: str) -> None:
    hold(f"SELECT id FROM left_src WHERE memo RLIKE r'{pattern}'", KNOWN)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+", "(a*)*", "(a|aa)+", "((a+)b?)+", r"(a+\(?)+", "(?:a+)+", "([a-z]+){10}",
        "(.*a){9}", "(a{1,9})+", "(a{2,}){3}", r"(a)\1", r"(?<n>a)\k<n>", "([)]a+)+",
        "(?x)(a+#)\n)+", r"\Q(\E(a+)+", "[a[b]](c)", "((((a|b)))) +((c|d)x)*",
        ".*.*.*.*.*.*.*.*y", f"{'a?' * 28}{'a' * 28}b", "(a?){30}a{30}b", "(ab?)*", "(a|a)*",
        "x*x*x*x*y", ".*?.*?.*?.*?y", "(?s).*.*.*.*$", "(?i)A*a*A*a*b", "(?iu)k*K*k*K*b",
        "a{1,1000}a{1,1000}a{1,1000}a{1,1000}b", "((a{1000}){1000}){1000}", "a{100}{100}",
        "(a?a?){15}b", "(a{0,30}){30}b", "(?:(?:a|a)?){40}", "(?:a*)?(?:a*)?(?:a*)?b",
        "(?=(.*.*.*y))", "(?m)^.*$.*$.*y", r".*.*.*\b", ".*.*.*(?=y)", "(?>a*)*b", "(a*+)*b",
        r"[\s\S]*[\w\W]*[^x]*y", "(?<=(a{0,500}){2})b", "a)(b", "[a", "(a", "(?#a)", "[b-a]",
        r"\Ra", r"\b{2}", "[a&&b]",
        # What looks around is tried at each place that a repetition gives back.
        "a*(?=a*(?=a*z)y)b", r"\d+(?!\d*(?!\d*\d*x)y)-", "a*(?<=(?:a{0,40}z))(?<=(?:a{0,90}z))b",
        # Java recurs where an emoji is of another width, until its stack and Spark end.
        "^(?:a.)*$", "(a.)*", "(?:[^x]y)+", r"(?:\wé)*", ".{2,}", ".{1,100000}", "(?:.{1,9}){5000}",
        "(?U)(?:,\\d)*", "(?>a.)*b",
    ],
)  # fmt: skip
def test_a_pattern_that_may_run_for_years_is_refused(pattern: str) -> None:
    (told,) = problems(f"SELECT regexp_extract(memo, r'{pattern}', 1) FROM left_src")
    assert "may run without end" in told


@pytest.mark.parametrize(
    "pattern",
    ["(?=(.*))", "(?=(?<all>.*))", "(?=a(?:b|(c))?)", "(?<=(a{0,9}))", "((?=(.*)).)", "(?!(a))b"],
)
def test_a_group_found_beyond_a_match_makes_no_text_of_any_length(pattern: str) -> None:
    for replacement in ("'$1'", "memo", "'x'"):
        (told,) = problems(
            f"SELECT regexp_replace(memo, r'{pattern}', {replacement}) FROM left_src"
        )
        assert "each match could bring in the whole text" in told
    hold(f"SELECT regexp_extract(memo, r'{pattern}', 1) FROM left_src", KNOWN)


@pytest.mark.parametrize("pattern", ["(?=[a-z])", r"(\d)(?=(?:\d{3})+$)", "(?<=[0-9])([a-z])"])
def test_a_pattern_may_look_around_itself(pattern: str) -> None:
    hold(f"SELECT regexp_replace(memo, r'{pattern}', '$0.') FROM left_src", KNOWN)


@pytest.mark.parametrize("pattern", ["%a%a%b", "%a%b%c%", "a%b%c%d", "a%%%"])
def test_like_may_have_so_many_signs(pattern: str) -> None:
    hold(f"SELECT id FROM left_src WHERE memo LIKE '{pattern}'", KNOWN)


@pytest.mark.parametrize("pattern", ["%a%a%a%b", "%a%b%c%d%", "%%%%b"])
def test_like_of_more_signs_may_run_for_years(pattern: str) -> None:
    (told,) = problems(f"SELECT id FROM left_src WHERE memo LIKE '{pattern}'")
    assert "may run without end" in told


@pytest.mark.parametrize("condition", ["RLIKE '^.*x.*y'", "LIKE '%x%y'"])
def test_the_longer_a_text_is_made_the_less_may_be_tried_on_it(condition: str) -> None:
    long = f"concat_ws('', {', '.join(['memo'] * 1_000)})"
    hold(f"SELECT id FROM left_src WHERE lpad(memo, 1000, 'x') {condition}", KNOWN)
    (told,) = problems(f"SELECT id FROM left_src WHERE {long} {condition}")
    assert "a text of 100,100 characters" in told


@pytest.mark.parametrize(
    "name", ["levenshtein", "contains", "instr", "locate", "replace", "split_part", "btrim"]
)
def test_long_texts_are_not_searched_for_long_texts(name: str) -> None:
    long = f"concat_ws('', {', '.join(['memo'] * 1_000)})"
    more = {"replace": ", ''", "split_part": ", 1"}.get(name, "")
    hold(f"SELECT {name}({long}, memo{more}), {name}(memo, {long}{more}) FROM left_src", KNOWN)
    (told,) = problems(f"SELECT {name}({long}, {long}{more}) FROM left_src")
    assert f"{name} may run without end" in told


def test_long_texts_are_not_held_against_long_patterns() -> None:
    long = f"concat_ws('', {', '.join(['memo'] * 1_000)})"
    longer = " || ".join([long] * 4)
    hold(f"SELECT id FROM left_src WHERE {longer} LIKE '%' || memo || '%'", KNOWN)
    (told,) = problems(f"SELECT id FROM left_src WHERE {longer} LIKE '%' || {longer} || '%'")
    assert "LIKE, by its %, may run without end" in told


@pytest.mark.parametrize("text", ["1e-9999", "E-2024001", "RE-2024001", "12345", "1e5", "e"])
def test_a_text_may_look_like_a_number(text: str) -> None:
    hold(f"SELECT id FROM left_src WHERE memo = '{text}'", KNOWN)


def test_a_decimal_is_made_of_any_usual_text() -> None:
    hold("SELECT CAST(concat(memo, '.', id, 'e-5') AS DECIMAL(38, 9)) FROM left_src", KNOWN)


@pytest.mark.attack
def test_a_text_of_a_source_is_bounded_where_a_long_text_is_written_against_it() -> None:
    """Java compares each letter of one with each of the other, and no cancel reaches it."""
    long = searches.bounded(
        hold(f"SELECT levenshtein(memo, '{'x' * 90_000}') FROM left_src", KNOWN)
    )
    assert "KALLA_SEARCHED(CAST(`memo` AS STRING), 55555)" in long
    word = searches.bounded(hold("SELECT contains(memo, 'paid') FROM left_src", KNOWN))
    assert "KALLA_SEARCHED" not in word


@pytest.mark.attack
@pytest.mark.parametrize("pattern", ["status", "'%' || status || '%'", "(SELECT max(id) FROM t)"])
@pytest.mark.parametrize("kind", ["LIKE", "ILIKE", "NOT LIKE"])
def test_the_signs_of_a_pattern_that_a_row_brings_are_counted_in_each_row(
    pattern: str, kind: str
) -> None:
    sql = f"WITH t AS (SELECT id FROM left_src) SELECT id FROM left_src WHERE memo {kind} {pattern}"
    assert "KALLA_LIKED(CAST(`memo` AS STRING), CAST(" in searches.bounded(hold(sql, KNOWN))
    for written_out in ("'a%b'", "'%' || 'a'"):
        sql = f"SELECT id FROM left_src WHERE memo {kind} {written_out}"
        assert "KALLA_LIKED" not in searches.bounded(hold(sql, KNOWN))


def test_a_pattern_of_like_holds_no_other() -> None:
    nested = "CASE WHEN id LIKE memo THEN 'a' END"
    (told,) = problems(f"SELECT id FROM left_src WHERE memo LIKE {nested}")
    assert "may not hold another LIKE" in told
