"""Keeps the claims alive, stores progress, and detects lost and cancelled jobs."""

from __future__ import annotations

from collections.abc import Callable

from kalla import logs
from kalla.database import Database
from kalla.work.job_slots import HeldJob, JobSlots
from kalla.work.metrics import Metrics
from kalla.work.service import FORESEEN, Periodic
from kalla.work.state import jobs as job_store
from kalla.work.state import presence

_log = logs.get(__name__)


class Heartbeats(Periodic):
    def __init__(
        self,
        database: Database,
        slots: JobSlots,
        metrics: Metrics,
        announcement: Callable[[], presence.Announcement],
        interval: float,
    ) -> None:
        super().__init__("heartbeats", interval)
        self._database = database
        self._slots = slots
        self._metrics = metrics
        self._announcement = announcement

    async def tick(self) -> None:
        ours = self._slots.ours()
        progress = [held.context.take_progress() for held in ours]
        try:
            await self._beat(ours, progress)
        except BaseException:
            for held, facts in zip(ours, progress, strict=True):
                held.context.put_back(facts)
            raise

    async def _beat(self, ours: list[HeldJob], progress: list[dict[str, object] | None]) -> None:
        lost = await self._keep(ours, progress)
        async with self._database.transaction() as connection:
            await presence.announce(connection, self._announcement())
        self._metrics.heartbeat_succeeded()
        for held in ours:
            if held.job.job_id in lost and held.lost is None and not held.ended:
                _log.warning(
                    "job lost", job=held.job.job_id, run=held.job.run_id, fence=held.job.fence
                )
                self._metrics.lost.labels(held.job.type).inc()
                held.lose(f"job {held.job.job_id} was cancelled or reclaimed")

    async def _keep(
        self, ours: list[HeldJob], progress: list[dict[str, object] | None]
    ) -> set[int]:
        """Renews all in one statement; if one of them breaks it, each separately."""
        if not ours:
            return set()
        try:
            async with self._database.transaction() as connection:
                return await job_store.heartbeat(connection, [held.job for held in ours], progress)
        except FORESEEN:
            raise
        except Exception:
            _log.exception("a heartbeat fails: each job gets one of its own")
        lost = set[int]()
        for held, facts in zip(ours, progress, strict=True):
            lost |= await self._keep_one(held, facts)
        return lost

    async def _keep_one(self, held: HeldJob, facts: dict[str, object] | None) -> set[int]:
        for progress in (
            facts,
            None,
        ):  # a job whose progress cannot be stored is renewed without it
            try:
                async with self._database.transaction() as connection:
                    return await job_store.heartbeat(connection, [held.job], [progress])
            except FORESEEN:
                raise
            except Exception:
                _log.exception("a job's heartbeat fails", job=held.job.job_id)
        return set()
