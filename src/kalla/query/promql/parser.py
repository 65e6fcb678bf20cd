"""Text to tree: the grammar of PromQL 3.x, with Prometheus' own error texts and places.

Our own, because answers need what promql-parser does not give: places of nodes (annotations
name them), arithmetic over durations, `anchored` and `smoothed`, times before 1970 after `@`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from kalla.pattern_size import ExpressionBudget
from kalla.query.promql.features import Features
from kalla.query.promql.function_signatures import FUNCTIONS
from kalla.query.promql.lexer import failed, go_quote
from kalla.query.promql.number_format import general
from kalla.query.promql.query_errors import NativeHistograms, ParseFailed
from kalla.query.promql.syntax_tree import (
    PARAMETER_AGGREGATORS,
    Aggregate,
    Binary,
    Call,
    Duration,
    Expr,
    Matching,
    MatrixSelector,
    NumberLiteral,
    Paren,
    Span,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
    children,
)
from kalla.query.promql.token_reader import ABOVE_UNARY, PRECEDENCE, Reader

LONGEST = 100_000
HIGHEST = 200
# What milliseconds in 64 bits hold, with room for offsets and ranges.
_FURTHEST_SECONDS = 2.0**61 / 1000

# Words of the grammar that may also name a metric.
_METRIC_WORDS = frozenset(
    {
        "and", "or", "unless", "by", "without", "offset", "start", "end", "step", "range",
        "anchored", "smoothed", "fill", "fill_left", "fill_right",
    }
)  # fmt: skip


def parse(
    text: str, features: Features | None = None, expressions: ExpressionBudget | None = None
) -> Expr:
    """The tree of an expression, its syntax checked; `type_checker.checked` checks its types.

    Texts of one request share `expressions`.
    """
    if len(text) > LONGEST:
        raise ParseFailed(f"1:1: parse error: the expression is longer than {LONGEST} characters")
    parser = _Parser(text, features or Features())
    if expressions is not None:
        parser.expressions = expressions
    expr = parser.whole()
    if _height(expr) > HIGHEST:
        failed(text, 0, f"the expression is nested deeper than {HIGHEST} levels")
    return expr


def _height(expr: Expr) -> int:
    deepest, pending = 0, [(expr, 1)]
    while pending:
        node, depth = pending.pop()
        deepest = max(deepest, depth)
        pending.extend((child, depth + 1) for child in children(node))
    return deepest


class _Parser(Reader):
    # Expressions

    def whole(self) -> Expr:
        if self.finished():
            failed(self.text, 0, "no expression found in input")
        expr = self.expression(1)
        if not self.finished():
            self.unexpected()
        return expr

    def expression(self, least: int) -> Expr:
        self.deepen()
        left = self.unary()
        while self.word.kind == "operator" and self.word.value in PRECEDENCE:
            precedence = PRECEDENCE[self.word.value]
            if precedence < least:
                break
            operator = self.take().value
            return_bool, matching = self.modifiers()
            right = self.expression(precedence if operator == "^" else precedence + 1)
            span = Span(left.span.start, right.span.end)
            left = Binary(operator, left, right, matching, return_bool, span=span)
            if not self.features.fill_modifiers and (
                matching.fill_left is not None or matching.fill_right is not None
            ):
                self.fail(span, "binop fill modifiers are experimental and not enabled")
        if self.sees("</", ">/"):
            raise NativeHistograms(f"{self.word.text} trims them")
        self.depth -= 1
        return left

    def unary(self) -> Expr:
        if not self.sees("+", "-"):
            return self.postfix()
        sign = self.take()
        operand = self.expression(ABOVE_UNARY)
        span = Span(sign.start, operand.span.end)
        if isinstance(operand, NumberLiteral):
            value = -operand.value if sign.value == "-" else operand.value
            return replace(operand, value=value, span=span)
        return Unary("-" if sign.value == "-" else "+", operand, span=span)

    def postfix(self) -> Expr:
        expr = self.primary()
        while True:
            if self.sees("["):
                expr = self.bracket(expr)
            elif self.sees("offset"):
                expr = self.offset(expr)
            elif self.sees("@"):
                expr = self.at_time(expr)
            elif self.sees("anchored", "smoothed"):
                expr = self.extended(expr)
            else:
                return expr

    def primary(self) -> Expr:
        token = self.word
        if token.kind in ("number", "duration"):
            return self.number()
        if token.kind == "string":
            self.take()
            return StringLiteral(token.value, span=Span(token.start, token.end))
        if token.kind == "aggregator" and self._aggregates():
            return self.aggregate()
        if token.value == "(":
            return self.paren()
        callable_word = token.kind == "identifier" or (
            token.kind == "keyword" and token.value in FUNCTIONS
        )
        if callable_word and self.follower_is("("):
            return self.call()
        if token.value == "{":
            return self.selector()
        if token.kind in ("identifier", "metric", "aggregator") or token.value in _METRIC_WORDS:
            return self.selector()
        return self.unexpected()

    def _aggregates(self) -> bool:
        following = self.words[self.at + 1 : self.at + 2]
        return bool(following) and following[0].value in ("(", "by", "without")

    def paren(self) -> Paren:
        opening = self.take()
        expr = self.expression(1)
        closing = self.expect(")")
        return Paren(expr, span=Span(opening.start, closing.end))

    # Aggregations and functions

    def aggregate(self) -> Aggregate:
        operator = self.take()
        grouping: tuple[str, ...] = ()
        without = False
        modified = self.sees("by", "without")
        if modified:
            without, grouping = self.aggregate_modifier()
        if not self.sees("("):
            self.unexpected("aggregation")
        arguments = self.arguments()
        if not modified and self.sees("by", "without"):
            without, grouping = self.aggregate_modifier()
        span = Span(operator.start, self.last_end)
        name = operator.value
        if not arguments:
            self.fail(span, "no arguments for aggregate expression provided")
        if name in ("limitk", "limit_ratio") and not self.features.experimental_functions:
            self.fail(
                span,
                f"{name}() is experimental and must be enabled with "
                "--enable-feature=promql-experimental-functions",
            )
        wanted = 2 if name in PARAMETER_AGGREGATORS else 1
        if len(arguments) != wanted:
            self.fail(
                span,
                "wrong number of arguments for aggregate expression provided, "
                f"expected {wanted}, got {len(arguments)}",
            )
        parameter = arguments[0] if wanted == 2 else None
        return Aggregate(name, arguments[-1], parameter, grouping, without, span=span)

    def aggregate_modifier(self) -> tuple[bool, tuple[str, ...]]:
        return self.take().value == "without", self.labels()

    def call(self) -> Call:
        name = self.take()
        signature = FUNCTIONS.get(name.text)
        arguments = self.arguments()
        span = Span(name.start, self.last_end)
        if signature is None:
            self.fail(span, f"unknown function with name {go_quote(name.text)}")
        enabled = self.features.experimental_functions or (
            self.features.duration_expressions and signature.gives == "scalar"
        )
        if signature.experimental and not enabled:
            self.fail(span, f"function {go_quote(name.text)} is not enabled")
        return Call(signature.name, arguments, span=span)

    def arguments(self) -> tuple[Expr, ...]:
        self.expect("(")
        found: list[Expr] = []
        while not self.takes(")"):
            if found:
                comma = self.expect(",")
                if self.sees(")"):
                    failed(
                        self.text, comma.start, "trailing commas not allowed in function call args"
                    )
            found.append(self.expression(1))
        return tuple(found)

    def labels(self) -> tuple[str, ...]:
        self.expect("(", "grouping opts", '"("')
        found: list[str] = []
        while not self.takes(")"):
            if found:
                self.expect(",", "grouping opts", '"," or ")"')
                if self.takes(")"):
                    break
            found.append(self._label())
        return tuple(found)

    def _label(self) -> str:
        token = self.word
        if token.kind == "string":
            return self.take().value
        named = token.kind in ("identifier", "keyword", "aggregator") or token.value in (
            "and", "or", "unless", "atan2",
        )  # fmt: skip
        if not named:
            self.unexpected("grouping opts", "label")
        return self.take().text

    # Binary operators

    def modifiers(self) -> tuple[bool, Matching]:
        return_bool = self.takes("bool") is not None
        matching = Matching()
        if self.sees("on", "ignoring"):
            on = self.take().value == "on"
            matching = Matching(labels=self.labels(), on=on)
            if self.sees("group_left", "group_right"):
                many: Literal["many-to-one", "one-to-many"]
                many = "many-to-one" if self.take().value == "group_left" else "one-to-many"
                include = self.labels() if self.sees("(") else ()
                matching = replace(matching, cardinality=many, include=include)
        while self.sees("fill", "fill_left", "fill_right") and self.follower_is("("):
            side = self.take().value
            value = self._filling()
            if side in ("fill", "fill_left"):
                matching = replace(matching, fill_left=value)
            if side in ("fill", "fill_right"):
                matching = replace(matching, fill_right=value)
        return return_bool, matching

    def _filling(self) -> float:
        self.expect("(")
        sign = -1.0 if self.sees("-") else 1.0
        if self.sees("+", "-"):
            self.take()
        if self.word.kind not in ("number", "duration"):
            self.unexpected("fill modifier", "number")
        value = sign * self.number().value
        self.expect(")", "fill modifier", '")"')
        return value

    # What follows a selector

    def bracket(self, expr: Expr) -> Expr:
        opening = self.take()
        span = self._range(positive=True)
        if self.takes(":"):
            step = (
                None if self.sees("]") else self._range(positive=True, context="subquery selector")
            )
            closing = self.expect("]", "subquery selector", '"]"')
            return Subquery(expr, span, step, span=Span(expr.span.start, closing.end))
        closing = self.expect("]", "subquery or range", '":" or "]"')
        problem = ""
        if not isinstance(expr, VectorSelector):
            problem = "ranges only allowed for vector selectors"
        elif expr.offset is not None:
            problem = "no offset modifiers allowed before range"
        elif expr.at is not None:
            problem = "no @ modifiers allowed before range"
        elif expr.extension:
            problem = "no anchored or smoothed modifiers allowed before range"
        if problem or not isinstance(expr, VectorSelector):
            failed(self.text, opening.start, problem)
        return MatrixSelector(expr, span, span=Span(expr.span.start, closing.end))

    def _range(self, *, positive: bool, context: str = "subquery or range selector") -> Duration:
        if self.sees("]", ":") or self.word.kind == "end":
            self.unexpected(context, "number, duration, step(), or range()")
        found = self.duration(1)
        if positive and not found.operator and found.seconds <= 0:
            failed(self.text, found.span.start, "duration must be greater than 0")
        return found

    def offset(self, expr: Expr) -> Expr:
        self.take()
        duration = self.offset_duration()
        target = expr.vector if isinstance(expr, MatrixSelector) else expr
        if not isinstance(target, (VectorSelector, Subquery)):
            self.fail(
                expr.span,
                "offset modifier must be preceded by an instant vector selector or range vector "
                "selector or a subquery",
            )
        if target.offset is not None:
            self.fail(expr.span, "offset may not be set multiple times")
        return self._retargeted(expr, replace(target, offset=duration))

    def at_time(self, expr: Expr) -> Expr:
        self.take()
        at: int | Literal["start", "end"]
        if self.sees("start", "end"):
            at = "start" if self.take().value == "start" else "end"
            self.expect("(", "@", "timestamp")
            self.expect(")", "@", "timestamp")
            seconds = 0.0
        else:
            sign = -1.0 if self.sees("-") else 1.0
            if self.sees("+", "-"):
                self.take()
            if self.word.kind not in ("number", "duration"):
                self.unexpected("@", "timestamp")
            seconds = sign * self.number().value
            at = 0
        if not abs(seconds) < _FURTHEST_SECONDS:
            shown = general(seconds) if not math.isfinite(seconds) else f"{seconds:f}"
            self.fail(expr.span, f"timestamp out of bounds for @ modifier: {shown}")
        target = expr.vector if isinstance(expr, MatrixSelector) else expr
        if not isinstance(target, (VectorSelector, Subquery)):
            self.fail(
                expr.span,
                "@ modifier must be preceded by an instant vector selector or range vector "
                "selector or a subquery",
            )
        if target.at is not None:
            self.fail(expr.span, "@ <timestamp> may not be set multiple times")
        if isinstance(at, int):
            at = _rounded(seconds * 1000)
        return self._retargeted(expr, replace(target, at=at))

    def extended(self, expr: Expr) -> Expr:
        token = self.take()
        word: Literal["anchored", "smoothed"]
        word = "anchored" if token.value == "anchored" else "smoothed"
        if not self.features.extended_ranges:
            self.fail(expr.span, f"{word} modifier is experimental and not enabled")
        if isinstance(expr, Subquery):
            self.fail(expr.span, f"{word} modifier is not supported for subqueries")
        target = expr.vector if isinstance(expr, MatrixSelector) else expr
        if not isinstance(target, VectorSelector):
            self.fail(expr.span, f"{word} modifier not implemented")
        if target.extension not in ("", word):
            self.fail(expr.span, "anchored and smoothed modifiers cannot be used together")
        return self._retargeted(expr, replace(target, extension=word))

    def _retargeted(self, expr: Expr, target: VectorSelector | Subquery) -> Expr:
        span = Span(expr.span.start, self.last_end)
        if isinstance(expr, MatrixSelector) and isinstance(target, VectorSelector):
            return replace(expr, vector=target, span=span)
        return replace(target, span=span)


def _rounded(value: float) -> int:
    """To the nearest whole number, halves away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
