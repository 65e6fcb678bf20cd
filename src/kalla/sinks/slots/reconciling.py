"""Reconciles slots: compares the desired state with this worker's slots, and takes free ones."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial

from kalla.database import Database
from kalla.settings import Leases, Settings
from kalla.sinks import store
from kalla.sinks.servers.server_connections import Resolve
from kalla.sinks.slots.carrier import Carrier, Dependencies
from kalla.sinks.slots.placement import SparkPlacement
from kalla.sinks.slots.seat import Seat
from kalla.sinks.store import PipelineRecord, PipelineRow
from kalla.work.lease_keeper import LeaseKeeper
from kalla.work.service import Periodic, SetAside
from kalla.work.state.leases import Lease

_FINISH_SECONDS = 5.0
_JITTER = 0.2


class Slots(Periodic):
    """Every worker runs one; Postgres decides who gets a slot; there is no leader."""

    def __init__(
        self, settings: Settings, database: Database, holder: str, resolve: Resolve
    ) -> None:
        # Workers that start together would otherwise always poll at the same time.
        jitter = 1 + random.uniform(-_JITTER, _JITTER)  # noqa: S311
        super().__init__("sinks", settings.sinks.reconcile_seconds * jitter)
        self._settings = settings.sinks
        self._database = database
        self._holder = holder
        self._spark = SparkPlacement(settings.spark)
        self._shared = Dependencies(database, settings.sinks, resolve, self._spark)
        ttl = settings.sinks.lease_ttl_seconds
        self._keeper = LeaseKeeper(
            database,
            holder,
            Leases(ttl_seconds=ttl, renew_seconds=ttl / 5, margin_seconds=ttl / 10),
        )
        self._carriers: dict[Lease, Carrier] = {}
        self._unleased: dict[str, Carrier] = {}  # by pipeline, in no-lease mode
        self._aside = SetAside("sinks")

    @property
    def carried(self) -> int:
        """Slots of pipelines that this worker carries now."""
        return len(self._carriers) + len(self._unleased)

    async def start(self) -> None:
        await self._keeper.start()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._keeper.stop()
        await asyncio.gather(*(self._end(each) for each in list(self._unleased)))
        await asyncio.to_thread(self._spark.close)

    async def tick(self) -> None:
        async with self._database.transaction() as connection:
            rows = await store.pipeline_rows(connection)
            await store.forget_rates(connection)
            await store.forget_troubles(connection)
        records = {}
        for row in rows:
            record = await self._aside.attempt(row["pipeline"], partial(_read, row))
            if record is not None:
                records[record.pipeline] = record
        # A running slot continues while its pipeline is set aside.
        started = {row["pipeline"] for row in rows if row["desired"] == "started"}
        aside = started - records.keys()
        if self._settings.leases:
            await self._hold_leases(records, aside)
        else:
            await self._carry_all(records, aside)

    async def _hold_leases(self, records: dict[str, PipelineRecord], aside: set[str]) -> None:
        released = []
        for lease, carrier in list(self._carriers.items()):
            pipeline = carrier.record.pipeline
            reason = _outdated(records.get(pipeline), carrier)
            if reason and pipeline not in aside:
                released.append(self._keeper.release(lease, reason))
        # Together: a slow one must not hold up the others.
        await asyncio.gather(*released)
        for record in records.values():
            await self._aside.attempt(record.pipeline, partial(self._take, record))

    async def _take(self, record: PipelineRecord) -> None:
        # Trap 11: the upper slots are released as soon as they are not needed.
        await self._keeper.trim(record.resource, record.replicas)
        if record.desired == "started":
            await self._acquire(record)

    async def _carry_all(self, records: dict[str, PipelineRecord], aside: set[str]) -> None:
        """Without leases: one member for every started pipeline, on every worker."""
        for name, carrier in list(self._unleased.items()):
            if name not in aside and _outdated(records.get(name), carrier):
                await self._end(name)
        for name, record in records.items():
            if record.desired == "started" and name not in self._unleased:
                await self._aside.attempt(name, partial(self._carry, record))

    async def _carry(self, record: PipelineRecord) -> None:
        seat = Seat(self._holder, None, lambda: time.monotonic() + 3600)
        self._unleased[record.pipeline] = Carrier(self._shared, record, seat)

    async def _end(self, pipeline: str) -> None:
        await self._unleased[pipeline].stop(_FINISH_SECONDS)
        del self._unleased[pipeline]

    async def _acquire(self, record: PipelineRecord) -> None:
        """Takes one slot per poll, so that several workers share them."""
        ready = asyncio.Event()

        async def stop(lease: Lease, _reason: str) -> None:
            await ready.wait()
            carrier = self._carriers.pop(lease, None)
            if carrier is not None:
                left = self._deadline(lease) - time.monotonic()
                await carrier.stop(min(left, _FINISH_SECONDS))

        lease = await self._keeper.acquire(
            record.resource, record.replicas, stop, self._settings.replicas_per_worker
        )
        if lease is None:
            return
        seat = Seat(self._holder, lease, lambda: self._deadline(lease))
        try:
            self._carriers[lease] = Carrier(self._shared, record, seat)
        except Exception:
            ready.set()
            await self._keeper.release(lease, "its carrier did not start")
            raise
        ready.set()

    def _deadline(self, lease: Lease) -> float:
        return self._keeper.deadline(lease)


async def _read(row: PipelineRow) -> PipelineRecord:
    return store.read_row(row)


def _outdated(record: PipelineRecord | None, carrier: Carrier) -> str | None:
    """Why a carrier must end, or None."""
    if record is None or record.desired != "started":
        return "the pipeline is stopped"
    if carrier.ended:
        return "its carrier ended"
    if carrier.poisoned:
        return "the pipeline stopped itself"
    if _settings_of(record) != _settings_of(carrier.record):
        return "the pipeline was changed"
    return None


def _settings_of(record: PipelineRecord) -> tuple[object, ...]:
    share = record.replicas if record.options.rows_per_second else None
    return record.kafka, record.clickhouse, record.rules, record.options, share
