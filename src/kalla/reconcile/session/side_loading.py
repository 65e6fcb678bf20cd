"""Loads a side into a match: reads its source and counts its problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import duckdb

from kalla.reconcile.recipe.model import Side
from kalla.reconcile.session import currency_sums, duplicate_keys
from kalla.reconcile.session.match_session import MatchSession, key_names
from kalla.reconcile.sources.formats import converted_files
from kalla.reconcile.sources.scanning.scan_sql import reader
from kalla.reconcile.sql import duckdb_errors
from kalla.reconcile.sql.column_values import held, quote

Unreadable = tuple[tuple[str, str, int, tuple[str, ...]], ...]  # column, kind, rows, examples


@dataclass(frozen=True)
class Loaded:
    """The facts of one loaded side."""

    rows: int
    filtered: int
    amount: Decimal | None
    filtered_amount: Decimal | None
    doubled_keys: int  # rows whose key is not unique, or null
    unreadable: Unreadable
    filtered_currencies: Mapping[str, Decimal] = field(default_factory=dict)
    filtered_unreadable: Unreadable = ()
    filtered_unread: int = 0  # rows that filters left out because they could not read them


def load(session: MatchSession, side: Side, *, whole: bool = True) -> Loaded:
    """Loads a side; duplicate keys are checked only if it is `whole`."""
    plan = session.plan.sides[side]
    keys = [f"{value.sql} AS p{place}" for place, value in enumerate(plan.primary_key)]
    columns = [held(name) for name in plan.columns if held(name) not in key_names(plan)]
    columns += map(quote, plan.input.known or ())
    source = f"{reader(plan.input)} {f'WHERE {plan.filters}' if plan.filters else ''}"
    try:
        session.read(side, f"SELECT {', '.join(keys + columns)} FROM {source}")
    except duckdb.Error as error:
        files, skipped = converted_files.originals(plan.input), plan.input.csv.skip
        raise duckdb_errors.of_reading(error, f"the {side} source", files, skipped) from None
    loaded = count(session, side)
    if whole:
        loaded = replace(loaded, doubled_keys=duplicate_keys.number(session, plan, source))
    return loaded


def count(session: MatchSession, side: Side) -> Loaded:
    """The facts of a side's rows, without duplicate keys."""
    plan = session.plan.sides[side]
    amount = f"sum({plan.amount.sql})" if plan.amount else "NULL"
    filtered, filtered_amount, unread, by_currency = 0, None, 0, currency_sums.Sums()
    left_unreadable: Unreadable = ()
    if plan.filters:
        left_out = f"{reader(plan.input)} WHERE NOT ({plan.filters})"
        in_doubt = f"count(*) FILTER (WHERE {plan.lenient or 'false'})"
        filtered, filtered_amount, unread = session.row(
            f"SELECT count(*), {amount}, {in_doubt} FROM {left_out}"
        )
        by_currency = currency_sums.of_rows(session, side, left_out)
        if filtered:
            left_unreadable = _unreadable(session, plan.unread, left_out)
    if session.has_table(side):
        rows, total = session.row(f"SELECT count(*), {amount} FROM {side}_rows")
    else:
        ((rows, total),) = session.tallies(side).values()
    unreadable: Unreadable = ()
    if plan.unreadable:  # else rows that are in hand need no table
        unreadable = _unreadable(session, plan.unreadable, f"{session.all_rows(side)} WHERE true")
    return Loaded(
        rows, filtered, total, filtered_amount, 0, unreadable, by_currency, left_unreadable, unread
    )


def _unreadable(
    session: MatchSession, readings: Sequence[tuple[str, str, str, str]], rows: str
) -> Unreadable:
    """Of some rows: a table, and which of it."""
    found = []
    for name, kind, text, failing in readings:
        bad = f"FROM {rows} AND ({failing})"
        (count,) = session.row(f"SELECT count(*) {bad}")
        if count:
            shown = f"CAST({text} AS VARCHAR)"
            examples = session.rows(f"SELECT DISTINCT {shown} {bad} ORDER BY 1 LIMIT 3")
            found.append((name, kind, count, tuple(example for (example,) in examples)))
    return tuple(found)
