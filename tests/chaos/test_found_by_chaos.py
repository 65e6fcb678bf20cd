"""What chaos runs found, each as a small test of its own."""

from __future__ import annotations

import asyncio

import psycopg

from kalla.work.duty import Periodic


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
