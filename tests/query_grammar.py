"""Random queries for dynamic tables, and random changes of the tables that they read.

Every query here has a deterministic result: no floats are added, and windows have a total order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("day", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("quantity", pa.int32()),
        ("score", pa.float64()),
    ]
)
CUSTOMERS = pa.schema([("customer", pa.string()), ("region", pa.string()), ("level", pa.int32())])
_CUSTOMERS = ["ann", "bob", "cy", "dee", None]
_DAYS = ["mon", "tue", "wed", None]
_REGIONS = ["north", "south", None]


@dataclass
class Query:
    sql: str
    columns: list[tuple[str, str]] = field(default_factory=list)  # name, kind


_SPECIAL = (
    Query(
        "SELECT a.customer AS k, count(*) AS n FROM orders a JOIN orders b ON a.id = b.id"
        " GROUP BY a.customer",
        [("k", "text"), ("n", "number")],
    ),
    Query(
        "SELECT c.region AS k, count(d.region) AS n FROM orders o"
        " LEFT JOIN customers c ON o.customer = c.customer"
        " LEFT JOIN customers d ON c.region = d.region GROUP BY c.region",
        [("k", "text"), ("n", "number")],
    ),
    Query(
        "SELECT k, sum(n) AS n FROM (SELECT customer AS k, quantity AS n FROM orders UNION ALL"
        " SELECT customer, level FROM customers) u GROUP BY k",
        [("k", "text"), ("n", "number")],
    ),
)


class Grammar:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def query(self, upstream: Query | None = None) -> Query:
        """Over orders and customers, or over another query's result `first`."""
        if upstream is not None:
            return self._over(upstream)
        pick = self._random.choice
        shape = pick(["rows", "distinct", "grouped", "grouped", "grouped", "window", "union"])
        if self._random.random() < 0.15:
            return self._random.choice(_SPECIAL)
        if shape == "union":
            keys = "o.customer AS k, count(*) AS n"
            return Query(
                f"SELECT {keys} FROM {self._from_orders()}{self._where()} GROUP BY o.customer"
                f" UNION{pick([' ALL', ' ALL', ''])} SELECT c.customer AS k, 1 AS n"
                f" FROM customers c{pick(['', ' WHERE c.level > 1'])}",
                [("k", "text"), ("n", "number")],
            )
        source, joined = self._joined()
        where = self._where()
        texts = ["o.customer", "o.day", "upper(o.day)"] + (["c.region"] if joined else [])
        numbers = ["o.quantity", "o.id", "o.amount"] + (["c.level"] if joined else [])
        if shape in ("rows", "distinct"):
            chosen = [(pick(texts), "text"), (pick(numbers), "number")]
            if self._random.random() < 0.2:
                chosen.append(("o.score", "float"))
            columns = [(f"c{n}", kind) for n, (_, kind) in enumerate(chosen)]
            outputs = ", ".join(f"{sql} AS c{n}" for n, (sql, _) in enumerate(chosen))
            distinct = "DISTINCT " if shape == "distinct" else ""
            return Query(f"SELECT {distinct}{outputs} FROM {source}{where}", columns)
        if shape == "window":
            key = pick(texts)
            call = pick(["row_number()", f"sum({pick(numbers)})", "rank()"])
            order = "o.id, o.customer, o.day, o.amount, o.quantity" + (
                ", c.region, c.level" if joined else ""
            )
            return Query(
                f"SELECT {key} AS k, o.id AS i,"
                f" count(*) OVER (PARTITION BY {key}) AS n FROM {source}{where}"
                if pick([True, False])
                else f"SELECT {key} AS k, o.id AS i, {call} OVER (PARTITION BY {key}"
                f" ORDER BY {order}) AS n FROM {source}{where}",
                [("k", "text"), ("i", "number"), ("n", "number")],
            )
        group = sorted({pick(texts) for _ in range(pick([1, 1, 2]))})
        calls = ["count(*)", f"count({pick(numbers)})", f"sum({pick(numbers)})",
                 f"avg({pick(numbers)})", f"min({pick(numbers)})", f"max({pick(texts)})",
                 f"count(DISTINCT {pick(numbers)})", f"sum({pick(numbers)}) + 1"]  # fmt: skip
        # Mostly what DELTA keeps.
        weights = [4, 4, 4, 4, 3, 3, 1, 1]
        chosen_calls = self._random.choices(calls, weights, k=pick([1, 2, 3]))
        kept = group[:1] if self._random.random() < 0.1 else group
        outputs = ", ".join(
            [f"{sql} AS k{n}" for n, sql in enumerate(kept)]
            + [f"{sql} AS a{n}" for n, sql in enumerate(chosen_calls)]
        )
        having = " HAVING count(*) > 1" if self._random.random() < 0.15 else ""
        columns = [(f"k{n}", "text") for n in range(len(kept))]
        columns += [
            (f"a{n}", "text" if sql.startswith("max") else "measure")
            for n, sql in enumerate(chosen_calls)
        ]
        sql = f"SELECT {outputs} FROM {source}{where} GROUP BY {', '.join(group)}{having}"
        if self._random.random() < 0.15:
            names = ", ".join(name for name, _ in columns)
            sql = f"WITH w AS ({sql}) SELECT {names} FROM w"
        return Query(sql, columns)

    def _over(self, first: Query) -> Query:
        texts = [name for name, kind in first.columns if kind == "text"]
        numbers = [name for name, kind in first.columns if kind == "number"]
        pick = self._random.choice
        key = pick(texts or numbers or [first.columns[0][0]])
        calls = ["count(*) AS n"] + [f"sum(f.{name}) AS s_{name}" for name in numbers]
        if pick([True, False]):
            return Query(f"SELECT f.{key} AS k, {', '.join(calls)} FROM first f GROUP BY f.{key}")
        return Query(
            f"SELECT f.{key} AS k, c.region AS r FROM first f"
            f" {pick(['LEFT JOIN', 'JOIN'])} customers c ON f.{key} = c.customer"
        )

    def _from_orders(self) -> str:
        pick = self._random.choice
        return pick(
            [
                "orders o",
                "orders o",
                "orders o",
                "(SELECT * FROM orders WHERE quantity > 1) o",
                "(SELECT DISTINCT id, customer, day, amount, quantity, score FROM orders) o",
                (
                    "(SELECT * FROM orders WHERE id < 4 UNION ALL"
                    " SELECT * FROM orders WHERE id >= 3) o"
                ),
            ]
        )

    def _joined(self) -> tuple[str, bool]:
        orders = self._from_orders()
        customers = self._random.choice(
            [
                "customers c",
                "customers c",
                (
                    "(SELECT customer, max(region) AS region, count(*) AS level FROM customers"
                    " GROUP BY customer) c"
                ),
            ]
        )
        how = self._random.choice(["", "JOIN", "LEFT JOIN", "RIGHT JOIN", "JOIN"])
        if not how:
            return orders, False
        return f"{orders} {how} {customers} ON o.customer = c.customer", True

    def _where(self) -> str:
        return self._random.choice(
            [
                "",
                "",
                "",
                " WHERE o.quantity > 1",
                " WHERE o.day IS NULL OR o.day <> 'tue'",
                (
                    " WHERE EXISTS (SELECT 1 FROM customers x WHERE x.customer = o.customer"
                    " AND x.level > 1)"
                ),
                " WHERE NOT EXISTS (SELECT 1 FROM customers x WHERE x.region = o.day)",
                " WHERE o.customer IN (SELECT customer FROM customers WHERE level > 0)",
                " WHERE o.day IN (SELECT day FROM orders GROUP BY day HAVING count(*) > 1)",
            ]
        )


class Data:
    """Orders and customers as Delta tables, with NULLs, duplicates and moves between keys."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._random = random.Random(seed)
        for name, schema in (("orders", ORDERS), ("customers", CUSTOMERS)):
            feed = {"delta.enableChangeDataFeed": "true"} if self._random.random() < 0.7 else {}
            rows = [self._row(name) for _ in range(self._random.choice([0, 6, 12]))]
            write_deltalake(folder / name, _table(rows, schema), configuration=feed)

    def change(self) -> None:
        """One to three commits, on one table or on both."""
        for _ in range(self._random.choice([1, 2, 3])):
            name = self._random.choice(["orders", "orders", "customers"])
            schema = ORDERS if name == "orders" else CUSTOMERS
            table = DeltaTable(self.folder / name)
            act = self._random.choice(["append", "append", "delete", "update", "copies", "all"])
            key = self._random.choice(["customer = 'ann'", "customer IS NULL", "customer = 'bob'"])
            if act == "append":
                rows = [self._row(name) for _ in range(self._random.choice([1, 2, 4]))]
                write_deltalake(table, _table(rows, schema), mode="append")
            elif act == "copies":
                rows = [self._row(name)] * 2
                write_deltalake(table, _table(rows, schema), mode="append")
            elif act == "delete":
                table.delete(key)
            elif act == "update":
                # A move from one key to another.
                table.update(updates={"customer": "'cy'"}, predicate=key)
            else:
                rows = [self._row(name) for _ in range(self._random.choice([0, 3]))]
                write_deltalake(table, _table(rows, schema), mode="overwrite")

    def _row(self, name: str) -> dict[str, Any]:
        pick = self._random.choice
        if name == "customers":
            return {
                "customer": pick(_CUSTOMERS),
                "region": pick([*_REGIONS, "mon"]),
                "level": pick([0, 1, 2, None]),
            }
        return {
            "id": pick([1, 2, 3, 4, 5]),
            "customer": pick(_CUSTOMERS),
            "day": pick(_DAYS),
            "amount": pick([Decimal("1.00"), Decimal("-2.55"), Decimal("0.01"), None]),
            "quantity": pick([1, 2, 3, None]),
            "score": pick([0.1, 0.2, None]),
        }


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)
