"""Rendezvous hashing: a key stays with its worker while the set of workers changes around it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def chosen(tenant: str, shard: int, workers: Collection[str]) -> str | None:
    """The worker with the highest score for this key; None where there is no worker."""
    return max(workers, key=lambda worker: (_score(tenant, shard, worker), worker), default=None)


def _score(tenant: str, shard: int, worker: str) -> bytes:
    key = "\0".join((tenant, str(shard), worker))
    return hashlib.blake2b(key.encode(), digest_size=8).digest()
