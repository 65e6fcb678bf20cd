"""A small shop for `kalla tables demo`: two Delta sources that change, three tables deep."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

_PRODUCTS = (("tea", "drinks"), ("coffee", "drinks"), ("bread", "food"), ("soap", "home"))
_FEED = {"delta.enableChangeDataFeed": "true"}

TABLES = ("demo_lines", "demo_sales", "demo_best")


class Shop:
    """Orders that arrive and are cancelled, products that move between categories."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self._folder = folder
        self._random = random.Random(seed)  # noqa: S311 -- made-up orders
        self._orders = 0

    def open(self) -> None:
        """Writes both sources from the beginning."""
        from deltalake import write_deltalake

        write_deltalake(
            self._folder / "products",
            pa.table(dict(zip(("product", "category"), zip(*_PRODUCTS, strict=True), strict=True))),
            mode="overwrite",
            configuration=_FEED,
        )
        write_deltalake(
            self._folder / "orders", self._some(1000), mode="overwrite", configuration=_FEED
        )

    def change(self) -> str:
        """Makes one live change; returns its description."""
        from deltalake import DeltaTable, write_deltalake

        orders = self._folder / "orders"
        if self._random.random() < 0.3:
            order = self._random.randint(1, self._orders)
            DeltaTable(orders).delete(f"id = {order}")
            return f"order {order} is cancelled"
        new = self._random.randint(1, 20)
        write_deltalake(orders, self._some(new), mode="append")
        return f"{new} new orders"

    def statements(self) -> str:
        return f"""
CREATE OR REPLACE SOURCE demo_orders LOCATION '{self._folder}/orders' FORMAT DELTA;
CREATE OR REPLACE SOURCE demo_products LOCATION '{self._folder}/products' FORMAT DELTA;
CREATE OR REPLACE DYNAMIC TABLE demo_lines TARGET_LAG = DOWNSTREAM AS
SELECT o.id, p.category, o.amount
FROM demo_orders o LEFT JOIN demo_products p ON o.product = p.product;
CREATE OR REPLACE DYNAMIC TABLE demo_sales TARGET_LAG = DOWNSTREAM AS
SELECT category, sum(amount) AS total, count(*) AS orders FROM demo_lines GROUP BY category;
CREATE OR REPLACE DYNAMIC TABLE demo_best TARGET_LAG = '10 seconds' AS
SELECT category, total FROM demo_sales WHERE orders > 100;
"""

    def _some(self, count: int) -> pa.Table:
        first, self._orders = self._orders + 1, self._orders + count
        products = [name for name, _ in _PRODUCTS]
        return pa.table(
            {
                "id": pa.array(range(first, first + count), pa.int64()),
                "product": pa.array(self._random.choices(products, k=count)),
                "amount": pa.array(self._random.choices(range(1, 100), k=count), pa.int64()),
            }
        )
