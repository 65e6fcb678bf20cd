"""Functions of values: one number in, one number out, for every series and step at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.evaluation import EvalFlow, Value
from kalla.query.evaluate.exec_nodes import ExecNode
from kalla.query.evaluate.frames import Frame, merged
from kalla.query.labels.interned import are_distinct, nameless
from kalla.query.labels.label_sets import NONE, Labels


def _sign(values: Floats) -> Floats:
    return np.where(values < 0, -1.0, np.where(values > 0, 1.0, values))


def _log2(values: Floats) -> Floats:
    """As Go has it: near 1, where the power of two cancels out, it loses digits."""
    fraction, power = np.frexp(values)
    return np.where(fraction == 0.5, power - 1.0, np.log(fraction) * (1 / np.log(2)) + power)


def _acos(values: Floats) -> Floats:
    """As Go has it, by two differences from a right angle; near 1 digits are lost in them."""
    size = np.abs(values)
    root = np.sqrt(1 - size * size)
    sine = np.where(size > 0.7, np.pi / 2 - np.arctan(root / size), np.arctan(size / root))
    return np.asarray(np.pi / 2 - np.copysign(sine, values))


def _halved(values: Floats) -> Floats:
    """Go's sinh and cosh of what is large: infinite as soon as e to this power is."""
    return np.exp(np.abs(values)) * 0.5


ELEMENTWISE: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "acos": _acos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": lambda values: np.where(np.abs(values) > 21, _halved(values), np.cosh(values)),
    "deg": lambda values: values * 180 / np.pi,
    "exp": np.exp,
    "floor": np.floor,
    "ln": np.log,
    "log10": np.log10,
    "log2": _log2,
    "rad": lambda values: values * np.pi / 180,
    "sgn": _sign,
    "sin": np.sin,
    "sinh": lambda values: np.where(
        np.abs(values) > 21, np.copysign(_halved(values), values), np.sinh(values)
    ),
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def quiet(function: Callable[..., Floats], *arguments: Floats) -> Floats:
    """Numbers out of range give NaN or infinity, as in Go, without a warning."""
    with np.errstate(all="ignore"):
        return function(*arguments)


def smaller(one: Floats, two: Floats) -> Floats:
    """As in Go, minus infinity wins over NaN, and NaN over everything else."""
    found = np.minimum(one, two)
    return np.where((one == -np.inf) | (two == -np.inf), -np.inf, found)


def greater(one: Floats, two: Floats) -> Floats:
    found = np.maximum(one, two)
    return np.where((one == np.inf) | (two == np.inf), np.inf, found)


@dataclass(frozen=True)
class Elementwise(ExecNode):
    function: str
    inner: ExecNode
    scalars: tuple[ExecNode, ...] = ()

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.inner, *self.scalars)

    def compute(self, flow: EvalFlow) -> Frame:
        frame = self.inner.frame(flow)
        scalars = [one.scalar(flow) for one in self.scalars]
        values, present = frame.values, frame.present
        match self.function:
            case "clamp" | "clamp_min" | "clamp_max":
                low, high = self._bounds(scalars, flow.steps.count)
                present = present & ~(high < low)
                values = quiet(lambda: greater(low, smaller(high, frame.values)))
            case "round":
                inverse = quiet(lambda: 1.0 / (scalars[0] if scalars else np.ones(1)))
                values = quiet(lambda: np.floor(frame.values * inverse + 0.5) / inverse)
            case "timestamp":
                values = np.broadcast_to(flow.steps.times / 1000, present.shape)
            case "start_timestamp":
                present = np.zeros_like(present)  # what was computed has none
            case "negative":
                values = -values
            case name if name in CALENDAR:
                values = calendar(name, values)
            case name:
                values = quiet(ELEMENTWISE[name], values)
        return renamed(replace(frame, values=values, present=present), flow)

    def _bounds(self, scalars: list[Floats], steps: int) -> tuple[Floats, Floats]:
        infinite = np.full(steps, np.inf)
        if self.function == "clamp":
            return scalars[0], scalars[1]
        if self.function == "clamp_min":
            return scalars[0], infinite
        return -infinite, scalars[0]


def renamed(frame: Frame, flow: EvalFlow) -> Frame:
    """A new metric: its name goes, now or at the end; without it series may fall together."""
    frame = frame.trimmed()
    if flow.delayed_names:
        return frame.dropping_names(later=True)
    labels = flow.cached("nameless", [frame.labels], lambda: nameless(frame.labels))
    return distinct(replace(frame, labels=labels), flow)


def distinct(frame: Frame, flow: EvalFlow) -> Frame:
    """Rows of the same labels become one."""
    return merged(frame) if some_alike(frame.labels, flow) else frame


def some_alike(labels: Sequence[Labels], flow: EvalFlow) -> bool:
    return flow.cached("alike", [labels], lambda: not are_distinct(labels))


@dataclass(frozen=True)
class ScalarPair(ExecNode):
    """min_of and max_of."""

    function: str
    one: ExecNode
    two: ExecNode

    @property
    def arguments(self) -> tuple[ExecNode, ...]:
        return (self.one, self.two)

    def compute(self, flow: EvalFlow) -> Value:
        one, two = self.one.scalar(flow), self.two.scalar(flow)
        return quiet(smaller if self.function == "min_of" else greater, one, two)


@dataclass(frozen=True)
class CalendarOfNow(ExecNode):
    """A calendar function without an argument: of the evaluation time."""

    function: str

    def compute(self, flow: EvalFlow) -> Frame:
        seconds = np.trunc(flow.steps.times / 1000)
        values = calendar(self.function, seconds[None, :])
        return Frame.of([NONE], values, np.ones(values.shape, bool))


CALENDAR = frozenset(
    {
        "day_of_month", "day_of_week", "day_of_year", "days_in_month", "hour", "minute", "month",
        "year",
    }
)  # fmt: skip


def calendar(function: str, seconds: Floats) -> Floats:
    """Parts of the date of a number of seconds, in UTC, fractions cut off."""
    fits = np.abs(seconds) < 2.0**53
    whole = np.where(fits, seconds, 0).astype(np.int64)
    days = np.floor_divide(whole, 86_400)
    of_day = whole - days * 86_400
    if function == "hour":
        found = of_day // 3600
    elif function == "minute":
        found = of_day // 60 % 60
    elif function == "day_of_week":
        found = (days + 4) % 7
    else:
        found = _of_date(function, days.astype("datetime64[D]"))
    return np.where(fits, found.astype(np.float64), np.nan)


def _of_date(function: str, days: NDArray[np.datetime64]) -> Whole:
    months = days.astype("datetime64[M]")
    years = days.astype("datetime64[Y]")
    match function:
        case "day_of_month":
            return np.asarray(days - months).astype(np.int64) + 1
        case "day_of_year":
            return np.asarray(days - years).astype(np.int64) + 1
        case "days_in_month":
            following = (months + 1).astype("datetime64[D]")
            return np.asarray(following - months.astype("datetime64[D]")).astype(np.int64)
        case "month":
            return months.astype(np.int64) % 12 + 1
        case _:
            return years.astype(np.int64) + 1970
