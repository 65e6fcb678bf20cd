"""Queries made up at random, of the right types, kept away from what 2.42 does otherwise.

Where Prometheus 2.42 rounds otherwise than 3.x the last bits differ. So what jumps (a comparison,
floor, count_values) is only asked of values whose bits are the same in both, and what cancels (a
difference, a mean around zero) not of rounded ones.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.differential.queries import (
    EXACT,
    ROUNDED,
    ROUNDED_POSITIVE,
    WHOLE,
    Known,
    Query,
    Times,
    less,
)
from tests.differential.sample_series import (
    BASE,
    BUCKETS,
    COUNTER,
    GAUGE,
    GRIDDED,
    LENGTH,
    METRICS,
    MIXED,
    ODD,
    Metric,
)

PICKING = ("min_over_time", "max_over_time", "last_over_time")
COUNTING = ("count_over_time", "present_over_time", "resets", "changes")
SPREADING = ("sum_over_time", "stddev_over_time", "stdvar_over_time")
STEPPING = ("abs", "ceil", "floor", "round", "sgn", "sort", "sort_desc")
ROUNDING = (
    "exp", "ln", "log2", "log10", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "deg", "rad",
)  # fmt: skip
CALENDAR = ("hour", "minute", "day_of_week", "day_of_month", "day_of_year", "days_in_month")
FOLDS = ("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar")
CONDITIONS = ('g="a"', 'g!="b"', 'i=~"1|2"', 'i!~".*1"', 'pod!~"p[4-9]"', 'g=~".+"')
RANGES = ("40s", "1m", "2m30s", "5m", "12m")
OFFSETS = ("", "", "", " offset 1m", " offset -20s", " offset 7m")
GROUPINGS = (
    "", " by (g) ", " by (g, i) ", " without (pod) ", " by (le, g) ", " without (g, le) ",
)  # fmt: skip


class Maker:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def query(self) -> Query:
        return self.vector(3) if self.random.random() < 0.95 else self.scalar(2)

    def times(self) -> Times:
        """Half of them end in the millisecond 3, half lie on the grid."""
        odd = self.random.choice((0, 3))
        start = BASE + 10_000 * self.random.randrange(-10, LENGTH // 10_000) + odd
        if self.random.random() < 0.3:
            return Times(start, start, 0)
        step = self.random.choice((10_000, 30_000, 60_000, 120_000))
        return Times(start, start + step * self.random.randrange(0, 25), step)

    # Selectors

    def selector(self, metric: Metric) -> str:
        chosen = self.random.sample(CONDITIONS, self.random.choice((0, 0, 0, 1, 1, 2)))
        return metric.name + ("{" + ",".join(chosen) + "}" if chosen else "")

    def modifier(self) -> str:
        moment = (BASE + 10_000 * self.random.randrange(LENGTH // 10_000)) // 1000
        at = self.random.choice(("",) * 8 + (" @ start()", " @ end()", f" @ {moment}"))
        return at + self.random.choice(OFFSETS)

    def instant(self, metric: Metric | None = None) -> Query:
        metric = metric or self.random.choice(METRICS)
        return Query.alike(self.selector(metric) + self.modifier(), metric.known)

    def window(self, depth: int, *metrics: Metric, edge: bool = False) -> Query:
        """A range vector. `edge`: the function computes with the window's own edges.

        Both windows hold the same samples: 2.42's, closed on the left, is a millisecond shorter.
        Where that would change the result, no sample and no step of a subquery lies on the edge.
        """
        metric = self.random.choice(metrics or METRICS)
        modifier = self.modifier()
        if depth and self.random.random() < 0.3:
            inner = self.instant(metric) if metrics else self.vector(depth - 1)
            step = self.random.choice(("10s", "30s", "1m", ""))
            length = self.random.choice(("1m", "3m", "5m", "11m")) + ("1s" if edge else "")
            shorter = length if edge else less(length)
            return Query(
                f"({inner.ours})[{length}:{step}]{modifier}",
                f"({inner.theirs})[{shorter}:{step}]{modifier}",
                inner.known,
            )
        selector, length = self.selector(metric), self.random.choice(RANGES)
        shorter = length if edge else less(length)
        return Query(
            f"{selector}[{length}]{modifier}", f"{selector}[{shorter}]{modifier}", metric.known
        )

    # Vectors

    def vector(self, depth: int) -> Query:
        if depth == 0:
            return self.instant()
        make = self.random.choice(
            (
                self.over_time, self.over_time, self.rates, self.trend, self.elements, self.fold,
                self.fold, self.choice, self.operation, self.matched, self.matched, self.sets,
                self.buckets, self.labels, self.absence, self.joined,
            )
        )  # fmt: skip
        return make(depth - 1)

    def exact(self, depth: int) -> Query:
        query = self.vector(depth)
        while not query.known.same_bits:
            query = self.vector(depth)
        return query

    def over_time(self, depth: int) -> Query:
        window = self.window(depth)
        known = window.known
        kind = self.random.randrange(7)
        if kind == 0 and known.positive:
            return window.wrapped("avg_over_time(", known=ROUNDED_POSITIVE)
        if kind < 3 or not known.same_bits:
            return window.wrapped(f"{self.random.choice(PICKING)}(")
        if kind == 3:
            result = ROUNDED_POSITIVE if known.positive else ROUNDED
            return window.wrapped(f"{self.random.choice(SPREADING)}(", known=result)
        if kind == 4:
            # Beside a scalar that is not constant 2.42 moves a window that @ has pinned.
            constant = Query.alike("0.4", EXACT)
            quantile = constant if " @ " in window.ours else self.scalar(0)
            return Query(
                f"quantile_over_time({quantile.ours}, {window.ours})",
                f"quantile_over_time({quantile.theirs}, {window.theirs})",
                EXACT,
            )
        if kind == 5:
            return window.wrapped(f"{self.random.choice(('irate', 'idelta'))}(", known=EXACT)
        return window.wrapped(f"{self.random.choice(COUNTING)}(", known=WHOLE)

    def rates(self, depth: int) -> Query:
        name = self.random.choice(("rate", "increase", "delta"))
        if name == "delta":
            return self.window(depth, GAUGE, MIXED, ODD, edge=True).wrapped("delta(", known=ROUNDED)
        window = self.window(depth, COUNTER, BUCKETS, edge=True)
        return window.wrapped(f"{name}(", known=ROUNDED_POSITIVE)

    def trend(self, depth: int) -> Query:
        window = self.window(depth, GAUGE, GRIDDED, COUNTER, MIXED)
        match self.random.randrange(3):
            case 0 if " @ " not in window.ours:
                return window.wrapped("predict_linear(", ", 60)", ROUNDED)
            case 1:
                return Query(
                    f"double_exponential_smoothing({window.ours}, 0.3, 0.6)",
                    f"holt_winters({window.theirs}, 0.3, 0.6)",
                    ROUNDED,
                )
            case _:
                return window.wrapped("deriv(", known=ROUNDED)

    def elements(self, depth: int) -> Query:
        match self.random.randrange(7):
            case 0:
                return self.exact(depth).wrapped(f"{self.random.choice(ROUNDING)}(", known=ROUNDED)
            case 1:
                # What date NaN or infinity is depends on Prometheus' machine.
                inner = self.instant(self.random.choice((GAUGE, COUNTER, MIXED)))
                return inner.wrapped(f"{self.random.choice(CALENDAR)}(", known=EXACT)
            case 2:
                low, high = sorted(self.random.sample(range(3000), 2))
                name = self.random.choice(("clamp", "clamp_min", "clamp_max"))
                tail = f", {low}, {high})" if name == "clamp" else f", {low})"
                return self.vector(depth).wrapped(f"{name}(", tail)
            case 3:
                return self.vector(depth).wrapped("timestamp(", known=Known())
            case 4:
                # Series that fall together without their names, 2.42 refuses here alone.
                return self.exact(depth).wrapped("-(", " * 1)", EXACT)
            case _:
                return self.exact(depth).wrapped(f"{self.random.choice(STEPPING)}(")

    def grouping(self) -> str:
        return self.random.choice(GROUPINGS)

    def fold(self, depth: int) -> Query:
        inner = self.vector(depth)
        known = inner.known
        if not known.positive:
            # The sign of a zero depends on the order of series.
            inner = inner.wrapped("(", " + 0)")
        name = self.random.choice(FOLDS)
        if name in ("sum", "avg") and not (known.positive or (known.eighths and name == "sum")):
            name = "max"
        if name in ("stddev", "stdvar") and not (known.eighths and known.positive):
            name = "min"
        head = f"{name}{self.grouping()}("
        if name in ("count", "group"):
            return inner.wrapped(head, known=WHOLE)
        if name in ("min", "max") or (name == "sum" and known.eighths):
            return inner.wrapped(head)
        return inner.wrapped(head, known=ROUNDED_POSITIVE)

    def choice(self, depth: int) -> Query:
        if self.random.random() < 0.4:
            inner = self.exact(depth).wrapped("(", " + 0)")
            return inner.wrapped(f'count_values{self.grouping()}("v", ', known=WHOLE)
        quantile = self.random.choice(("0", "0.25", "0.9", "1", "-1", "2", "NaN"))
        head = f"quantile{self.grouping()}({quantile}, "
        return self.vector(depth).wrapped(head, known=ROUNDED)

    # Operators

    def operation(self, depth: int) -> Query:
        """A vector and a scalar."""
        scalar = self.scalar(depth)
        if self.random.random() < 0.5:
            inner = self.vector(depth)
            known = EXACT if inner.known.same_bits else ROUNDED
            return Query.of(inner, self.random.choice(("*", "/")), scalar, known)
        inner = self.exact(depth)
        match self.random.randrange(4):
            case 0:
                # 2.42 forgets to take the metric's name away.
                return Query.of(inner.wrapped("(", " * 1)"), "atan2", scalar, ROUNDED)
            case 1:
                return Query.of(inner, self.random.choice(("+", "-", "%")), scalar, EXACT)
            case 2:
                return Query.of(inner, self.random.choice(("> bool", "== bool")), scalar, WHOLE)
            case _:
                operator = self.random.choice(("==", "!=", ">", "<="))
                return Query.of(inner, operator, scalar, inner.known)

    def matched(self, depth: int) -> Query:
        """Two vectors, their labels matched."""
        if self.random.random() < 0.2:
            # Of two that match one, 2.42 does not see a clash where the comparison drops one.
            left, right = self.instant(), self.instant()
            operator = self.random.choice(("==", "!=", "<", ">="))
            return Query.of(left, operator, right, replace(left.known, eighths=False))
        matching = self.random.choice(
            ("", "", "", " on(g, i)", " on(pod)", " ignoring(pod)", " on(g) group_left")
        )
        if self.random.random() < 0.5:
            left, right = self.exact(depth), self.exact(depth)
            operator = self.random.choice(("+", "-", "*", "/", "%", "== bool", ">= bool"))
            return Query.of(left, operator + matching, right, EXACT)
        left, right = self.vector(depth), self.vector(depth)
        known = replace(left.known.both(right.known), eighths=False)
        operator = self.random.choice(("+", "*", "/") if known.positive else ("*", "/"))
        return Query.of(left, operator + matching, right, known)

    def joined(self, depth: int) -> Query:
        """Labels of an info metric put onto series."""
        return self.vector(depth).wrapped("(", " * on(g) group_left(zone) owner)")

    def sets(self, depth: int) -> Query:
        left, right = self.vector(depth), self.vector(depth)
        operator = self.random.choice(("and", "or", "unless"))
        matching = self.random.choice(("", " on(g)", " ignoring(pod, i)"))
        known = left.known.both(right.known) if operator == "or" else left.known
        return Query.of(left, operator + matching, right, known)

    # The rest

    def buckets(self, _: int) -> Query:
        """Quantiles from buckets; odd ones, so that no rank lies on a bound by chance."""
        quantile = self.random.choice(("0.371", "0.913", "0.0507", "-0.1", "1.1", "NaN"))
        inner = self.instant(BUCKETS)
        if self.random.random() < 0.75:
            window = self.window(0, BUCKETS, edge=True)
            inner = window.wrapped(
                *self.random.choice(
                    (
                        ("rate(", ")"),
                        ("sum by (le) (increase(", "))"),
                        ("sum by (le, g) (rate(", "))"),
                    )
                )
            )
        return inner.wrapped(f"histogram_quantile({quantile}, ", known=ROUNDED)

    def labels(self, depth: int) -> Query:
        return self.vector(depth).wrapped(
            *self.random.choice(
                (
                    ("label_replace(", ', "j", "$1-x", "pod", "p([0-9])")'),
                    ("label_replace(", ', "i", "", "g", "a")'),
                    ("label_join(", ', "j", "/", "g", "i", "nothing")'),
                    ("label_replace(", ', "__name__", "new", "g", "(.*)")'),
                )
            )
        )

    def absence(self, depth: int) -> Query:
        if self.random.random() < 0.5:
            return self.vector(depth).wrapped("absent(", known=WHOLE)
        return self.window(depth).wrapped("absent_over_time(", known=WHOLE)

    def scalar(self, depth: int) -> Query:
        chance = self.random.random() if depth else 1.0
        if chance < 0.3:
            name = self.random.choice(("", "max", "count"))
            return self.exact(depth - 1).wrapped(f"scalar({name}(", "))", EXACT)
        if chance < 0.5:
            operator = self.random.choice(("+", "-", "*", "/", "%", "> bool", "== bool"))
            return Query.of(self.scalar(depth - 1), operator, self.scalar(depth - 1), EXACT)
        text = self.random.choice(
            ("0", "1", "2.5", "-3", "NaN", "Inf", "1e3", "0.5", "pi()", "time()", "-Inf")
        )
        return Query.alike(text, EXACT)
