"""Wake-ups for idle workers: one interface, two channels."""

from __future__ import annotations

from collections.abc import Iterable

from kalla.database import Database
from kalla.settings import Settings
from kalla.work.wake.channel import Wake
from kalla.work.wake.nats_channel import NatsWake
from kalla.work.wake.postgres_channel import PostgresWake

__all__ = ["NatsWake", "PostgresWake", "Wake", "open_channel"]


def open_channel(settings: Settings, database: Database, queues: Iterable[str]) -> Wake:
    """The channel the settings ask for; not started yet."""
    if settings.wake.channel == "postgres":
        return PostgresWake(database)
    return NatsWake(settings.wake, queues)
