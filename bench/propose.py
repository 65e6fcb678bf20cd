"""Profile and propose for two large files: a CSV of payments whose reference is in a free text, and
a Parquet of invoices. `python -m bench.propose [ROWS]`; 5 million a side unless said.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from kalla.reconcile.propose.profile import profile
from kalla.reconcile.propose.proposal import propose
from kalla.reconcile.recipe.model import Source

ROWS = 5_000_000


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as folder:
        left, right = make(Path(folder), rows)
        began = time.monotonic()
        for each in (left, right):
            profile(each)
        profiled = time.monotonic() - began
        found = propose(left, right, progress=lambda stage: print(stage, file=sys.stderr))
        figures = {
            "name": "propose",
            "rows_a_side": rows,
            "profile_seconds": round(profiled, 2),
            "propose_seconds": found.seconds,
            "match_rate": round(found.trial.match_rate, 4),
            "ours": round(profiled + found.seconds, 2),
            "unit": "s",
            "goal": 30,
        }
        print(json.dumps(figures))


def make(folder: Path, rows: int) -> tuple[Source, Source]:
    """Invoices, of which 95 % are paid; some with another amount, all within two weeks."""
    with duckdb.connect() as connection:
        connection.execute("SELECT setseed(0.5)")
        amount = "CAST((i * 7919 % 9000000) / 100.0 + 1{} AS DECIMAL(12, 2)) AS amount"
        number = "format('{:08d}', i)"
        day = "DATE '2026-01-01' + CAST({} AS INTEGER)"
        connection.execute(
            f"""
            COPY (SELECT 'INV-' || {number} AS invoice_no, 'Customer ' || i % 50000 AS customer,
                         {amount.format("")}, 'EUR' AS currency, {day.format("i % 90")} AS due_on
                  FROM range({rows}) t(i)) TO '{folder}/invoices.parquet' (FORMAT parquet);
            COPY (SELECT i AS payment_id, 'Payment for inv-' || {number} || ' thanks' AS text,
                         {amount.format(" + CASE WHEN i % 100 = 3 THEN 5 ELSE 0 END")},
                         'EUR' AS currency,
                         strftime({day.format("i % 90 + i % 14")}, '%d.%m.%Y') AS paid
                  FROM range({rows}) t(i) WHERE i % 20 <> 7) TO '{folder}/payments.csv' (HEADER)
            """
        )
    return (
        Source(uri=f"{folder}/invoices.parquet", primary_key=("?",)),
        Source(uri=f"{folder}/payments.csv", primary_key=("?",)),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
