"""Reads literals, selectors and durations token by token; they contain no expressions."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import NoReturn

from kalla.pattern_size import ExpressionBudget
from kalla.query.promql import durations
from kalla.query.promql.features import Features
from kalla.query.promql.lexer import Token, failed, go_quote, tokens
from kalla.query.promql.matchers import regex_problem
from kalla.query.promql.syntax_tree import (
    METRIC_NAME,
    Duration,
    LabelMatcher,
    NumberLiteral,
    Span,
    VectorSelector,
)

PRECEDENCE = {
    "or": 1,
    "and": 2, "unless": 2,
    "==": 3, "!=": 3, ">=": 3, "<=": 3, ">": 3, "<": 3,
    "+": 4, "-": 4,
    "*": 5, "/": 5, "%": 5, "atan2": 5,
    "^": 6,
}  # fmt: skip
ABOVE_UNARY = 6
_OCTAL = re.compile("0[0-7]+")
DEEPEST = 100


class Reader:
    def __init__(self, text: str, features: Features) -> None:
        self.text = text
        self.features = features
        self.words = tokens(text)
        self.at = 0
        self.depth = 0
        self.expressions = ExpressionBudget()

    # Words

    @property
    def word(self) -> Token:
        token = self.words[self.at]
        if token.kind == "error":
            failed(self.text, token.start, token.value)
        return token

    @property
    def last_end(self) -> int:
        return self.words[self.at - 1].end if self.at else 0

    def finished(self) -> bool:
        return self.word.kind == "end"

    def take(self) -> Token:
        token = self.word
        self.at += 1
        return token

    def sees(self, *texts: str) -> bool:
        token = self.word
        return token.kind in ("punctuation", "operator", "keyword") and token.value in texts

    def takes(self, text: str) -> Token | None:
        return self.take() if self.sees(text) else None

    def follower_is(self, text: str) -> bool:
        following = self.words[self.at + 1 : self.at + 2]
        return bool(following) and following[0].text == text

    def unexpected(self, context: str = "", expected: str = "") -> NoReturn:
        message = f"unexpected {self.word.described}"
        message += f" in {context}" if context else ""
        message += f", expected {expected}" if expected else ""
        failed(self.text, self.word.start, message)

    def expect(self, text: str, context: str = "", expected: str = "") -> Token:
        if not self.sees(text):
            self.unexpected(context, expected)
        return self.take()

    def fail(self, span: Span, message: str) -> NoReturn:
        failed(self.text, span.start, message)

    def deepen(self) -> None:
        """Enters one more level; functions that walk the tree recurse as deep."""
        self.depth += 1
        if self.depth > DEEPEST:
            failed(self.text, self.word.start, f"nested deeper than {DEEPEST} levels")

    # Literals

    def number(self) -> NumberLiteral:
        token = self.take()
        span = Span(token.start, token.end)
        if token.kind == "duration":
            try:
                value = durations.milliseconds(token.text) / 1000
            except ValueError as problem:
                self.fail(span, str(problem))
            return NumberLiteral(value, duration=True, span=span)
        return NumberLiteral(self._float(token, span), span=span)

    def _float(self, token: Token, span: Span) -> float:
        text = token.value
        if text in ("inf", "nan"):
            return math.inf if text == "inf" else math.nan
        digits = text.replace("_", "")
        base = 16 if digits.startswith("0x") else 8 if _OCTAL.fullmatch(digits) else 10
        if base != 10 and int(digits, base) < 2**63:
            return float(int(digits, base))
        if base == 16:
            self._no_number(token, span, "invalid syntax")
        value = float(digits)
        if math.isinf(value):
            self._no_number(token, span, "value out of range")
        return value

    def _no_number(self, token: Token, span: Span, why: str) -> NoReturn:
        parsed = f"strconv.ParseFloat: parsing {go_quote(token.text)}: {why}"
        self.fail(span, f"error parsing number: {parsed}")

    # Selectors

    def selector(self) -> VectorSelector:
        start = self.word.start
        name = ""
        matchers: list[LabelMatcher] = []
        if not self.sees("{"):
            name = self.take().text
        if self.sees("{"):
            matchers = self.matchers()
        if name:
            matchers.append(LabelMatcher(METRIC_NAME, "=", name))
        return VectorSelector(name, tuple(matchers), span=Span(start, self.last_end))

    def matchers(self) -> list[LabelMatcher]:
        self.take()
        found: list[LabelMatcher] = []
        while not self.takes("}"):
            if found:
                self.expect(",", "label matching", '"," or "}"')
                if self.takes("}"):
                    break
            found.append(self.matcher())
        return found

    def matcher(self) -> LabelMatcher:
        label = self.word
        if label.kind not in ("identifier", "string"):
            self.unexpected("label matching", 'identifier or "}"')
        self.take()
        if label.kind == "string" and self.sees(",", "}"):
            return LabelMatcher(METRIC_NAME, "=", label.value)
        if not self.sees("=", "!=", "=~", "!~"):
            self.unexpected("label matching", "label matching operator")
        operator = self.take().value
        if self.word.kind != "string":
            self.unexpected("label matching", "string")
        value = self.take().value
        if operator in ("=~", "!~"):
            if refusal := self.expressions.refusal(value):
                failed(self.text, label.start, f"error parsing regexp: {refusal}")
            if problem := regex_problem(value):
                failed(self.text, label.start, f"error parsing regexp: {problem}")
        name = label.value if label.kind == "string" else label.text
        return LabelMatcher(name, operator, value)  # type: ignore[arg-type]

    # Durations

    def duration(self, least: int) -> Duration:
        outer = self.depth
        left = self._duration_unary()
        while self.sees("+", "-", "*", "/", "%", "^"):
            precedence = PRECEDENCE[self.word.value]
            if precedence < least:
                break
            operator = self.take()
            self.deepen()
            right = self.duration(precedence if operator.value == "^" else precedence + 1)
            self._experimental(left.span)
            if operator.value in "/%" and not right.operator and right.seconds == 0:
                what = "division" if operator.value == "/" else "modulo"
                failed(self.text, operator.start, f"{what} by zero")
            span = Span(left.span.start, right.span.end)
            left = Duration(operator.value, left=left, right=right, span=span)
        self.depth = outer
        return left

    def _duration_unary(self) -> Duration:
        if not self.sees("+", "-"):
            return self._duration_primary()
        sign = self.take()
        self.deepen()
        return self._signed(sign, self.duration(ABOVE_UNARY))

    def _signed(self, sign: Token, operand: Duration) -> Duration:
        span = Span(sign.start, operand.span.end)
        if not operand.operator:
            seconds = -operand.seconds if sign.value == "-" else operand.seconds
            return replace(operand, seconds=seconds, span=span)
        return Duration("-", right=operand, span=span) if sign.value == "-" else operand

    def _duration_primary(self) -> Duration:
        token = self.word
        if token.kind in ("number", "duration"):
            number = self.number()
            if not abs(number.value) <= durations.LONGEST_SECONDS:
                self.fail(number.span, "duration out of range")
            return Duration(seconds=number.value, literal=number.duration, span=number.span)
        if self.sees("step", "range"):
            self.take()
            self.expect("(")
            closing = self.expect(")")
            span = Span(token.start, closing.end)
            self._experimental(span)
            return Duration(token.value, span=span)
        if token.kind == "identifier" and token.value in ("min_of", "max_of"):
            self.take()
            self.deepen()
            self.expect("(")
            left = self.duration(1)
            self.expect(",")
            right = self.duration(1)
            closing = self.expect(")")
            span = Span(token.start, closing.end)
            self._experimental(span)
            return Duration(token.value, left=left, right=right, span=span)
        if self.sees("("):
            self.take()
            self.deepen()
            inner = self.duration(1)
            self.expect(")")
            self._experimental(inner.span)
            return replace(inner, wrapped=True) if inner.operator else inner
        return self.unexpected("subquery or range selector", "number, duration, step(), or range()")

    def offset_duration(self) -> Duration:
        """After `offset` a literal ends the duration: `a offset 1m + 1m` adds to the vector."""
        expected = "number, duration, step(), or range()"
        sign = self.take() if self.sees("+", "-") else None
        word = self.word
        starts = (
            word.kind in ("number", "duration")
            or self.sees("step", "range", "(")
            or word.value in ("min_of", "max_of")
        )
        if not starts:
            self.unexpected("offset", expected)
        outer = self.depth
        primary = self._duration_primary()
        self.depth = outer
        return primary if sign is None else self._signed(sign, primary)

    def _experimental(self, span: Span) -> None:
        if not self.features.duration_expressions:
            self.fail(span, "experimental duration expression is not enabled")
