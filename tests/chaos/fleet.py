"""The workers as real processes, each behind proxies of its own, started again when they end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from kalla.local import ports
from kalla.local.process import launched
from tests.chaos.proxy import Proxy

REPOSITORY = Path(__file__).resolve().parents[2]
_WARM_SECONDS = 1.0  # from its birth until a worker surely has jobs in hand
_LOOK = 0.02


@dataclass(frozen=True)
class Ending:
    """How a worker process ended. `asked` is the signal it got, None if nobody asked."""

    pid: int
    code: int
    asked: str | None


@dataclass(eq=False)
class Place:
    """One worker's place: its process of the moment, and the lines it has to the servers."""

    number: int
    postgres: Proxy
    nats: Proxy
    environment: Mapping[str, str]
    log: Path
    ledger: Path
    process: subprocess.Popen[bytes] | None = None
    born: float | None = None  # when it was seen to have begun
    busy: bool = False  # a fault is at work on it

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def warm(self) -> bool:
        """Whether it is up, and no fault is at work on it."""
        return not self.busy and self.up

    @property
    def up(self) -> bool:
        """Whether it runs, and has had time to take jobs."""
        if not self.alive or not self.is_born() or self.born is None:
            return False
        return time.monotonic() - self.born > _WARM_SECONDS

    def is_born(self) -> bool:
        """Whether it has written its first line: from then on it listens to signals."""
        if self.born is None and any(
            path.stat().st_size for path in self.ledger.glob(f"worker-{self.pid}-*.jsonl")
        ):
            self.born = time.monotonic()
        return self.born is not None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def spawn(self) -> None:
        command = [sys.executable, "-m", "tests.chaos.worker_main"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                launched(command, signal.SIGKILL),
                cwd=self.log.parent,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.born = None

    async def ended(self, seconds: float) -> int | None:
        """The exit code, or None if it has not ended by then."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while (code := self.process.poll()) is None and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)
        return code


@dataclass
class Fleet:
    """Every place. A worker that ended though nobody asked is noted and replaced."""

    places: list[Place]
    endings: list[Ending] = field(default_factory=list)

    @classmethod
    async def open(
        cls, count: int, folder: Path, settings: Mapping[str, str], postgres_url: str, nats_url: str
    ) -> Fleet:
        places = []
        (folder / "ledger").mkdir()
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("KALLA_")
        }
        for number in range(count):
            postgres = Proxy(urlsplit(postgres_url).port or 0)
            nats = Proxy(urlsplit(nats_url).port or 0)
            environment = {
                **inherited,
                **settings,
                "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path]),
                "CHAOS_LEDGER": str(folder / "ledger"),
                "KALLA_DATABASE_URL": _through(postgres_url, await postgres.start()),
                "KALLA_WAKE_NATS_URL": _through(nats_url, await nats.start()),
            }
            log = folder / f"worker-{number}.log"
            places.append(Place(number, postgres, nats, environment, log, folder / "ledger"))
        return cls(places)

    def start(self) -> None:
        for place in self.places:
            place.spawn()

    def note(self, place: Place, asked: str | None) -> None:
        assert place.process is not None
        code = place.process.poll()
        assert code is not None
        self.endings.append(Ending(place.pid, code, asked))

    def replace_fallen(self, spawn: bool = True) -> None:
        for place in self.places:
            if not place.busy and place.process is not None and not place.alive:
                self.note(place, None)
                if spawn:
                    place.spawn()

    async def close(self, seconds: float) -> None:
        """Drain all; whoever does not end in time is killed."""
        deadline = time.monotonic() + seconds
        for place in self.places:
            # Before its birth nobody would hear the signal.
            while place.alive and not place.is_born() and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK)
        self.replace_fallen(spawn=False)
        places = [place for place in self.places if place.alive]
        for place in places:
            place.send(signal.SIGCONT)
            place.send(signal.SIGTERM)
        for place in places:
            if await place.ended(deadline - time.monotonic()) is None:
                place.send(signal.SIGKILL)  # its exit code will tell the checker
                await place.ended(10)
            self.note(place, "SIGTERM")

    async def end(self) -> None:
        """No process and no listener stays behind, whatever happened before."""
        for place in self.places:
            if place.process is not None and place.alive:
                place.process.kill()
                place.process.wait()
            await place.postgres.stop()
            await place.nats.stop()


def _through(url: str, port: int) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@{ports.HOST}:{port}"))
