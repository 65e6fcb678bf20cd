"""The query workers of an API process: discovers them, connects, disconnects silent ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from kalla import logs
from kalla.query.discovery.addresses import Discovery, DiscoveryFailed
from kalla.query.dispatch.worker_connection import WorkerConnection
from kalla.query.protocol import control_pb2 as pb
from kalla.query.protocol.background import repeat

_log = logs.get(__name__)


class WorkerPool:
    """Runs on the event loop. `dial` opens a connection that reconnects automatically."""

    def __init__(
        self,
        discovery: Discovery,
        discovery_seconds: float,
        dial: Callable[[str], WorkerConnection],
    ) -> None:
        self._discovery = discovery
        self._discovery_seconds = discovery_seconds
        self._dial = dial
        self._connections: dict[str, WorkerConnection] = {}  # by address
        self.open: dict[str, WorkerConnection] = {}  # by identity
        self._hits: dict[str, list[int]] = {}  # by worker: work units done, and cache hits of them

    @property
    def connections(self) -> Sequence[WorkerConnection]:
        """Disconnected ones, too."""
        return list(self._connections.values())

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self._connections.values()))

    async def discover_regularly(self) -> None:
        await repeat(self._discovery_seconds, self._discover, "query worker discovery")

    def admit(self, connection: WorkerConnection) -> bool:
        """False if another connected worker has the same identity."""
        other = self.open.get(connection.worker_id)
        if other is not None and other is not connection and other.is_open:
            return False
        self.open[connection.worker_id] = connection
        return True

    def remove(self, connection: WorkerConnection) -> bool:
        """False if another connection has replaced it."""
        if not self.holds(connection):
            return False
        del self.open[connection.worker_id]
        return True

    def holds(self, connection: WorkerConnection) -> bool:
        return self.open.get(connection.worker_id) is connection

    def hang_up_except(self, alive: Collection[str]) -> None:
        for worker, connection in list(self.open.items()):
            if worker not in alive:
                connection.hang_up("it was silent for too long")

    def send(self, worker: str, message: pb.ToWorker) -> None:
        connection = self.open.get(worker)
        if connection is not None:
            connection.send(message)

    def cancel(self, worker: str, key: pb.WorkKey) -> None:
        """Removes work that was not sent yet instead."""
        connection = self.open.get(worker)
        if connection is not None and not connection.withdraw(key.work_id):
            connection.send(pb.ToWorker(cancel=pb.CancelWork(key=key)))

    def note_hit(self, worker: str, *, hit: bool) -> None:
        counts = self._hits.setdefault(worker, [0, 0])
        counts[0], counts[1] = counts[0] + 1, counts[1] + hit

    def affinity(self, worker: str) -> float | None:
        """The share of its work units whose segments a worker had in memory."""
        done, hits = self._hits.get(worker, (0, 0))
        return hits / done if done else None

    async def _discover(self) -> None:
        try:
            found = set(await self._discovery.addresses())
        except DiscoveryFailed as problem:
            # The known workers stay: an unreachable name server does not end queries.
            _log.warning("query workers could not be looked up", reason=str(problem))
        else:
            await self._connect(found)

    async def _connect(self, found: set[str]) -> None:
        for address in found - self._connections.keys():
            self._connections[address] = self._dial(address)
        for address in self._connections.keys() - found:
            connection = self._connections[address]
            if not connection.is_open:  # one that is no longer listed may still finish its work
                del self._connections[address]
                await connection.close()
