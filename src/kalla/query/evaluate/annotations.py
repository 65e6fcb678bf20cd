"""Warnings and infos of an answer, in Prometheus' wording and with their position."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from kalla.query.promql.lexer import go_quote, place
from kalla.query.promql.number_format import general, two_digits
from kalla.query.promql.syntax_tree import Span

Severity = Literal["warning", "info"]

_MONOTONIC = (
    "input to histogram_quantile needed to be fixed for monotonicity "
    "(see https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile)"
)


@dataclass
class MonotonicityFix:
    """How far the buckets of a histogram had to be bent, over all steps."""

    lowest: float
    highest: float
    difference: float
    first: int
    last: int
    count: int = 1

    def join(self, other: MonotonicityFix) -> None:
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.difference = max(self.difference, other.difference)
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.count += other.count

    def __str__(self) -> str:
        return (
            f", from buckets {general(self.lowest)} to {general(self.highest)}, with a max diff of "
            f"{two_digits(self.difference)}, over {self.count} samples from {_time(self.first)} to "
            f"{_time(self.last)}"
        )


@dataclass
class Annotations:
    """Each text once per place, in the order of places: it does not matter what came up first."""

    text: str
    found: dict[tuple[Severity, str, int], None] = field(default_factory=dict)
    fixes: dict[tuple[str, int], MonotonicityFix] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._shown("warning")

    @property
    def infos(self) -> tuple[str, ...]:
        fixed = tuple(
            f"PromQL info: {_MONOTONIC}{_for_metric(name)}{fix} ({place(self.text, start)})"
            for (name, start), fix in sorted(self.fixes.items(), key=lambda one: one[0][::-1])
        )
        return self._shown("info") + fixed

    def warn(self, message: str, span: Span) -> None:
        self.found.setdefault(("warning", message, span.start))

    def inform(self, message: str, span: Span) -> None:
        self.found.setdefault(("info", message, span.start))

    def _shown(self, severity: Severity) -> tuple[str, ...]:
        return tuple(
            f"PromQL {kind}: {message} ({place(self.text, start)})"
            for kind, message, start in sorted(self.found, key=lambda one: one[::-1])
            if kind == severity
        )

    # What can be said

    def bad_quantile(self, quantile: float, span: Span) -> None:
        self.warn(f"quantile value should be between 0 and 1, got {general(quantile)}", span)

    def bad_ratio(self, ratio: float, limit: float, span: Span) -> None:
        self.warn(
            f"ratio value should be between -1 and 1, got {general(ratio)}, "
            f"capping to {general(limit)}",
            span,
        )

    def bad_bucket(self, metric: str, label: str, span: Span) -> None:
        self.warn(
            f'bucket label "le" is missing or has a malformed value of {go_quote(label)}'
            f"{_for_metric(metric)}",
            span,
        )

    def no_counter(self, metric: str, span: Span) -> None:
        self.inform(
            "metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "
            f"{go_quote(metric)}",
            span,
        )

    def overlapping_starts(self, metric: str, span: Span) -> None:
        self.warn(f"start timestamps overlap with earlier samples{_for_metric(metric)}", span)

    def useless_sort(self, span: Span) -> None:
        self.warn(
            "sort is ineffective for range queries since results are always ordered by labels", span
        )

    def fixed_monotonicity(self, metric: str, span: Span, fix: MonotonicityFix) -> None:
        known = self.fixes.get((metric, span.start))
        if known is None:
            self.fixes[(metric, span.start)] = fix
        else:
            known.join(fix)


def _for_metric(name: str) -> str:
    return f" for metric name {go_quote(name)}" if name else ""


def _time(milliseconds: int) -> str:
    seconds = int(milliseconds / 1000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
