"""Made-up invoices and payments for bench/reconcile.py: the same rows for the same size, always."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

SLACK = "0.01"
DAYS = 30

# Of 1,000 invoices: payments missing, short (out of tolerance), a cent off (within it), and late.
_MISSING, _SHORT, _CENT, _LATE = 15, 15, 20, 5
# Payments that belong to no invoice, as a share of 1,000 invoices.
_STRAY = 15


@dataclass(frozen=True)
class Pair:
    """A Parquet file a side."""

    rows: int
    left: Path
    right: Path


def make(folder: Path, rows: int) -> Pair:
    """About 96 of 100 rows match one to one; neither side is in the order of the other."""
    pair = Pair(rows, folder / f"invoices-{rows}.parquet", folder / f"payments-{rows}.parquet")
    if pair.left.exists() and pair.right.exists():
        return pair
    folder.mkdir(parents=True, exist_ok=True)
    missing, short, cent, late = (_MISSING, _MISSING + _SHORT, _MISSING + _SHORT + _CENT,
                                  _MISSING + _SHORT + _CENT + _LATE)  # fmt: skip
    with duckdb.connect() as database:
        # Amounts, dates and fates all come from hashes of the number: no seed, no order.
        database.execute(
            f"CREATE TEMP TABLE numbers AS SELECT n, hash(n, 'fate') % 1000 AS fate,"
            f" (100 + hash(n, 'amount') % 50000000)::BIGINT AS cents,"
            f" DATE '2026-01-01' + (hash(n, 'day') % 365)::INTEGER AS day"
            f" FROM range({rows + rows * _STRAY // 1000}) AS r(n)"
        )
        write(
            database,
            f"SELECT n AS id, 'INV-' || lpad(n::VARCHAR, 9, '0') AS reference,"
            " (cents::DECIMAL(18, 0) * 0.01::DECIMAL(18, 2))::DECIMAL(18, 2) AS amount,"
            " day AS due_on, 'Customer ' || (hash(n, 'name') % 20000) AS customer"
            f" FROM numbers WHERE n < {rows} ORDER BY hash(n, 'left')",
            pair.left,
        )
        write(
            database,
            "SELECT 1000000000 + (n * 7 + 3) AS id, n AS invoice,"
            " 'INV-' || lpad(n::VARCHAR, 9, '0') AS reference,"
            f" ((cents - CASE WHEN fate < {missing} THEN 0 WHEN fate < {short}"
            f" THEN 2 + hash(n, 'short') % 90 WHEN fate < {cent} THEN 1 ELSE 0 END)"
            " ::DECIMAL(18, 0) * 0.01::DECIMAL(18, 2))::DECIMAL(18, 2) AS amount,"
            f" day + CASE WHEN fate BETWEEN {cent} AND {late - 1}"
            f" THEN 31 + (hash(n, 'late') % 60)::INTEGER"
            " ELSE (hash(n, 'paid') % 28)::INTEGER END AS paid_on,"
            " 'Payment from customer ' || (hash(n, 'name') % 20000) AS memo"
            f" FROM numbers WHERE n >= {rows} OR fate >= {missing} ORDER BY hash(n, 'right')",
            pair.right,
        )
    return pair


def recipe(left: dict[str, Any], right: dict[str, Any], key: str = "number") -> dict[str, Any]:
    """By invoice, within a cent and a month. The key is a number, or the same as text."""
    names = {"number": ("id", "invoice"), "text": ("reference", "reference")}[key]
    side = {"primary_key": ["id"], "amount": "amount"}
    return {
        "name": "invoices and payments",
        "sources": {"left": side | left, "right": side | right},
        "rules": [
            {
                "name": "paid in full",
                "conditions": [
                    {"left": names[0], "op": "eq", "right": names[1]},
                    {"left": "amount", "op": "tolerance", "right": "amount", "absolute": SLACK},
                    {"left": "due_on", "op": "date_window", "right": "paid_on", "days": DAYS},
                ],
            }
        ],
    }


def write(database: duckdb.DuckDBPyConnection, rows: str, path: Path) -> None:
    """A query's rows as a Parquet file that is there whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    database.execute(f"COPY ({rows}) TO '{unfinished}' (FORMAT parquet, ROW_GROUP_SIZE 200000)")
    unfinished.rename(path)
