"""What each function takes and gives, and which of them must be switched on first."""

from __future__ import annotations

from dataclasses import dataclass

from kalla.query.promql.syntax_tree import ValueType


@dataclass(frozen=True)
class Signature:
    """`variadic`: 0 exact; n > 0: the last argument 0 to n times; -1: any number of times."""

    name: str
    takes: tuple[ValueType, ...]
    gives: ValueType = "vector"
    variadic: int = 0
    experimental: bool = False
    native: bool = False


def _table() -> dict[str, Signature]:
    found: list[Signature] = []

    def add(
        names: str,
        *takes: ValueType,
        gives: ValueType = "vector",
        variadic: int = 0,
        experimental: bool = False,
        native: bool = False,
    ) -> None:
        found.extend(
            Signature(name, takes, gives, variadic, experimental, native) for name in names.split()
        )

    add("abs absent ceil exp floor ln log2 log10 sgn sqrt sort sort_desc timestamp", "vector")
    add("acos acosh asin asinh atan atanh cos cosh deg rad sin sinh tan tanh", "vector")
    add(
        "absent_over_time avg_over_time changes count_over_time delta deriv first_over_time idelta "
        "increase irate last_over_time max_over_time min_over_time present_over_time rate resets "
        "stddev_over_time stdvar_over_time sum_over_time",
        "matrix",
    )
    add(
        "mad_over_time ts_of_first_over_time ts_of_last_over_time "
        "ts_of_max_over_time ts_of_min_over_time",
        "matrix",
        experimental=True,
    )
    add("start_timestamp", "vector", experimental=True)
    add("clamp", "vector", "scalar", "scalar")
    add("clamp_max clamp_min", "vector", "scalar")
    add("round", "vector", "scalar", variadic=1)
    add(
        "day_of_month day_of_week day_of_year days_in_month hour minute month year",
        "vector",
        variadic=1,
    )
    add(
        "double_exponential_smoothing", "matrix", "scalar", "scalar", experimental=True
    )  # holt_winters until Prometheus 3
    add("predict_linear", "matrix", "scalar")
    add("quantile_over_time", "scalar", "matrix")
    add("histogram_quantile", "scalar", "vector")
    add("histogram_fraction", "scalar", "scalar", "vector")
    add(
        "histogram_quantiles", "vector", "string", "scalar", "scalar", variadic=9, experimental=True
    )
    add(
        "histogram_avg histogram_count histogram_stddev histogram_stdvar histogram_sum",
        "vector",
        native=True,
    )
    add("label_replace", "vector", "string", "string", "string", "string")
    add("label_join", "vector", "string", "string", "string", variadic=-1)
    add("sort_by_label sort_by_label_desc", "vector", "string", variadic=-1, experimental=True)
    add("info", "vector", "vector", variadic=1, experimental=True)
    add("pi time", gives="scalar")
    add("start end step range", gives="scalar", experimental=True)
    add("min_of max_of", "scalar", "scalar", gives="scalar", experimental=True)
    add("scalar", "vector", gives="scalar")
    add("vector", "scalar")
    return {signature.name: signature for signature in found}


FUNCTIONS = _table()

# Their result changes with the evaluation time even where their arguments do not.
TIME_BOUND = frozenset(
    {
        "day_of_month", "day_of_week", "day_of_year", "days_in_month", "hour", "minute", "month",
        "year", "predict_linear", "time", "timestamp",
    }
)  # fmt: skip
ANCHORED = frozenset({"changes", "delta", "increase", "rate", "resets"})
SMOOTHED = frozenset({"delta", "increase", "rate"})
