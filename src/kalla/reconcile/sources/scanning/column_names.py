"""Checks that the names of a source's columns are unique."""

from __future__ import annotations

from collections.abc import Sequence

from kalla.errors import InvalidInput, Problem


def demand_names(columns: Sequence[str], whose: str) -> None:
    """Refuses duplicate column names, ignoring case, and empty ones."""
    lowered = [name.lower() for name in columns]  # DuckDB does not tell them apart
    if doubled := sorted({name for name in columns if lowered.count(name.lower()) > 1}):
        raise InvalidInput(Problem("", f"{whose} has several columns {', '.join(doubled)}"))
    if "" in columns:
        raise InvalidInput(Problem("", f"{whose} has a column without a name"))
