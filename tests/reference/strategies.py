"""Recipes and data for Hypothesis: few different values, so that ties, duplicates, nulls and
equal sums are the rule and not the exception. First choices are the plainest: it shrinks to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Literal, TypeVar

from hypothesis import strategies as st

from kalla.reconcile.recipe.model import (
    SIDES,
    Bounds,
    Cardinality,
    Comparison,
    Condition,
    Csv,
    DatePart,
    DateWindow,
    Derivation,
    Equal,
    Filter,
    Fuzzy,
    Recipe,
    Regex,
    Rule,
    Side,
    Source,
    Sources,
    Text,
    Tolerance,
)
from tests.reference.column_pools import CSVS, TYPES, VALUES, Columns, as_type, named
from tests.reference.evidence import Table, Value

MOST_ROWS = 7
CARDINALITIES: tuple[Cardinality, ...] = ("1:1", "1:1", "1:N", "N:1", "M:N")

Pools = Mapping[str, Sequence[Value]]
T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    recipe: Recipe
    left: Table
    right: Table


@st.composite
def cases(
    draw: st.DrawFn, cardinalities: Sequence[Cardinality] = CARDINALITIES, percent: bool = True
) -> Sample:
    """A recipe of up to three rules, and up to seven rows a side that it may well match.

    Without `percent` a recipe can be mirrored: a percentage is of the left value alone.
    """
    return Chance(lambda options: draw(place(options)), cardinalities, percent).sample()


@cache
def place(among: int) -> st.SearchStrategy[int]:
    return st.integers(0, among - 1)


class Chance:
    """Choices from plain lists, made of one kind of draw, since building strategies is slow.

    `below` gives a whole number below another: Hypothesis does, or `Random.randrange`.
    """

    def __init__(
        self,
        below: Callable[[int], int],
        cardinalities: Sequence[Cardinality] = CARDINALITIES,
        percent: bool = True,
    ) -> None:
        self.below, self.cardinalities, self.percent = below, cardinalities, percent
        self.first: Side = self.pick(SIDES)
        self.billed = self.one_in(3)  # rows of the first side are sums of some of the other's
        mixed = self.one_in(2)
        self.columns: Columns = {
            side: {name: self.pick(types) if mixed else types[0] for name, types in TYPES.items()}
            for side in SIDES
        }
        self.csvs: Mapping[Side, Csv] = {side: self.pick(CSVS) for side in SIDES}
        self.pools: Pools = {name: self.pool(name) for name in VALUES}

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))] if len(options) > 1 else options[0]

    def one_in(self, times: int) -> bool:
        return self.below(times) == times - 1

    def some(self, options: Sequence[T], least: int, most: int) -> list[T]:
        return [self.pick(options) for _ in range(self.pick(range(least, most + 1)))]

    def pool(self, name: str) -> Sequence[Value]:
        """The few values that a column has in this sample, on both sides."""
        if name == "id":
            return [*VALUES["id"], *([None] if self.one_in(4) else [])]
        common = VALUES[name] if self.one_in(3) else VALUES[name][:4]
        values = list(dict.fromkeys(self.some(common, 1, 5 if name == "amount" else 3)))
        return [*values, *([None] if self.one_in(4) else [])]

    def sample(self) -> Sample:
        composite = self.one_in(4)
        currency = self.pick(((), (), SIDES, SIDES, ("left",)))
        recipe = Recipe(
            name="made by chance",
            time_zone=self.pick(("UTC", "Europe/Stockholm", "America/New_York")),
            sources=Sources(
                left=source("left", composite, "left" in currency, self.csvs["left"]),
                right=source("right", composite, "right" in currency, self.csvs["right"]),
            ),
            rules=tuple(self.rule(f"rule {at}") for at in range(1, self.pick((1, 2, 3)) + 1)),
            bounds=Bounds(
                component_edges=self.pick((*[5_000] * 8, 3, 1)),
                subset_rows=self.pick((*[24] * 8, 3, 2)),
                subset_sums=self.pick((*[5_000] * 8, 20, 6)),
                closest_candidates=self.pick((50, 50, 2, 1)),
            ),
        )
        return Sample(recipe, *self.tables())

    def tables(self) -> tuple[Table, Table]:
        """One side at will; of the other, many rows echo one of the first, whole or in parts."""
        rows = [self.row() for _ in range(self.pick((0, 1, 1, 1, 2, 2, 3, 4, 5, 6)))]
        rows += self.some(rows, 0, 1) if rows else []
        others: list[dict[str, Value]] = []
        if self.billed:
            rows = rows[: self.pick((1, 1, 2))]
            for row in rows:
                others += self.payments(row)
        else:
            for _ in range(self.pick((0, 1, 2, 2, 3, 3, 4, 4, 5, 6))):
                echoes = rows and not self.one_in(4)
                others += self.echo(self.pick(rows)) if echoes else [self.row()]
        others += self.some(others, 0, 1) if others else []
        others = others[:MOST_ROWS]
        left, right = (rows, others) if self.first == "left" else (others, rows)
        return self.table("left", left), self.table("right", right)

    def payments(self, bill: dict[str, Value]) -> list[dict[str, Value]]:
        """Rows of which the bill, changed to that end, is the sum of some."""
        paid = [
            bill | {"id": self.pick(self.pools["id"]), "amount": self.pick(VALUES["amount"])}
            for _ in range(self.pick((1, 2, 3, 4, 5)))
        ]
        amounts = [each["amount"] for each in paid[: self.pick((1, 2, 2, 3))]]
        bill["amount"] = sum((each for each in amounts if isinstance(each, Decimal)), Decimal(0))
        return paid

    def row(self) -> dict[str, Value]:
        return {name: self.pick(values) for name, values in self.pools.items()}

    def echo(self, row: dict[str, Value]) -> list[dict[str, Value]]:
        echoed = row | {"id": self.pick(self.pools["id"])}
        if self.one_in(2):
            column = self.pick(("amount", "day", "note", "amount", "ref", "cur", "qty", "no"))
            echoed[column] = self.pick(self.pools[column])
        amount, part = echoed["amount"], self.pick(VALUES["amount"])
        if not isinstance(amount, Decimal) or not isinstance(part, Decimal) or self.one_in(2):
            return [echoed]
        rest = echoed | {"id": self.pick(self.pools["id"]), "amount": amount - part}
        return [echoed | {"amount": part}, rest]

    def table(self, side: Side, rows: Sequence[Mapping[str, Value]]) -> Table:
        return Table(
            {named(side, name): self.columns[side][name] for name in VALUES},
            [
                {named(side, name): self.typed(row[name], side, name) for name in VALUES}
                for row in rows
            ],
        )

    def typed(self, value: Value, side: Side, name: str) -> Value:
        return as_type(value, self.columns, side, name, self.csvs[side])

    def rule(self, name: str) -> Rule:
        cardinality = self.pick(self.cardinalities)
        if self.billed and not self.one_in(4):
            cardinality = "1:N" if self.first == "left" else "N:1"
        sums = "" if cardinality == "1:1" else self.pick((*[""] * 9, "both", "left", "right"))
        odd = self.one_in(4 if self.billed else 2)
        conditions = self.odd_conditions(sums) if odd else self.plain_conditions(sums)
        return Rule.model_validate(
            {
                "name": name,
                "cardinality": cardinality,
                "priority": self.pick((None, None, 1, 2, 3)),
                "conditions": conditions,
                "left_filters": self.filters("left"),
                "right_filters": self.filters("right"),
                "ties": self.pick(("ambiguous", "ambiguous", "first_in_first_out")),
                "left_order": self.pick((None, "day", "qty", "ref")),
                "right_order": self.pick((None, "r_day", "r_amount", "r_ref")),
                "left_sum": self.pick(("amount", "qty")) if sums in ("both", "left") else None,
                "right_sum": self.pick(("r_amount", "r_qty"))
                if sums in ("both", "right")
                else None,
                "subset": self.pick(("suggest", "suggest", "confirm")),
            }
        )

    def plain_conditions(self, sums: str) -> list[Condition]:
        """What people write: a reference, an amount, perhaps something more."""
        conditions: list[Condition] = []
        if not self.one_in(6):
            conditions.append(Equal(left="ref", right="r_ref"))
        if not conditions or sums in ("left", "right") or not self.one_in(3):
            bound = Decimal(self.pick(("0",) if self.billed else ("1", "0", "0.01", "1")))
            conditions.append(Tolerance(left="amount", right="r_amount", absolute=bound))
        if self.one_in(4):
            conditions.append(self.check())
        return conditions

    def odd_conditions(self, sums: str) -> list[Condition]:
        conditions: list[Condition] = []
        if not self.one_in(3):
            conditions.append(self.equal())
        if not conditions or self.one_in(2):
            conditions.append(self.check(derives=not sums))
        if sums in ("left", "right") or self.one_in(3):
            conditions.append(self.tolerance(derives=not sums))
        if self.one_in(4):
            conditions.insert(0, self.equal() if self.one_in(2) else self.check())
        return conditions

    def equal(self) -> Equal:
        left, right = self.pick(
            (
                *[("ref", "ref")] * 5,
                *[("cur", "cur")] * 2,
                ("note", "note"),
                ("ref", "note"),
                ("day", "day"),
                ("amount", "amount"),
                ("no", "qty"),
            )
        )
        derivations: dict[str, tuple[Derivation, ...]] = {}
        if left in ("ref", "note", "cur"):
            derivations = self.text_derivations()
        elif left == "day":
            derivations = self.date_derivations()
        return Equal.model_validate({"left": left, "right": named("right", right), **derivations})

    def check(self, derives: bool = False) -> Condition:
        kind = self.pick(("tolerance", "window", "text", "fuzzy", "comparison"))
        match kind:
            case "tolerance":
                return self.tolerance(derives)
            case "window":
                return self.window()
            case "text":
                return self.text()
            case "fuzzy":
                return self.fuzzy()
        return self.comparison()

    def tolerance(self, derives: bool) -> Tolerance:
        bounds: dict[str, Decimal] = {}
        kinds = [["absolute"], ["absolute"], ["below", "above"], ["above"]]
        if self.percent:
            kinds += [["percent"], ["below_percent", "above"], ["below", "above_percent"]]
        for kind in self.pick(kinds):
            sizes = ("10", "1", "33.3", "100") if "percent" in kind else ("1", "0", "0.01", "4.99")
            bounds[kind] = Decimal(self.pick(sizes))
        left = self.pick(("amount", "amount", "amount", "qty"))
        derive: tuple[Derivation, ...] = ()
        if derives and left == "amount" and self.columns["left"]["amount"] == "text":
            derive = self.pick(((), ("trim",), ("digits",)))
        return Tolerance.model_validate(
            {
                "left": left,
                "right": "r_amount",
                "negate": self.pick((None, None, None, None, *SIDES)),
                "derive_left": derive,
                **bounds,
            }
        )

    def window(self) -> DateWindow:
        reach = self.pick((("days",), ("before", "after"), ("before",), ("after",)))
        return DateWindow.model_validate(
            {
                "left": "day",
                "right": "r_day",
                **self.date_derivations(),
                **{each: self.pick((1, 0, 2)) for each in reach},
            }
        )

    def text(self) -> Text:
        return Text.model_validate(
            {
                "left": self.pick(("note", "ref")),
                "right": self.pick(("r_note", "r_ref")),
                "op": self.pick(("contains", "startswith", "endswith")),
                "container": self.pick(SIDES),
                **self.text_derivations(),
            }
        )

    def fuzzy(self) -> Fuzzy:
        metrics = ("jaro_winkler", "jaro", "levenshtein", "damerau_levenshtein")
        return Fuzzy(
            left="note",
            right="r_note",
            metric=self.pick(metrics),
            threshold=Decimal(self.pick(("0.5", "0.75", "0.9", "0", "1"))),
        )

    def comparison(self) -> Comparison:
        column = self.pick(("amount", "day", "ref", "qty"))
        return Comparison.model_validate(
            {
                "left": column,
                "right": named("right", column),
                "op": self.pick(("gte", "lte", "ne", "lt", "gt")),
            }
        )

    def text_derivations(self) -> dict[str, tuple[Derivation, ...]]:
        ways: tuple[Derivation, ...] = (
            "upper", "trim", "lower", "digits", Regex(regex="[a-zA-Z]+"), Regex(regex="([0-9])$"),
            Regex(regex="[a-zA-Z]+(-[0-9])?"),
        )  # fmt: skip
        return {
            field: tuple(self.some(ways, 1, 2))
            for field, times in (("derive", 4), ("derive_left", 10), ("derive_right", 10))
            if self.one_in(times)
        }

    def date_derivations(self) -> dict[str, tuple[Derivation, ...]]:
        parts: tuple[Literal["month", "year", "day"], ...] = ("month", "year", "day")
        return {
            field: (DatePart(date_part=self.pick(parts)),)
            for field, times in (("derive", 4), ("derive_left", 10), ("derive_right", 10))
            if self.one_in(times)
        }

    def filters(self, side: Side) -> tuple[Filter, ...]:
        return (self.filter(side),) if self.one_in(8) else ()

    def filter(self, side: Side) -> Filter:
        column = self.pick(("amount", "cur", "day", "note", "qty", "ref"))
        everything = (*self.pools[column], *VALUES[column])
        typed = [self.typed(each, side, column) for each in everything]
        if column == "amount" and self.columns[side][column] == "text":  # recipes have points
            typed = [each if each is None else str(each) for each in everything]
        values: list[Value] = []
        values += [each for each in typed if each is not None][:3]
        if column == "day":
            values += self.given_days(side)
        ops = ["ne", "eq", "not_in", "in", "lt", "lte", "gt", "gte", "not_null", "is_null"]
        if self.columns[side][column] == "text":
            ops += ["contains", "startswith", "endswith"]
        op = self.pick(ops)
        value: object = None
        if op in ("in", "not_in"):
            value = tuple(self.some(values, 1, 2))
        elif op not in ("not_null", "is_null"):
            value = self.pick(values)
        return Filter.model_validate({"column": named(side, column), "op": op, "value": value})

    def given_days(self, side: Side) -> list[Value]:
        """Days as recipes have them: dates, texts that are dates (JSON has no others), times."""
        day = self.pick([each for each in VALUES["day"] if isinstance(each, datetime)])
        given: list[Value] = [day.date(), day.date().isoformat()]
        if self.columns[side]["day"] != "date":
            unzoned = day.replace(tzinfo=None)
            given += [day, unzoned, unzoned.isoformat()]
        return given


def source(side: Side, composite: bool, has_currency: bool, csv: Csv) -> Source:
    return Source(
        uri=f"{side}.parquet",
        primary_key=tuple(named(side, each) for each in (("id", "no") if composite else ("id",))),
        amount=named(side, "amount"),
        currency=named(side, "cur") if has_currency else None,
        csv=csv,
    )
