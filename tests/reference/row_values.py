"""Rows seen through a recipe: what a condition compares of a row, and which rows a rule admits."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

from kalla.reconcile.recipe.model import (
    SIDES,
    Comparison,
    Condition,
    Equal,
    Filter,
    Recipe,
    Rule,
    Scalar,
    Side,
    Tolerance,
)
from tests.reference.evidence import Table, Value
from tests.reference.rows import Row
from tests.reference.values import (
    Kind,
    Seen,
    Writing,
    as_text,
    compared_kind,
    compares,
    day_of,
    derived,
    derived_kind,
    gap,
    gap_text,
    has_times,
    holds,
    kind_of,
    meeting_kind,
    negated,
    read,
)

UTC_ZONE = ZoneInfo("UTC")


class Lens:
    def __init__(self, recipe: Recipe, left: Table, right: Table) -> None:
        self.recipe = recipe
        self.zone = ZoneInfo(recipe.time_zone)
        self._tables: dict[Side, Table] = {"left": left, "right": right}
        self.writing = {side: Writing(self.zone, recipe.sources[side].csv) for side in SIDES}

    def value(self, condition: Condition, row: Row) -> Seen:
        """What a condition compares of a row: derived and read, its sign not turned."""
        value = row.values[condition.column(row.side)]
        writing = self.writing[row.side]
        for derivation in condition.derivations(row.side):
            value = derived(value, derivation, writing)
        return read(value, self._kind(condition), writing)

    def holds(self, condition: Condition, left: Row, right: Row) -> bool:
        writings = self.writing["left"], self.writing["right"]
        return holds(condition, self.value(condition, left), self.value(condition, right), writings)

    def gap(self, condition: Condition, left: Row, right: Row) -> Fraction | int | None:
        """The signed difference under a condition; none where a value is null."""
        left_value, right_value = self.value(condition, left), self.value(condition, right)
        if left_value is None or right_value is None:
            return None
        return gap(condition, left_value, right_value, self.zone)

    def gap_text(self, condition: Condition, left: Row, right: Row) -> str | None:
        """That difference as evidence has it."""
        between = self.gap(condition, left, right)
        times = has_times(self.value(condition, left), self.value(condition, right))
        return None if between is None else gap_text(condition, between, times)

    def amount(self, tolerance: Tolerance, row: Row) -> Fraction | None:
        """The amount a tolerance compares, its sign turned where the rule says so."""
        amount = self.value(tolerance, row)
        assert amount is None or isinstance(amount, Fraction)
        return None if amount is None else negated(tolerance, row.side, amount)

    def number(self, column: str, row: Row) -> Fraction | None:
        """A column as it is, read as a number."""
        number = read(row.values[column], "number", self.writing[row.side])
        assert number is None or isinstance(number, Fraction)
        return number

    def equalities(self, rule: Rule) -> tuple[Equal, ...]:
        """The rule's key, and the currency where the rule is about amounts."""
        return (*rule.key, *self.currency(rule))

    def currency(self, rule: Rule) -> tuple[Equal, ...]:
        left, right = self.recipe.sources.left.currency, self.recipe.sources.right.currency
        if left is None or right is None or not any(self._is_of_amounts(rule, s) for s in SIDES):
            return ()
        return (Equal(left=left, right=right),)

    def _is_of_amounts(self, rule: Rule, side: Side) -> bool:
        """Whether a rule compares or sums a column of amounts: the source's own, or one that some
        rule has within a tolerance, or sums."""
        touched = [rule.left_sum if side == "left" else rule.right_sum]
        touched += [each.column(side) for each in rule.conditions]
        amounts = [self.recipe.sources[side].amount]
        for other in self.recipe.rules:
            amounts += [other.left_sum if side == "left" else other.right_sum]
            amounts += [e.column(side) for e in other.conditions if isinstance(e, Tolerance)]
        return any(each is not None and each in amounts for each in touched)

    def key_alone(self, rule: Rule, row: Row) -> tuple[Seen, ...] | None:
        """The values that must be equal, of whatever currency; none when one is null, for null
        equals nothing. Of moments the dates must be, for whether their times must is a matter of
        the pair.
        """
        values = tuple(self._key(each, row) for each in rule.key)
        return None if None in values else values

    def _key(self, condition: Equal, row: Row) -> Seen:
        value = self.value(condition, row)
        if self._kind(condition) == "moment" and isinstance(value, date):
            return day_of(value, self.zone)
        return value

    def admits(self, rule: Rule, row: Row) -> bool:
        return all(self._passes(each, row) for each in rule.filters(row.side))

    def _kind(self, condition: Condition) -> Kind:
        left, right = self._derived_kind(condition, "left"), self._derived_kind(condition, "right")
        amounts = isinstance(condition, Equal | Comparison) and {left, right} <= {"text", "number"}
        if amounts and any(self._is_amount(condition, side) for side in SIDES):
            return "number"
        kind = compared_kind(condition, left, right)
        if kind != "moment":
            return kind
        # A format tells of all rows of a text whether they are dates.
        kinds = {"left": left, "right": right}
        formats = [self.writing[side].csv.date_format for side in SIDES if kinds[side] == "text"]
        if any(each is not None and "%H" not in each for each in formats):
            return "date"
        return "moment" if None in formats else "timestamp"

    def _derived_kind(self, condition: Condition, side: Side) -> Kind:
        kind = kind_of(self._tables[side].columns[condition.column(side)])
        return derived_kind(kind, condition.derivations(side))

    def _is_amount(self, condition: Condition, side: Side) -> bool:
        """Whether a condition compares the amount of a source as it is."""
        is_own = condition.column(side) == self.recipe.sources[side].amount
        return is_own and not condition.derivations(side)

    def _passes(self, wanted: Filter, row: Row) -> bool:
        value = row.values[wanted.column]
        if value is None or wanted.op == "is_null":
            return value is None and wanted.op == "is_null"
        kind = kind_of(self._tables[row.side].columns[wanted.column])
        if kind == "text" and wanted.column == self.recipe.sources[row.side].amount:
            kind = "number"
        given = wanted.value if isinstance(wanted.value, tuple) else (wanted.value,)
        match wanted.op:
            case "not_null":
                return True
            case "in":
                return any(self._compares("eq", value, kind, each, row.side) for each in given)
            case "not_in":
                return all(self._compares("ne", value, kind, each, row.side) for each in given)
            case "contains" | "startswith" | "endswith":
                text, part = as_text(value), _given_text(given[0])
                assert text is not None
                if wanted.op == "contains":
                    return part in text
                return text.startswith(part) if wanted.op == "startswith" else text.endswith(part)
        return self._compares(wanted.op, value, kind, given[0], row.side)

    def _compares(
        self, op: str, value: Value, kind: Kind, given: Scalar | None, side: Side
    ) -> bool:
        """A column against a given value: types meet as two columns would, and a text that is a
        date is one where the column has dates."""
        if isinstance(given, str) and (kind != "text" or self.writing[side].csv.date_format):
            given = _dated(given)
        meeting = meeting_kind(kind, _given_kind(given))
        wanted = read(given, meeting, Writing(self.zone))
        return compares(op, read(value, meeting, self.writing[side]), wanted)


def _dated(given: str) -> str | date:
    found = read(given, "moment", Writing(UTC_ZONE))
    if isinstance(found, datetime):
        return datetime.fromisoformat(given)
    return found if isinstance(found, date) else given


def _given_kind(given: Scalar | None) -> Kind:
    match given:
        case bool() | None:
            raise TypeError(f"no column has a value like {given!r}")
        case str():
            return "text"
        case int() | Decimal():
            return "number"
        case datetime():
            return "timestamp"
        case date():
            return "date"


def _given_text(given: Scalar | None) -> str:
    text = as_text(given)
    assert text is not None
    return text
