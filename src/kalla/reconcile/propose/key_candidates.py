"""Finds columns of two tables that hold the same references, and the derivations they need, by
their values.

Large tables are compared by a sample of the rows of each: of a row in one sample, the partner is in
the other one as often as any row is. The few best candidates are then looked at by whole groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from kalla.reconcile.propose.column_roles import ColumnFacts
from kalla.reconcile.propose.reference_patterns import Pattern, learn
from kalla.reconcile.propose.side_tables import SideTable
from kalla.reconcile.recipe.model import DatePart, Derivation, Regex
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Columns, held

_MOST_COLUMNS = 12  # of each side that are compared
_LEARNED = 2_000  # values that a pattern is learned from
_LEAST_SHARED = 3
_UNPADDED = Regex(regex="^0*(.+)$")


@dataclass(frozen=True)
class Form:
    """A column after derivations, under the name that both sides of a comparison share."""

    column: str
    name: str
    derivations: tuple[Derivation, ...]
    simplicity: int  # smaller is simpler
    is_date: bool = False  # compared as a day


@dataclass(frozen=True)
class KeyCandidate:
    """A column of each side whose values overlap, and by how much."""

    left: Form
    right: Form
    shared_values: int
    left_share: float  # of the left rows: those whose value the other side has
    right_share: float
    uniqueness: float  # 1 if each shared value is of one row on one side at least
    pairable: float  # rows of the shorter side that could each have one of the other

    @property
    def score(self) -> float:
        return self.pairable * self.uniqueness

    @property
    def order(self) -> tuple[float, int, str, str]:
        simple = self.left.simplicity + self.right.simplicity
        return -round(self.score, 3), simple, self.left.column, self.right.column


def candidates(
    connection: duckdb.DuckDBPyConnection,
    tables: tuple[SideTable, SideTable],
    facts: tuple[list[ColumnFacts], list[ColumnFacts]],
) -> list[KeyCandidate]:
    """Every pair of columns that share values, the best first."""
    forms = _forms(connection, tables, facts)
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE value_sample"
        " (side INTEGER, form INTEGER, name VARCHAR, value VARCHAR, rows BIGINT)"
    )
    shares = tuple(table.share for table in tables)
    for side, (table, own) in enumerate(zip(tables, forms, strict=True)):
        for number, form in enumerate(own):
            rows, (value,) = with_derived(table.sample, table, [form])
            connection.execute(
                f"INSERT INTO value_sample SELECT {side}, {number}, ?, value, count(*)"
                f" FROM (SELECT {value} AS value FROM {rows})"
                " WHERE value IS NOT NULL GROUP BY value",
                [form.name],
            )
    found = connection.execute(
        """
        SELECT l.form, r.form, count(*), sum(l.rows), sum(r.rows), sum(least(l.rows, r.rows))
        FROM value_sample l JOIN value_sample r
          ON l.side = 0 AND r.side = 1 AND l.name = r.name AND l.value = r.value
        GROUP BY l.form, r.form ORDER BY l.form, r.form
        """
    ).fetchall()
    kept = [
        _candidate(forms[0][left], forms[1][right], numbers, tables, shares)
        for left, right, *numbers in found
        if numbers[0] >= min(_LEAST_SHARED, *(table.rows for table in tables))
    ]
    return sorted(_simplest(kept), key=lambda each: each.order)


def with_derived(rows: str, table: SideTable, forms: Sequence[Form]) -> tuple[str, list[str]]:
    """Rows with these forms as further columns, and an expression for each, null where it is empty.

    Each derivation is a step of its own: nested in one expression, what they read would be computed
    many times.
    """
    values = []
    for number, form in enumerate(forms):
        name = f"\x1fform {number}"
        own = Columns({name: "VARCHAR"})
        # A part of a date is read from the date, not from its text.
        is_stepwise = not any(isinstance(each, DatePart) for each in form.derivations)
        if form.is_date:
            first = f"CAST({table.day(form.column)} AS VARCHAR)"
        else:
            at_once = () if is_stepwise else form.derivations
            value = column_values.value(table.columns, form.column, at_once)
            first = column_values.as_text(value).sql
        rows = f"(SELECT *, {first} AS {held(name)} FROM {rows})"
        for each in form.derivations if is_stepwise else ():
            step = column_values.value(own, name, (each,)).sql
            rows = f"(SELECT * REPLACE ({step} AS {held(name)}) FROM {rows})"
        values.append(f"nullif({held(name)}, '')")
    return rows, values


def _candidate(
    own: Form,
    other: Form,
    numbers: Sequence[Any],
    tables: tuple[SideTable, SideTable],
    shares: tuple[int, ...],
) -> KeyCandidate:
    values, left_rows, right_rows, least = (int(number) for number in numbers)
    left, right = (max(1, table.rows // share) for table, share in zip(tables, shares, strict=True))
    return KeyCandidate(
        own,
        other,
        values * max(shares),
        min(1.0, left_rows * shares[1] / left),
        min(1.0, right_rows * shares[0] / right),
        values / least,
        min(1.0, least * max(shares) / min(left, right)),
    )


def _simplest(found: Sequence[KeyCandidate]) -> Iterator[KeyCandidate]:
    """The simplest way to compare two columns that loses almost nothing."""
    pairs: dict[tuple[str, str], list[KeyCandidate]] = {}
    for each in found:
        pairs.setdefault((each.left.column, each.right.column), []).append(each)
    for group in pairs.values():
        best = max(each.score for each in group)
        near = [each for each in group if each.score >= best - 0.005]
        yield min(near, key=lambda each: (each.left.simplicity + each.right.simplicity, each.order))


def _forms(
    connection: duckdb.DuckDBPyConnection,
    tables: tuple[SideTable, SideTable],
    facts: tuple[list[ColumnFacts], list[ColumnFacts]],
) -> tuple[list[Form], list[Form]]:
    """All forms in which each column of each side could be compared."""
    columns = tuple(_comparable(own) for own in facts)
    forms: tuple[list[Form], list[Form]] = ([], [])
    for own, compared in zip(forms, columns, strict=True):
        for each in compared:
            own += _plain_forms(each)
    for side, other in ((0, 1), (1, 0)):
        texts = [each for each in columns[other] if each.type == "text" and each.length > 5]
        for each in columns[side]:
            if each.role == "text" or each.type not in ("text", "integer") or not texts:
                continue
            for number, pattern in enumerate(_patterns(connection, tables[side], each)):
                name = f"pattern {side} {each.name} {number}"
                forms[side].append(_reference(each.name, name, pattern))
                forms[other].extend(_extracted(text.name, name, pattern) for text in texts)
    return forms


def _comparable(facts: Sequence[ColumnFacts]) -> list[ColumnFacts]:
    """Columns that may be a key: no amounts with cents, dates or currencies, nor a single value."""
    kept = [
        each
        for each in facts
        if each.role in ("code", "integer", "text") and each.distinct > 1 and each.given > 0
    ]
    best = sorted(kept, key=lambda each: (-each.distinct, each.name))[:_MOST_COLUMNS]
    return [each for each in facts if each in best]


def _plain_forms(column: ColumnFacts) -> Iterator[Form]:
    yield Form(column.name, "as it is", (), 0)
    if column.type != "text":
        yield Form(column.name, "in capitals", (), 1)
        yield Form(column.name, "unpadded", (), 2)
        return
    yield Form(column.name, "in capitals", ("trim", "upper"), 1)
    yield Form(column.name, "unpadded", ("trim", "upper", _UNPADDED), 2)
    if column.length < 40:
        yield Form(column.name, "digits", ("digits", _UNPADDED), 3)


def _patterns(
    connection: duckdb.DuckDBPyConnection, table: SideTable, column: ColumnFacts
) -> list[Pattern]:
    text = table.text(column.name)
    found = connection.execute(
        f"SELECT value FROM (SELECT DISTINCT {text} AS value FROM {table.sample})"
        f" WHERE value IS NOT NULL ORDER BY hash(value), value LIMIT {_LEARNED}"
    )
    return learn([row[0] for row in found.fetchall()])


def _reference(column: str, name: str, pattern: Pattern) -> Form:
    derivations: tuple[Derivation, ...] = ("digits",) if pattern.is_loose else ("trim", "upper")
    return Form(column, name, derivations, 5 if pattern.is_loose else 3)


def _extracted(column: str, name: str, pattern: Pattern) -> Form:
    found: tuple[Derivation, ...] = ("upper", Regex(regex=pattern.expression))
    return Form(column, name, (*found, "digits") if pattern.is_loose else found, 2)
