"""The report of a run: counts and sums by rule, the largest exceptions, where to look.

Computed from the evidence alone, so it works for evidence from anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from kalla.reconcile.evidence.reading import source_warnings
from kalla.reconcile.evidence.reading.column_labels import Labels
from kalla.reconcile.evidence.reading.evidence_reader import (
    Dataset,
    Reader,
    damaged,
    metadata,
    reading,
    understood,
)
from kalla.reconcile.evidence.reading.exception_reasons import (
    RuleConditions,
    some,
    why_ambiguous,
    why_unmatched,
)
from kalla.reconcile.evidence.reading.source_warnings import (
    MOST_ROWS,
    CsvOptions,
    Rows,
    SourceIssues,
)
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL, Storage

LARGEST = 5  # of each currency

_LISTED = 25
_REPORT = Bounds(seconds=600)
_PARTS = 1_000_000  # a share has six places
_MOST_SECONDS = 1e9
_MOST_DIGITS = 60
_MOST_STATES = 20
_YEARS = (1970, 2999)
_ALMOST_ALL = Decimal("99.99")


def _bounded(amount: Decimal) -> Decimal:
    """Evidence may come from elsewhere: writing out 1E+200000000 takes half a minute."""
    if not amount.is_finite() or abs(amount.adjusted()) > _MOST_DIGITS:
        raise ValueError(f"an amount has at most {_MOST_DIGITS} digits before and after its point")
    if len(amount.as_tuple().digits) > 2 * _MOST_DIGITS:
        raise ValueError(f"an amount has at most {2 * _MOST_DIGITS} digits")
    return amount


def _in_our_time(moment: datetime) -> datetime:
    if not _YEARS[0] <= moment.year <= _YEARS[1]:
        raise ValueError(f"the year is not between {_YEARS[0]} and {_YEARS[1]}")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


Amount = Annotated[Decimal, AfterValidator(_bounded)]
Moment = Annotated[datetime, AfterValidator(_in_our_time)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Figures(Part):
    """Rows, and the sum of their amounts; by currency, where there are several."""

    rows: Rows = 0
    amount: Amount | None = None
    currencies: dict[str, Amount] = {}


class RuleFigures(Part):
    name: str
    cardinality: str
    matches: int
    left: Figures
    right: Figures
    ambiguous: int


class Exceptional(Part):
    """A row that is not matched, and why."""

    side: Side
    record_key: str
    amount: Amount | None
    currency: str | None = None  # where there are several
    closest_candidate: str | None
    reason: str


class Report(Part):
    """The figures of one run's evidence."""

    name: str
    recipe: str
    recipe_hash: str
    sources: dict[Side, str]
    names: dict[Side, str] = {}  # names of the sides; missing in reports of older releases
    started_at: datetime
    finished_at: datetime
    seconds: float
    match_rate: float
    exceptions: int
    sides: dict[Side, dict[str, Figures]]
    rules: list[RuleFigures]
    largest_exceptions: list[Exceptional]
    troubles: list[str]
    evidence: str

    def name_of(self, side: Side) -> str:
        return self.names.get(side, side)


def percent(rate: float) -> str:
    """A share as a person reads it, with two places: 100.00 means all and nothing less."""
    shown = (Decimal(str(rate)) * 100).quantize(Decimal("0.01"))
    return str(shown if rate == 1 else min(shown, _ALMOST_ALL))


def place(uri: str, table: str | None) -> str:
    """Where the rows of a source are: two tables of one database are two places."""
    return f"{uri} {table}" if table else uri


def of_evidence(folder: str, storage: Storage = LOCAL) -> Report:
    """The report on the evidence in a folder."""
    document = metadata(folder, storage)
    facts = _with_several_currencies(understood(folder, _Facts, document))
    recipe, sides = facts.recipe, facts.sources
    accepted = {"matched", "suggested"} if recipe.accept_suggested else {"matched"}
    taking_part, matched = (
        sum(
            tally.rows
            for side in SIDES
            for state, tally in sides[side].states.items()
            if state in wanted
        )
        for wanted in (sides["left"].states.keys() - {"filtered"}, accepted)
    )
    # It is unknown whether rows that a filter could not read should have been left out.
    taking_part += sum(sides[side].filtered_unread for side in SIDES)
    return Report(
        name=recipe.name,
        recipe=recipe.recipe_id or recipe.name,
        recipe_hash=facts.recipe_hash,
        sources={
            side: place(recipe.sources[side].uri, recipe.sources[side].table) for side in SIDES
        },
        names=dict(Labels.of(document).names),
        started_at=facts.started_at,
        finished_at=facts.started_at + timedelta(seconds=facts.seconds),
        seconds=facts.seconds,
        match_rate=_share(matched, taking_part),
        exceptions=taking_part - matched,
        sides={side: sides[side].states for side in SIDES},
        rules=[
            RuleFigures(
                name=rule.name,
                cardinality=rule.cardinality,
                matches=rule.matches,
                left=rule.left,
                right=rule.right,
                ambiguous=rule.ambiguous_left + rule.ambiguous_right,
            )
            for rule in facts.rules
        ],
        largest_exceptions=_largest(folder, facts, storage),
        troubles=[
            said
            for side in SIDES
            for said in source_warnings.of_source(side, sides[side], recipe.sources[side].csv)
        ],
        evidence=folder,
    )


def recipe_of(folder: str, storage: Storage = LOCAL) -> str:
    """The text of the recipe that the evidence in a folder was made by, as it can be read again."""
    facts = metadata(folder, storage)
    text = understood(folder, _Facts, facts).recipe_text
    # Evidence from before there was a text has the recipe for programs alone.
    return json.dumps(facts["recipe"], indent=2, ensure_ascii=False) if text is None else text


# What is read of metadata.json


class _Place(Part):
    uri: str
    table: str | None = None
    csv: CsvOptions = CsvOptions()


class _Recipe(Part):
    name: str
    recipe_id: str | None = None
    accept_suggested: bool = False
    sources: dict[Side, _Place]
    rules: list[RuleConditions] = []


class _Source(SourceIssues):
    states: dict[str, Figures] = Field(max_length=_MOST_STATES)

    @model_validator(mode="after")
    def _rows_can_be_counted(self) -> Self:
        if sum(each.rows for each in self.states.values()) + self.filtered_unread > MOST_ROWS:
            raise ValueError(f"a side has at most {MOST_ROWS:,} rows")
        return self


class _Suggestion(Part):
    side: Side
    record_key: str
    amount: Amount
    currency: str | None
    partners: list[str]
    partner_count: Rows


class _Rule(Part):
    name: str
    cardinality: str
    matches: Rows
    left: Figures
    right: Figures
    ambiguous_left: Rows
    ambiguous_right: Rows
    suggested: list[_Suggestion] = []


class _Facts(Part):
    recipe: _Recipe
    recipe_text: str | None = None
    recipe_hash: str
    sources: dict[Side, _Source]
    rules: list[_Rule]
    started_at: Moment
    seconds: float = Field(ge=0, le=_MOST_SECONDS)

    @model_validator(mode="after")
    def _has_both_sides(self) -> Self:
        if not set(SIDES) == self.sources.keys() == self.recipe.sources.keys():
            raise ValueError("one of the two sides is missing")
        return self


def _share(part: int, whole: int) -> float:
    """Rounded down: it is 1.0 only if nothing is missing."""
    return part * _PARTS // whole / _PARTS if whole else 1.0


def _with_several_currencies(facts: _Facts) -> _Facts:
    """Gives sums by currency where there are several currencies."""
    figures = [
        *(each for side in SIDES for each in facts.sources[side].states.values()),
        *(each for rule in facts.rules for each in (rule.left, rule.right)),
    ]
    if len({name for each in figures for name in each.currencies}) > 1:
        return facts

    def plain(given: Figures) -> Figures:
        return given.model_copy(update={"currencies": {}})

    return facts.model_copy(
        update={
            "sources": {
                side: each.model_copy(
                    update={"states": {name: plain(one) for name, one in each.states.items()}}
                )
                for side, each in facts.sources.items()
            },
            "rules": [
                each.model_copy(update={"left": plain(each.left), "right": plain(each.right)})
                for each in facts.rules
            ],
        }
    )


def _largest(folder: str, facts: _Facts, storage: Storage) -> list[Exceptional]:
    """The exceptions of the largest amounts, of both sides; within each currency of several."""
    several = any(each.currencies for side in SIDES for each in facts.sources[side].states.values())
    found = _suggested(facts)
    with reading(storage, _REPORT) as reader:
        try:
            for side in SIDES:
                found += _unmatched(
                    reader.dataset(folder, f"unmatched_{side}"), side, facts.recipe.rules, reader
                )
            found += _ambiguous(reader.dataset(folder, "ambiguous"), reader)
        except KeyError as reason:
            raise damaged(folder, f"{reason} is not a reason of an exception") from None
        except (ValidationError, AttributeError, TypeError):
            raise damaged(folder, "its rows are not what a run writes") from None
    ranked: dict[str, list[Exceptional]] = {}
    for each in sorted(found, key=_largest_first):
        ranked.setdefault(each.currency or "" if several else "", []).append(each)
    if not several:
        plain = {"currency": None}
        return [each.model_copy(update=plain) for each in ranked.get("", [])[:LARGEST]]
    # Of many currencies each has its largest, and few have more.
    places = sorted(
        (place, name) for name, each in ranked.items() for place in range(len(each[:LARGEST]))
    )
    listed = sorted(places[:_LISTED], key=lambda each: (each[1], each[0]))
    shown = [ranked[name][place] for place, name in listed]
    return sorted(shown, key=lambda each: each.amount is None)  # the others stay in their order


def _largest_first(each: Exceptional) -> tuple[bool, Decimal, str, str]:
    amount = each.amount
    return amount is None, -abs(amount or Decimal(0)), each.side, each.record_key


def _suggested(facts: _Facts) -> list[Exceptional]:
    """Matches that are only suggested, where the recipe does not accept that."""
    if facts.recipe.accept_suggested:
        return []
    return [
        Exceptional(
            side=each.side,
            record_key=each.record_key,
            amount=each.amount,
            currency=each.currency,
            closest_candidate=each.partners[0] if each.partners else None,
            reason=f"suggested by {rule.name!r}, with {some(each.partners, each.partner_count)}",
        )
        for rule in facts.rules
        for each in rule.suggested
    ]


def _unmatched(
    dataset: Dataset, side: Side, rules: Sequence[RuleConditions], reader: Reader
) -> list[Exceptional]:
    columns = (
        "record_key", "closest_candidate", "candidate_status", "rule", "failing_condition",
        "left_value", "right_value", "difference", "rejection_reason",
    )  # fmt: skip
    found = []
    for amount, currency, *values in _first_rows(dataset, ", ".join(columns), reader):
        row = dict(zip(columns, values, strict=True))
        found.append(
            Exceptional(
                side=side,
                record_key=row["record_key"],
                amount=amount,
                currency=currency,
                closest_candidate=row["closest_candidate"],
                reason=why_unmatched(row, rules),
            )
        )
    return found


def _ambiguous(dataset: Dataset, reader: Reader) -> list[Exceptional]:
    columns = "record_key, side, rule, candidates, candidate_count, reason"
    return [
        Exceptional(
            side=side,
            record_key=key,
            amount=amount,
            currency=currency,
            closest_candidate=candidates[0] if candidates else None,
            reason=why_ambiguous(rule, reason, candidates, count),
        )
        for amount, currency, key, side, rule, candidates, count, reason in _first_rows(
            dataset, columns, reader
        )
    ]


def _first_rows(dataset: Dataset, columns: str, reader: Reader) -> list[tuple[Any, ...]]:
    """Those of the largest amounts in each currency: amount, currency, and these columns."""
    there = {each.name for each in dataset.columns}
    # Older evidence does not have these columns.
    amount, currency = (name if name in there else "NULL" for name in ("amount", "currency"))
    return reader.rows(
        f"SELECT {amount} AS amount, {currency} AS currency, {columns} FROM {dataset.relation}"
        " QUALIFY row_number() OVER (PARTITION BY currency"
        f" ORDER BY abs(amount) DESC NULLS LAST, record_key) <= {LARGEST}"
    )
