"""What chaos runs found, each as a small test of its own."""

from __future__ import annotations

import asyncio
from typing import cast

import psycopg
import pytest

from kalla.database import Database
from kalla.work.metrics import Metrics
from kalla.work.service import Periodic
from kalla.work.services.reaper import Reaper
from kalla.work.wake import Wake


class _Breaking(Periodic):
    """Its connection breaks just when its query is cancelled, so that psycopg raises that."""

    def __init__(self) -> None:
        super().__init__("breaking", 0.01)
        self.asked = asyncio.Event()
        self.broken = False

    async def tick(self) -> None:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.broken:
                raise
            self.broken = True
            raise psycopg.OperationalError("server closed the connection unexpectedly") from None


async def test_a_duty_stops_though_its_connection_breaks_at_that_moment() -> None:
    """A drain once hung for ever: the cancel had become an error that the service lives through."""
    service = _Breaking()
    await service.start()
    await service.asked.wait()
    async with asyncio.timeout(20):
        await service.stop()
    assert service.broken


class _Stumbling(Periodic):
    """Meets a row that nobody foresaw, twice."""

    def __init__(self) -> None:
        super().__init__("stumbling", 0.01)
        self.ticks = 0
        self.went_on = asyncio.Event()

    async def tick(self) -> None:
        self.ticks += 1
        if self.ticks < 3:
            raise ValueError("a row nobody foresaw")
        self.went_on.set()


async def test_a_row_that_nobody_foresaw_ends_no_service() -> None:
    """One run's name once ended a service in every process, also after restarts."""
    service = _Stumbling()
    await service.start()
    async with asyncio.timeout(20):
        await service.went_on.wait()
    assert service.death is None
    await service.stop()


class _Judge(Reaper):
    """A reaper whose clock and whose Postgres are played by the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.database_ahead = 0.0
        self.reachable = True
        self.judgements = 0
        super().__init__(
            cast(Database, None),
            cast(Wake, None),
            Metrics(),
            interval=2,
            grace_seconds=6,
            tolerance_seconds=6,
            clock=lambda: self.now,
        )

    async def looks(self) -> bool:
        """Whether a look now ends with a judgement."""
        before = self.judgements
        await self.tick()
        return self.judgements > before

    async def judges_by_now(self) -> bool:
        """Whether it judges once its first grace is over."""
        assert not await self.looks()
        self.now += 6
        return await self.looks()

    async def _read_database_time(self) -> float:
        if not self.reachable:
            raise psycopg.OperationalError("connection refused")
        return 1e9 + self.now + self.database_ahead

    async def _judge(self) -> None:
        self.judgements += 1


async def test_a_short_restart_of_postgres_does_not_hold_up_a_killed_workers_jobs() -> None:
    """Every restart once held the reaper up for two heartbeats, and 22 s became 29."""
    reaper = _Judge()
    assert await reaper.judges_by_now()
    reaper.now += 4
    assert await reaper.looks()


async def test_a_reaper_that_was_silent_for_long_lets_live_workers_be_heard_first() -> None:
    """All processes frozen for 18 s: every running job was charged an attempt."""
    reaper = _Judge()
    assert await reaper.judges_by_now()
    reaper.now += 18
    assert not await reaper.looks()
    reaper.now += 5.9
    assert not await reaper.looks()
    reaper.now += 0.2
    assert await reaper.looks()


async def test_a_reaper_that_could_not_reach_postgres_for_long_lets_live_workers_be_heard() -> None:
    reaper = _Judge()
    assert await reaper.judges_by_now()
    reaper.reachable = False
    with pytest.raises(psycopg.OperationalError):
        await reaper.tick()
    reaper.now += 30
    reaper.reachable = True
    assert not await reaper.looks()
    reaper.now += 6.1
    assert await reaper.looks()


async def test_a_clock_of_the_database_that_steps_ahead_makes_nobody_look_dead() -> None:
    reaper = _Judge()
    assert await reaper.judges_by_now()
    reaper.now += 2
    reaper.database_ahead = 20
    assert not await reaper.looks()
    reaper.now += 6.1
    assert await reaper.looks()


async def test_a_clock_of_the_database_that_steps_back_holds_nothing_up() -> None:
    reaper = _Judge()
    assert await reaper.judges_by_now()
    reaper.now += 2
    reaper.database_ahead = -20
    assert await reaper.looks()


async def test_a_new_process_waits_until_the_others_were_heard() -> None:
    reaper = _Judge()
    assert not await reaper.looks()
    reaper.now += 5.9
    assert not await reaper.looks()
    reaper.now += 0.2
    assert await reaper.looks()


class _Freezing(_Judge):
    """One that looks as Kalla's does, and is frozen in its first step when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.freeze = 0.0
        self.steps: list[str] = []
        self.latest = 0.0  # the time by which its first step judges

    async def _judge(self) -> None:
        await super()._judge()
        await Reaper._judge(self)

    async def _reclaim(self) -> None:
        self.steps.append("reclaim")
        self.now += self.freeze
        self.latest = self._latest()

    async def _end_exhausted(self) -> None:
        self.steps.append("end exhausted")

    async def _end_late_runs(self) -> None:
        self.steps.append("end late runs")

    async def _confirm_stopped(self) -> None:
        self.steps.append("confirm stopped")


async def test_a_reaper_frozen_within_a_step_takes_no_other_and_lets_workers_be_heard_first() -> (
    None
):
    """The step's end was taken for news from Postgres: the next one failed jobs of one attempt."""
    reaper = _Freezing()
    assert await reaper.judges_by_now()
    assert len(reaper.steps) == 4
    reaper.now += 2
    reaper.freeze = 18
    await reaper.tick()
    assert reaper.steps[4:] == ["reclaim"]
    reaper.freeze = 0
    reaper.now += 2
    assert not await reaper.looks()
    reaper.now += 6.1
    assert await reaper.looks()
    assert len(reaper.steps) == 9


async def test_a_freeze_between_a_check_and_its_statement_makes_nobody_look_dead() -> None:
    """It waited for a connection, woke up, and judged all others by the time it had slept."""
    reaper = _Freezing()
    assert await reaper.judges_by_now()
    reaper.now += 2
    heartbeat, timeout = 1e9 + reaper.now, 12
    reaper.freeze = 18
    await reaper.tick()
    assert reaper.latest <= heartbeat + timeout
