"""The errors of a query, with the texts and types that Prometheus uses."""

from __future__ import annotations

from typing import Literal

from kalla.errors import KallaError

Kind = Literal["bad_data", "execution", "timeout", "canceled"]


class QueryError(KallaError):
    """A failed query; `kind` is the errorType of Prometheus' API."""

    kind: Kind = "execution"
    status = 422
    title = "The query failed"


class ParseFailed(QueryError):
    """The expression is not PromQL, or its types do not fit."""

    kind: Kind = "bad_data"
    status = 400
    title = "The expression is not valid"


class BadRequest(QueryError):
    """The expression may be fine; the times or limits asked for are not.

    `parameter` is the one of Prometheus' API that is wrong, where it is one alone.
    """

    kind: Kind = "bad_data"
    status = 400
    title = "The query's times are not valid"

    def __init__(self, sentence: str, parameter: str = "") -> None:
        super().__init__(sentence)
        self.parameter = parameter

    def __reduce__(self) -> tuple[type[BadRequest], tuple[str, str]]:
        return type(self), (str(self), self.parameter)


class ExecutionFailed(QueryError):
    """The expression is valid, but these data give it no answer."""


class NativeHistograms(ExecutionFailed):
    """Kalla answers from float samples; native histograms are refused, never guessed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"native histograms are not supported: {what}; query the _bucket series instead"
        )
        self.what = what

    def __reduce__(self) -> tuple[type[NativeHistograms], tuple[str]]:
        return type(self), (self.what,)


class LimitReached(ExecutionFailed):
    """A limit on samples, series or memory was reached; the message names it."""


class TimedOut(QueryError):
    kind: Kind = "timeout"
    status = 503
    title = "The query took too long"


class Stopped(QueryError):
    """The caller disconnected or cancelled the query."""

    kind: Kind = "canceled"
    status = 499
    title = "The query was cancelled"
