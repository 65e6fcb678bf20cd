"""The metric store of one process: commits that are durable, snapshots that hold still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kalla import logs
from kalla.database import Database
from kalla.errors import Unavailable
from kalla.query.evaluate.sample_source import SeriesBatch
from kalla.query.store import catalogue, segments
from kalla.query.store.catalogue import Listing, Metadata
from kalla.query.store.metadata_cache import MetadataCache
from kalla.query.store.segment_cache import SegmentCache
from kalla.query.store.segment_check import SegmentVerdict, examine
from kalla.query.store.segment_source import SegmentSource
from kalla.query.store.segments import NewSegment, Segment
from kalla.settings import Settings
from kalla.storage import Storage

# Series whose labels a process keeps in memory; beyond this number it starts again.
_MOST_SERIES = 2_000_000
# Segments whose catalogue entries it keeps in memory.
_MOST_SEGMENTS = 200_000
# Segments and bytes that are checked in one call: some seconds of work.
_CHECKED_AT_ONCE = 500
_CHECKED_BYTES = 64 << 20
_log = logs.get(__name__)


@dataclass(frozen=True)
class CheckedPage:
    """Some results, how many segments are left, and the number to continue after, if any."""

    verdicts: tuple[SegmentVerdict, ...]
    left: int
    last: int | None


class MetricStore:
    """A cache only: everything in memory was read from segments."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings.metrics
        self.url = settings.metrics_url
        self.storage = Storage.of(settings.storage)
        self.database = database
        self._shards: int | None = None
        self._segment_cache = self._empty_cache()
        self._known: dict[int, Segment] = {}
        self._metadata_cache = MetadataCache()

    async def shards(self) -> int:
        """How many shards series are spread over; fixed for the whole store by its first use."""
        if self._shards is None:
            async with self.database.transaction() as connection:
                self._shards = await catalogue.shards(connection, self.settings.shards)
            if self._shards != self.settings.shards:
                _log.warning(
                    "the metric store keeps its number of shards",
                    shards=self._shards,
                    setting=self.settings.shards,
                )
        return self._shards

    async def commit(
        self, shards: Mapping[int, SeriesBatch], metadata: Mapping[str, Metadata] | None = None
    ) -> None:
        """Durable when it returns: first the object, then its lines in the catalogue.

        If the catalogue cannot be written, the object stays unlisted; upkeep removes it.
        """
        if max(shards, default=0) >= await self.shards():
            raise ValueError(f"there is no shard {max(shards)}")
        began = time.monotonic()
        new: list[NewSegment] = []
        if shards:
            new = await asyncio.to_thread(segments.write, self.storage, self.url, 0, shards)
        # Upkeep removes old unlisted objects: this one may have been removed already.
        if time.monotonic() - began > self.settings.grace_seconds / 2:
            raise Unavailable("writing the samples took too long: send them again")
        async with self.database.transaction() as connection:
            metadata_cache = await self._metadata_cache.note(connection, metadata or {})
            await catalogue.add(connection, new)
        self._metadata_cache = metadata_cache

    async def snapshot(
        self, after_ms: int, until_ms: int, check: Callable[[], None] | None = None
    ) -> SegmentSource:
        """What is committed now, with all samples of (after, until].

        `check` is called now and then while segments are read; it raises to end that.
        """
        shards = await self.shards()
        listing = await self.listing(after_ms, until_ms)
        if self._segment_cache.series > _MOST_SERIES:
            self._segment_cache = self._empty_cache()
        return SegmentSource(
            self._segment_cache,
            listing.segments,
            shards,
            listing.listed,
            self.settings.query_bytes,
            check,
        )

    async def listing(self, after_ms: int, until_ms: int) -> Listing:
        """The segments that are committed now and may have samples of (after, until]."""
        async with self.database.transaction() as connection:
            listing = await catalogue.snapshot(connection, after_ms, until_ms, self._known)
        if len(self._known) > _MOST_SEGMENTS:
            self._known = {}
        return listing

    async def check(self, after: int) -> CheckedPage:
        """Reads segments after this number, as many as take a short time."""
        async with self.database.transaction() as connection:
            found, left = await catalogue.following(connection, after, _CHECKED_AT_ONCE)
        some: list[Segment] = []
        for segment in found:
            if some and sum(each.bytes for each in some) + segment.bytes > _CHECKED_BYTES:
                break
            some.append(segment)
        verdicts = await asyncio.to_thread(lambda: [*examine(self.storage, self.url, some)])
        verdicts.sort(key=lambda each: each.segment.segment_id)
        if broken := [each.segment.segment_id for each in verdicts if each.problem]:
            # A segment that was merged meanwhile may be missing; this is not an error.
            async with self.database.transaction() as connection:
                live = {one.segment_id for one in await catalogue.still_live(connection, broken)}
            verdicts = [
                each for each in verdicts if not each.problem or each.segment.segment_id in live
            ]
        last = some[-1].segment_id if len(some) < left else None
        return CheckedPage(tuple(verdicts), left - len(some), last)

    async def newest(self) -> int | None:
        """The time of the newest sample there is."""
        async with self.database.transaction() as connection:
            return await catalogue.newest(connection)

    async def metadata(
        self, metric: str | None = None, limit: int | None = None
    ) -> dict[str, Metadata]:
        async with self.database.transaction() as connection:
            return await catalogue.metadata(connection, metric, limit)

    async def close(self) -> None:
        self._segment_cache = self._empty_cache()

    def _empty_cache(self) -> SegmentCache:
        return SegmentCache(self.storage, self.url, self.settings.cache_bytes)
