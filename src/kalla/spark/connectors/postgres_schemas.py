"""Schemas that are no source of rows. Apart, so that it is known without loading any driver."""

from __future__ import annotations

_KALLA = "kalla"
_STANDARD = "information_schema"
_SYSTEM_PREFIX = "pg_"  # which Postgres keeps for itself


def is_reserved(schema: str) -> bool:
    """Whether it holds Kalla's own state, or what a database knows of itself and its users."""
    return schema in (_KALLA, _STANDARD) or schema.startswith(_SYSTEM_PREFIX)
