"""The tree of a PromQL expression: small, typed, frozen; positions are byte offsets of its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ValueType = Literal["scalar", "vector", "matrix", "string"]
Extension = Literal["", "anchored", "smoothed"]
Cardinality = Literal["one-to-one", "many-to-one", "one-to-many", "many-to-many"]
MatchOperator = Literal["=", "!=", "=~", "!~"]

METRIC_NAME = "__name__"
SET_OPERATORS = frozenset({"and", "or", "unless"})
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "^", "atan2"})
AGGREGATORS = frozenset(
    {
        "avg", "bottomk", "count", "count_values", "group", "limit_ratio", "limitk", "max", "min",
        "quantile", "stddev", "stdvar", "sum", "topk",
    }
)  # fmt: skip
PARAMETER_AGGREGATORS = frozenset(
    {"topk", "bottomk", "count_values", "quantile", "limitk", "limit_ratio"}
)


@dataclass(frozen=True)
class Span:
    """Where in the text a node stands; columns count bytes, as Prometheus counts them."""

    start: int = 0
    end: int = 0


NOWHERE = Span()


@dataclass(frozen=True)
class Duration:
    """A duration as written: a number of seconds, or arithmetic over durations."""

    operator: str = ""
    seconds: float = 0.0
    left: Duration | None = None
    right: Duration | None = None
    wrapped: bool = False
    literal: bool = False
    span: Span = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class LabelMatcher:
    name: str
    operator: MatchOperator
    value: str


@dataclass(frozen=True)
class Node:
    span: Span = field(default=NOWHERE, compare=False, kw_only=True)


@dataclass(frozen=True)
class NumberLiteral(Node):
    value: float
    duration: bool = False


@dataclass(frozen=True)
class StringLiteral(Node):
    value: str


@dataclass(frozen=True)
class VectorSelector(Node):
    """`at` is milliseconds, or the name of the query's bound (start, end)."""

    name: str
    matchers: tuple[LabelMatcher, ...]
    offset: Duration | None = None
    at: int | Literal["start", "end"] | None = None
    extension: Extension = ""
    bare_labels: bool = False


@dataclass(frozen=True)
class MatrixSelector(Node):
    vector: VectorSelector
    range: Duration


@dataclass(frozen=True)
class Subquery(Node):
    expr: Expr
    range: Duration
    step: Duration | None = None
    offset: Duration | None = None
    at: int | Literal["start", "end"] | None = None


@dataclass(frozen=True)
class Paren(Node):
    expr: Expr


@dataclass(frozen=True)
class Unary(Node):
    operator: Literal["+", "-"]
    expr: Expr


@dataclass(frozen=True)
class Matching:
    cardinality: Cardinality = "one-to-one"
    labels: tuple[str, ...] = ()
    on: bool = False
    include: tuple[str, ...] = ()
    fill_left: float | None = None
    fill_right: float | None = None


@dataclass(frozen=True)
class Binary(Node):
    operator: str
    left: Expr
    right: Expr
    matching: Matching = Matching()
    return_bool: bool = False


@dataclass(frozen=True)
class Aggregate(Node):
    operator: str
    expr: Expr
    parameter: Expr | None = None
    grouping: tuple[str, ...] = ()
    without: bool = False


@dataclass(frozen=True)
class Call(Node):
    function: str
    arguments: tuple[Expr, ...]


Expr = (
    NumberLiteral
    | StringLiteral
    | VectorSelector
    | MatrixSelector
    | Subquery
    | Paren
    | Unary
    | Binary
    | Aggregate
    | Call
)


def unwrapped(expr: Expr) -> Expr:
    """The expression without the parentheses around it."""
    while isinstance(expr, Paren):
        expr = expr.expr
    return expr


def children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Paren() | Unary() | Subquery():
            return (expr.expr,)
        case Binary():
            return (expr.left, expr.right)
        case Aggregate():
            return (expr.expr,) if expr.parameter is None else (expr.parameter, expr.expr)
        case Call():
            return expr.arguments
        case MatrixSelector():
            return (expr.vector,)
        case _:
            return ()
