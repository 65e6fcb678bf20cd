"""Parameters of aggregations and histogram functions: scalars that are checked at all steps at
once.

Invalid values are refused or annotated, by the extremes of the whole query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kalla.query.array_types import Floats
from kalla.query.evaluate.blocks import evaluated_scalar
from kalla.query.evaluate.evaluation import EvalFlow
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.promql.number_format import general
from kalla.query.promql.query_errors import ExecutionFailed
from kalla.query.promql.syntax_tree import Span

_LARGEST_WHOLE = 9223372036854774784.0
_SMALLEST_WHOLE = -9223372036854775808.0


@dataclass(frozen=True)
class Parameter(ExecNode):
    inner: ExecNode
    span: Span
    whole = True

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner,)

    def compute(self, flow: EvalFlow) -> Floats:
        values = evaluated_scalar(self.inner, flow)
        self.judge(values, flow)
        return values

    def judge(self, values: Floats, flow: EvalFlow, /) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class CountParameter(Parameter):
    """The k of topk, bottomk and limitk; below one there is nothing to choose."""

    def judge(self, values: Floats, _: EvalFlow) -> None:
        if np.isnan(values).any():
            raise ExecutionFailed("Parameter value is NaN")
        least, most = float(values.min()), float(values.max())
        if most < 1:
            return
        if least <= _SMALLEST_WHOLE:
            raise ExecutionFailed(f"Scalar value {general(least)} underflows int64")
        if most >= _LARGEST_WHOLE:
            raise ExecutionFailed(f"Scalar value {general(most)} overflows int64")


@dataclass(frozen=True)
class RatioParameter(Parameter):
    """The ratio of limit_ratio."""

    def judge(self, values: Floats, flow: EvalFlow) -> None:
        if np.isnan(values).any():
            raise ExecutionFailed("Ratio value is NaN")
        least, most = float(values.min()), float(values.max())
        if most > 1:
            flow.annotations.bad_ratio(most, 1.0, self.span)
        if least < -1:
            flow.annotations.bad_ratio(least, -1.0, self.span)


@dataclass(frozen=True)
class QuantileParameter(Parameter):
    """Of the aggregation: annotated by its extremes."""

    def judge(self, values: Floats, flow: EvalFlow) -> None:
        if np.isnan(values).any():
            flow.annotations.bad_quantile(float("nan"), self.span)
        known = values[~np.isnan(values)]
        if len(known) and known.max() > 1:
            flow.annotations.bad_quantile(float(known.max()), self.span)
        if len(known) and known.min() < 0:
            flow.annotations.bad_quantile(float(known.min()), self.span)


@dataclass(frozen=True)
class BucketQuantileParameter(Parameter):
    """Of a histogram: every invalid value is annotated."""

    def judge(self, values: Floats, flow: EvalFlow) -> None:
        for quantile in np.unique(values).tolist():
            if not 0 <= quantile <= 1:
                flow.annotations.bad_quantile(quantile, self.span)
