"""Schemas that cannot be sources. Apart, so that no driver need be loaded to know them."""

from __future__ import annotations

_KALLA = "kalla"
_STANDARD = "information_schema"
_SYSTEM_PREFIX = "pg_"  # which Postgres keeps for itself


def is_reserved(schema: str) -> bool:
    """Whether it holds Kalla's own state, or what a database knows of itself and its users."""
    return schema in (_KALLA, _STANDARD) or schema.startswith(_SYSTEM_PREFIX)
