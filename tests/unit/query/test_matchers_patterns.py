"""Regular expressions of matchers and label_replace: Go's groups, Go's templates, Go's refusals."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.query.operators.label_functions import naturally_before
from kalla.query.promql.matchers import Matcher, anchored, regex_problem, replaced

PIECES = [
    "a", "b", ".", "", "()", "^", "-", "(?i)", "[[:alpha:](]", "[^](]", "[](]", "[]-a(]", "[(-]",
    "[[(:]", "[^^(]", "[A-[:alpha:]", r"\Q(\E", r"\Q[\\E", r"\(", r"\[", r"\]", r"\d", r"\\",
    r"\pL", r"\p{L}", r"\x28", r"\050", r"\x{28}", r"[\]-\](]", r"[\\(]", r"[\W(]", r"[\x41-[(:]",
    r"[\d-[:alpha:](]", r"[\pL-[:alpha:](]", r"[\p{L}-[:alpha:](]", r"[\x{41}-[:alpha:]",
    r"[\101-[:alpha:]",
]  # fmt: skip
PATTERNS = st.recursive(
    st.lists(st.sampled_from(PIECES), max_size=3).map("".join),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map("({})".format),
        inner.map("({})*".format),
        inner.map("(?:{})?".format),
        inner.map("(?P<n>{})".format),
        inner.map("(?<m>{})".format),
    ),
    max_leaves=6,
)
EVERY = r"<\0|\1|\2|\3|\4|\5|\6|\7|\8|\9>"


@given(pattern=PATTERNS, values=st.lists(st.text("ab([]\\-", max_size=4), max_size=4))
@settings(max_examples=200, deadline=None)
def test_each_group_is_the_one_that_re2_counts_and_one_more_is_empty(
    pattern: str, values: list[str]
) -> None:
    assert regex_problem(pattern) == ""
    matching = Matcher("a", "=~", pattern).admits(values)
    found = replaced(pattern, EVERY.replace("\\", "$"), values)
    known = EVERY
    for missing in range(largest_group(pattern) + 1, 10):
        known = known.replace(f"\\{missing}", "")
    wanted = pc.replace_substring_regex(
        pa.array(values, pa.string()), anchored(pattern), known, max_replacements=1
    ).to_pylist()
    assert found == [value if hit else None for value, hit in zip(wanted, matching, strict=True)]


def largest_group(pattern: str) -> int:
    """Of those that a rewrite can name."""
    for number in range(9, 0, -1):
        try:
            pc.replace_substring_regex(pa.array([""]), anchored(pattern), f"\\{number}")
        except pa.ArrowInvalid:
            continue
        return number
    return 0


@pytest.mark.parametrize(
    ("pattern", "value", "group"),
    [
        ("[[:alpha:](](?P<n>.)(.)", "abc", "b"),
        (r"\Q(\E(?P<n>.)(.)", "(bc", "b"),
        ("[^](](?P<n>.)(.)", "abc", "b"),
        (r"[A-[:alpha:](?P<n>.)(.)", "Cbc", "b"),
        (r"(?:x)?(?i:(a))(?<n>.).*", "abc", "b"),
        ("()()()()()()()()()()(?P<n>.)", "b", "b"),
        ("(?P<n>a)|(?P<m>b)", "b", ""),
        ("(?P<n>a)|(?P<n>b)", "b", "b"),
    ],
)
def test_a_named_group_is_found_whatever_stands_before_it(
    pattern: str, value: str, group: str
) -> None:
    assert replaced(pattern, "$n", [value]) == [group]


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("$0", "ab"), ("$1", "a"), ("$01", "b"), ("$1²", "a²"), ("${n}", "a"), ("${n", "${n"),
        ("$n_", ""), ("$$1", "$1"), ("$$$1", "$a"), ("$", "$"), ("$-", "$-"), ("${}", "${}"),
        ("$3|", "|"), ("$9|", "|"), ("$99999999999|", "|"), ("$é|", "|"), ("${01}", "b"),
        ("$1x", ""), ("${1}x", "ax"), ("a$", "a$"), ("\\1\\", "\\1\\"), ("$\udcff", "$\udcff"),
    ],
)  # fmt: skip
def test_a_template_is_read_as_go_reads_it(template: str, wanted: str) -> None:
    assert replaced("(?P<n>a)(?P<01>b)(x)?", template, ["ab", "b"]) == [wanted, None]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "missing closing ): `(`"),
        ("x)|(y", "unexpected ): `x)|(y`"),
        ("[a", "missing closing ]: `[a`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("[b-a]", "invalid character class range: `b-a`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?P<é>a)", "invalid named capture: `(?P<é>`"),
        ("(?P<n", "invalid named capture: `(?P<n`"),
        ("a\\", "trailing backslash at end of expression: ``"),
        (r"\C", r"invalid escape sequence: `\C`"),
        (r"\Q\C\E\C", r"invalid escape sequence: `\C`"),
        (r"[\C]", r"invalid escape sequence: `\C`"),
        ("a(\udcff", "invalid UTF-8: `\ufffd`"),
    ],
)
def test_what_go_refuses_is_refused_in_its_words(pattern: str, problem: str) -> None:
    assert regex_problem(pattern) == problem


@pytest.mark.parametrize(
    ("pattern", "value"),
    [(r"\QC\C\E", r"C\C"), (r"\\C", r"\C"), (r"\Q(", "("), ("\\Qa\\", "a\\"), (r"a\Q", "a")],
)
def test_what_go_accepts_is_matched(pattern: str, value: str) -> None:
    assert regex_problem(pattern) == ""
    assert Matcher("a", "=~", pattern).admits([value, value + "x"]) == [True, False]


def test_numbers_of_any_length_are_sorted_as_numbers() -> None:
    long, longer = "a" + "0" * 9 + "9" * 5000, "a1" + "0" * 5000
    assert naturally_before(long, longer)
    assert not naturally_before(longer, long)
    assert naturally_before("4m5", "4m600")
    assert naturally_before("a²", "a³")
