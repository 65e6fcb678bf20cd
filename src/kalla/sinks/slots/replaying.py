"""Runs replays of dead letters: chunk by chunk under an intent, in slot 0."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from kalla.database import Database
from kalla.errors import KallaError, Lost
from kalla.sinks import store
from kalla.sinks.records import replays
from kalla.sinks.records.letters import ChunkRequest, ReplayRequest
from kalla.sinks.records.replays import Replay
from kalla.sinks.servers.clickhouse_client import NoAnswer
from kalla.sinks.slots.child import Child, ChildEnded
from kalla.sinks.slots.seat import Seat
from kalla.sinks.store import PipelineRecord

_LOOK_SECONDS = 2.0
_GRACE_SECONDS = 2.0  # an insert that passed the deadline check may take this long to be written


class Replaying:
    """One for each carrier; those of other slots do nothing."""

    def __init__(self, database: Database, record: PipelineRecord, seat: Seat) -> None:
        self._database = database
        self._record = record
        self._seat = seat
        self._looked = 0.0
        self.error_message: str | None = None  # the last try failed

    async def step(self, child: Child, deadline: Callable[[], Awaitable[float]]) -> bool:
        """Replays the next letters; True if more are waiting."""
        now = time.monotonic()
        if self._seat.slot != 0 or now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        async with self._database.transaction() as connection:
            found = await replays.all_replays(connection, self._record.pipeline, running=True)
        if not found:
            self.error_message = None
            return False
        try:
            worked = await self._chunk(found[0], child, deadline)
        except (Lost, NoAnswer, ChildEnded):
            raise
        except KallaError as error:  # it is tried again; the partitions go on
            self.error_message = f"the replay of dead letters waits: {error}"
            return False
        self.error_message = None
        if worked:
            self._looked = 0.0
        return worked

    async def _chunk(
        self, replay: Replay, child: Child, deadline: Callable[[], Awaitable[float]]
    ) -> bool:
        record = self._record
        chunk = replay.chunk
        if chunk is None:
            chunk = await child.next_chunk(
                ChunkRequest(
                    record.pipeline, record.kafka.topic, replay.cursor, replay.reason, replay.field
                )
            )
        elif (replay.deadline or 0) + _GRACE_SECONDS > await child.clock():
            return False  # an insert of an earlier try may still arrive
        async with self._database.transaction() as connection:
            await self._seat.assert_held(connection)
            if chunk is None:
                await replays.complete(connection, record.pipeline, replay)
                return True
            until = await deadline()
            await replays.intend(connection, replay, chunk, until)
            rules = await store.rules_of(connection, record.pipeline, replay.version)
        comment = f"kalla {record.pipeline} {self._seat.comment} replay {replay.replay}"
        request = ReplayRequest(record.pipeline, chunk, rules, replay.replay, comment)
        facts = await child.replay(request, until)
        async with self._database.transaction() as connection:
            await self._seat.assert_held(connection)
            await replays.commit(connection, replay, chunk.end, facts.rows, facts.refused)
        return True
