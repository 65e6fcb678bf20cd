"""Holds slots: compares what is wanted with what this worker carries, and takes what is free."""

from __future__ import annotations

import asyncio
import time

from kalla.database import Database
from kalla.settings import Leases, Settings
from kalla.sinks import store
from kalla.sinks.carrier import Carrier, Seat
from kalla.sinks.connections import Resolve
from kalla.sinks.store import PipelineRecord
from kalla.work.lease_keeper import LeaseKeeper
from kalla.work.leases import Lease
from kalla.work.service import Periodic

_FINISH_SECONDS = 5.0


class Slots(Periodic):
    """Every worker runs one; Postgres decides who gets a slot, and nobody is a leader."""

    def __init__(
        self, settings: Settings, database: Database, holder: str, resolve: Resolve
    ) -> None:
        super().__init__("sinks", settings.sinks.reconcile_seconds)
        self._settings = settings.sinks
        self._database = database
        self._holder = holder
        self._resolve = resolve
        ttl = settings.sinks.lease_ttl_seconds
        self._keeper = LeaseKeeper(
            database,
            holder,
            Leases(ttl_seconds=ttl, renew_seconds=ttl / 5, margin_seconds=ttl / 10),
        )
        self._carriers: dict[Lease, Carrier] = {}

    async def start(self) -> None:
        await self._keeper.start()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._keeper.stop()

    async def tick(self) -> None:
        async with self._database.transaction() as connection:
            records = {each.pipeline: each for each in await store.all_pipelines(connection)}
        by_resource = {each.resource: each for each in records.values()}
        for lease, carrier in list(self._carriers.items()):
            record = by_resource.get(lease.resource)
            if record is None or record.desired != "started":
                await self._keeper.release(lease, "the pipeline is stopped")
            elif _settings_of(record) != _settings_of(carrier.record):
                await self._keeper.release(lease, "the pipeline was changed")
        for record in records.values():
            # Trap 11: the upper slots are given up as soon as they are not wanted.
            await self._keeper.trim(record.resource, record.replicas)
            if record.desired == "started":
                await self._acquire(record)

    async def _acquire(self, record: PipelineRecord) -> None:
        """One slot a look, so that several workers share them."""
        ready = asyncio.Event()
        found: list[Carrier] = []

        async def stop(lease: Lease, _reason: str) -> None:
            await ready.wait()
            left = self._deadline(lease) - time.monotonic()
            await found[0].stop(min(left, _FINISH_SECONDS))
            self._carriers.pop(lease, None)

        lease = await self._keeper.acquire(
            record.resource, record.replicas, stop, self._settings.replicas_per_worker
        )
        if lease is None:
            return
        seat = Seat(lease, self._holder, lambda: self._deadline(lease))
        carrier = Carrier(self._database, record, seat, self._settings, self._resolve)
        found.append(carrier)
        self._carriers[lease] = carrier
        ready.set()

    def _deadline(self, lease: Lease) -> float:
        return self._keeper.deadline(lease)


def _settings_of(record: PipelineRecord) -> tuple[object, ...]:
    return (
        record.kafka,
        record.clickhouse,
        record.mapping_version,
        record.tombstones,
        record.batch_rows,
    )
