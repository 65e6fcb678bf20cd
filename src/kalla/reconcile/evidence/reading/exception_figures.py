"""Summarizes the exceptions of a run: by reason, by age and by amount, each with the filter that
shows its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

from kalla.reconcile.evidence.reading.evidence_reader import Dataset, Reader, damaged, reading
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import Storage

_AGES = (0, 8, 31, 91, 366)  # days before the run's; each is the first of the next range
_AMOUNTS = (0, 10, 100, 1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Bar:
    """Rows of one group, and the part and filters that select them."""

    rows: int
    amount: Decimal | None  # the sum of their absolute amounts
    part: str
    filters: tuple[str, ...]


@dataclass(frozen=True)
class Chart:
    """Bars of both sides, in the order of their labels."""

    title: str
    bars: dict[str, dict[Side, Bar]]

    @property
    def largest(self) -> int:
        return max((bar.rows for each in self.bars.values() for bar in each.values()), default=0)


@dataclass(frozen=True)
class ExceptionFigures:
    names: dict[Side, str]
    several_currencies: bool
    charts: tuple[Chart, ...]


def exception_figures(
    url: str,
    storage: Storage,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> ExceptionFigures:
    """Of rows that are unmatched: why, since when, and how large."""
    with reading(storage, bounds) as reader:
        labels, document = reader.labels(url), reader.metadata(url)
        try:
            today = datetime.fromisoformat(str(document["started_at"])).date()
        except (KeyError, ValueError):
            raise damaged(url, "its metadata.json does not say when the run began") from None
        found: list[_Count] = []
        for side in SIDES:
            found += _counts(reader, reader.dataset(url, f"unmatched_{side}"), side, today)
    reasons = sorted({each.reason for each in found})
    return ExceptionFigures(
        dict(labels.names),
        len({each.currency for each in found} - {None}) > 1,
        tuple(
            chart
            for chart in (
                _chart(
                    "Unmatched rows by reason",
                    found,
                    _reasons(reasons),
                    lambda each: reasons.index(each.reason),
                ),
                _chart("Unmatched rows by age", found, _ages(today), lambda each: each.age),
                _chart("Unmatched rows by amount", found, _amounts(), lambda each: each.size),
            )
            if chart.bars
        ),
    )


@dataclass(frozen=True)
class _Count:
    """Rows that are equal in everything that charts distinguish."""

    side: Side
    reason: str
    age: int | None  # the place of its range; nothing without a date
    size: int | None
    currency: str | None
    rows: int
    amount: Decimal | None


def _counts(reader: Reader, dataset: Dataset, side: Side, today: date) -> list[_Count]:
    there = {each.name for each in dataset.columns}
    # Evidence of older formats is without.
    kinds = {"date": "DATE", "amount": "DECIMAL(38, 2)", "currency": "VARCHAR"}
    day, amount, currency = (
        name if name in there else f"NULL::{kind}" for name, kind in kinds.items()
    )
    days = f"(DATE '{today.isoformat()}' - {day})"
    ages = " ".join(
        f"WHEN {days} >= {first} THEN {place}" for place, first in reversed(list(enumerate(_AGES)))
    )
    sizes = " ".join(
        f"WHEN abs({amount}) >= {first} THEN {place}"
        for place, first in reversed(list(enumerate(_AMOUNTS)))
    )
    rows = reader.rows(
        f"SELECT rejection_reason, CASE WHEN {day} IS NULL THEN NULL {ages} ELSE 0 END AS age,"
        f" CASE {sizes} END AS size, {currency} AS currency, count(*), sum(abs({amount}))"
        f" FROM {dataset.relation} GROUP BY ALL"
    )
    return [_Count(side, *row) for row in rows]


def _chart(
    title: str,
    found: Sequence[_Count],
    ranges: Sequence[tuple[str, tuple[str, ...]]],
    place_of: Callable[[_Count], int | None],
) -> Chart:
    bars: dict[str, dict[Side, Bar]] = {}
    for place, (label, filters) in enumerate(ranges):
        for side in SIDES:
            alike = [each for each in found if each.side == side and place_of(each) == place]
            if alike:
                given = [each.amount for each in alike if each.amount is not None]
                bars.setdefault(label, {})[side] = Bar(
                    sum(each.rows for each in alike),
                    sum(given, Decimal(0)) if given else None,
                    f"unmatched_{side}",
                    filters,
                )
    return Chart(title, bars)


def _reasons(reasons: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.replace("_", " "), (f"rejection_reason:eq:{each}",)) for each in reasons]


def _ages(today: date) -> list[tuple[str, tuple[str, ...]]]:
    """A date in the future counts as today."""
    found = []
    bounds = [*_AGES, None]
    for first, after in zip(_AGES, bounds[1:], strict=True):
        filters = []
        if first:
            filters.append(f"date:lte:{today - timedelta(days=first)}")
        if after is not None:
            filters.append(f"date:gt:{today - timedelta(days=after)}")
            label = f"{first} to {after - 1} days"
        else:
            label = f"{first} days and more"
        found.append((label, tuple(filters)))
    return found


def _amounts() -> list[tuple[str, tuple[str, ...]]]:
    found = []
    bounds = [*_AMOUNTS, None]
    for first, after in zip(_AMOUNTS, bounds[1:], strict=True):
        filters = [f"|amount|:gte:{first}"]
        if after is not None:
            filters.append(f"|amount|:lt:{after}")
        label = f"{first:,} and more" if after is None else f"{first:,} to {after:,}"
        found.append((label, tuple(filters)))
    return found
