"""What a process knows to be told of metrics: the newest word counts, and is written if it is news.

Senders repeat themselves with every request, and another process may have been told otherwise.
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
        """Writes what is news; returns what is known once the transaction has ended well."""
        if not metadata:
            return self
        known = await self._still(connection)
        if not known.news(metadata):
            return known
        # In turns: whose words come later also carry the later time.
        await connection.execute(catalogue.sql.take_turns)
        known = await known._still(connection)
        news = known.news(metadata)
        await catalogue.note_metadata(connection, news)
        kept = {} if len(known.notes) > _MOST else known.notes
        return MetadataCache(await catalogue.metadata_changed_at(connection), {**kept, **news})

    def news(self, metadata: Mapping[str, Metadata]) -> dict[str, Metadata]:
        return {name: note for name, note in metadata.items() if self.notes.get(name) != note}

    async def _still(self, connection: Connection) -> MetadataCache:
        """Nothing is known any more if another process was told something since."""
        latest = await catalogue.metadata_changed_at(connection)
        return self if latest == self.as_of else MetadataCache(latest)
