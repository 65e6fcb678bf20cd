"""The request and the result of a refresh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from kalla.tables.delta.commit import Committed
from kalla.tables.incremental.cost import Sample


class RefreshPayload(BaseModel):
    """One refresh: everything that its worker needs, without a database."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    table_id: int
    tick: int
    location: str
    query: str  # as the sandbox wrote it
    definition: str
    inputs: dict[str, dict[str, Any]]  # the pin of every source and upstream table
    strategy: Literal["AUTO", "DELTA", "AFFECTED_KEYS", "FULL"]
    strict: bool
    deduplication: bool
    cardinality_threshold: float
    forced: bool = False  # FULL by hand
    samples: tuple[Sample, ...] = ()  # costs of earlier refreshes, the newest first
    rows: int | None = None  # of the table, after its last refresh


@dataclass(frozen=True)
class Refreshed:
    """The result of a refresh, as its history shows it."""

    strategy: str
    reason: str
    seconds: float
    predicted_seconds: float | None
    deleted: int
    inserted: int
    rows: int
    committed: Committed
    changed_rows: int | None = None  # of all inputs, about
    affected_keys: int | None = None


class StrictRefused(Exception):
    """STRICT is set, and only FULL is possible."""
