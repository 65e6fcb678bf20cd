"""Rendezvous hashing: a key stays with its worker while the set of workers changes around it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache


@lru_cache(maxsize=256)
def placed(tenant: str, shards: int, workers: frozenset[str]) -> Mapping[int, str]:
    """The worker of every shard: by score, but none has more than its even share.

    There are few shards, and scores alone may give all of them to one worker. The pairs with the
    highest scores come first, so that a worker that leaves moves few shards of other workers.
    """
    most = -(-shards // max(len(workers), 1))
    pairs = sorted(
        (
            (_score(tenant, shard, worker), worker, shard)
            for shard in range(shards)
            for worker in workers
        ),
        reverse=True,
    )
    found: dict[int, str] = {}
    loads = dict.fromkeys(workers, 0)
    for _, worker, shard in pairs:
        if shard not in found and loads[worker] < most:
            found[shard] = worker
            loads[worker] += 1
    return found


def _score(tenant: str, shard: int, worker: str) -> bytes:
    key = "\0".join((tenant, str(shard), worker))
    return hashlib.blake2b(key.encode(), digest_size=8).digest()
