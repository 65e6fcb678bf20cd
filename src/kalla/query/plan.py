"""The decision as data: which leaves are read, over which times, and what is evaluated on top.

A leaf takes along what can be finished on its shard: the per-series function, and an
aggregation whose parts merge. Times are settled here, down to those of subqueries.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kalla.query.aggregating import AcrossRows, Aggregation, Choice, CountValues
from kalla.query.buckets import BucketFraction, BucketQuantiles
from kalla.query.calls import CALENDAR, ELEMENTWISE, Elementwise, ScalarPair, Today
from kalla.query.checking import type_of
from kalla.query.durations import evaluated
from kalla.query.features import Features
from kalla.query.frames import Steps
from kalla.query.infos import Info
from kalla.query.labelling import LabelJoin, LabelReplace, Sorted
from kalla.query.labels import Labels, is_label_name, labels_of
from kalla.query.leaves import BaseExpr
from kalla.query.lexing import go_quote
from kalla.query.matchers import Matcher, anchored, regex_problem
from kalla.query.nodes import (
    Absent,
    ExecNode,
    Nothing,
    NumberNode,
    ScalarOf,
    TimeNode,
    VectorOf,
)
from kalla.query.operators import (
    Negated,
    ScalarOperation,
    SetOperation,
    VectorOperation,
    VectorScalar,
)
from kalla.query.parameters import AcrossQuantile, BucketQuantile, HowMany, WhichShare
from kalla.query.problems import ExecutionFailed, LimitReached, NativeHistograms
from kalla.query.reductions import FOLDED, Reduction
from kalla.query.signatures import ANCHORED, FUNCTIONS, SMOOTHED, TIME_BOUND
from kalla.query.syntax import (
    METRIC_NAME,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    Span,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
    unwrapped,
)
from kalla.query.windows import LeafNode, Repeated, SubqueryCall


@dataclass(frozen=True)
class Setting:
    """What a plan needs to know beside the expression; times in milliseconds."""

    features: Features = field(default_factory=Features)
    lookback: int = 300_000
    subquery_step: int = 60_000
    counted: bool = False
    most_steps: int = 50_000_000


@dataclass(frozen=True)
class Plan:
    root: ExecNode
    leaves: tuple[BaseExpr, ...]


def plan(expr: Expr, steps: Steps, step_ms: int, setting: Setting) -> Plan:
    """`step_ms` is the query's own step, 0 for an instant query."""
    root = Planner(steps, step_ms, setting).node(expr, steps)
    return Plan(root, root.leaves)


class Planner:
    def __init__(self, query: Steps, step_ms: int, setting: Setting) -> None:
        self.query = query
        self.step_ms = step_ms
        self.setting = setting

    def node(self, expr: Expr, steps: Steps) -> ExecNode:
        expr = unwrapped(expr)
        if steps.count > 1 and not isinstance(expr, NumberLiteral) and self.invariant(expr):
            return Repeated(steps, self._node(expr, steps.first))
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
                return self._call(expr, steps)
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
        if inner.count > self.setting.most_steps:
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
            return AcrossRows(steps, inner, reduction)
        parameter = self.node(expr.parameter, steps)
        span = unwrapped(expr.parameter).span
        if operator == "quantile":
            return AcrossRows(steps, inner, reduction, AcrossQuantile(steps, parameter, span))
        if isinstance(parameter, NumberNode) and _countable(operator, parameter.value):
            constant = replace(reduction, parameter=(parameter.value,))
            if pushed := self._pushed(inner, constant):
                return pushed
        judged = WhichShare if operator == "limit_ratio" else HowMany
        return Choice(steps, inner, reduction, judged(steps, parameter, span))

    def _pushed(self, inner: ExecNode, reduction: Reduction) -> LeafNode | None:
        """The aggregation inside the leaf, where parts of different shards can be told apart."""
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
        label = _text(expr.parameter)
        if not is_label_name(label):
            raise ExecutionFailed(f"invalid label name {go_quote(label)}")
        if not reduction.without:
            grouping = tuple(sorted({*reduction.grouping, label}))
            reduction = replace(reduction, grouping=grouping)
        return CountValues(steps, inner, reduction, label)

    # Functions

    def _call(self, expr: Call, steps: Steps) -> ExecNode:
        name = expr.function
        arguments = tuple(unwrapped(argument) for argument in expr.arguments)
        if FUNCTIONS[name].native:
            raise NativeHistograms(f"{name}() reads nothing else")
        if any(type_of(argument) == "matrix" for argument in arguments):
            return self._over_range(name, arguments, steps)
        if name in ("time", "pi", "start", "end", "step", "range"):
            return TimeNode(steps, name, self.query, self.step_ms)  # type: ignore[arg-type]
        if not arguments:
            return Today(steps, name)
        if name in ("label_replace", "label_join"):
            return self._labels(name, arguments, steps)
        if name == "timestamp" and isinstance(arguments[0], VectorSelector):
            leaf = replace(self.instant(arguments[0], steps), function="timestamp", extension="")
            if leaf.at is not None:
                # Prometheus fetches samples up to @ less the offset, then looks back from @ alone:
                # only what lies in both windows is found.
                lookback = max(leaf.lookback - abs(leaf.offset), 0)
                leaf = replace(leaf, offset=max(leaf.offset, 0), lookback=lookback)
            return LeafNode(steps, leaf)
        if name.startswith("histogram_"):
            return self._histogram(name, arguments, steps)
        if name == "info":
            return self._info(arguments, steps)
        nodes = tuple(
            self.node(argument, steps) for argument in arguments if type_of(argument) != "string"
        )
        if name in ELEMENTWISE or name in CALENDAR or name in _WITH_SCALARS:
            return Elementwise(steps, name, nodes[0], nodes[1:])
        if name in ("min_of", "max_of"):
            return ScalarPair(steps, name, nodes[0], nodes[1])
        if name.startswith("sort"):
            by = tuple(_text(argument) for argument in arguments[1:])
            return Sorted(steps, nodes[0], name.endswith("_desc"), by, "label" in name)
        if name == "absent":
            return Absent(steps, nodes[0], _looked_for(arguments[0]))
        if name == "vector":
            return VectorOf(steps, nodes[0])
        if name == "scalar":
            return ScalarOf(steps, nodes[0])
        raise AssertionError(f"the function {name} has a signature but no node")

    def _over_range(self, name: str, arguments: tuple[Expr, ...], steps: Steps) -> ExecNode:
        selector = next(one for one in arguments if type_of(one) == "matrix")
        scalars = tuple(one for one in arguments if one is not selector)
        parameters = tuple(self.node(one, steps) for one in scalars)
        constants: tuple[tuple[float, ...], ...] = ()
        if all(isinstance(one, NumberNode) for one in parameters):
            constants = tuple((one.value,) for one in parameters if isinstance(one, NumberNode))
            parameters = ()
        # Annotations speak of the first argument: for quantile_over_time that is the quantile.
        span = arguments[0].span
        found: ExecNode
        if isinstance(selector, MatrixSelector):
            leaf = replace(self.ranged(selector, steps), function=name, span=span)
            _check_extension(name, leaf)
            found = LeafNode(steps, replace(leaf, parameters=constants), parameters)
            if leaf.range == 0:
                found = Nothing(steps)
        else:
            if not isinstance(selector, Subquery):
                raise AssertionError("a range vector is a selector or a subquery")
            found = self._subquery_call(name, selector, steps, constants, parameters, span)
        if name == "absent_over_time":
            return Absent(steps, found, _looked_for(selector))
        return found

    def _subquery_call(
        self,
        name: str,
        subquery: Subquery,
        steps: Steps,
        constants: tuple[tuple[float, ...], ...],
        parameters: tuple[ExecNode, ...],
        span: Span,
    ) -> ExecNode:
        inner_steps, offset, at, length = self.inner_steps(subquery, steps)
        window = BaseExpr(
            (), steps, self.setting.lookback, name, length, offset, at,
            parameters=constants,
            delayed_names=self.setting.features.delayed_name_removal,
            span=span,
        )  # fmt: skip
        inner: ExecNode = Nothing(inner_steps)
        if inner_steps.count:
            inner = self.node(subquery.expr, inner_steps)
        return SubqueryCall(steps, inner, window, parameters)

    def _labels(self, name: str, arguments: tuple[Expr, ...], steps: Steps) -> ExecNode:
        texts = [_text(argument) for argument in arguments[1:]]
        if name == "label_replace":
            target, template, source, pattern = texts
            if regex_problem(anchored(pattern)):
                raise ExecutionFailed(f"invalid regular expression in label_replace(): {pattern}")
            if not is_label_name(target):
                raise ExecutionFailed(
                    f"invalid destination label name in label_replace(): {target}"
                )
            inner = self.node(arguments[0], steps)
            return LabelReplace(steps, inner, target, template, source, pattern)
        target, separator, *sources = texts
        for source in sources:
            if not is_label_name(source):
                raise ExecutionFailed(f"invalid source label name in label_join(): {source}")
        if not is_label_name(target):
            raise ExecutionFailed(f"invalid destination label name in label_join(): {target}")
        inner = self.node(arguments[0], steps)
        return LabelJoin(steps, inner, target, separator, tuple(sources))

    def _histogram(self, name: str, arguments: tuple[Expr, ...], steps: Steps) -> ExecNode:
        if name == "histogram_fraction":
            lower, upper, inner = (self.node(argument, steps) for argument in arguments)
            return BucketFraction(steps, lower, upper, inner, arguments[2].span)
        asked: tuple[Expr, ...]
        if name == "histogram_quantile":
            inner = self.node(arguments[1], steps)
            asked, label, span = (arguments[0],), "", arguments[1].span
        else:
            inner = self.node(arguments[0], steps)
            asked, label, span = arguments[2:], _text(arguments[1]), arguments[0].span
        quantiles = tuple(BucketQuantile(steps, self.node(one, steps), one.span) for one in asked)
        return BucketQuantiles(steps, inner, quantiles, span, label, arguments[1].span)

    def _info(self, arguments: tuple[Expr, ...], steps: Steps) -> ExecNode:
        inner = self.node(arguments[0], steps)
        matchers: tuple[Matcher, ...] = ()
        if len(arguments) > 1 and isinstance(arguments[1], VectorSelector):
            matchers = tuple(Matcher.of(one) for one in arguments[1].matchers)
        return Info(steps, inner, matchers, self.setting.lookback)


_WITH_SCALARS = frozenset({"clamp", "clamp_min", "clamp_max", "round", "timestamp"})


def _countable(operator: str, value: float) -> bool:
    """Whether a constant k or ratio is one that shards can work with."""
    if operator == "limit_ratio":
        return -1 <= value <= 1 and value != 0
    return 1 <= value < 2**31


def _text(expr: Expr | None) -> str:
    if expr is None or not isinstance(expr := unwrapped(expr), StringLiteral):
        raise AssertionError("the types say string")
    return expr.value


def _looked_for(expr: Expr) -> Labels:
    """The labels that a selector pins to one value: those an absent series would have."""
    if isinstance(expr, MatrixSelector):
        expr = expr.vector
    if not isinstance(expr, VectorSelector):
        return ()
    found: dict[str, str] = {}
    seen: set[str] = set()
    for matcher in expr.matchers:
        if matcher.name == METRIC_NAME:
            continue
        if matcher.operator == "=" and matcher.name not in seen:
            found[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            found.pop(matcher.name, None)
    return labels_of(found)


def _check_extension(name: str, leaf: BaseExpr) -> None:
    allowed = {"anchored": ANCHORED, "smoothed": SMOOTHED}.get(leaf.extension)
    if allowed is not None and name not in allowed:
        raise ExecutionFailed(
            f"{leaf.extension} modifier can only be used with: {', '.join(sorted(allowed))} - "
            f"not with {name}"
        )
