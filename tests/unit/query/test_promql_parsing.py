"""Text to tree and back: what is accepted, what is refused and where, and how it is printed."""

from __future__ import annotations

import promql_parser
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kalla.query.promql.features import Features
from kalla.query.promql.parser import HIGHEST, LONGEST, parse
from kalla.query.promql.printer import formatted, printed
from kalla.query.promql.query_errors import NativeHistograms, ParseFailed
from kalla.query.promql.syntax_tree import (
    Binary,
    Call,
    MatrixSelector,
    NumberLiteral,
    VectorSelector,
)
from kalla.query.promql.token_reader import DEEPEST
from kalla.query.promql.type_checker import checked, type_of
from tests.unit.query.expressions import expressions

EVERY = Features.every()
PIECES = (
    *("a", "b{", "}", "(", ")", "[", "]", "5m", "1", ".", ":", ",", "+", "-", "*", "/", "^", "=="),
    *("=~", "!=", '"x"', "'y'", "`", "sum", "by", "on", "bool", "offset", "@", "start()", "end()"),
    *("rate", "topk", "group_left", "fill(", '{a="b"}', "[5m]", "[5m:]", "and", "or", "unless"),
    *("é", "\\", "#", "\n", " ", "0x", "1e", "_", "1_0", "anchored", "step", "range()", "\0", "</"),
)


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("sum(a)by(b)", "sum by (b) (a)"),
        ("sum without() (a)", "sum without () (a)"),
        ('a{c!="d",b=~"x|y"}', 'a{b=~"x|y",c!="d"}'),
        ("a offset 5m @ 10", "a @ 10.000 offset 5m"),
        ("a[1h30m] @ start()", "a[1h30m] @ start()"),
        ("a[5m:] offset -1h", "a[5m:] offset -1h"),
        ("a[90m:30s]", "a[1h30m:30s]"),
        ("a+on(b)group_left(c)d", "a + on (b) group_left (c) d"),
        ("a>bool ignoring(b)d", "a > bool ignoring (b) d"),
        ("a+fill(0)b", "a + fill (0) b"),
        ("-a^2", "-a ^ 2"),
        ("1e3", "1000"),
        ("0x1f", "31"),
        ("Inf", "+Inf"),
        ("1h", "1h"),
        ("a[5m*2+1]", "a[5m * 2 + 1]"),
        ("a[(step()+1m)/2]", "a[(step() + 1m) / 2]"),
        ("rate(a[5m]anchored)", "rate(a[5m] anchored)"),
        ('{"with.dots"}', '{__name__="with.dots"}'),
        ('sum by("a.b")(c)', 'sum by ("a.b") (c)'),
        ("topk(3,a)", "topk(3, a)"),
        ("'it''s'", None),
        ('label_join(a,"b",",")', 'label_join(a, "b", ",")'),
        ("a offset 0s", "a"),
        ("a[7d]", "a[1w]"),
        ("a[8d]", "a[8d]"),
    ],
)
def test_an_expression_prints_as_prometheus_prints_it(text: str, again: str | None) -> None:
    if again is None:
        with pytest.raises(ParseFailed):
            checked(text, EVERY)
        return
    assert printed(checked(text, EVERY)) == again


def test_a_long_expression_is_split_over_lines() -> None:
    text = (
        "sum by (job) (rate(http_requests_total{code=~'5..'}[5m])) / "
        "sum by (job) (rate(http_requests_total[5m])) > on (job) group_left (team) owners"
    )
    assert formatted(checked(text)) == (
        '    sum by (job) (rate(http_requests_total{code=~"5.."}[5m]))\n'
        "  /\n"
        "    sum by (job) (rate(http_requests_total[5m]))\n"
        "> on (job) group_left (team)\n"
        "  owners"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: parse error: no expression found in input"),
        ("a\n  + +", "2:6: parse error: unexpected end of input"),
        ("é", "1:1: parse error: unexpected character: 'é'"),
        ('"é" + a +', "1:11: parse error: unexpected end of input"),
        ("a{", "1:3: parse error: unexpected end of input inside braces"),
        ("a)", "1:3: parse error: unexpected right parenthesis ')'"),
        ("}", "1:1: parse error: unexpected character: '}'"),
        ("a!", "1:2: parse error: unexpected character after '!': '\ufffd'"),
        ('a{b=="c"}', '1:5: parse error: unexpected "=" in label matching, expected string'),
        ("a @ start", "1:10: parse error: unexpected end of input in @, expected timestamp"),
        ("1x", '1:1: parse error: bad number or duration syntax: "1"'),
        (
            "1e400",
            'error parsing number: strconv.ParseFloat: parsing "1e400": value out of range',
        ),
        (
            "0xFFFFFFFFFFFFFFFF",
            'strconv.ParseFloat: parsing "0xFFFFFFFFFFFFFFFF": invalid syntax',
        ),
        ("a[5m", "1:5: parse error: unexpected end of input in duration expression"),
        ("a[5m] + 1", "binary expression must contain only scalar and instant vector types"),
        ("1 offset 5m", "1:1: parse error: offset modifier must be preceded by an instant vector"),
        ("a @ 1 @ 2", "1:1: parse error: @ <timestamp> may not be set multiple times"),
        ("a @ Inf", "1:1: parse error: timestamp out of bounds for @ modifier: +Inf"),
        ("sum(a, b)", "aggregate expression provided, expected 1, got 2"),
        ("rate(a[5m],)", "1:11: parse error: trailing commas not allowed in function call args"),
        ("round()", '1:1: parse error: expected at least 1 argument(s) in call to "round", got 0'),
        ("a + bool b", "1:3: parse error: bool modifier can only be used on comparison operators"),
        ("1_", '1:1: parse error: bad number or duration syntax: "1_"'),
        ("5mm", '1:1: parse error: bad number or duration syntax: "5mm"'),
        ('a{b="\\q"}', "1:5: parse error: unknown escape sequence U+0071 'q'"),
        ('"abc', "1:1: parse error: unterminated quoted string"),
        ("-'a'", "1:1: parse error: unary expression only allowed on expressions of type scalar"),
    ],
)  # fmt: skip
def test_a_refusal_says_where_and_what(text: str, message: str) -> None:
    with pytest.raises(ParseFailed) as refusal:
        checked(text, EVERY)
    assert message in str(refusal.value)


def test_what_promql_parser_gets_wrong_is_right_here() -> None:
    selector = parse("foo @ -1")
    assert isinstance(selector, VectorSelector)
    assert selector.at == -1000
    number = parse("1_000")
    assert isinstance(number, NumberLiteral)
    assert number.value == 1000
    assert isinstance(parse("foo[5m*2]"), MatrixSelector)


def test_size_and_nesting_are_capped_before_they_cost_anything() -> None:
    with pytest.raises(ParseFailed, match=f"longer than {LONGEST} characters"):
        parse("a" * (LONGEST + 1))
    with pytest.raises(ParseFailed, match=f"nested deeper than {DEEPEST} levels"):
        parse("(" * (DEEPEST + 1) + "a" + ")" * (DEEPEST + 1))
    with pytest.raises(ParseFailed, match=f"nested deeper than {DEEPEST} levels"):
        parse("-" * (DEEPEST + 1) + "a")
    for range_ in ("(" * 9_000 + "1m" + ")" * 9_000, "-" * 9_000 + "1m", "1m+" * 9_000 + "1m"):
        with pytest.raises(ParseFailed, match=f"nested deeper than {DEEPEST} levels"):
            parse(f"a[{range_}]")
        with pytest.raises(ParseFailed, match=f"nested deeper than {DEEPEST} levels"):
            parse(f"a offset (1m - {range_})")
    deep = (
        "abs(" * (DEEPEST - 4) + "sum(a[2m:1m] offset (1m)) + a offset (2m)" + ")" * (DEEPEST - 4)
    )
    assert isinstance(parse(deep), Call)
    with pytest.raises(ParseFailed, match=f"nested deeper than {HIGHEST} levels"):
        parse("+".join(["a"] * (HIGHEST + 1)))
    assert isinstance(parse("+".join(["a"] * HIGHEST)), Binary)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mad_over_time(a[5m])", 'function "mad_over_time" is not enabled'),
        ("limitk(1, a)", "limitk() is experimental and must be enabled"),
        ("rate(a[5m] anchored)", "anchored modifier is experimental and not enabled"),
        ("a + fill(0) b", "binop fill modifiers are experimental and not enabled"),
    ],
)
def test_what_a_default_server_has_not_switched_on_is_refused(text: str, message: str) -> None:
    with pytest.raises(ParseFailed) as refusal:
        checked(text)
    assert message in str(refusal.value)


def test_a_function_that_is_no_longer_experimental_needs_no_switch() -> None:
    assert type_of(checked("first_over_time(a[5m])")) == "vector"


def test_trimming_operators_are_refused_as_native_histograms() -> None:
    with pytest.raises(NativeHistograms):
        parse("a </ 5")


@settings(max_examples=100, deadline=None)
@given(expressions())
@example("(Inf ^ 0)")
def test_what_is_printed_means_the_same(text: str) -> None:
    expr = checked(text, EVERY)

    for again in (printed(expr), formatted(expr)):
        twin = checked(again, EVERY)
        assert printed(twin) == printed(expr)
        assert type_of(twin) == type_of(expr)


@settings(max_examples=100, deadline=None)
@given(expressions(plain=True))
def test_promql_parser_accepts_what_we_accept(text: str) -> None:
    expr = checked(text, EVERY)

    promql_parser.parse(text)
    promql_parser.parse(printed(expr))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(PIECES),
        max_size=12,
    ).map("".join)
)
def test_any_text_is_a_tree_or_a_refusal_with_a_place(text: str) -> None:
    try:
        checked(text, EVERY)
    except NativeHistograms:
        pass
    except ParseFailed as refusal:
        line, column, rest = str(refusal).split(":", 2)
        assert int(line) > 0
        assert int(column) > 0
        assert rest.startswith(" parse error: ")
