"""Two Delta sources and the refreshes of one table over them, without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from kalla.tables.refresh.payload import Refreshed, RefreshPayload
from kalla.tables.refresh.run import refresh
from kalla.tables.sources.snapshots import Pin, pin
from tests.tables_kit import recomputed

ORDERS = pa.schema(
    [("id", pa.int64()), ("customer", pa.string()), ("amount", pa.decimal128(12, 2))]
)
CUSTOMERS = pa.schema([("customer", pa.string()), ("region", pa.string())])
FEED = {"delta.enableChangeDataFeed": "true"}

GROUPED = (
    "SELECT c.region AS region, count(*) AS n, sum(o.amount) AS total FROM orders o"
    " LEFT JOIN customers c ON o.customer = c.customer GROUP BY c.region"
)


class Shop:
    """Two Delta sources and the refreshes of one table over them."""

    def __init__(self, spark: Any, folder: Path, query: str, feed: bool = True) -> None:
        self.spark = spark
        self.folder = folder
        self.query = query
        self.ticks = 0
        configuration = FEED if feed else {}
        for name, schema in (("orders", ORDERS), ("customers", CUSTOMERS)):
            write_deltalake(folder / name, schema.empty_table(), configuration=configuration)

    def set(self, name: str, rows: list[tuple[Any, ...]], mode: Any = "overwrite") -> None:
        schema = ORDERS if name == "orders" else CUSTOMERS
        columns = list(zip(*rows, strict=True)) if rows else [() for _ in schema]
        arrays = [
            pa.array(list(column), pa.string()).cast(field.type)
            if pa.types.is_decimal(field.type)
            else pa.array(list(column), field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        write_deltalake(self.folder / name, pa.table(arrays, schema=schema), mode=mode)

    def payload(self, **changed: Any) -> RefreshPayload:
        self.ticks += 1
        names = [name for name in ("orders", "customers") if f" {name}" in self.query]
        fields: dict[str, Any] = {
            "name": "result",
            "table_id": 1,
            "tick": self.ticks,
            "location": str(self.folder / "result"),
            "query": self.query,
            "definition": "d",
            "inputs": {
                name: pin(name, str(self.folder / name), "delta").as_json() for name in names
            },
            "strategy": "AFFECTED_KEYS",
            "strict": False,
            "deduplication": True,
            "cardinality_threshold": 1.0,
        }
        return RefreshPayload(**{**fields, **changed})

    def refresh(self, **changed: Any) -> Refreshed:
        asked = self.payload(**changed)
        result = refresh(self.spark, asked, self.ticks, f"r{self.ticks}")
        assert isinstance(result, Refreshed)
        return result

    def require_equal(self) -> None:
        """The table equals its query, run fresh at the newest versions."""
        rows = pa.table(DeltaTable(self.folder / "result").to_pyarrow_table())
        inputs = {name: Pin.from_json(each) for name, each in self.payload().inputs.items()}
        fresh = recomputed(self.spark, self.query, inputs).cast(rows.schema)
        assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, fresh.to_pylist()))
