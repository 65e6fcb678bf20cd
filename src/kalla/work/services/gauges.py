"""Reads the queues' depth and age from Postgres for the metrics."""

from __future__ import annotations

from kalla.database import Database
from kalla.settings import ROLES
from kalla.work.metrics import Metrics
from kalla.work.service import Periodic
from kalla.work.state import queues

_INTERVAL = 5.0


class Gauges(Periodic):
    def __init__(self, database: Database, metrics: Metrics) -> None:
        super().__init__("gauges", _INTERVAL)
        self._database = database
        self._metrics = metrics

    async def tick(self) -> None:
        async with self._database.transaction() as connection:
            records = await queues.depths(connection, known=ROLES)
            seconds = await queues.refresh_p95_seconds(connection)
        self._metrics.queues.set(records, seconds)
