"""The checked request of a query, and its reply."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kalla.query.dispatch.query_records import QueryRecord
from kalla.query.evaluate.frames import Steps, range_steps
from kalla.query.promql.features import Features
from kalla.query.promql.syntax_tree import Expr
from kalla.query.promql.type_checker import checked, require_steps

if TYPE_CHECKING:
    from kalla.query.engine import Answer

MOST_POINTS = 11_000


@dataclass(frozen=True)
class QueryOptions:
    """Options of one query: its time limit, lookback and what is counted."""

    lookback_ms: int = 0  # 0: the usual one
    seconds: float | None = None  # None: as long as any query may take
    counted: bool = False  # whether to count the samples that each step sees
    features: Features = field(default_factory=Features)


@dataclass(frozen=True)
class QueryRequest:
    """A checked expression and when to evaluate it; `ranged` distinguishes a range query from an
    instant one.
    """

    text: str
    expr: Expr
    steps: Steps
    ranged: bool
    options: QueryOptions
    parse_seconds: float

    @property
    def step_ms(self) -> int:
        return self.steps.step if self.ranged else 0


@dataclass(frozen=True)
class QueryReply:
    """The answer, and the seconds that each stage took, in their order."""

    question: QueryRequest
    answer: Answer
    stages: tuple[tuple[str, float], ...]
    record: QueryRecord

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.stages)


def instant(text: str, time_ms: int, options: QueryOptions) -> QueryRequest:
    began = time.monotonic()
    expr = checked(text, options.features)
    steps = Steps(time_ms, time_ms, 1)
    return QueryRequest(text, expr, steps, False, options, time.monotonic() - began)


def ranged(
    text: str, start_ms: int, end_ms: int, step_ms: int, options: QueryOptions
) -> QueryRequest:
    steps = range_steps(start_ms, end_ms, step_ms, MOST_POINTS)
    began = time.monotonic()
    expr = checked(text, options.features)
    require_steps(expr)
    return QueryRequest(text, expr, steps, True, options, time.monotonic() - began)
