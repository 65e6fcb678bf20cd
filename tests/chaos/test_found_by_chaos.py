"""What chaos runs found, each as a small test of its own."""

from __future__ import annotations

import asyncio
from typing import cast

import psycopg
import pytest

from kalla.database import Database
from kalla.work.duties.reaper import Reaper
from kalla.work.duty import Periodic
from kalla.work.metrics import Metrics
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
    """A drain once hung for ever: the cancel had become an error that the duty lives through."""
    duty = _Breaking()
    await duty.start()
    await duty.asked.wait()
    async with asyncio.timeout(20):
        await duty.stop()
    assert duty.broken


class _Judge(Reaper):
    """A reaper whose clock and whose Postgres are played by the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.postgres_started = 0.0
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

    async def _postgres_age(self) -> float:
        if not self.reachable:
            raise psycopg.OperationalError("connection refused")
        return self.now - self.postgres_started

    async def _judge(self) -> None:
        self.judgements += 1


async def test_a_short_restart_of_postgres_does_not_hold_up_a_killed_workers_jobs() -> None:
    """Every restart once held the reaper up for two heartbeats, and 22 s became 29."""
    reaper = _Judge()
    assert await reaper.looks()
    reaper.now += 4
    reaper.postgres_started = reaper.now - 0.5
    assert await reaper.looks()


async def test_after_a_long_absence_live_workers_are_heard_before_they_are_judged() -> None:
    reaper = _Judge()
    assert await reaper.looks()
    reaper.now += 30
    reaper.postgres_started = reaper.now - 0.5
    assert not await reaper.looks()
    reaper.now += 5.9
    assert not await reaper.looks()
    reaper.now += 0.2
    assert await reaper.looks()


async def test_a_reaper_that_could_not_reach_postgres_for_long_lets_live_workers_be_heard() -> None:
    reaper = _Judge()
    assert await reaper.looks()
    reaper.reachable = False
    with pytest.raises(psycopg.OperationalError):
        await reaper.tick()
    reaper.now += 30
    reaper.reachable = True
    assert not await reaper.looks()
    reaper.now += 6.1
    assert await reaper.looks()


async def test_a_reaper_that_looks_seldom_judges_each_time() -> None:
    reaper = _Judge()
    for _ in range(3):
        assert await reaper.looks()
        reaper.now += 300


async def test_a_new_process_waits_until_a_new_postgres_has_heard_the_others() -> None:
    reaper = _Judge()
    reaper.postgres_started = reaper.now - 2
    assert not await reaper.looks()
    reaper.now += 4
    assert await reaper.looks()
