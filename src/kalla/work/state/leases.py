"""Leases in Postgres: slots of a resource, each held by one worker as long as it renews."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kalla.database import Connection
from kalla.errors import InvalidInput, Lost, Problem
from kalla.statements import load

sql = load("kalla.work.state", "leases.sql")


@dataclass(frozen=True, order=True)
class Lease:
    """A seat: `epoch` is the fence that every write made under it must carry."""

    resource: str
    slot: int
    epoch: int


@dataclass(frozen=True)
class Holding:
    """A lease as an operator sees it."""

    resource: str
    slot: int
    epoch: int
    holder: str
    until: datetime
    live: bool


async def acquire(
    connection: Connection,
    resource: str,
    holder: str,
    replicas: int,
    ttl_seconds: float,
    cap: int | None = None,
) -> Lease | None:
    """Take the first free slot of `0..replicas-1`; None if there is none or the cap is reached.

    `cap` limits the slots one holder has over all resources.
    """
    if replicas < 0:
        raise InvalidInput(Problem("replicas", f"must not be negative, got {replicas}"))
    facts = {"resource": resource, "holder": holder, "replicas": replicas}
    if cap is not None:
        await connection.execute(sql.lock_holder, facts)
    await connection.execute(sql.prepare, facts)
    cursor = await connection.execute(sql.acquire, facts | {"ttl": ttl_seconds, "cap": cap})
    row = await cursor.fetchone()
    return None if row is None else Lease(**row)


async def renew(
    connection: Connection, holder: str, leases: Sequence[Lease], ttl_seconds: float
) -> set[Lease]:
    """Renew all of these; returns the ones still held. The others are lost: stop their work."""
    cursor = await connection.execute(
        sql.renew,
        {
            "holder": holder,
            "ttl": ttl_seconds,
            "resources": [lease.resource for lease in leases],
            "slots": [lease.slot for lease in leases],
            "epochs": [lease.epoch for lease in leases],
        },
    )
    return {Lease(**row) for row in await cursor.fetchall()}


async def release(connection: Connection, holder: str, lease: Lease) -> bool:
    """Releases a slot; False if it was lost before, and then nothing changes."""
    cursor = await connection.execute(sql.release, _named(lease, holder))
    return await cursor.fetchone() is not None


async def assert_held(connection: Connection, holder: str, lease: Lease) -> None:
    """Raise Lost unless the lease is live; until this transaction ends nobody can take it."""
    cursor = await connection.execute(sql.holds, _named(lease, holder))
    if await cursor.fetchone() is None:
        raise Lost(
            f"slot {lease.slot} of {lease.resource} is no longer held under epoch {lease.epoch}"
        )


async def holders(connection: Connection, resource: str | None = None) -> list[Holding]:
    cursor = await connection.execute(sql.holders, {"resource": resource})
    return [Holding(**row) for row in await cursor.fetchall()]


def _named(lease: Lease, holder: str) -> dict[str, object]:
    return {"resource": lease.resource, "slot": lease.slot, "epoch": lease.epoch, "holder": holder}
