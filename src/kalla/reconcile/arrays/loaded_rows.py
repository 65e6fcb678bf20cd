"""What the array path asks of a match session, which is above it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from kalla.reconcile.arrays.column_arrays import Chosen, ColumnArrays
from kalla.reconcile.plan.plan import Plan
from kalla.reconcile.recipe.model import Side


class RowsByStatus(Protocol):
    @property
    def rows(self) -> int: ...

    def are_open(self) -> Chosen: ...


class LoadedRows(Protocol):
    plan: Plan
    threads: int

    @property
    def ordinals(self) -> Mapping[Side, bool]: ...

    @property
    def row_status(self) -> Mapping[Side, RowsByStatus]: ...

    def column_arrays(self, side: Side) -> ColumnArrays | None: ...

    def all_rows(self, side: Side) -> str: ...

    def batches(self, sql: str, rows: int = ...) -> Iterable[pa.RecordBatch]: ...

    def column(self, sql: str) -> Any: ...
