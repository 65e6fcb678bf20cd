"""The plan of a match: what is read from each side, and each rule as a kernel needs it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.plan import recipe_columns
from kalla.reconcile.recipe.match_sql_checks import held_sql
from kalla.reconcile.recipe.model import (
    SIDES,
    Bounds,
    Cardinality,
    Csv,
    Recipe,
    Rule,
    Side,
    Workbook,
)
from kalla.reconcile.sql import column_values, row_filters
from kalla.reconcile.sql.column_values import Columns, Value
from kalla.reconcile.sql.conditions import EXACT, Bound, Check, bound_of, compile_condition
from kalla.spark.connectors.connector import Connector, Slice

MATCH_SQL = "match_sql"  # the name of the one rule that a recipe with SQL of its own has

_UNBOUNDED_PAIRS = 1_000_000  # that a rule may look at, one by one
_UNPACKED = 4  # how much larger rows are in memory than in a file
_TOGETHER = 256 * 1024 * 1024
_ROW = 50  # bytes in a file, where rows were not counted
_EXAMPLE = 40  # characters of a text that is too long to be shown
_HELD = 64  # bytes of a row in memory: its pair and its state


@dataclass(frozen=True)
class Input:
    """The rows of one side, with the types DuckDB reads them by: files in place, or slices of a
    table that are read when they are needed.
    """

    format: str
    files: tuple[str, ...]
    types: Mapping[str, str]
    csv: Csv = field(default_factory=Csv)
    rows: int | None = None  # an estimate, or exact where the format says it
    bytes: int = 0
    notes: tuple[str, ...] = ()
    in_one_place: bool = False  # a CSV is read from its beginning to its end, and nowhere else
    filtered: bool = False  # the source has applied its filters itself
    marks: tuple[Mapping[str, str | int | None], ...] = ()  # that identify what was read
    relation: str | None = None  # the FROM of files that are not simply read one after the other
    connector: Connector | None = None  # of a direct read; there are no files then
    slices: tuple[Slice, ...] = ()
    table: str = ""  # the table of the match that these are read into
    at_once: int = 1  # slices that may be read at the same time
    unread: Mapping[str, str] = field(default_factory=dict)  # columns, each with the reason
    # Of rows that a match has written, whose columns are called as we hold them: what it knows of
    # each beside these, so that no column of a source can be taken for it.
    known: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SidePlan:
    side: Side
    input: Input
    primary_key: tuple[Value, ...]
    columns: tuple[str, ...]  # that the matching needs; the others are read for evidence alone
    amount: Value | None
    filters: str | None  # over a row; what fails it is counted as filtered
    unreadable: tuple[tuple[str, str, str, str], ...] = ()  # column, kind, its text, what fails
    currency: Value | None = None
    unread: tuple[tuple[str, str, str, str], ...] = ()  # the same, of rows that filters leave out
    lenient: str | None = None  # the filters, if they let pass what they cannot read
    date: Value | None = None
    shown: Mapping[str, str] = field(default_factory=dict)  # columns of evidence alone, and as SQL


@dataclass(frozen=True)
class RulePlan:
    """A rule over `l` and `r`, whose values are named v0, v1, … and cur in the rule's views."""

    number: int
    name: str
    cardinality: Cardinality
    checks: tuple[Check, ...]  # the key's equalities too, in the order of the conditions
    currency: tuple[Value, Value] | None
    filters: tuple[str | None, str | None]
    fifo: bool = False  # ties go first in, first out
    order: tuple[Value | None, Value | None] = (None, None)  # by these, then by key
    sums: tuple[Value, Value] | None = None
    sum_check: int | None = None  # the place of the tolerance that sums are held to
    sum_bound: Bound | None = None
    confirm_subset: bool = False

    @property
    def key(self) -> tuple[int, ...]:
        return tuple(place for place, check in enumerate(self.checks) if check.is_key)

    @property
    def normalized_key(self) -> tuple[int, ...]:
        """Of the key, those whose equality is more than that of what rows are joined by."""
        return tuple(place for place in self.key if self.checks[place].normalized_key)

    def reads_unchanged(self, side: Side) -> bool:
        """Whether it looks at all rows of a side, and at columns as they are."""
        compared = [check.of(side).sql for check in self.checks]
        return not self.filters[SIDES.index(side)] and all(sql.startswith('"=') for sql in compared)

    def holds_key_of(self, side: SidePlan) -> bool:
        """Whether its key holds the primary key of a side."""
        compared = {check.of(side.side).sql for check in self.checks if check.is_key}
        return {value.sql for value in side.primary_key} <= compared

    @property
    def sum_scale(self) -> int:
        return max(value.scale for value in self.sums) if self.sums else 0

    @property
    def pair_checks(self) -> tuple[int, ...]:
        """The checks of a pair of rows, in addition to the key."""
        return tuple(place for place, check in enumerate(self.checks) if not check.is_key)


@dataclass(frozen=True)
class Plan:
    recipe: str
    recipe_hash: str
    sides: Mapping[Side, SidePlan]
    rules: tuple[RulePlan, ...]
    bounds: Bounds
    time_zone: str
    accept_suggested: bool
    statement: str | None = None  # match_sql as Spark may see it


def make(recipe: Recipe, inputs: Mapping[Side, Input]) -> Plan:
    """Plan how a recipe runs over these inputs."""
    columns = {
        side: Columns(inputs[side].types, source.csv, recipe.time_zone, source.amount)
        for side in SIDES
        for source in (recipe.sources[side],)
    }
    _demand_columns(recipe, inputs)
    rules = tuple(
        _rule(number, rule, recipe, (columns["left"], columns["right"]))
        for number, rule in enumerate(recipe.rules_in_order)
    )
    if rules:
        _demand_bounded(recipe, rules[0], inputs)
    statement = None
    if recipe.match_sql is not None:
        statement = held_sql(recipe.match_sql, {side: inputs[side].types for side in SIDES})
        rules = (RulePlan(0, MATCH_SQL, "M:N", (), None, (None, None)),)
    return Plan(
        recipe=recipe.recipe_id or recipe.name,
        recipe_hash=recipe_hash(recipe),
        sides={side: _side(side, recipe, inputs[side], columns[side], rules) for side in SIDES},
        rules=rules,
        bounds=recipe.bounds,
        time_zone=recipe.time_zone,
        accept_suggested=recipe.accept_suggested,
        statement=statement,
    )


def buckets(inputs: Mapping[Side, Input], memory: str, cores: int) -> int:
    """Over how many buckets a match is spread on a cluster of so many cores.

    Small data stays together; otherwise each core gets one, and no more than its memory holds.
    """
    size = sum(given.bytes for given in inputs.values()) * _UNPACKED
    if size <= _TOGETHER:
        return 1
    return max(cores, -(-size // room(memory)))


def buckets_alone(inputs: Mapping[Side, Input], memory: str, cores: int) -> int:
    """Over how many on one machine: one has all its cores, as long as what is held of each row
    besides DuckDB's tables, which spill, takes no more than these; of several, each core has one at
    a time."""
    rows = max(
        given.bytes // _ROW if given.rows is None else given.rows for given in inputs.values()
    )
    held = rows * _HELD
    return 1 if held <= room(memory) else -(-held * cores // room(memory))


def share(memory: str, cores: int) -> str:
    """Of the memory of one machine, what each of its cores has."""
    return f"{room(memory) // cores // 10**6}MB"


def room(memory: str) -> int:
    """Bytes."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
    return int(Decimal(memory[:-2]) * units[memory[-2:]])


def recipe_hash(recipe: Recipe) -> str:
    """The same for the same meaning: defaults and parameters are filled in, order is none."""
    document = recipe.model_dump(mode="json", exclude={"output", "description", "parameters"})
    for source in document["sources"].values():
        # Display columns and source names are not part of the match.
        del source["date"], source["show"]
        source["alias"] = None
        # Added later: recipes without them keep the hash of earlier evidence.
        if source["csv"]["thousands"] is None:
            del source["csv"]["thousands"]
        for name in ("skip", "footer"):
            if not source["csv"][name]:
                del source["csv"][name]
        if source["xlsx"] == Workbook().model_dump(mode="json"):
            del source["xlsx"]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _side(
    side: Side, recipe: Recipe, given: Input, columns: Columns, rules: Sequence[RulePlan]
) -> SidePlan:
    source = recipe.sources[side]
    amount = _amount(side, recipe, columns)
    names = set(source.primary_key) | set(recipe_columns.used(recipe, side))
    names |= {name for name in (source.amount, source.currency) if name}
    date, shown = recipe_columns.date(recipe, side), recipe_columns.shown(recipe, side)
    names |= {*shown, *([date.column] if date else [])}
    own = () if given.filtered else source.filters
    compared = _readings(side, rules, amount)
    return SidePlan(
        side,
        given,
        tuple(column_values.value(columns, name) for name in source.primary_key),
        tuple(name for name in given.types if name in names),
        amount,
        row_filters.conjunction(own, columns),
        _unreadable(side, rules, compared),
        column_values.as_text(column_values.value(columns, source.currency))
        if source.currency
        else None,
        _unreadable(side, (), [*compared, *row_filters.readings(own, columns)]) if own else (),
        row_filters.leniently(own, columns),
        column_values.as_date(column_values.value(columns, date.column, date.derive), columns)
        if date
        else None,
        {name: column_values.displayed(columns, name) for name in shown},
    )


def _readings(side: Side, rules: Sequence[RulePlan], amount: Value | None) -> list[Value]:
    """What is compared or summed."""
    place = SIDES.index(side)
    compared = [check.of(side) for rule in rules for check in rule.checks]
    compared += [rule.sums[place] for rule in rules if rule.sums]
    return [*compared, amount] if amount else compared


def _unreadable(
    side: Side, rules: Sequence[RulePlan], read: Sequence[Value]
) -> tuple[tuple[str, str, str, str], ...]:
    """What some rows may hold that is not read, or, by these rules, not compared."""
    readings: dict[tuple[str, str], dict[str, str]] = {}  # a column may be read in several ways
    for each in read:
        if each.reads:
            kind = "timestamp" if each.kind == "moment" else each.kind
            readings.setdefault((each.column, kind), {})[column_values.fails(each)] = each.reads
    for check in (check for rule in rules for check in rule.checks if check.longest):
        text = check.of(side)
        place = text.column, f"text of at most {check.longest:,} characters"
        failing = f"length({text.sql}) > {check.longest}"
        readings.setdefault(place, {})[failing] = f"(left({text.sql}, {_EXAMPLE}) || '…')"
    return tuple(
        (*place, next(iter(failing.values())), " OR ".join(failing))
        for place, failing in sorted(readings.items())
    )


def _amount(side: Side, recipe: Recipe, columns: Columns) -> Value | None:
    """The column whose sum is conserved: named, or the first that a tolerance compares."""
    name = recipe_columns.amount(recipe, side)
    return (
        None
        if name is None
        else column_values.as_number(column_values.value(columns, name), columns)
    )


def _rule(number: int, rule: Rule, recipe: Recipe, columns: tuple[Columns, Columns]) -> RulePlan:
    field = f"rules[{recipe.rules.index(rule)}]"
    checks = tuple(
        compile_condition(condition, place, columns, f"{field}.conditions[{place}]")
        for place, condition in enumerate(rule.conditions)
    )
    sums = sum_check = sum_bound = None
    if rule.cardinality != "1:1":
        sums = _sums(rule, columns)
        sum_bound = EXACT if sums else None
        if rule.tolerance:
            sum_check = rule.conditions.index(rule.tolerance)
        if sums and rule.tolerance:
            sum_bound = bound_of(rule.tolerance, max(value.scale for value in sums))
        if sum_bound:  # the digits of sums are unknown
            sum_bound = replace(sum_bound, is_tight=True)
    return RulePlan(
        number,
        rule.name,
        rule.cardinality,
        checks,
        _currency(rule, recipe, columns),
        (
            row_filters.conjunction(rule.left_filters, columns[0]),
            row_filters.conjunction(rule.right_filters, columns[1]),
        ),
        rule.ties == "first_in_first_out",
        (
            _order(columns[0], rule.left_order),
            _order(columns[1], rule.right_order),
        ),
        sums,
        sum_check,
        sum_bound,
        rule.subset == "confirm",
    )


def _currency(
    rule: Rule, recipe: Recipe, columns: tuple[Columns, Columns]
) -> tuple[Value, Value] | None:
    """What amounts that a rule compares must have in common, where both sides name one."""
    left, right = recipe.sources.left.currency, recipe.sources.right.currency
    if left is None or right is None or not recipe.compares_amounts(rule):
        return None
    return (
        column_values.as_text(column_values.value(columns[0], left)),
        column_values.as_text(column_values.value(columns[1], right)),
    )


def _demand_bounded(recipe: Recipe, first: RulePlan, inputs: Mapping[Side, Input]) -> None:
    """A rule without a key, a tolerance or a window is for what little others leave: the first one
    may only have it where both sources are small. Of a later one that is seen when its turn comes.
    """
    ranges = any(check.band or check.reach for check in first.checks)
    if first.key or ranges or any(first.filters):
        return
    sizes = [inputs[side].rows for side in SIDES if not recipe.sources[side].filters]
    known = [rows for rows in sizes if rows is not None]
    if len(known) == len(SIDES) and known[0] * known[1] > _UNBOUNDED_PAIRS:
        place = recipe.rules.index(recipe.rules_in_order[0])
        raise InvalidInput(
            Problem(
                f"rules[{place}].conditions",
                f"would compare each of {known[0]:,} rows with each of {known[1]:,}: add an `eq`, a"
                " tolerance or a date_window, or put rules that have one before it",
            )
        )


def _order(columns: Columns, name: str | None) -> Value | None:
    return (
        None
        if name is None
        else column_values.sortable(column_values.value(columns, name), columns)
    )


def _sums(rule: Rule, columns: tuple[Columns, Columns]) -> tuple[Value, Value] | None:
    """The summed column of each side: named, or that of the tolerance."""
    found = []
    for side, given in zip(SIDES, columns, strict=True):
        name = rule.summed(side)
        if name is None and rule.tolerance is None:
            return None
        if name is None and rule.tolerance is not None:
            tolerance = rule.tolerance
            summed = column_values.value(given, tolerance.column(side), tolerance.derivations(side))
        else:
            summed = column_values.value(given, name or "")
        found.append(column_values.as_number(summed, given))
    room = 38 - max(each.scale for each in found)
    left, right = (column_values.wide(column_values.narrow(each, room)) for each in found)
    return left, right


def _demand_columns(recipe: Recipe, inputs: Mapping[Side, Input]) -> None:
    """Every column the recipe names is there; `recipe check` says so earlier, with more advice."""
    problems = []
    for side in SIDES:
        for name in recipe_columns.named(recipe, side):
            if name not in inputs[side].types:
                there = ", ".join(inputs[side].types)
                missing = f"there is no column {name!r}; there are {there}"
                reason = inputs[side].unread.get(name, missing)
                problems.append(Problem(f"sources.{side}", reason))
    if problems:
        raise InvalidInput(*problems)
