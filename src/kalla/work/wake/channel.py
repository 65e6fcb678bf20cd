"""The wake channel's interface. A wake-up may be lost, late or duplicated: Postgres is
authoritative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Wake(Protocol):
    """One small interface, two channels behind it: NATS JetStream and Postgres LISTEN/NOTIFY.

    No method raises because the channel's server is away: a wake-up that cannot be sent is only
    late, because workers also poll. `error_message` is the current error.
    """

    async def start(self) -> None:
        """Begin; returns after the first try even if the server is away, and goes on trying."""

    async def stop(self) -> None: ...

    async def nudge(self, waiting: Mapping[str, int]) -> None:
        """Announces this many new waiting jobs in these queues; called after the commit that made
        them.
        """

    async def wait(self, queues: Sequence[str], timeout: float) -> set[str]:
        """The queues that were nudged, as soon as there is one; empty after `timeout` seconds.

        A nudge that came since the last `wait` counts.
        """

    async def claimed(self, claims: Mapping[str, int]) -> None:
        """This many jobs of these queues were claimed: their wake-ups are no longer needed."""

    async def alarm(self) -> None:
        """Notifies every worker at once that a running job was cancelled."""

    async def alarmed(self) -> None:
        """Return when an alarm came since the last call."""

    async def depth(self) -> Mapping[str, int]:
        """How many messages it holds for each queue; empty if it stores none, or is unreachable."""

    async def settle(self, waiting: Mapping[str, int]) -> None:
        """Corrects the channel's depth, if it has one, to these figures. One process at a time."""

    @property
    def error_message(self) -> str | None:
        """Why wake-ups do not work at the moment, as a message; None when they do."""
