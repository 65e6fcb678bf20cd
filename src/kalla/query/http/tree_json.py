"""The tree of an expression as Prometheus' /parse_query shows it, for tools that draw one."""

from __future__ import annotations

from typing import Any

from kalla.query.promql.function_signatures import FUNCTIONS
from kalla.query.promql.number_format import plain
from kalla.query.promql.syntax_tree import (
    Aggregate,
    Binary,
    Call,
    Duration,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
)
from kalla.query.promql.type_checker import type_of


def tree(expr: Expr) -> dict[str, Any]:
    match expr:
        case NumberLiteral():
            return {"type": "numberLiteral", "val": plain(expr.value)}
        case StringLiteral():
            return {"type": "stringLiteral", "val": expr.value}
        case Paren():
            return {"type": "parenExpr", "expr": tree(expr.expr)}
        case Unary():
            return {"type": "unaryExpr", "op": expr.operator, "expr": tree(expr.expr)}
        case VectorSelector():
            return {"type": "vectorSelector", **_selector(expr)}
        case MatrixSelector():
            selector = _selector(expr.vector)
            return {"type": "matrixSelector", "range": _milliseconds(expr.range), **selector}
        case Subquery():
            return {
                "type": "subquery",
                "expr": tree(expr.expr),
                "range": _milliseconds(expr.range),
                "offset": _milliseconds(expr.offset),
                "step": _milliseconds(expr.step),
                **_at(expr),
            }
        case Aggregate():
            return {
                "type": "aggregation",
                "op": expr.operator,
                "expr": tree(expr.expr),
                "param": None if expr.parameter is None else tree(expr.parameter),
                "grouping": list(expr.grouping),
                "without": expr.without,
            }
        case Binary():
            return _binary(expr)
        case Call():
            return _call(expr)


def _call(expr: Call) -> dict[str, Any]:
    signature = FUNCTIONS[expr.function]
    return {
        "type": "call",
        "func": {
            "name": expr.function,
            "argTypes": list(signature.takes),
            "variadic": signature.variadic,
            "returnType": signature.gives,
        },
        "args": [tree(argument) for argument in expr.arguments],
    }


def _binary(expr: Binary) -> dict[str, Any]:
    matching = None
    if type_of(expr.left) == type_of(expr.right) == "vector":
        found = expr.matching
        matching = {
            "card": found.cardinality,
            "labels": list(found.labels),
            "on": found.on,
            "include": list(found.include),
            "fillValues": {"lhs": found.fill_left, "rhs": found.fill_right},
        }
    return {
        "type": "binaryExpr",
        "op": expr.operator,
        "lhs": tree(expr.left),
        "rhs": tree(expr.right),
        "matching": matching,
        "bool": expr.return_bool,
    }


def _selector(selector: VectorSelector) -> dict[str, Any]:
    return {
        "name": selector.name,
        "offset": _milliseconds(selector.offset),
        "matchers": [
            {"name": one.name, "value": one.value, "type": one.operator}
            for one in selector.matchers
        ],
        **_at(selector),
        "anchored": selector.extension == "anchored",
        "smoothed": selector.extension == "smoothed",
    }


def _at(expr: VectorSelector | Subquery) -> dict[str, Any]:
    bound = expr.at if isinstance(expr.at, str) else None
    return {"timestamp": None if bound else expr.at, "startOrEnd": bound}


def _milliseconds(duration: Duration | None) -> int:
    """A duration that must be computed is known when the query runs: 0, as Prometheus shows it."""
    return 0 if duration is None or duration.operator else round(duration.seconds * 1000)
