"""Tolerance, date window, parts and currency, by the differences between rows that a key joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kalla.reconcile.propose.key_agreement import AmountPair, Sample
from kalla.reconcile.recipe.model import SIDES, Filter, Side

_ABSOLUTE = ("0", "0.01", "0.02", "0.05", "0.1", "0.5", "1", "2", "5", "10")
_PERCENT = ("0.1", "0.25", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4", "5", "7.5", "10")
_DAYS = (0, 1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 120)
_COVERED = 0.98  # of what the widest tolerance would cover
_ONE_WAY = 0.99
_LEAST_GROUPS = 3
_MARKS = 8  # values of a column that marks debit and credit
_MARKED = 0.98
_PARTS_FIT = 0.3  # of the groups of several rows


@dataclass(frozen=True)
class ToleranceFound:
    """Options of a tolerance, and what they cover."""

    options: dict[str, str]
    covered: int
    pairs: int
    largest: Decimal | None  # difference within it


@dataclass(frozen=True)
class WindowFound:
    left: str
    right: str
    before: int
    after: int
    earliest: int  # days that the right date was seen before (negative) or after the left one
    latest: int
    pairs: int


@dataclass(frozen=True)
class SignMark:
    """A column that tells the rows of two pairs of amounts apart, by a filter for each."""

    side: Side
    first: Filter
    second: Filter


@dataclass(frozen=True)
class PartsFound:
    """Groups of one row against several, and how many of them have the same sum."""

    groups: int
    fitting: int

    @property
    def are_there(self) -> bool:
        return self.fitting >= _LEAST_GROUPS and self.fitting >= _PARTS_FIT * self.groups


def tolerance(sample: Sample, pair: AmountPair) -> ToleranceFound:
    """The smallest tolerance that covers nearly all amounts that could be the same."""
    left, right = sample.values(pair)
    gap = f"({right} - {left})"
    asked = [f"count(*) FILTER (abs{gap} <= {bound})" for bound in _ABSOLUTE]
    asked += [f"count(*) FILTER (abs{gap} * 100 <= abs({left}) * {bound})" for bound in _PERCENT]
    asked += [f"count(*) FILTER ({gap} < 0)", f"count(*) FILTER ({gap} > 0)", "count(*)"]
    rows = f"FROM key_groups WHERE (left_rows = 1 OR right_rows = 1) AND {sample.is_near(pair)}"
    *covers, below, above, pairs = _row(sample, f"SELECT {', '.join(asked)} {rows}")
    absolute = dict(zip(_ABSOLUTE, covers, strict=False))
    percent = dict(zip(_PERCENT, covers[len(_ABSOLUTE) :], strict=True))
    if not pairs:
        return ToleranceFound({"absolute": "0.01"}, 0, 0, None)
    small = next((bound for bound in _ABSOLUTE if absolute[bound] >= _COVERED * pairs), None)
    relative = next((bound for bound in _PERCENT if percent[bound] >= _COVERED * pairs), None)
    exact = absolute["0"]
    if exact * 10 >= 9 * pairs and (small is None or Decimal(small) > Decimal("0.05")):
        small = "0.01" if absolute["0.01"] > exact else "0"  # few differ, without a pattern
    if small is not None and (relative is None or Decimal(small) <= 1):
        found, covered = {"absolute": small}, absolute[small]
    elif relative is not None:
        covered = percent[relative]
        found = {"percent": relative}
        if below >= _ONE_WAY * (below + above):
            found = {"below_percent": relative, "above": "0"}
        elif above >= _ONE_WAY * (below + above):
            found = {"above_percent": relative, "below": "0"}
    else:
        found, covered = {"absolute": "0.01"}, absolute["0.01"]
    (largest,) = _row(sample, f"SELECT max(abs{gap}) {rows}")
    return ToleranceFound(found, covered, pairs, largest)


def window(sample: Sample, pairs: Sequence[AmountPair]) -> WindowFound | None:
    """The date columns with the smallest distance in joined rows, and the date window."""
    agrees = " OR ".join(sample.is_near(pair) for pair in pairs) or "true"
    best: tuple[tuple[int, ...], WindowFound] | None = None
    for own, left_name in enumerate(sample.dates[0]):
        for other, right_name in enumerate(sample.dates[1]):
            gap = f"date_diff('day', l.d{own}, r.d{other})"
            joined, low, first, last, high = _row(
                sample,
                f"""
                SELECT count({gap}), min({gap}), quantile_disc({gap}, 0.02),
                       quantile_disc({gap}, 0.98), max({gap})
                FROM key_groups g JOIN left_keyed l ON l.k = g.k JOIN right_keyed r ON r.k = g.k
                WHERE (left_rows = 1 OR right_rows = 1) AND left_rows * right_rows <= 100
                  AND ({agrees})
                """,
            )
            if not joined or high - low > _DAYS[-1]:
                continue
            before, after = _nice(-low), _nice(high)
            found = WindowFound(left_name, right_name, before, after, low, high, joined)
            order = (last - first, high - low, abs(low) + abs(high), own, other)
            if best is None or order < best[0]:
                best = order, found
    return best[1] if best else None


def parts(
    sample: Sample, pair: AmountPair, allowed: ToleranceFound
) -> tuple[PartsFound, PartsFound]:
    """Groups of one left row and several right rows, and the reverse."""
    left, right = sample.values(pair)
    gap = f"abs({right} - {left})"
    bound = next(iter(allowed.options.values()))
    fits = f"{gap} <= {bound}"
    if not any(name in allowed.options for name in ("absolute",)):
        percent = max(Decimal(value) for value in allowed.options.values())
        fits = f"{gap} * 100 <= abs({left}) * {percent}"
    found = _row(
        sample,
        f"""
        SELECT count(*) FILTER (left_rows = 1 AND right_rows > 1),
               count(*) FILTER (left_rows = 1 AND right_rows > 1 AND {fits}),
               count(*) FILTER (left_rows > 1 AND right_rows = 1),
               count(*) FILTER (left_rows > 1 AND right_rows = 1 AND {fits})
        FROM key_groups
        """,
    )
    return PartsFound(found[0], found[1]), PartsFound(found[2], found[3])


def sign_mark(sample: Sample, pairs: Sequence[AmountPair]) -> SignMark | None:
    """The column of few values that says which of two pairs agrees, such as S and H for debit and
    credit."""
    first, second = (sample.is_near(pair) for pair in pairs)
    best: tuple[int, SignMark] | None = None
    for side, table, facts in zip(SIDES, sample.tables, sample.facts, strict=True):
        for column in facts:
            if column.type != "text" or not 1 <= column.distinct <= _MARKS:
                continue
            found = sample.connection.execute(
                f"""
                SELECT value, count(*) FILTER ({first}), count(*) FILTER ({second})
                FROM key_groups g JOIN {side}_keyed s ON s.k = g.k
                JOIN (SELECT rid, {table.text(column.name)} AS value FROM {table.name}) USING (rid)
                WHERE left_rows = 1 AND right_rows = 1 AND ({first} OR {second})
                GROUP BY value ORDER BY value
                """
            ).fetchall()
            groups = [
                [row for row in found if (row[2] > row[1]) is turned] for turned in (False, True)
            ]
            wrong = sum(min(row[1:]) for row in found)
            total = sum(sum(row[1:]) for row in found)
            if not all(groups) or wrong > (1 - _MARKED) * total:
                continue
            same, other = (_filter(column.name, [row[0] for row in group]) for group in groups)
            if same and other and (best is None or wrong < best[0]):
                best = wrong, SignMark(side, same, other)
    return best[1] if best else None


def _filter(column: str, values: Sequence[str | None]) -> Filter | None:
    """The filter for these values; none if they are empty in some rows only."""
    texts = [value for value in values if value is not None]
    if not texts:
        return Filter(column=column, op="is_null")
    if len(texts) < len(values):
        return None
    if len(texts) == 1:
        return Filter(column=column, op="eq", value=texts[0])
    return Filter(column=column, op="in", value=tuple(texts))


def agreeing(sample: Sample, left: str, right: str, columns: tuple[str, str]) -> float:
    """The share of rows joined one to one in which two texts are the same but for their case."""
    values = [
        f"upper({table.text(name)})" for table, name in zip(sample.tables, columns, strict=True)
    ]
    rows = [
        f"(SELECT rid, {value} AS value FROM {table.name})"
        for table, value in zip(sample.tables, values, strict=True)
    ]
    same, both = _row(
        sample,
        f"""
        SELECT count(*) FILTER (a.value = b.value), count(a.value || b.value)
        FROM key_groups g JOIN {left}_keyed l ON l.k = g.k JOIN {right}_keyed r ON r.k = g.k
        JOIN {rows[0]} a ON a.rid = l.rid JOIN {rows[1]} b ON b.rid = r.rid
        WHERE left_rows = 1 AND right_rows = 1
        """,
    )
    return same / both if both else 0.0


def _nice(days: int) -> int:
    return next((bound for bound in _DAYS if bound >= days), max(days, 0)) if days > 0 else 0


def _row(sample: Sample, sql: str) -> Sequence[Any]:
    return sample.connection.execute(sql).fetchone() or ()
