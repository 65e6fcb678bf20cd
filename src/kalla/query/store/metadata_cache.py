"""Caches metadata of metrics: the newest counts, and is written only when it changed.

Senders repeat themselves with every request, and another process may have received other metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kalla.database import Connection
from kalla.query.store import catalogue
from kalla.query.store.catalogue import Metadata

_MOST = 100_000


@dataclass(frozen=True)
class MetadataCache:
    """As it stood when the last of all metadata was written."""

    as_of: datetime | None = None
    notes: Mapping[str, Metadata] = field(default_factory=dict)

    async def note(self, connection: Connection, metadata: Mapping[str, Metadata]) -> MetadataCache:
        """Writes changes; returns the new state, valid once the transaction has committed."""
        if not metadata:
            return self
        known = await self._still(connection)
        if not known.news(metadata):
            return known
        # Serialized: later metadata also have the later time.
        await connection.execute(catalogue.sql.take_turns)
        known = await known._still(connection)
        news = known.news(metadata)
        await catalogue.note_metadata(connection, news)
        kept = {} if len(known.notes) > _MOST else known.notes
        return MetadataCache(await catalogue.metadata_changed_at(connection), {**kept, **news})

    def news(self, metadata: Mapping[str, Metadata]) -> dict[str, Metadata]:
        return {name: note for name, note in metadata.items() if self.notes.get(name) != note}

    async def _still(self, connection: Connection) -> MetadataCache:
        """Empty if another process has written metadata since."""
        latest = await catalogue.metadata_changed_at(connection)
        return self if latest == self.as_of else MetadataCache(latest)
