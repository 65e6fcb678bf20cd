"""Expressions of the right types, made up at random."""

from __future__ import annotations

from hypothesis import strategies as st

RANGE_FUNCTIONS = (
    "rate", "increase", "delta", "irate", "idelta", "resets", "changes", "deriv", "avg_over_time",
    "sum_over_time", "min_over_time", "max_over_time", "count_over_time", "stddev_over_time",
    "stdvar_over_time", "last_over_time", "present_over_time", "absent_over_time",
)  # fmt: skip
EXPERIMENTAL_RANGES = (
    "first_over_time", "mad_over_time", "ts_of_max_over_time", "ts_of_last_over_time",
)  # fmt: skip
VECTOR_FUNCTIONS = (
    "abs", "ceil", "floor", "exp", "ln", "log2", "log10", "sqrt", "sgn", "sin", "atan", "deg",
    "sort", "sort_desc", "timestamp", "absent", "hour", "day_of_week", "days_in_month", "round",
)  # fmt: skip
FOLDING = ("sum", "avg", "count", "min", "max", "group", "stddev", "stdvar")
CONDITIONS = ('g="a"', 'g!="b"', 'i=~"1|2"', 'i!~".*2"', 'g=~".+"')


@st.composite
def expressions(draw: st.DrawFn, plain: bool = False) -> str:
    """`plain`: only what Prometheus 2.45 had, so that other parsers know it."""
    maker = _Maker(draw, plain)
    return maker.vector(3) if draw(st.integers(0, 5)) else maker.scalar(2)


class _Maker:
    def __init__(self, draw: st.DrawFn, plain: bool) -> None:
        self.draw = draw
        self.plain = plain

    def one(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def selector(self) -> str:
        chosen = self.draw(st.lists(st.sampled_from(CONDITIONS), max_size=2, unique=True))
        name = self.one("m_total", "n", "h_bucket", "nothing")
        return name + ("{" + ",".join(chosen) + "}" if chosen else "")

    def modified(self) -> str:
        return self.one("", "", "", " offset 1m", " offset -30s", " @ 120", " @ end()")

    def duration(self) -> str:
        known = ("30s", "1m", "2m30s", "5m", "10m")
        extra = () if self.plain else ("1m*2", "90", "(1m+30s)/2", "max_of(1m, 5)")
        return self.one(*known, *extra)

    def grouping(self) -> str:
        return self.one(
            "", " by (g) ", " by (g, i) ", " by () ", " without (i) ", " by (__name__) "
        )

    def scalar(self, depth: int) -> str:
        kind = self.draw(st.integers(0, 6 if depth else 0))
        if kind == 4:
            operator = self.one("+", "-", "*", "/", "%", "^")
            return f"({self.scalar(depth - 1)} {operator} {self.scalar(depth - 1)})"
        if kind == 5:
            return f"scalar({self.vector(depth - 1)})"
        if kind == 6:
            return f"({self.scalar(depth - 1)} > bool {self.scalar(depth - 1)})"
        return self.one("0", "1", "2.5", "-3", "NaN", "Inf", "1e3", "time()", "pi()", "0.5")

    def matrix(self, depth: int) -> str:
        if depth and not self.draw(st.integers(0, 2)):
            window = self.one("5m:", "5m:30s", "3m:1m", "10s:1m")
            return f"({self.vector(depth - 1)})[{window}]{self.modified()}"
        return f"{self.selector()}[{self.duration()}]{self.modified()}"

    def vector(self, depth: int) -> str:
        kind = self.draw(st.integers(0, (15 if self.plain else 19) if depth else 0))
        below = depth - 1
        names = RANGE_FUNCTIONS if self.plain else RANGE_FUNCTIONS + EXPERIMENTAL_RANGES
        match kind:
            case 1 | 2:
                return f"{self.one(*names)}({self.matrix(below)})"
            case 3:
                return f"quantile_over_time({self.scalar(below)}, {self.matrix(below)})"
            case 4:
                return f"predict_linear({self.matrix(below)}, {self.scalar(below)})"
            case 5:
                return f"{self.one(*VECTOR_FUNCTIONS)}({self.vector(below)})"
            case 6 | 7:
                return f"{self.one(*FOLDING)}{self.grouping()}({self.vector(below)})"
            case 8:
                name = self.one("topk", "bottomk", "quantile")
                return f"{name}{self.grouping()}({self.scalar(below)}, {self.vector(below)})"
            case 9:
                return f'count_values{self.grouping()}("v", {self.vector(below)})'
            case 10:
                operator = self.one("+", "/", ">", "== bool")
                return f"({self.vector(below)} {operator} {self.scalar(below)})"
            case 11:
                operator = self.one("+", "*", "<", "== bool")
                matching = self.one(
                    "", " on(g)", " ignoring(i)", " on(g) group_left()", " on(i, g)"
                )
                return f"({self.vector(below)} {operator}{matching} {self.vector(below)})"
            case 12:
                operator = self.one("and", "or", "unless")
                matching = self.one("", " on(g)", " ignoring(i)")
                return f"({self.vector(below)} {operator}{matching} {self.vector(below)})"
            case 13:
                return f"histogram_quantile({self.scalar(below)}, {self.vector(below)})"
            case 14:
                return f'label_replace({self.vector(below)}, "j", "$1", "i", "(.*)")'
            case 15:
                low, high = self.scalar(below), self.scalar(below)
                return f"clamp({self.vector(below)}, {low}, {high})"
            case 16:
                name = self.one("limitk", "limit_ratio")
                return f"{name}{self.grouping()}({self.scalar(below)}, {self.vector(below)})"
            case 17:
                name = self.one("rate", "increase", "delta")
                extension = self.one("anchored", "smoothed")
                return f"{name}({self.selector()}[{self.duration()}] {extension}{self.modified()})"
            case 18:
                matching = self.one(
                    "", " on(g)", " on(g) group_left()", " ignoring(i) group_right()"
                )
                fill = self.one("fill(0)", "fill_left(1)", "fill_right(-1)")
                return f"({self.vector(below)} -{matching} {fill} {self.vector(below)})"
            case 19:
                return self.special(below)
            case _:
                return f"{self.selector()}{self.modified()}"

    def special(self, depth: int) -> str:
        inner, scalar = self.vector(depth), self.scalar(depth)
        return self.one(
            f"info({inner})",
            f'histogram_quantiles({inner}, "q", 0.5, {scalar})',
            f'label_join({inner}, "j", "-", "g", "i")',
            f'sort_by_label_desc({inner}, "i")',
            f"double_exponential_smoothing({self.matrix(depth)}, 0.5, {scalar})",
            f"histogram_fraction(0, {scalar}, {inner})",
            f"vector(min_of({scalar}, start()))",
        )
