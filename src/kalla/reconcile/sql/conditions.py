"""Conditions over a pair of rows: whether they hold, how far apart, and by how much.

Sides are called `l` and `r`, whose values the rule's views name `v0`, `v1`, … in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil

from kalla.reconcile.recipe.model import (
    SIDES,
    Comparison,
    Condition,
    DateWindow,
    Equal,
    Fuzzy,
    Side,
    Text,
    Tolerance,
)
from kalla.reconcile.sql import column_values, date_times
from kalla.reconcile.sql.column_values import Columns, Kind, Value
from kalla.reconcile.sql.date_times import DAY

_SIGNS = {"ne": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_WIDER = 1e-9  # than floats of 16 digits err

FUZZY = "kalla_similarity"  # the kernel's own function: (metric, left, right) -> ten-thousandths


@dataclass(frozen=True)
class Bound:
    """The allowed distance of the right amount from the left one, below and above, as SQL."""

    below: Decimal | None
    above: Decimal | None
    below_percent: Decimal | None
    above_percent: Decimal | None
    negate: Side | None
    is_tight: bool = False  # a difference may need more digits than there are: no bound is so wide

    def holds(self, left: str, right: str) -> str:
        left, right = self.signed(left, right)
        d = f"({right} - {left})"
        sql = (
            f"({_within(f'(-{d})', left, self.below, self.below_percent)}"
            f" AND {_within(d, left, self.above, self.above_percent)})"
        )
        return f"TRY{sql}" if self.is_tight else sql

    def window(self, scale: int) -> tuple[int, int] | None:
        """What the difference must lie in, in units of the last place; percents make none."""
        if self.below_percent is not None or self.above_percent is not None:
            return None
        low, high = (_units(bound or Decimal(0), scale) for bound in (self.below, self.above))
        return -low, high

    def band(self, left: str, right: str) -> str | None:
        """A plain range, which DuckDB can search; only absolute bounds make one."""
        if self.below is None or self.above is None or self.is_tight:
            return None
        left, right = self.signed(left, right)
        return f"{right} BETWEEN {left} - {_plain(self.below)} AND {left} + {_plain(self.above)}"

    def reach(self, left: str, right: str) -> str:
        """A range in floats, which DuckDB can search: a little wider than the bound, so that no
        pair which holds is left out.
        """
        left, right = (f"CAST({each} AS DOUBLE)" for each in self.signed(left, right))
        low = _reached(left, self.below, self.below_percent)
        high = _reached(left, self.above, self.above_percent)
        return f"{right} BETWEEN {left} - {low} AND {left} + {high}"

    def difference(self, left: str, right: str, scale: int) -> str:
        """The right amount minus the left one, as text."""
        left, right = self.signed(left, right)
        shown = column_values.shown(Value("", "number", scale), self.apart(left, right))
        # Most rows that match differ by nothing, which needs no formatting.
        return f"CASE WHEN {right} = {left} THEN '0' ELSE {shown} END"

    def apart(self, left: str, right: str) -> str:
        """The right amount, its sign turned, less the left one."""
        return f"TRY({right} - {left})" if self.is_tight else f"({right} - {left})"

    def signed(self, left: str, right: str) -> tuple[str, str]:
        return (
            f"(-{left})" if self.negate == "left" else left,
            f"(-{right})" if self.negate == "right" else right,
        )


EXACT = Bound(Decimal(0), Decimal(0), None, None, None)


@dataclass(frozen=True)
class Check:
    """One condition of a rule, compiled."""

    label: str  # as evidence names it
    left: Value
    right: Value
    holds: str  # over a pair; null counts as no
    distance: str  # over a pair, exact, never negative
    difference: str  # over a pair, signed, as text
    is_key: bool = False
    band: str | None = None  # a plain range over `l` that bounds `r`, if there is one
    reach: str | None = None  # a wider one, if there is one: what lies within need not hold
    bound: Bound | None = None  # of a tolerance
    scale: int = 0  # places of the distance
    delta: str | None = None  # what `difference` shows, as a number; none if it is always 0
    window: tuple[int, int] | None = None  # what `delta` must lie in, in units of its last place
    apart: Kind = "number"  # what `delta` is
    normalized_key: tuple[Value, Value] | None = (
        None  # what a key joins by, where that alone is too little
    )
    longest: int | None = None  # text that is compared by similarity, in characters

    def of(self, side: Side) -> Value:
        return self.left if side == "left" else self.right


def longest_text(metric: str) -> int:
    """Characters of a text that is compared by similarity. The time grows with the product of two
    lengths: for a pair of the longest it is thousandths of a second."""
    # Swaps are counted one by one, not 64 at once.
    return 1_000 if metric == "damerau_levenshtein" else 10_000


def compile_condition(
    condition: Condition, index: int, columns: tuple[Columns, Columns], field: str
) -> Check:
    left, right = (
        column_values.value(side, condition.column(name), condition.derivations(name))
        for side, name in zip(columns, SIDES, strict=True)
    )
    label = f"{getattr(condition, 'op', 'eq')}({condition.left}, {condition.right})"
    lv, rv = f"l.v{index}", f"r.v{index}"
    if isinstance(condition, Equal):
        days = left, right
        left, right = column_values.meet(left, right, columns, field)
        check = Check(label, left, right, f"{lv} = {rv}", "0", "'0'", is_key=True)
        if left.kind != "moment":
            return check
        normalized_key = (
            column_values.as_date(days[0], columns[0]),
            column_values.as_date(days[1], columns[1]),
        )
        return replace(
            check, holds=date_times.compares(lv, "=", rv, left.zone), normalized_key=normalized_key
        )
    if isinstance(condition, Comparison):
        left, right = column_values.meet(left, right, columns, field)
        sign = _SIGNS[condition.op]
        holds = f"{lv} {sign} {rv}"
        if left.kind == "moment":
            holds = date_times.compares(lv, sign, rv, left.zone)
        elif left.kind == "text" and condition.op != "ne":
            holds = column_values.in_order(lv, rv, sign, columns)
        return Check(label, left, right, holds, "0", "'0'")
    if isinstance(condition, Text):
        left, right = column_values.as_text(left), column_values.as_text(right)
        outer, inner = (lv, rv) if condition.container == "left" else (rv, lv)
        name = {"contains": "contains", "startswith": "starts_with", "endswith": "ends_with"}
        return Check(label, left, right, f"{name[condition.op]}({outer}, {inner})", "0", "'0'")
    if isinstance(condition, Fuzzy):
        left, right = column_values.as_text(left), column_values.as_text(right)
        alike = f"{FUZZY}({column_values.literal(condition.metric)}, {lv}, {rv})"
        least = ceil(Fraction(condition.threshold) * 10_000)
        far = f"(10000 - {alike})"
        holds = f"{alike} >= {least}"
        longest = longest_text(condition.metric)
        shown = f"CAST({far} AS VARCHAR)"
        return Check(label, left, right, holds, far, shown, delta=far, longest=longest)
    if isinstance(condition, Tolerance):
        return _tolerance(condition, label, left, right, columns, (lv, rv))
    if isinstance(condition, DateWindow):
        return _date_window(condition, label, left, right, columns, (lv, rv))
    raise TypeError(f"no such condition: {condition!r}")


def _tolerance(
    condition: Tolerance,
    label: str,
    left: Value,
    right: Value,
    columns: tuple[Columns, Columns],
    pair: tuple[str, str],
) -> Check:
    left, right = (
        column_values.as_number(left, columns[0]),
        column_values.as_number(right, columns[1]),
    )
    scale = max(left.scale, right.scale)
    bound = bound_of(condition, scale)
    room = 38 - scale
    for percent in (bound.below_percent, bound.above_percent):
        if percent is not None:  # both sides of what is compared are multiplied
            digits, places = _size(percent)
            room = min(room, 38 - scale - len("100"), 38 - left.scale - digits - places)
    left, right = (column_values.wide(column_values.narrow(each, room)) for each in (left, right))
    bound = replace(bound, is_tight=max(left.whole, right.whole) >= 38 - scale)
    difference = bound.apart(*bound.signed(*pair))
    return Check(
        label,
        left,
        right,
        bound.holds(*pair),
        f"abs({difference})",
        bound.difference(*pair, scale),
        band=bound.band(*pair),
        reach=bound.reach(*pair),
        bound=bound,
        scale=scale,
        delta=difference,
        window=bound.window(scale),
    )


def bound_of(condition: Tolerance, scale: int) -> Bound:
    """Of amounts that have so many places, and whose differences have no more."""
    most = Decimal("9" * (38 - scale) or "0")  # no difference is more

    def either(one: Decimal | None, both: Decimal | None) -> Decimal | None:
        return both if one is None else one

    def bounded(one: Decimal | None) -> Decimal | None:
        found = either(one, condition.absolute)
        return None if found is None else Decimal(f"{_units(min(found, most), scale)}E-{scale}")

    return Bound(
        bounded(condition.below),
        bounded(condition.above),
        either(condition.below_percent, condition.percent),
        either(condition.above_percent, condition.percent),
        condition.negate,
    )


def _within(difference: str, left: str, bound: Decimal | None, percent: Decimal | None) -> str:
    if percent is not None:  # multiplied out, so that nothing is rounded
        return f"{difference} * 100 <= abs({left}) * {_plain(percent)}"
    return f"{difference} <= {_short(bound or Decimal(0))}"


def _reached(left: str, bound: Decimal | None, percent: Decimal | None) -> str:
    share = float(percent or 0) / 100 * (1 + _WIDER) + _WIDER
    return f"(abs({left}) * {share!r}::DOUBLE + {float(bound or 0) * (1 + _WIDER)!r}::DOUBLE)"


def _date_window(
    condition: DateWindow,
    label: str,
    left: Value,
    right: Value,
    columns: tuple[Columns, Columns],
    pair: tuple[str, str],
) -> Check:
    left, right = column_values.meet_in_time(left, right, columns)
    before = (condition.before or 0) if condition.days is None else condition.days
    after = (condition.after or 0) if condition.days is None else condition.days
    apart: Kind
    unit = DAY
    if left.kind == "timestamp":
        apart, between = "duration", date_times.between_instants(*pair)
        reach = f"INTERVAL {before} DAY", f"INTERVAL {after} DAY"
        ends = "TIMESTAMPTZ '-infinity'", "TIMESTAMPTZ 'infinity'"
        difference = date_times.unless_infinite(*pair, date_times.duration(between))
        delta = f"TRY_CAST({between} AS BIGINT)"
    elif left.kind == "moment":
        apart, between = "span", date_times.between(*pair, left.zone)
        # Wider by two days, for a date's midnight is not the time that it is held against.
        reach = f"{2 * (before + 2) * DAY}", f"{2 * (after + 2) * DAY}"
        ends = f"{-(2**63) + 1}", f"{2**63 - 1}"
        difference = date_times.spelled(date_times.span(*pair, left.zone))
        delta = f"TRY_CAST({date_times.span(*pair, left.zone)} AS BIGINT)"
    else:
        apart, unit, between = "number", 1, f"({pair[1]} - {pair[0]})"
        reach = str(before), str(after)
        ends = "DATE '-infinity'", "DATE 'infinity'"
        difference = date_times.unless_infinite(*pair, f"CAST({between} AS VARCHAR)")
        delta = between
    return Check(
        label,
        left,
        right,
        f"{between} BETWEEN {-before * unit} AND {after * unit}",
        f"abs({between})",
        difference,
        band=date_times.band(*pair, *reach, ends),
        delta=delta,
        window=(-before, after) if apart == "number" else None,
        apart=apart,
    )


def _size(number: Decimal) -> tuple[int, int]:
    """How many digits it has before its point and after it."""
    return max(0, number.adjusted() + 1), max(0, -int(number.as_tuple().exponent))


def _units(number: Decimal, scale: int) -> int:
    """How many units of the last place fit into it."""
    much, of = number.as_integer_ratio()
    return int(much * 10**scale // of)


def _short(number: Decimal) -> str:
    """A decimal literal to compare with, of no more digits than it has: wide ones are slow."""
    text = format(number, "f")
    whole, _, places = text.lstrip("-0").partition(".")
    return f"{text}::DECIMAL({max(1, len(whole) + len(places))}, {len(places)})"


def _plain(number: Decimal) -> str:
    """A decimal literal: DuckDB types it by its digits, not as a float."""
    text = format(number, "f")
    return f"{text}::DECIMAL(38, {max(0, -int(number.as_tuple().exponent))})"
