"""Keeps the wake channel's depth equal to the waiting jobs, which is what KEDA scales on.

It also repairs lost wake-ups: a waiting job without a message gets one here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kalla.database import Connection, Database
from kalla.work.service import Periodic
from kalla.work.state import queues
from kalla.work.wake.channel import Wake

_LOCK = 0x6B616C6C61_64  # "kallad"
_BETWEEN_LOOKS = 0.4
_FAR = 100

Look = Mapping[str, tuple[int, int]]
"""Of each queue: how many jobs wait, and how many messages the channel has for them."""


class Depth(Periodic):
    def __init__(self, database: Database, wake: Wake, interval: float) -> None:
        super().__init__("depth", interval)
        self._database = database
        self._wake = wake

    async def tick(self) -> None:
        async with self._database.transaction() as connection:
            if not await _alone(connection):
                return
            first = await self._look(connection)
            if not first:
                return
            await asyncio.sleep(_BETWEEN_LOOKS)
            second = await self._look(connection)
            await self._wake.settle(trusted(first, second))

    async def _look(self, connection: Connection) -> Look:
        depth = await self._wake.depth()
        if not depth:
            return {}
        waiting = await queues.waiting(connection)
        return {queue: (waiting[queue], depth.get(queue, 0)) for queue in {*depth, *waiting}}


def trusted(first: Look, second: Look) -> dict[str, int]:
    """The waiting jobs of each queue whose figures stood still, or were far off both times.

    Between a commit and its message the two differ for a moment; this needs no repair.
    """
    return {
        queue: waiting
        for queue, (waiting, depth) in second.items()
        if queue in first
        and (first[queue] == (waiting, depth) or (_far(*first[queue]) and _far(waiting, depth)))
    }


def _far(waiting: int, depth: int) -> bool:
    return abs(waiting - depth) > max(_FAR, waiting // 2)


async def _alone(connection: Connection) -> bool:
    """One process at a time: two would both add the missing messages."""
    cursor = await connection.execute("SELECT pg_try_advisory_xact_lock(%s) AS got", [_LOCK])
    row = await cursor.fetchone()
    return row is not None and bool(row["got"])
