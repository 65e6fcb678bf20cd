"""The wake channel's interface. A wake-up may be lost, late or doubled: Postgres is the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Wake(Protocol):
    """One small interface, two channels behind it: NATS JetStream and Postgres LISTEN/NOTIFY.

    No method raises because the channel's server is away: a wake-up that cannot be sent is only
    late, since workers look by themselves too. `trouble` says what is wrong meanwhile.
    """

    async def start(self) -> None:
        """Begin; returns after the first try even if the server is away, and goes on trying."""

    async def stop(self) -> None: ...

    async def nudge(self, waiting: Mapping[str, int]) -> None:
        """So many jobs began to wait in these queues; called after the commit that made them."""

    async def wait(self, queues: Sequence[str], timeout: float) -> set[str]:
        """The queues that were nudged, as soon as there is one; empty after `timeout` seconds.

        A nudge that came since the last `wait` counts.
        """

    async def claimed(self, claims: Mapping[str, int]) -> None:
        """So many jobs of these queues were claimed: their wake-ups need reach nobody any more."""

    async def alarm(self) -> None:
        """Tell every worker, now: some running job was cancelled."""

    async def alarmed(self) -> None:
        """Return when an alarm came since the last call."""

    async def depth(self) -> Mapping[str, int]:
        """How many messages it holds for each queue; empty if it keeps none, or is away."""

    async def settle(self, waiting: Mapping[str, int]) -> None:
        """Bring the channel's own depth, if it has one, to these figures. One process at a time."""

    @property
    def trouble(self) -> str | None:
        """Why wake-ups do not work at the moment, in a sentence; None when they do."""
