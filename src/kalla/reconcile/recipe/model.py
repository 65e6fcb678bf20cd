"""The recipe model: its two sources, its rules and their conditions. Frozen and typed.

Reading a document (YAML, JSON, older shapes) and reporting every problem in it is `parsing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Side = Literal["left", "right"]
SIDES: tuple[Side, Side] = ("left", "right")


def opposite(side: Side) -> Side:
    return "right" if side == "left" else "left"


Native = Literal["csv", "parquet", "json", "xlsx"]
ENDINGS: Mapping[str, Native] = {
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".json": "json", ".jsonl": "json", ".ndjson": "json", ".xlsx": "xlsx", ".xlsm": "xlsx",
}  # fmt: skip
COMPRESSIONS: Mapping[str, Literal["gzip", "zstd"]] = {".gz": "gzip", ".zst": "zstd"}
DATABASES = ("postgresql", "postgres")  # the schemes of sources that are not files

# Of a tolerance.
BOUNDS = ("absolute", "percent", "below", "above", "below_percent", "above_percent")

Column = Annotated[str, Field(min_length=1, max_length=255)]
Amount = Annotated[Decimal, Field(ge=0, allow_inf_nan=False, max_digits=38)]
Scalar = str | bool | int | Decimal | date | datetime


class Part(BaseModel):
    """A part of a recipe."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True
    )


# Derivations: transformations of a value before it is compared.


class Regex(Part):
    """The part of a text that an expression's first group (or the whole of it) matches."""

    regex: str = Field(min_length=1, max_length=1000)


class DatePart(Part):
    """A date cut down to its year, month or day."""

    date_part: Literal["year", "month", "day"]


Derivation = Literal["trim", "upper", "lower", "digits"] | Regex | DatePart


class Condition(Part):
    """Two columns and how they must agree. `derive` is for both sides, the others for one."""

    left: Column
    right: Column
    derive: tuple[Derivation, ...] = ()
    derive_left: tuple[Derivation, ...] = ()
    derive_right: tuple[Derivation, ...] = ()

    def derivations(self, side: Side) -> tuple[Derivation, ...]:
        return self.derive + (self.derive_left if side == "left" else self.derive_right)

    def column(self, side: Side) -> str:
        return self.left if side == "left" else self.right


class Equal(Condition):
    """Equal after derivation: part of the rule's key."""

    op: Literal["eq"] = "eq"


class Tolerance(Condition):
    """Amounts no further apart than a bound, which is included.

    `below` and `above` are how much less or more than the left value the right one may be, each
    absolute or in percent of the left value; the short forms set both.
    """

    op: Literal["tolerance"] = "tolerance"
    absolute: Amount | None = None
    percent: Amount | None = None
    below: Amount | None = None
    above: Amount | None = None
    below_percent: Amount | None = None
    above_percent: Amount | None = None
    negate: Side | None = Field(None, description="the side whose sign is turned")


class DateWindow(Condition):
    """Dates at most so many days apart; `before` and `after` are seen from the left one."""

    op: Literal["date_window"] = "date_window"
    days: int | None = Field(None, ge=0, le=36_500)
    before: int | None = Field(None, ge=0, le=36_500)
    after: int | None = Field(None, ge=0, le=36_500)


class Text(Condition):
    """One text in another: by default the left one contains (begins or ends with) the right one."""

    op: Literal["contains", "startswith", "endswith"]
    container: Side = "left"


class Fuzzy(Condition):
    """Texts at least so similar, from 0 to 1."""

    op: Literal["fuzzy"] = "fuzzy"
    metric: Literal["jaro_winkler", "jaro", "levenshtein", "damerau_levenshtein"] = "jaro_winkler"
    threshold: Decimal = Field(ge=0, le=1)


class Comparison(Condition):
    """The left value against the right one; both numbers, both dates, or both text."""

    op: Literal["ne", "lt", "lte", "gt", "gte"]


AnyCondition = Annotated[
    Equal | Tolerance | DateWindow | Text | Fuzzy | Comparison, Field(discriminator="op")
]


class Filter(Part):
    """Which rows take part. Null passes `is_null` alone."""

    column: Column
    op: Literal[
        "eq", "ne", "lt", "lte", "gt", "gte", "in", "not_in",
        "contains", "startswith", "endswith", "is_null", "not_null",
    ]  # fmt: skip
    value: Scalar | tuple[Scalar, ...] | None = None


Cardinality = Literal["1:1", "1:N", "N:1", "M:N"]


class Rule(Part):
    """Conditions in order. The equalities are its key, the rest are its checks."""

    name: str = Field(min_length=1, max_length=200)
    cardinality: Cardinality = "1:1"
    priority: int | None = Field(None, description="smaller first; without one, in the order given")
    conditions: tuple[AnyCondition, ...] = Field(min_length=1, max_length=50)
    left_filters: tuple[Filter, ...] = ()
    right_filters: tuple[Filter, ...] = ()
    ties: Literal["ambiguous", "first_in_first_out"] = "ambiguous"
    left_order: Column | None = Field(None, description="the date that orders ties on the left")
    right_order: Column | None = None
    left_sum: Column | None = Field(None, description="the summed column of a group on the left")
    right_sum: Column | None = None
    subset: Literal["suggest", "confirm"] = "suggest"

    @property
    def key(self) -> tuple[Equal, ...]:
        return tuple(each for each in self.conditions if isinstance(each, Equal))

    @property
    def checks(self) -> tuple[Condition, ...]:
        return tuple(each for each in self.conditions if not isinstance(each, Equal))

    @property
    def tolerance(self) -> Tolerance | None:
        """The condition whose column a group sums: the first tolerance."""
        return next((each for each in self.conditions if isinstance(each, Tolerance)), None)

    def filters(self, side: Side) -> tuple[Filter, ...]:
        return self.left_filters if side == "left" else self.right_filters

    def summed(self, side: Side) -> str | None:
        """The column that it names as the sum of a group."""
        return self.left_sum if side == "left" else self.right_sum


class Csv(Part):
    """How a CSV file is written."""

    delimiter: str = Field(",", min_length=1, max_length=1)
    quote: str = Field('"', min_length=1, max_length=1)
    header: bool = True
    encoding: Literal["utf-8", "latin-1", "utf-16", "windows-1252"] = "utf-8"
    skip: int = Field(0, ge=0, le=1000, description="lines before the header")
    footer: int = Field(0, ge=0, le=1000, description="lines at the end that are not rows")
    decimal: Literal[".", ","] = Field(".", description="the decimal separator of amounts")
    thousands: Literal[".", ",", "'", " "] | None = Field(
        None, description="the separator between groups of three digits in amounts"
    )
    null: str = Field("", description="the text that stands for no value")
    date_format: str | None = Field(
        None, description="in the notation of strptime; ISO 8601 by default"
    )


class Workbook(Part):
    """Where the rows of an XLSX file are. What is not set is detected."""

    sheet: str | None = Field(None, min_length=1, max_length=200, description="its name")
    header_row: int | None = Field(None, ge=1, le=1_048_576, description="as numbered in Excel")
    footer: int | None = Field(
        None, ge=0, le=1000, description="rows at the end that are sums or notes"
    )


class Source(Part):
    """Where the rows of one side are, and what identifies them."""

    uri: str = Field(min_length=1, max_length=2000, description="a path, s3://, postgresql://…")
    primary_key: tuple[Column, ...] = Field(min_length=1, max_length=16)
    alias: str | None = None
    format: Literal["csv", "parquet", "json", "xlsx", "delta", "postgres"] | None = None
    table: str | None = Field(None, description="for a database: schema.table")
    password: str | None = Field(
        None,
        pattern=r"^secret://[A-Za-z0-9_.-]+$",
        description="secret://name, never the password itself",
    )
    amount: Column | None = Field(None, description="the column whose sum is conserved")
    currency: Column | None = None
    date: Column | None = Field(
        None, description="the date of a row; by default the one that the first date_window names"
    )
    show: tuple[Column, ...] | None = Field(
        None,
        max_length=50,
        description="the columns that evidence shows of a row beside its key, amount, currency and"
        " date; by default the columns that rules compare",
    )
    filters: tuple[Filter, ...] = Field((), description="pushed into the source")
    csv: Csv = Csv()
    xlsx: Workbook = Workbook()
    read: Literal["staged", "direct"] = "staged"
    consistency: Literal["none", "snapshot"] = "none"
    partition_key: Column | None = None
    chunk_threshold_rows: int | None = Field(None, ge=1)
    max_parallel_chunks: int | None = Field(None, ge=1, le=10_000)


class Sources(Part):
    left: Source
    right: Source

    def __getitem__(self, side: Side) -> Source:
        return self.left if side == "left" else self.right


class Parameter(Part):
    """A value filled in at run time, written `${name}` where it is used."""

    type: Literal["text", "number", "date"] = "text"
    default: Scalar | None = None
    description: str = ""


class Bounds(Part):
    """How much work a rule may be before it says `too_large`."""

    component_edges: int = Field(5_000, ge=1, le=1_000_000)
    subset_rows: int = Field(24, ge=1, le=40)
    subset_sums: int = Field(1_000_000, ge=1, le=100_000_000)
    closest_candidates: int = Field(50, ge=1, le=10_000)


class Recipe(Part):
    """Two sources that should agree, and what makes a match."""

    version: Literal["1"] = "1"
    recipe_id: str | None = Field(None, max_length=200)
    name: str = Field(min_length=1, max_length=200)
    description: str = ""
    time_zone: str = Field("UTC", description="for a date against a point in time")
    parameters: dict[str, Parameter] = {}
    sources: Sources
    rules: tuple[Rule, ...] = Field((), max_length=100)
    match_sql: str | None = Field(None, max_length=100_000)
    accept_suggested: bool = False
    bounds: Bounds = Bounds()
    output: str | None = Field(None, description="the folder that the evidence goes to")

    @property
    def rules_in_order(self) -> tuple[Rule, ...]:
        """By priority; rules without one keep their place among the others."""
        places = [
            (index if rule.priority is None else rule.priority, index)
            for index, rule in enumerate(self.rules, 1)
        ]
        return tuple(self.rules[index - 1] for _, index in sorted(places))

    def amounts(self, side: Side) -> set[str]:
        """The columns of a side that hold amounts: its own, those within a tolerance or summed."""
        named = {self.sources[side].amount, *(rule.summed(side) for rule in self.rules)}
        conditions = (each for rule in self.rules for each in rule.conditions)
        named |= {each.column(side) for each in conditions if isinstance(each, Tolerance)}
        return {name for name in named if name is not None}

    def compares_amounts(self, rule: Rule) -> bool:
        """Whether a condition or a sum of a rule is of amounts, whatever it does with them."""
        return any(
            self.amounts(side) & {rule.summed(side), *(c.column(side) for c in rule.conditions)}
            for side in SIDES
        )
