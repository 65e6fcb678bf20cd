"""Types: which expression fits where, with the refusals of Prometheus' parser."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from kalla.pattern_size import ExpressionBudget
from kalla.query.promql.features import Features
from kalla.query.promql.function_signatures import FUNCTIONS
from kalla.query.promql.lexer import failed, go_quote
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.parser import parse
from kalla.query.promql.query_errors import BadRequest
from kalla.query.promql.syntax_tree import (
    COMPARISONS,
    METRIC_NAME,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Matching,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    ValueType,
    VectorSelector,
)

_DOCUMENTED = {
    "vector": "instant vector",
    "matrix": "range vector",
    "scalar": "scalar",
    "string": "string",
}


def checked(text: str, features: Features | None = None) -> Expr:
    """The parsed expression, its types checked and its matchings completed."""
    return _Checker(text).check(parse(text, features))


def require_steps(expr: Expr) -> None:
    """Refuse expressions without a value at a step: a range query cannot evaluate them."""
    if (kind := type_of(expr)) in ("matrix", "string"):
        raise BadRequest(
            f'invalid expression type "{_DOCUMENTED[kind]}" for range query, must be Scalar or '
            "instant Vector",
            "query",
        )


def type_of(expr: Expr) -> ValueType:
    match expr:
        case NumberLiteral():
            return "scalar"
        case StringLiteral():
            return "string"
        case VectorSelector() | Aggregate():
            return "vector"
        case MatrixSelector() | Subquery():
            return "matrix"
        case Paren() | Unary():
            return type_of(expr.expr)
        case Binary():
            both = type_of(expr.left) == "scalar" and type_of(expr.right) == "scalar"
            return "scalar" if both else "vector"
        case Call():
            return FUNCTIONS[expr.function].gives


class _Checker:
    def __init__(self, text: str) -> None:
        self.text = text
        self.expressions = ExpressionBudget()  # of label_replace; the parser has the matchers'

    def fail(self, expr: Expr, message: str) -> NoReturn:
        failed(self.text, expr.span.start, message)

    def check(self, expr: Expr) -> Expr:
        match expr:
            case Aggregate():
                return self._aggregate(expr)
            case Binary():
                return self._binary(expr)
            case Call():
                return self._call(expr)
            case Paren():
                return replace(expr, expr=self.check(expr.expr))
            case Unary():
                inner = self.check(expr.expr)
                if (got := type_of(inner)) not in ("scalar", "vector"):
                    self.fail(
                        expr,
                        "unary expression only allowed on expressions of type scalar or instant "
                        f'vector, got "{_DOCUMENTED[got]}"',
                    )
                return replace(expr, expr=inner)
            case Subquery():
                inner = self.check(expr.expr)
                if (got := type_of(inner)) != "vector":
                    self.fail(
                        expr, f"subquery is only allowed on instant vector, got {got} instead"
                    )
                return replace(expr, expr=inner)
            case MatrixSelector():
                self._selector(expr.vector)
            case VectorSelector():
                self._selector(expr)
        return expr

    def _expect(self, expr: Expr, wanted: ValueType, context: str) -> Expr:
        inner = self.check(expr)
        if (got := type_of(inner)) != wanted:
            self.fail(
                expr, f"expected type {_DOCUMENTED[wanted]} in {context}, got {_DOCUMENTED[got]}"
            )
        return inner

    def _aggregate(self, expr: Aggregate) -> Expr:
        inner = self._expect(expr.expr, "vector", "aggregation expression")
        parameter = expr.parameter
        if parameter is not None:
            wanted: ValueType = "string" if expr.operator == "count_values" else "scalar"
            parameter = self._expect(parameter, wanted, "aggregation parameter")
        return replace(expr, expr=inner, parameter=parameter)

    def _binary(self, expr: Binary) -> Expr:
        left, right = self.check(expr.left), self.check(expr.right)
        operator, matching = expr.operator, expr.matching
        types = (type_of(left), type_of(right))
        if expr.return_bool and operator not in COMPARISONS:
            self._at_operator(left, "bool modifier can only be used on comparison operators")
        if operator in COMPARISONS and not expr.return_bool and types == ("scalar", "scalar"):
            self._at_operator(left, "comparisons between scalars must use BOOL modifier")
        if operator in SET_OPERATORS and matching.cardinality == "one-to-one":
            matching = replace(matching, cardinality="many-to-many")
        for label in matching.labels:
            if matching.on and label in matching.include:
                self._at_operator(
                    left,
                    f"label {go_quote(label)} must not occur in ON and GROUP clause at once",
                )
        for side, got in ((left, types[0]), (right, types[1])):
            if got not in ("scalar", "vector"):
                self.fail(
                    side, "binary expression must contain only scalar and instant vector types"
                )
        matching = self._matching(expr, matching, types)
        if "scalar" in types and operator in SET_OPERATORS:
            self.fail(
                expr, f"set operator {go_quote(operator)} not allowed in binary scalar expression"
            )
        return replace(expr, left=left, right=right, matching=matching)

    def _matching(
        self, expr: Binary, matching: Matching, types: tuple[ValueType, ValueType]
    ) -> Matching:
        filled = matching.fill_left is not None or matching.fill_right is not None
        if types != ("vector", "vector"):
            if matching.labels:
                self.fail(expr, "vector matching only allowed between instant vectors")
            if filled:
                self.fail(expr, "filling in missing series only allowed between instant vectors")
            return Matching()
        if expr.operator in SET_OPERATORS:
            if matching.cardinality != "many-to-many":
                self.fail(expr, f"no grouping allowed for {go_quote(expr.operator)} operation")
            if filled:
                self.fail(expr, "filling in missing series not allowed for set operators")
        return matching

    def _at_operator(self, left: Expr, message: str) -> NoReturn:
        position = left.span.end
        while position < len(self.text) and self.text[position] in " \t\r\n":
            position += 1
        failed(self.text, position, message)

    def _call(self, expr: Call) -> Expr:
        signature = FUNCTIONS[expr.function]
        wanted, given = len(signature.takes), len(expr.arguments)
        name = go_quote(expr.function)
        if signature.variadic == 0 and given != wanted:
            self.fail(expr, f"expected {wanted} argument(s) in call to {name}, got {given}")
        if signature.variadic != 0:
            least = wanted - 1
            most = least + signature.variadic
            if given < least:
                self.fail(
                    expr, f"expected at least {least} argument(s) in call to {name}, got {given}"
                )
            if signature.variadic > 0 and given > most:
                self.fail(
                    expr, f"expected at most {most} argument(s) in call to {name}, got {given}"
                )
        arguments = list(expr.arguments)
        if expr.function == "info" and given > 1:
            arguments[1] = self._label_selector(arguments[1])
        for index, argument in enumerate(arguments):
            kind = signature.takes[min(index, wanted - 1)]
            arguments[index] = self._expect(argument, kind, f"call to function {name}")
        if expr.function == "label_replace":
            self._expression(arguments[-1])
        return replace(expr, arguments=tuple(arguments))

    def _expression(self, argument: Expr) -> None:
        while isinstance(argument, Paren):
            argument = argument.expr
        if isinstance(argument, StringLiteral) and (
            refusal := self.expressions.refusal(argument.value)
        ):
            self.fail(argument, f"invalid regular expression in label_replace(): {refusal}")

    def _label_selector(self, argument: Expr) -> Expr:
        if not isinstance(argument, VectorSelector):
            self.fail(argument, "expected label selectors only")
        if argument.name:
            self.fail(argument, "expected label selectors only, got vector selector instead")
        return replace(argument, bare_labels=True)

    def _selector(self, selector: VectorSelector) -> None:
        if selector.name:
            for matcher in selector.matchers[:-1]:
                if matcher.name == METRIC_NAME:
                    self.fail(
                        selector,
                        "metric name must not be set twice: "
                        f"{go_quote(selector.name)} or {go_quote(matcher.value)}",
                    )
            return
        if selector.bare_labels:
            return
        if all(Matcher.of(matcher).matches("") for matcher in selector.matchers):
            self.fail(selector, "vector selector must contain at least one non-empty matcher")
