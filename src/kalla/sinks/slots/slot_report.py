"""Stores what pages show of a slot: why it does not deliver, and the logs that it reads.

No decision depends on it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from operator import itemgetter

from kalla import logs
from kalla.database import AWAY, Database
from kalla.redaction import scrub
from kalla.sinks import ledger, store
from kalla.sinks.ledger import Partition
from kalla.sinks.slots.member import LogEnds
from kalla.sinks.slots.seat import Seat

_log = logs.get(__name__)

_AGAIN_SECONDS = 1.0  # after which the same error is stored again: a person may have cleared it
_LOG_SECONDS = 2.0


class SlotReport:
    def __init__(self, database: Database, pipeline: str, seat: Seat) -> None:
        self._database = database
        self._pipeline = pipeline
        self._seat = seat
        self._error_message: str | None = ""  # the last stored; "": none yet
        self._error_stored = 0.0
        self._logs: dict[int, tuple[int, LogEnds, int | None]] = {}  # the last stored
        self._logs_stored = 0.0

    async def error(self, error_message: str | None, retry_seconds: float) -> bool:
        """Stores why the slot does not deliver, and when it tries again; None: it delivers. False
        if that is stored already.
        """
        now = time.monotonic()
        if error_message == self._error_message and (
            error_message is None or now - self._error_stored < _AGAIN_SECONDS
        ):
            return False
        text = error_message and scrub(error_message).replace("\0", "")  # Postgres stores no NUL
        if text and error_message != self._error_message:
            _log.warning("delivery waits", pipeline=self._pipeline, error=text)
        with contextlib.suppress(*AWAY):
            async with self._database.transaction() as connection:
                await store.set_trouble(
                    connection, self._pipeline, self._seat.instance, text, retry_seconds
                )
            self._error_message, self._error_stored = error_message, now
        return True

    async def log_ends(
        self,
        taken: Mapping[int, Partition],
        ends: Mapping[int, LogEnds],
        retention_ms: int | None,
    ) -> None:
        """Stores the ends of logs that have changed, from which pages compute the lag."""
        now = time.monotonic()
        if now - self._logs_stored < _LOG_SECONDS:
            return
        self._logs_stored = now
        current = {
            partition: (held.epoch, ends[partition], retention_ms)
            for partition, held in taken.items()
            if partition in ends
        }
        changed = current.items() - self._logs.items()
        if not changed:
            return
        async with self._database.transaction() as connection:
            for partition, (_, log, _) in sorted(changed, key=itemgetter(0)):
                await ledger.note_log(
                    connection, self._pipeline, taken[partition], (log.low, log.high), retention_ms
                )
        self._logs = current
