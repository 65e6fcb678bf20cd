"""Trees back to text: on one line, or split as Prometheus' format_query splits long ones."""

from __future__ import annotations

import math
from typing import Literal

from kalla.query.promql.durations import written
from kalla.query.promql.lexer import go_quote, is_plain_name
from kalla.query.promql.number_format import general, plain
from kalla.query.promql.syntax_tree import (
    METRIC_NAME,
    Aggregate,
    Binary,
    Call,
    Duration,
    Expr,
    Matching,
    MatrixSelector,
    NumberLiteral,
    Paren,
    StringLiteral,
    Subquery,
    Unary,
    VectorSelector,
)

WIDTH = 100


def formatted(expr: Expr, level: int = 0) -> str:
    """Indented; what fits a line stays on it."""
    indent = "  " * level
    line = printed(expr)
    match expr:
        case Unary():
            return f"{indent}{expr.operator}{formatted(expr.expr, level).strip()}"
        case Subquery() if len(line) > WIDTH:
            return formatted(expr.expr, level) + _subquery_suffix(expr)
    if len(line) <= WIDTH:
        return indent + line
    match expr:
        case Aggregate():
            parameter = ""
            if expr.parameter is not None:
                parameter = f"{formatted(expr.parameter, level + 1)},\n"
            inner = formatted(expr.expr, level + 1)
            return f"{indent}{_aggregator(expr)}(\n{parameter}{inner}\n{indent})"
        case Binary():
            left, right = formatted(expr.left, level + 1), formatted(expr.right, level + 1)
            left = _unsigned_base(expr, left)
            return f"{left}\n{indent}{_operator(expr)}\n{right}"
        case Call():
            inner = ",\n".join(formatted(one, level + 1) for one in expr.arguments)
            return f"{indent}{expr.function}(\n{inner}\n{indent})"
        case Paren():
            return f"{indent}(\n{formatted(expr.expr, level + 1)}\n{indent})"
        case _:
            return indent + line


def printed(expr: Expr) -> str:
    match expr:
        case NumberLiteral():
            return _number(expr)
        case StringLiteral():
            return go_quote(expr.value)
        case VectorSelector():
            extension = f" {expr.extension}" if expr.extension else ""
            return f"{_selector(expr)}{_at(expr.at)}{extension}{_offset(expr.offset)}"
        case MatrixSelector():
            vector = expr.vector
            extension = f" {vector.extension}" if vector.extension else ""
            return (
                f"{_selector(vector)}[{_duration(expr.range)}]{extension}"
                f"{_at(vector.at)}{_offset(vector.offset)}"
            )
        case Subquery():
            return printed(expr.expr) + _subquery_suffix(expr)
        case Paren():
            return f"({printed(expr.expr)})"
        case Unary():
            return expr.operator + printed(expr.expr)
        case Binary():
            left = _unsigned_base(expr, printed(expr.left))
            return f"{left} {_operator(expr)} {printed(expr.right)}"
        case Aggregate():
            parameter = "" if expr.parameter is None else f"{printed(expr.parameter)}, "
            return f"{_aggregator(expr)}({parameter}{printed(expr.expr)})"
        case Call():
            return f"{expr.function}({', '.join(printed(one) for one in expr.arguments)})"


def _unsigned_base(power: Binary, base: str) -> str:
    """A sign before a power would be the sign of all of it: +Inf is Inf there."""
    left = power.left
    if power.operator == "^" and isinstance(left, NumberLiteral) and math.isinf(left.value):
        return base.replace("+", "", 1)
    return base


def _number(expr: NumberLiteral) -> str:
    if not expr.duration:
        return plain(expr.value)
    sign = "-" if expr.value < 0 else ""
    return sign + written(round(abs(expr.value) * 1000))


def _selector(selector: VectorSelector) -> str:
    conditions = sorted(
        f"{_label(one.name)}{one.operator}{go_quote(one.value)}"
        for one in selector.matchers
        if not (one.name == METRIC_NAME and one.operator == "=" and one.value == selector.name)
        or not one.value
    )
    if conditions or not selector.name:
        return f"{selector.name}{{{','.join(conditions)}}}"
    return selector.name


def _label(name: str) -> str:
    return name if is_plain_name(name) else go_quote(name)


def _labels(names: tuple[str, ...]) -> str:
    return ", ".join(_label(name) for name in names)


def _at(at: int | Literal["start", "end"] | None) -> str:
    if at is None:
        return ""
    return f" @ {at}()" if isinstance(at, str) else f" @ {at / 1000:.3f}"


def _offset(offset: Duration | None) -> str:
    if offset is None or (not offset.operator and offset.seconds == 0):
        return ""
    return f" offset {_duration(offset)}"


def _subquery_suffix(expr: Subquery) -> str:
    step = "" if expr.step is None else _duration(expr.step)
    return f"[{_duration(expr.range)}:{step}]{_at(expr.at)}{_offset(expr.offset)}"


def _duration(duration: Duration) -> str:
    match duration.operator:
        case "":
            sign = "-" if duration.seconds < 0 else ""
            text = sign + written(int(abs(duration.seconds) * 1000))
        case "step" | "range":
            text = f"{duration.operator}()"
        case "min_of" | "max_of":
            text = f"{duration.operator}({_side(duration.left)}, {_side(duration.right)})"
        case operator if duration.left is None:
            text = f"{operator}{_side(duration.right)}"
        case operator:
            text = f"{_side(duration.left)} {operator} {_side(duration.right)}"
    return f"({text})" if duration.wrapped else text


def _side(duration: Duration | None) -> str:
    if duration is None:
        return ""
    if not duration.operator and not duration.literal:
        return plain(duration.seconds)
    return _duration(duration)


def _aggregator(expr: Aggregate) -> str:
    if expr.without:
        return f"{expr.operator} without ({_labels(expr.grouping)}) "
    if expr.grouping:
        return f"{expr.operator} by ({_labels(expr.grouping)}) "
    return expr.operator


def _operator(expr: Binary) -> str:
    return expr.operator + (" bool" if expr.return_bool else "") + _matching(expr.matching)


def _matching(matching: Matching) -> str:
    text = ""
    grouped = matching.cardinality in ("many-to-one", "one-to-many")
    if matching.labels or matching.on or grouped:
        text = f" {'on' if matching.on else 'ignoring'} ({_labels(matching.labels)})"
    if grouped:
        side = "left" if matching.cardinality == "many-to-one" else "right"
        text += f" group_{side} ({_labels(matching.include)})"
    left, right = matching.fill_left, matching.fill_right
    if left is not None and left == right:
        return f"{text} fill ({general(left)})"
    text += "" if left is None else f" fill_left ({general(left)})"
    return text + ("" if right is None else f" fill_right ({general(right)})")
