"""Runs the commands of scripts; each eval passes, fails, or is skipped by a rule."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kalla.query.engine import Answer, Engine
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.frames import Steps
from kalla.query.evaluate.sample_source import MemorySource, Samples
from kalla.query.labels.label_sets import (
    METADATA,
    NONE,
    Labels,
    changed,
    name_of,
    value_of,
    without,
)
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.promql.function_signatures import TIME_BOUND
from kalla.query.promql.query_errors import NativeHistograms, QueryError
from kalla.query.promql.syntax_tree import (
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    Paren,
    Subquery,
    Unary,
    VectorSelector,
    children,
)
from kalla.query.promql.type_checker import checked
from tests.numbered_source import NumberedSource
from tests.promqltest.comparing import (
    Rows,
    annotations_problem,
    answer_problem,
    rows_of,
    rows_problem,
    same_answers,
)
from tests.promqltest.descriptions import HISTOGRAM
from tests.promqltest.script import Broken, Clear, Command, Eval, Load, commands

# The engine settings that the scripts' expectations assume. No script is about the time limit, and
# in a new checkout the first query compiles the kernels: a busy machine takes a minute for that.
SETTING = PlanSettings(features=Features.every())
LIMITS = Limits(samples=10_000, points=1 << 40, seconds=600.0)
MINUTE = 60_000

# `info` looks its info series up at each step, also where the series is pinned.
_TIME_BOUND = TIME_BOUND | {"start", "end", "range", "step", "info"}
_QUERY_BOUND = frozenset({"start", "end", "range", "step"})


@dataclass(frozen=True)
class Failure:
    path: Path
    line: int
    query: str
    expected: str
    got: str

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.query}: expected {self.expected}, got {self.got}"
        ).replace("\n", " ")


@dataclass
class Outcome:
    passed: int = 0
    failures: list[Failure] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, rule: str) -> None:
        self.skipped[rule] = self.skipped.get(rule, 0) + 1

    def __str__(self) -> str:
        return (
            f"{self.passed} passed, {len(self.failures)} failed, "
            f"{sum(self.skipped.values())} skipped"
        )


def run(paths: Iterable[Path], *, shards: int = 1, thorough: bool = False) -> Outcome:
    """`thorough` also evaluates each instant query at other times and as a range query."""
    outcome = Outcome()
    for path in paths:
        data: dict[Labels, dict[int, tuple[float | str, int]]] = {}
        engine: Engine | None = None
        for command in _commands(path):
            if isinstance(command, Clear):
                data, engine = {}, None
            elif isinstance(command, Load):
                load(data, command)
                engine = None
            elif isinstance(command, Broken):
                problem = ("a command of a script", command.problem)
                outcome.failures.append(Failure(path, command.line, command.head, *problem))
            else:
                engine = engine or Engine(stored(data, shards), SETTING, LIMITS)
                _evaluate(outcome, path, command, engine, thorough)
    return outcome


def _commands(path: Path) -> list[Command]:
    try:
        return commands(path)
    except (OSError, UnicodeDecodeError) as problem:
        return [Broken(0, path.name, f"{type(problem).__name__}: {problem}")]


def load(data: dict[Labels, dict[int, tuple[float | str, int]]], command: Load) -> None:
    starts: dict[Labels, tuple[float | str | None, ...]] = {}
    for one in command.series:
        if one.start_times:
            starts[one.labels] = one.points
    for labels, points in {
        one.labels: one.points for one in command.series if not one.start_times
    }.items():
        held = data.setdefault(labels, {})
        began = starts.get(labels, ())
        for index, point in enumerate(points):
            at = index * command.interval
            start = began[index] if index < len(began) else None
            if point is not None:
                held[at] = (point, 0 if start is None else at + int(start))
            if point is not None and command.with_histograms and value_of(labels, "le"):
                native = changed(
                    without(labels, METADATA | {"le"}),
                    {"__name__": name_of(labels).removesuffix("_bucket")},
                )
                data.setdefault(native, {})[at] = (HISTOGRAM, 0)


def stored(data: dict[Labels, dict[int, tuple[float | str, int]]], shards: int = 1) -> MemorySource:
    series: dict[Labels, Samples] = {}
    for labels, points in data.items():
        times = sorted(at for at, (point, _) in points.items() if not isinstance(point, str))
        natives = sorted(at for at, (point, _) in points.items() if isinstance(point, str))
        starts = np.array([points[at][1] for at in times], np.int64)
        series[labels] = Samples(
            np.array(times, np.int64),
            np.array([points[at][0] for at in times], np.float64),
            starts if starts.any() else None,
            np.array(natives, np.int64),
        )
    # Labels by number, as the metric store has them, where there are several shards.
    return (MemorySource if shards == 1 else NumberedSource)(series, shards)


def _evaluate(outcome: Outcome, path: Path, command: Eval, engine: Engine, thorough: bool) -> None:
    if command.expected.native:
        outcome.skip("native histogram")
        return
    try:
        problem = _problem(command, engine) or _in_blocks(command, engine)
        if problem is None and thorough:
            # At other times a query may meet histograms that it did not meet at its own.
            with suppress(NativeHistograms):
                problem = _other_problem(command, engine)
    except NativeHistograms:
        outcome.skip("native histogram")
        return
    except Exception as crash:
        # One evaluation that breaks down must not hide what becomes of the others.
        problem = ("no crash", f"{type(crash).__name__}: {crash}")
    if problem is None:
        outcome.passed += 1
    else:
        outcome.failures.append(Failure(path, command.line, command.query, *problem))


def _problem(command: Eval, engine: Engine) -> tuple[str, str] | None:
    expected = command.expected
    try:
        answer = _answer(command, engine)
    except NativeHistograms:
        raise
    except QueryError as problem:
        if expected.fail is None:
            return "an answer", f"{problem.kind}: {problem}"
        if expected.fail.fits(str(problem)):
            return None
        return f"failure {expected.fail.message or expected.fail.pattern}", str(problem)
    if expected.fail is not None:
        return "failure", "an answer"
    return answer_problem(command, answer) or annotations_problem(expected, answer)


def _in_blocks(command: Eval, engine: Engine) -> tuple[str, str] | None:
    """A range query evaluated by some steps at a time: the same to the last bit."""
    if command.instant or command.expected.fail is not None:
        return None
    whole = _answer(command, engine)
    for width in (1, 7):
        cut = _answer(command, replace(engine, width=lambda _, width=width: width))  # type: ignore[misc]
        if not same_answers(whole, cut):
            return f"the same in blocks of {width}", str(rows_of(cut))
    return None


def _answer(command: Eval, engine: Engine) -> Answer:
    steps = command.steps
    if command.instant:
        return engine.instant(command.query, steps.start)
    return engine.range(command.query, steps.start, steps.end, steps.step)


def _other_problem(command: Eval, engine: Engine) -> tuple[str, str] | None:
    """The same question asked in other ways: pinned by @, and as the middle of a range."""
    expected = command.expected
    if not command.instant or expected.fail or expected.string or expected.matrix:
        return None
    text, now = command.query, command.steps.start
    expr = checked(text, SETTING.features)
    called = _called(expr)
    asked: list[tuple[str, Expr, int]] = [("", expr, now)]
    if not called & _TIME_BOUND:
        times = (-1000, 0, 1000) if now == 0 else (-10 * now, 0, now // 5, now, 10 * now)
        pinned = _pinned(expr, now)
        asked += [(f"@ {now}ms, evaluated at {time}ms: ", pinned, time) for time in times]
    plain = engine.instant(text, now)
    for how, asked_expr, time in asked:
        if how:
            answer = engine.run(asked_expr, text, Steps(time, time, 1), 0)
            if problem := _difference(plain, answer, now, time):
                return how + problem[0], problem[1]
        if expected.ordered or called & _QUERY_BOUND:
            continue
        steps = Steps(time - MINUTE, time + MINUTE, MINUTE)
        middle = engine.run(asked_expr, text, steps, MINUTE)
        if problem := _difference(plain, middle, now, time):
            return how + "as a range: " + problem[0], problem[1]
    return None


def _difference(plain: Answer, other: Answer, now: int, time: int) -> tuple[str, str] | None:
    wanted, got = _rows(plain, now), _rows(other, time)
    at_time = [(labels, {now: points[time]}) for labels, points in got if time in points]
    return rows_problem(wanted, at_time, False)


def _rows(answer: Answer, time: int) -> Rows:
    return [(NONE, {time: answer.scalar})] if answer.type == "scalar" else rows_of(answer)


def _called(expr: Expr) -> set[str]:
    names = {expr.function} if isinstance(expr, Call) else set()
    return names.union(*(_called(child) for child in children(expr)))


def _pinned(expr: Expr, at: int) -> Expr:
    """With @ on every selector and outermost subquery that has none."""
    match expr:
        case VectorSelector():
            return replace(expr, at=at) if expr.at is None else expr
        case MatrixSelector():
            vector = _pinned(expr.vector, at)
            return replace(expr, vector=vector) if isinstance(vector, VectorSelector) else expr
        case Subquery():
            return replace(expr, at=at) if expr.at is None else expr
        case Paren() | Unary():
            return replace(expr, expr=_pinned(expr.expr, at))
        case Binary():
            return replace(expr, left=_pinned(expr.left, at), right=_pinned(expr.right, at))
        case Aggregate():
            parameter = None if expr.parameter is None else _pinned(expr.parameter, at)
            return replace(expr, expr=_pinned(expr.expr, at), parameter=parameter)
        case Call():
            arguments = tuple(_pinned(argument, at) for argument in expr.arguments)
            return replace(expr, arguments=arguments)
        case _:
            return expr
