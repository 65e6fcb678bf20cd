"""Plans a query: which leaves are read, over which times, and what is evaluated on top.

A leaf takes along what can be finished on its shard: the per-series function, and an
aggregation whose parts merge. Times are settled here, down to those of subqueries.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kalla.query.evaluate.exec_nodes import (
    ExecNode,
    NumberNode,
)
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.leaf import BaseExpr
from kalla.query.evaluate.partial_aggregates import FOLDED, Reduction
from kalla.query.operators.aggregate import Aggregation, CountValues, GroupStatistics, RowSelection
from kalla.query.operators.binary import (
    Negated,
    ScalarOperation,
    SetOperation,
    VectorOperation,
    VectorScalar,
)
from kalla.query.operators.elementwise import Elementwise
from kalla.query.operators.scalar_parameters import (
    CountParameter,
    QuantileParameter,
    RatioParameter,
)
from kalla.query.operators.window_nodes import ConstantNode, LeafNode
from kalla.query.plan.call_planner import planned_call, text_of
from kalla.query.promql.durations import evaluated
from kalla.query.promql.features import Features
from kalla.query.promql.function_signatures import TIME_BOUND
from kalla.query.promql.lexer import go_quote, is_label_name
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import ExecutionFailed, LimitReached
from kalla.query.promql.syntax_tree import (
    METRIC_NAME,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
    unwrapped,
)
from kalla.query.promql.type_checker import type_of


@dataclass(frozen=True)
class PlanSettings:
    """The settings of a plan; times in milliseconds."""

    features: Features = field(default_factory=Features)
    lookback: int = 300_000
    subquery_step: int = 60_000
    counted: bool = False
    max_steps: int = 50_000_000


@dataclass(frozen=True)
class Plan:
    root: ExecNode
    leaves: tuple[BaseExpr, ...]


def plan(expr: Expr, steps: Steps, step_ms: int, setting: PlanSettings) -> Plan:
    """`step_ms` is the query's own step, 0 for an instant query."""
    root = Planner(steps, step_ms, setting).node(expr, steps)
    return Plan(root, root.leaves)


class Planner:
    def __init__(self, query: Steps, step_ms: int, setting: PlanSettings) -> None:
        self.query = query
        self.step_ms = step_ms
        self.setting = setting

    def node(self, expr: Expr, steps: Steps) -> ExecNode:
        expr = unwrapped(expr)
        if steps.count > 1 and not isinstance(expr, NumberLiteral) and self.invariant(expr):
            return ConstantNode(steps, self._node(expr, steps.first))
        return self._node(expr, steps)

    def _node(self, expr: Expr, steps: Steps) -> ExecNode:
        match expr:
            case NumberLiteral():
                return NumberNode(steps, expr.value)
            case VectorSelector():
                return LeafNode(steps, self.instant(expr, steps))
            case Paren():
                return self._node(expr.expr, steps)
            case Unary():
                return self._unary(expr, steps)
            case Binary():
                return self._binary(expr, steps)
            case Aggregate():
                return self._aggregate(expr, steps)
            case Call():
                return planned_call(self, expr, steps)
            case _:
                raise AssertionError(f"{type(expr).__name__} has no value at a step")

    def invariant(self, expr: Expr) -> bool:
        """Whether the expression has the same value at every step."""
        match expr:
            case NumberLiteral() | StringLiteral():
                return True
            case VectorSelector() | Subquery():
                return expr.at is not None
            case MatrixSelector():
                return expr.vector.at is not None
            case Paren() | Unary():
                return self.invariant(expr.expr)
            case Aggregate():
                parameter = expr.parameter is None or self.invariant(expr.parameter)
                return parameter and self.invariant(expr.expr)
            case Binary():
                return self.invariant(expr.left) and self.invariant(expr.right)
            case Call():
                if expr.function in TIME_BOUND or not expr.arguments:
                    return False
                return all(self.invariant(argument) for argument in expr.arguments)

    # Selectors

    def instant(self, selector: VectorSelector, steps: Steps) -> BaseExpr:
        setting = self.setting
        return BaseExpr(
            matchers=tuple(Matcher.of(one) for one in selector.matchers),
            steps=steps,
            lookback=setting.lookback,
            offset=self._offset(selector),
            at=self._at(selector),
            extension="smoothed" if selector.extension == "smoothed" else "",
            start_timestamps=setting.features.start_timestamps,
            delayed_names=setting.features.delayed_name_removal,
            counted=setting.counted,
            span=selector.span,
        )

    def ranged(self, selector: MatrixSelector, steps: Steps) -> BaseExpr:
        return replace(
            self.instant(selector.vector, steps),
            range=evaluated(
                selector.range, self.step_ms, self.query.end - self.query.start, negative=False
            ),
            extension=selector.vector.extension,
            span=selector.span,
        )

    def _offset(self, selector: VectorSelector | Subquery) -> int:
        if selector.offset is None:
            return 0
        whole = self.query.end - self.query.start
        return evaluated(selector.offset, self.step_ms, whole, negative=True)

    def _at(self, selector: VectorSelector | Subquery) -> int | None:
        if selector.at == "start":
            return self.query.start
        return self.query.end if selector.at == "end" else selector.at

    def inner_steps(self, subquery: Subquery, steps: Steps) -> tuple[Steps, int, int | None, int]:
        """The steps of a subquery's expression, and its offset, @ and range."""
        whole = self.query.end - self.query.start
        length = evaluated(subquery.range, self.step_ms, whole, negative=False)
        interval = self.setting.subquery_step
        if subquery.step is not None:
            interval = evaluated(subquery.step, self.step_ms, whole, negative=False)
            if interval <= 0:
                raise ExecutionFailed("the step of a subquery must be at least 1ms")
        offset, at = self._offset(subquery), self._at(subquery)
        first = steps.start if at is None else at
        last = steps.start + (steps.count - 1) * steps.step if at is None else at
        begin = first - offset - length
        start = begin // interval * interval + interval
        inner = Steps(start, last - offset, interval)
        if inner.count > self.setting.max_steps:
            raise LimitReached(
                "query processing would load too many samples into memory in query execution"
            )
        return inner, offset, at, length

    # Operators

    def _unary(self, expr: Unary, steps: Steps) -> ExecNode:
        inner = self.node(expr.expr, steps)
        if expr.operator == "+":
            return inner
        if type_of(expr.expr) == "scalar":
            return Negated(steps, inner)
        return Elementwise(steps, "negative", inner)

    def _binary(self, expr: Binary, steps: Steps) -> ExecNode:
        left, right = self.node(expr.left, steps), self.node(expr.right, steps)
        types = (type_of(expr.left), type_of(expr.right))
        if types == ("scalar", "scalar"):
            return ScalarOperation(steps, expr.operator, left, right)
        if expr.operator in SET_OPERATORS:
            return SetOperation(steps, expr.operator, left, right, expr.matching)
        if types == ("vector", "scalar"):
            return VectorScalar(steps, expr.operator, left, right, False, expr.return_bool)
        if types == ("scalar", "vector"):
            return VectorScalar(steps, expr.operator, right, left, True, expr.return_bool)
        return VectorOperation(steps, expr.operator, left, right, expr.matching, expr.return_bool)

    # Aggregations

    def _aggregate(self, expr: Aggregate, steps: Steps) -> ExecNode:
        operator = expr.operator
        reduction = Reduction(operator, tuple(sorted(set(expr.grouping))), expr.without)
        inner = self.node(expr.expr, steps)
        if operator == "count_values":
            return self._count_values(expr, reduction, inner, steps)
        if operator in FOLDED:
            pushed = self._pushed(inner, reduction)
            return pushed or Aggregation(steps, inner, reduction)
        if expr.parameter is None:
            return GroupStatistics(steps, inner, reduction)
        parameter = self.node(expr.parameter, steps)
        span = unwrapped(expr.parameter).span
        if operator == "quantile":
            return GroupStatistics(
                steps, inner, reduction, QuantileParameter(steps, parameter, span)
            )
        if isinstance(parameter, NumberNode) and _countable(operator, parameter.value):
            constant = replace(reduction, parameter=(parameter.value,))
            if pushed := self._pushed(inner, constant):
                return pushed
        judged = RatioParameter if operator == "limit_ratio" else CountParameter
        return RowSelection(steps, inner, reduction, judged(steps, parameter, span))

    def _pushed(self, inner: ExecNode, reduction: Reduction) -> LeafNode | None:
        """The aggregation inside the leaf, where parts of different shards can be distinguished."""
        if not isinstance(inner, LeafNode) or inner.leaf.reduction is not None:
            return None
        leaf = inner.leaf
        one_metric = any(one.name == METRIC_NAME and one.operator == "=" for one in leaf.matchers)
        if leaf.drops_name and not leaf.delayed_names and not one_metric:
            # Series that fall together without their names must be found, and refused.
            return None
        return replace(inner, leaf=replace(leaf, reduction=reduction))

    def _count_values(
        self, expr: Aggregate, reduction: Reduction, inner: ExecNode, steps: Steps
    ) -> ExecNode:
        label = text_of(expr.parameter)
        if not is_label_name(label):
            raise ExecutionFailed(f"invalid label name {go_quote(label)}")
        if not reduction.without:
            grouping = tuple(sorted({*reduction.grouping, label}))
            reduction = replace(reduction, grouping=grouping)
        return CountValues(steps, inner, reduction, label)


def _countable(operator: str, value: float) -> bool:
    """Whether a constant k or ratio is one that shards can work with."""
    if operator == "limit_ratio":
        return -1 <= value <= 1 and value != 0
    return 1 <= value < 2**31
