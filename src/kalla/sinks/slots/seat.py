"""The authority of a carrier: the lease of a slot, or in no-lease mode the worker itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kalla.database import Connection
from kalla.work.state import leases
from kalla.work.state.leases import Lease


@dataclass(frozen=True)
class Seat:
    holder: str
    lease: Lease | None  # None: without leases, the ledger's epochs alone are the fence
    deadline: Callable[[], float]  # when the work must have ended, by the local monotonic clock

    @property
    def slot(self) -> int | None:
        return self.lease.slot if self.lease else None

    @property
    def instance(self) -> str:
        """Its id in the consumer group: the slot, so that a successor takes its partitions."""
        return self.holder if self.lease is None else str(self.lease.slot)

    @property
    def comment(self) -> str:
        """For ClickHouse's query log."""
        if self.lease is None:
            return f"worker {self.holder}"
        return f"slot {self.lease.slot} epoch {self.lease.epoch}"

    async def assert_held(self, connection: Connection) -> None:
        """Raise Lost unless the lease is live until this transaction ends."""
        if self.lease is not None:
            await leases.assert_held(connection, self.holder, self.lease)
