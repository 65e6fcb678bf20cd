"""Rendezvous hashing: a shard stays with its workers while the set of workers changes around it."""

from __future__ import annotations

import hashlib
from functools import lru_cache


@lru_cache(maxsize=256)
def candidates(tenant: str, shards: int, workers: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """The workers of every shard, the highest score first; a worker that leaves moves its own.

    There are few shards: two workers for each, and their even part of the workers where there are
    more. A worker is also a candidate for the shard of its own highest score, so that none is idle.
    """
    count = max(2, len(workers) // shards)
    scores = {
        (worker, shard): _score(tenant, shard, worker)
        for worker in workers
        for shard in range(shards)
    }
    best = {
        worker: max(range(shards), key=lambda shard: scores[worker, shard]) for worker in workers
    }
    found = []
    for shard in range(shards):
        ranked = sorted(workers, key=lambda worker: scores[worker, shard], reverse=True)
        own = (worker for worker in ranked[count:] if best[worker] == shard)
        found.append((*ranked[:count], *own))
    return tuple(found)


def _score(tenant: str, shard: int, worker: str) -> bytes:
    key = "\0".join((tenant, str(shard), worker))
    return hashlib.blake2b(key.encode(), digest_size=8).digest()
