"""Waits for cancel alarms, and makes the heartbeats check at once which job was cancelled."""

from __future__ import annotations

from kalla.work.service import Periodic, Service
from kalla.work.wake.channel import Wake


class Alarms(Service):
    name = "alarms"

    def __init__(self, wake: Wake, heartbeats: Periodic) -> None:
        super().__init__()
        self._wake = wake
        self._heartbeats = heartbeats

    async def work(self) -> None:
        while True:
            await self._wake.alarmed()
            self._heartbeats.hurry()
