"""The demo's shape for bench/reconcile.py: text references typed by people, currencies, payments
late, split, short or without a reference, and the demo's own four rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import yaml

from bench.reconcile_data import Pair, write
from kalla.reconcile import demo_data

# Shares of 1,000 invoices, as in the demo: unpaid, in parts, short, twice, late, without a
# reference, typed carelessly. Each ends where the next begins.
_UNPAID, _PARTS, _SHORT, _TWICE, _LATE, _BARE, _CARELESS = 15, 35, 45, 50, 80, 100, 150


def make(folder: Path, rows: int) -> Pair:
    """Invoices and payments as Parquet; the same rows for the same size, always."""
    pair = Pair(rows, folder / f"demo-left-{rows}.parquet", folder / f"demo-right-{rows}.parquet")
    if pair.left.exists() and pair.right.exists():
        return pair
    folder.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as database:
        database.execute(
            f"""
            CREATE TEMP TABLE numbers AS
            SELECT n, hash(n, 'fate') % 1000 AS fate, hash(n, 'part') AS part,
                   'INV-' || lpad((n + 1)::VARCHAR, 9, '0') AS invoice_no,
                   'Customer ' || (hash(n, 'name') % 50000) AS customer,
                   (100 + hash(n, 'amount') % 5000000)::BIGINT AS cents,
                   ['EUR', 'EUR', 'EUR', 'EUR', 'EUR', 'EUR', 'EUR', 'EUR', 'USD', 'GBP']
                       [1 + (hash(n, 'currency') % 10)::INTEGER] AS currency,
                   DATE '2026-01-02' + (hash(n, 'day') % 270)::INTEGER AS due_on,
                   (hash(n, 'paid') % 28)::INTEGER - 20 AS days
            FROM range({rows}) AS r(n)
            """
        )
        amount = "({} * 0.01::DECIMAL(4, 2))::DECIMAL(14, 2) AS amount"
        write(
            database,
            f"SELECT invoice_no, customer, {amount.format('cents')}, currency, due_on"
            " FROM numbers ORDER BY hash(n, 'left')",
            pair.left,
        )
        database.execute(
            f"""
            CREATE TEMP TABLE payments AS
            SELECT n, 0 AS item, fate, invoice_no AS reference, customer, currency,
                   CASE WHEN fate < {_PARTS} THEN cents * (20 + (part % 40)::INTEGER) // 100
                        WHEN fate < {_SHORT} THEN greatest(cents - 750, 50)
                        ELSE cents END AS cents,
                   CASE WHEN fate BETWEEN {_TWICE} AND {_LATE - 1}
                        THEN due_on + 20 + (part % 70)::INTEGER
                        ELSE due_on + days END AS paid_on
            FROM numbers WHERE fate >= {_UNPAID};

            -- The rest of a payment in parts.
            INSERT INTO payments
            SELECT n, 1, fate, invoice_no, customer, currency,
                   cents - cents * (20 + (part % 40)::INTEGER) // 100, due_on + days + 14
            FROM numbers WHERE fate BETWEEN {_UNPAID} AND {_PARTS - 1};

            -- The second payment of what was paid twice.
            INSERT INTO payments
            SELECT n, 1, fate, invoice_no, customer, currency, cents, due_on + days + 1
            FROM numbers WHERE fate BETWEEN {_SHORT} AND {_TWICE - 1};

            -- Money that belongs to no invoice.
            INSERT INTO payments
            SELECT n, 2, 999, 'misc', customer, currency, 1000 + (part % 499000)::BIGINT, due_on
            FROM numbers WHERE hash(n, 'stray') % 1000 < 4;
            """
        )
        write(
            database,
            f"""
            SELECT n * 3 + item AS payment_id,
                   CASE WHEN fate BETWEEN {_LATE} AND {_BARE - 1} THEN NULL
                        WHEN fate BETWEEN {_BARE} AND {_CARELESS - 1}
                        THEN ' ' || lower(reference) || ' ' ELSE reference END AS reference,
                   customer AS payer, {amount.format("cents")}, currency, paid_on
            FROM payments ORDER BY hash(n, item, 'right')
            """,
            pair.right,
        )
    return pair


def recipe(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """The demo's own recipe over other sources."""
    found: dict[str, Any] = yaml.safe_load(demo_data.recipe("", ""))
    for side, source in (("left", left), ("right", right)):
        kept = ("primary_key", "amount", "currency")
        found["sources"][side] = {name: found["sources"][side][name] for name in kept} | source
    return found


# The four rules by hand: pairs in the order of keys, no ambiguity, no explanation, no digest.
_RULES = """
CREATE TEMP TABLE l AS
SELECT *, upper(trim(invoice_no)) AS key, upper(trim(customer)) AS name FROM '{left}';
CREATE TEMP TABLE r AS
SELECT *, upper(trim(reference)) AS key, upper(trim(payer)) AS name FROM '{right}';
CREATE TEMP TABLE matched (rule INTEGER, left_key VARCHAR, right_key BIGINT);
{one_to_one}
INSERT INTO matched
SELECT 3, invoice_no, payment_id
FROM (SELECT * FROM l ANTI JOIN matched ON left_key = invoice_no) l
JOIN (SELECT key, currency, sum(amount) AS total, unnest(list(payment_id)) AS payment_id
      FROM (SELECT * FROM r ANTI JOIN matched ON right_key = payment_id) GROUP BY key, currency) r
USING (key, currency) WHERE abs(l.amount - r.total) <= 0.01;
{by_name}
COPY matched TO '{folder}/matched.parquet';
COPY (SELECT * FROM l ANTI JOIN matched ON left_key = invoice_no)
TO '{folder}/unmatched_left.parquet';
COPY (SELECT * FROM r ANTI JOIN matched ON right_key = payment_id)
TO '{folder}/unmatched_right.parquet';
"""
_PAIRS = """
INSERT INTO matched
SELECT {rule}, invoice_no, min(payment_id)
FROM (SELECT * FROM l ANTI JOIN matched ON left_key = invoice_no) l
JOIN (SELECT * FROM r ANTI JOIN matched ON right_key = payment_id) r USING ({key}, currency)
WHERE abs(r.amount - l.amount) <= {slack} AND r.paid_on - l.due_on BETWEEN -30 AND {days}
GROUP BY invoice_no;
"""


def rules_by_hand(pair: Pair, folder: Path) -> str:
    """The SQL of the DuckDB peer."""
    return _RULES.format(
        left=pair.left,
        right=pair.right,
        folder=folder,
        one_to_one=_PAIRS.format(rule=1, key="key", slack="0.01", days=10)
        + _PAIRS.format(rule=2, key="key", slack="0.01", days=120),
        by_name=_PAIRS.format(rule=4, key="name", slack="0", days=30),
    )
