"""Functions of an expression, planned: which node computes each, and what its leaf takes along."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kalla.query.evaluate.exec_nodes import (
    Absent,
    EmptyNode,
    ExecNode,
    NumberNode,
    ScalarOf,
    TimeNode,
    VectorOf,
)
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.leaf import BaseExpr
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.operators.classic_histograms import BucketFraction, BucketQuantiles
from kalla.query.operators.elementwise import (
    CALENDAR,
    ELEMENTWISE,
    CalendarOfNow,
    Elementwise,
    ScalarPair,
)
from kalla.query.operators.info_function import InfoJoin
from kalla.query.operators.label_functions import LabelJoin, LabelReplace, Sorted
from kalla.query.operators.scalar_parameters import BucketQuantileParameter
from kalla.query.operators.window_nodes import LeafNode, SubqueryCall
from kalla.query.promql.function_signatures import ANCHORED, FUNCTIONS, SMOOTHED
from kalla.query.promql.lexer import is_label_name
from kalla.query.promql.matchers import Matcher, anchored, regex_problem
from kalla.query.promql.query_errors import ExecutionFailed, NativeHistograms
from kalla.query.promql.syntax_tree import (
    METRIC_NAME,
    Call,
    Expr,
    MatrixSelector,
    Span,
    StringLiteral,
    Subquery,
    VectorSelector,
    unwrapped,
)
from kalla.query.promql.type_checker import type_of

if TYPE_CHECKING:
    from kalla.query.plan.planner import Planner


def planned_call(planner: Planner, expr: Call, steps: Steps) -> ExecNode:
    name = expr.function
    arguments = tuple(unwrapped(argument) for argument in expr.arguments)
    if FUNCTIONS[name].native:
        raise NativeHistograms(f"{name}() reads nothing else")
    if any(type_of(argument) == "matrix" for argument in arguments):
        return _over_range(planner, name, arguments, steps)
    if name in ("time", "pi", "start", "end", "step", "range"):
        return TimeNode(steps, name, planner.query, planner.step_ms)  # type: ignore[arg-type]
    if not arguments:
        return CalendarOfNow(steps, name)
    if name in ("label_replace", "label_join"):
        return _labels(planner, name, arguments, steps)
    if name in ("timestamp", "start_timestamp") and isinstance(arguments[0], VectorSelector):
        leaf = replace(planner.instant(arguments[0], steps), function=name, extension="")
        if leaf.at is not None:
            # Prometheus fetches samples up to @ less the offset, then looks back from @ alone: only
            # samples in both windows are found.
            lookback = max(leaf.lookback - abs(leaf.offset), 0)
            leaf = replace(leaf, offset=max(leaf.offset, 0), lookback=lookback)
        return LeafNode(steps, leaf)
    if name.startswith("histogram_"):
        return _histogram(planner, name, arguments, steps)
    if name == "info":
        return _info(planner, arguments, steps)
    nodes = tuple(
        planner.node(argument, steps) for argument in arguments if type_of(argument) != "string"
    )
    if name in ELEMENTWISE or name in CALENDAR or name in _WITH_SCALARS:
        return Elementwise(steps, name, nodes[0], nodes[1:])
    if name in ("min_of", "max_of"):
        return ScalarPair(steps, name, nodes[0], nodes[1])
    if name.startswith("sort"):
        by = tuple(text_of(argument) for argument in arguments[1:])
        return Sorted(steps, nodes[0], name.endswith("_desc"), by, "label" in name, expr.span)
    if name == "absent":
        return Absent(steps, nodes[0], _pinned_labels(arguments[0]))
    if name == "vector":
        return VectorOf(steps, nodes[0])
    if name == "scalar":
        return ScalarOf(steps, nodes[0])
    raise AssertionError(f"the function {name} has a signature but no node")


def _over_range(planner: Planner, name: str, arguments: tuple[Expr, ...], steps: Steps) -> ExecNode:
    selector = next(one for one in arguments if type_of(one) == "matrix")
    scalars = tuple(one for one in arguments if one is not selector)
    parameters = tuple(planner.node(one, steps) for one in scalars)
    constants: tuple[tuple[float, ...], ...] = ()
    if all(isinstance(one, NumberNode) for one in parameters):
        constants = tuple((one.value,) for one in parameters if isinstance(one, NumberNode))
        parameters = ()
    # Annotations speak of the first argument: for quantile_over_time that is the quantile.
    span = arguments[0].span
    found: ExecNode
    if isinstance(selector, MatrixSelector):
        leaf = replace(planner.ranged(selector, steps), function=name, span=span)
        _check_extension(name, leaf)
        found = LeafNode(steps, replace(leaf, parameters=constants), parameters)
        if leaf.range == 0:
            found = EmptyNode(steps)
    else:
        if not isinstance(selector, Subquery):
            raise AssertionError("a range vector is a selector or a subquery")
        found = _subquery_call(planner, name, selector, steps, constants, parameters, span)
    if name == "absent_over_time":
        return Absent(steps, found, _pinned_labels(selector))
    return found


def _subquery_call(
    planner: Planner,
    name: str,
    subquery: Subquery,
    steps: Steps,
    constants: tuple[tuple[float, ...], ...],
    parameters: tuple[ExecNode, ...],
    span: Span,
) -> ExecNode:
    inner_steps, offset, at, length = planner.inner_steps(subquery, steps)
    window = BaseExpr(
        (), steps, planner.setting.lookback, name, length, offset, at,
        parameters=constants,
        delayed_names=planner.setting.features.delayed_name_removal,
        span=span,
    )  # fmt: skip
    inner: ExecNode = EmptyNode(inner_steps)
    if inner_steps.count:
        inner = planner.node(subquery.expr, inner_steps)
    return SubqueryCall(steps, inner, window, parameters)


def _labels(planner: Planner, name: str, arguments: tuple[Expr, ...], steps: Steps) -> ExecNode:
    texts = [text_of(argument) for argument in arguments[1:]]
    if name == "label_replace":
        target, template, source, pattern = texts
        if regex_problem(anchored(pattern)):
            raise ExecutionFailed(f"invalid regular expression in label_replace(): {pattern}")
        if not is_label_name(target):
            raise ExecutionFailed(f"invalid destination label name in label_replace(): {target}")
        inner = planner.node(arguments[0], steps)
        return LabelReplace(steps, inner, target, template, source, pattern)
    target, separator, *sources = texts
    for source in sources:
        if not is_label_name(source):
            raise ExecutionFailed(f"invalid source label name in label_join(): {source}")
    if not is_label_name(target):
        raise ExecutionFailed(f"invalid destination label name in label_join(): {target}")
    inner = planner.node(arguments[0], steps)
    return LabelJoin(steps, inner, target, separator, tuple(sources))


def _histogram(planner: Planner, name: str, arguments: tuple[Expr, ...], steps: Steps) -> ExecNode:
    if name == "histogram_fraction":
        lower, upper, inner = (planner.node(argument, steps) for argument in arguments)
        return BucketFraction(steps, lower, upper, inner, arguments[2].span)
    asked: tuple[Expr, ...]
    if name == "histogram_quantile":
        inner = planner.node(arguments[1], steps)
        asked, label, span = (arguments[0],), "", arguments[1].span
    else:
        inner = planner.node(arguments[0], steps)
        asked, label, span = arguments[2:], text_of(arguments[1]), arguments[0].span
    quantiles = tuple(
        BucketQuantileParameter(steps, planner.node(one, steps), one.span) for one in asked
    )
    return BucketQuantiles(steps, inner, quantiles, span, label)


def _info(planner: Planner, arguments: tuple[Expr, ...], steps: Steps) -> ExecNode:
    inner = planner.node(arguments[0], steps)
    matchers: tuple[Matcher, ...] = ()
    if len(arguments) > 1 and isinstance(arguments[1], VectorSelector):
        matchers = tuple(Matcher.of(one) for one in arguments[1].matchers)
    return InfoJoin(steps, inner, matchers, planner.setting.lookback)


_WITH_SCALARS = frozenset(
    {"clamp", "clamp_min", "clamp_max", "round", "timestamp", "start_timestamp"}
)


def text_of(expr: Expr | None) -> str:
    if expr is None or not isinstance(expr := unwrapped(expr), StringLiteral):
        raise AssertionError("the types say string")
    return expr.value


def _pinned_labels(expr: Expr) -> Labels:
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
