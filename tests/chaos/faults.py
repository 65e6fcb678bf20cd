"""Injects faults by a seeded chance: workers, servers and the lines between them, overlapping."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.fleet import Fleet, Place
from tests.chaos.servers import Servers

Act = Callable[[], Awaitable[None]]

KILL, DRAIN = "worker killed", "worker drained"
FREEZE, CLOCK = "all frozen", "clock stepped"
ON_ALL = (FREEZE, CLOCK)
POSTGRES_AWAY = ("postgres restarted", "postgres killed")

# How often each kind comes up, in parts of a hundred.
WEIGHTS = {
    KILL: 34,
    "worker stopped": 7,
    DRAIN: 9,
    "postgres connections cut": 13,
    "postgres answers lost": 12,
    "postgres connections stalled": 5,
    "nats connections cut": 5,
    "nats connections stalled": 3,
    "nats killed": 5,
    "nats wiped": 3,
    "postgres restarted": 2,
    "postgres killed": 2,
}
# Those of a sound run: none may cost an attempt. Nobody dies, and nobody falls silent alone. The
# first two are of no other run: recovery times rest on live workers and on a clock that goes on.
SOUND_WEIGHTS = {
    FREEZE: 22,
    CLOCK: 22,
    DRAIN: 14,
    "postgres connections cut": 13,
    "postgres answers lost": 18,
    "nats connections cut": 3,
    "nats connections stalled": 2,
    "nats killed": 3,
    "nats wiped": 3,
}
_MOST_DUE = 30
_LOOK = 0.05
_DRAIN_PATIENCE = 60.0  # beyond drain_seconds, when a stalled line holds the drain up


@dataclass(frozen=True)
class Fault:
    """What was done, to whom, from when until when on the monotonic clock."""

    kind: str
    began: float
    ended: float
    place: int | None = None
    pid: int | None = None


class Injector:
    """Starts a fault every `every` seconds on average, whether or not earlier ones are over."""

    def __init__(
        self,
        fleet: Fleet,
        servers: Servers,
        chance: random.Random,
        *,
        every: float,
        timeout_seconds: float,
        drain_seconds: float,
        weights: Mapping[str, int],
        claimed: Callable[[], int],
    ) -> None:
        self.faults: list[Fault] = []
        self.injected: Counter[str] = Counter()
        self._fleet = fleet
        self._servers = servers
        self._chance = chance
        self._every = every
        self._timeout_seconds = timeout_seconds
        self._drain_seconds = drain_seconds
        self._weights = weights
        self._claimed = claimed
        self._away: set[str] = set()  # servers that a fault is at work on
        self._under_way: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def work(self, enough: Callable[[Counter[str]], bool]) -> None:
        """Go on until there are enough; returns when the last one is over."""
        due = list(self._weights)  # every kind once, then by weight
        self._chance.shuffle(due)
        while not enough(self.injected):
            self._fleet.replace_fallen()
            self._raise_failures()
            # What could not be done when its turn came is not forgotten.
            done = next((kind for kind in due if self._inject(kind)), None)
            if done is not None:
                due.remove(done)
                await asyncio.sleep(self._chance.uniform(0.2, 1.8) * self._every)
            elif len(due) < _MOST_DUE:
                due += self._chance.choices(list(self._weights), list(self._weights.values()))
            else:
                await asyncio.sleep(_LOOK)
        await asyncio.gather(*self._tasks)

    async def end(self) -> None:
        """Call off what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _inject(self, kind: str) -> bool:
        """Start it, unless what it needs is not to be had at the moment."""
        if kind in ON_ALL:
            return self._on_all(kind)
        if kind.startswith("worker"):
            return self._on_worker(kind)
        if "connections" in kind or "answers" in kind:
            return self._on_lines(kind)
        return self._on_server(kind)

    # All workers at once

    def _on_all(self, kind: str) -> bool:
        """When there are jobs to lose, and while no worker is replaced: the new one would be awake,
        and right about the others.

        Connections may break meanwhile, and one of these may follow within the grace of another.
        """
        places = self._fleet.places
        if self._under_way[DRAIN] or self._under_way[FREEZE]:
            return False
        if self._claimed() < len(places) or not all(place.up for place in places):
            return False
        seconds = self._timeout_seconds + self._chance.uniform(1, 6)
        acts = {FREEZE: self._freeze, CLOCK: self._servers.step_clock}
        self._start(kind, lambda: acts[kind](seconds), None)
        return True

    async def _freeze(self, seconds: float) -> None:
        for place in self._fleet.places:
            place.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            for place in self._fleet.places:
                place.send(signal.SIGCONT)

    # Workers

    def _on_worker(self, kind: str) -> bool:
        if self._under_way[FREEZE]:
            return False
        acts = {
            KILL: self._kill,
            "worker stopped": self._stop,
            DRAIN: self._drain,
        }
        place = self._choose(takes_away=True)
        if place is None:
            return False
        self._start(kind, lambda: acts[kind](place), place)
        return True

    async def _kill(self, place: Place) -> None:
        place.send(signal.SIGKILL)
        await place.ended(10)
        self._fleet.note(place, "SIGKILL")
        place.spawn()

    async def _stop(self, place: Place) -> None:
        """Past the timeout: it wakes up as a zombie, and its claims are others'."""
        place.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._timeout_seconds + self._chance.uniform(1, 6))
        finally:
            place.send(signal.SIGCONT)

    async def _drain(self, place: Place) -> None:
        place.send(signal.SIGTERM)
        if await place.ended(self._drain_seconds + _DRAIN_PATIENCE) is None:
            place.send(signal.SIGKILL)  # its exit code will tell the checker
            await place.ended(10)
        self._fleet.note(place, "SIGTERM")
        place.spawn()

    # Lines

    def _on_lines(self, kind: str) -> bool:
        stalls = "stalled" in kind
        if not stalls and self._chance.random() < 0.3:
            self._start(kind, lambda: self._disturb(kind, self._fleet.places), None)
            return True
        place = self._choose(takes_away=stalls and kind.startswith("postgres"))
        if place is None:
            return False
        self._start(kind, lambda: self._disturb(kind, [place]), place)
        return True

    async def _disturb(self, kind: str, places: Sequence[Place]) -> None:
        lines = [place.nats if kind.startswith("nats") else place.postgres for place in places]
        if "cut" in kind:
            for line in lines:
                line.cut()
        elif "answers" in kind:
            for line in lines:
                line.mute()
            await asyncio.sleep(self._chance.uniform(0.02, 0.4))
            for line in lines:
                line.unmute()
        else:
            for line in lines:
                line.stall()
            try:
                await asyncio.sleep(self._chance.uniform(0.5, self._timeout_seconds * 1.4))
            finally:
                for line in lines:
                    line.flow()

    # Servers

    def _on_server(self, kind: str) -> bool:
        server = kind.split()[0]
        if server in self._away:
            return False
        acts: dict[str, Act] = {
            "postgres restarted": self._servers.restart_postgres,
            "postgres killed": self._servers.kill_postgres,
            "nats killed": lambda: self._nats(wipe=False),
            "nats wiped": lambda: self._nats(wipe=True),
        }
        self._start(kind, acts[kind], None, server)
        return True

    async def _nats(self, wipe: bool) -> None:
        await self._servers.kill_nats(self._chance.uniform(0, 3), wipe)

    # Book-keeping

    def _choose(self, takes_away: bool) -> Place | None:
        """A worker that is up and in nobody's hands. Half of them must stay to take over."""
        warm = [place for place in self._fleet.places if place.warm]
        if not warm or (takes_away and len(warm) <= len(self._fleet.places) // 2):
            return None
        return self._chance.choice(warm)

    def _start(self, kind: str, act: Act, place: Place | None, server: str = "") -> None:
        pid = place.pid if place is not None else None

        async def carry_out() -> None:
            began = time.monotonic()
            try:
                await act()
            finally:
                if place is not None:
                    place.busy = False
                self._away.discard(server)
                self._under_way[kind] -= 1
            number = place.number if place is not None else None
            self.faults.append(Fault(kind, began, time.monotonic(), number, pid))

        if place is not None:
            place.busy = True
        if server:
            self._away.add(server)
        self.injected[kind] += 1
        self._under_way[kind] += 1
        task = asyncio.create_task(carry_out())
        self._tasks.add(task)

    def _raise_failures(self) -> None:
        """A fault that could not be carried out is the harness's failure, not a finding."""
        for task in list(self._tasks):
            if task.done():
                self._tasks.discard(task)
                task.result()
