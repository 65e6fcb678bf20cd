"""Receives samples: a write is answered when its samples are durable.

Writes that arrive together are committed together: one object, one transaction. No state is lost
with this process: a sender without an answer sends again, and stored samples are not duplicated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import psycopg
from psycopg_pool import PoolTimeout

from kalla import logs
from kalla.database import AWAY, NOT_MIGRATED
from kalla.errors import KallaError, Unavailable
from kalla.query.array_types import Floats, Mask, Whole
from kalla.query.evaluate.sample_source import STALE_BITS, SeriesBatch
from kalla.query.store.catalogue import Metadata
from kalla.query.store.ingest.series_index import REFUSED, Refusals, SeriesIndex
from kalla.settings import Metrics

# A clock may be a little ahead; Prometheus allows as much.
AHEAD_MS = 10 * 60 * 1000
# The year 1: differences of times must stay whole numbers of 64 bits.
EARLIEST_MS = -62_135_596_800_000
# Samples that wait or are being committed; above this, senders are asked to retry later.
MOST_SAMPLES = 4_000_000
# Bodies that are being read or decoded, in the size of the largest allowed one.
MOST_BODIES = 4
# Samples of one commit; more wait for the next.
_GROUP_SAMPLES = 1_000_000
_KNOWN_BYTES = 512 << 20
# How late the samples of another process are noticed.
_NEWEST_SECONDS = 5.0
# Errors of a disk, a bucket or a database that may succeed the next time.
_PASSING = (KallaError, OSError, psycopg.Error, PoolTimeout)
_log = logs.get(__name__)


class WritableStore(Protocol):
    """The part of the metric store that samples go into."""

    async def shards(self) -> int: ...

    async def newest(self) -> int | None: ...

    async def commit(
        self, shards: Mapping[int, SeriesBatch], metadata: Mapping[str, Metadata]
    ) -> None: ...


@dataclass(frozen=True)
class WriteResult:
    """The result of a write: how many samples are durable now, and why others are not."""

    samples: int
    refusals: Refusals


@dataclass(frozen=True)
class Batch:
    """Samples by the number of their series, in the order they came."""

    known: SeriesIndex
    numbers: Whole
    times: Whole
    values: Floats
    starts: Whole | None = None
    metadata: Mapping[str, Metadata] = field(default_factory=dict)


Waiting = list[tuple[Batch, asyncio.Future[None]]]


class Intake:
    """One per process. Everything here runs in its event loop but decoding and sorting."""

    def __init__(self, store: WritableStore, settings: Metrics) -> None:
        self._store = store
        self._settings = settings
        self._known: SeriesIndex | None = None
        self._newest: int | None = None
        self._looked_at = -_NEWEST_SECONDS
        self._waiting: Waiting = []
        self._arrived = asyncio.Event()
        # Bodies without an answer, and the callers that wait for fewer of them.
        self._bodies = 0
        self._gathered = asyncio.Event()
        self._samples = 0
        self._body_bytes = 0
        self._committer: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="intake")

    async def close(self) -> None:
        """Callers that still wait are asked to retry later."""
        if self._committer is not None:
            self._committer.cancel()
            with suppress(asyncio.CancelledError):
                await self._committer
        self._fail(self._waiting, Unavailable("the server is stopping: send it again"))
        self._threads.shutdown(wait=False)

    @property
    def held_samples(self) -> int:
        """Samples in memory that were not confirmed as durable."""
        return self._samples

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Reserves memory for a body of this size."""
        if self._body_bytes + size > MOST_BODIES * self._settings.write_bytes:
            raise Unavailable("too many writes are running: send it again in a moment")
        self._body_bytes += size
        self._bodies += 1
        try:
            yield
        finally:
            self._body_bytes -= size
            self._bodies -= 1
            self._gathered.set()

    async def receive(self, body: bytes, version: int, *, history: bool = False) -> WriteResult:
        """A remote write of version 1 or 2; `history` may be of any age.

        Raises MalformedWrite or WriteTooLarge if nothing of it can be used, Unavailable if it has
        to be sent again.
        """
        known = await self._series()
        loop = asyncio.get_running_loop()
        batch, refusals = await loop.run_in_executor(
            self._threads, _batch, body, version, self._settings.write_bytes, known
        )
        batch = await self._in_time_range(batch, refusals, history=history)
        await self.write(batch)
        return WriteResult(len(batch.times), refusals)

    async def write(self, batch: Batch) -> None:
        """Returns when the samples are durable."""
        if not len(batch.times) and not batch.metadata:
            return
        if self._samples and self._samples + len(batch.times) > MOST_SAMPLES:
            raise Unavailable("too many samples wait to be written: send them again in a moment")
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit_for_ever())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._samples += len(batch.times)
        self._waiting.append((batch, done))
        self._arrived.set()
        self._gathered.set()
        await done

    async def _series(self) -> SeriesIndex:
        if self._known is None or self._known.is_full:
            self._known = SeriesIndex(await self._store.shards(), _KNOWN_BYTES)
        return self._known

    async def _in_time_range(self, batch: Batch, refusals: Refusals, *, history: bool) -> Batch:
        """Without samples that are too old or too far in the future."""
        if time.monotonic() - self._looked_at > _NEWEST_SECONDS:
            self._saw(await self._store.newest())
            self._looked_at = time.monotonic()
        ahead = batch.times > int(time.time() * 1000) + AHEAD_MS
        old = np.zeros(len(batch.times), bool)
        if self._newest is not None and not history:
            old = batch.times < self._newest - int(self._settings.out_of_order_seconds * 1000)
        early = batch.times < EARLIEST_MS
        unfit = ahead | old | early
        if not unfit.any():
            return batch
        for mask, words in (
            (old & ~early, "too old sample"),
            (early, "out of bounds"),
            (ahead, "out of bounds: timestamp is too far in the future"),
        ):
            refusals.add_all(words, np.unique(batch.numbers[mask]).tolist(), batch.known)
        return _only(batch, ~unfit)

    def _saw(self, newest: int | None) -> None:
        if newest is not None:
            self._newest = newest if self._newest is None else max(self._newest, newest)

    async def _commit_for_ever(self) -> None:
        begun = -self._settings.commit_seconds
        while True:
            await self._arrived.wait()
            # Writes that arrive meanwhile join the same commit.
            await asyncio.sleep(begun + self._settings.commit_seconds - time.monotonic())
            await self._gather()
            begun = time.monotonic()
            group = self._next_group()
            try:
                await self._settle(group)
            except asyncio.CancelledError:
                self._fail(group, Unavailable("the server is stopping: send it again"))
                raise

    async def _gather(self) -> None:
        """Until all bodies that are here are decoded and wait, but no longer than between commits:
        a commit costs nearly the same for one as for all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.commit_seconds):
                while len(self._waiting) < self._bodies:
                    self._gathered.clear()
                    await self._gathered.wait()

    async def _settle(self, group: Waiting) -> None:
        """Commits these writes and answers each."""
        try:
            await self._commit([batch for batch, _ in group])
        except _PASSING as error:
            _log.error("samples could not be written", exc_info=error)
            self._fail(group, _to_be_sent_again(error))
        except Exception as error:
            if len(group) == 1:
                self._fail(group, error)
                return
            # One of them causes an unexpected error; it must not block the others for ever.
            for one in group:
                await self._settle([one])
        else:
            self._release(group)
            for _, done in group:
                if not done.done():
                    done.set_result(None)

    def _next_group(self) -> Waiting:
        """The first that wait, of the same table of series and no more than one commit takes."""
        taken = samples = 0
        for batch, _ in self._waiting:
            samples += len(batch.times)
            if taken and (samples > _GROUP_SAMPLES or batch.known is not self._waiting[0][0].known):
                break
            taken += 1
        group, self._waiting = self._waiting[:taken], self._waiting[taken:]
        if not self._waiting:
            self._arrived.clear()
        return group

    async def _commit(self, batches: Sequence[Batch]) -> None:
        metadata: dict[str, Metadata] = {}
        for batch in batches:
            metadata |= batch.metadata
        loop = asyncio.get_running_loop()
        shards = await loop.run_in_executor(self._threads, merged, batches)
        await self._store.commit(shards, metadata)
        for batch in batches:
            if len(batch.times):
                self._saw(int(batch.times.max()))

    def _fail(self, group: Waiting, reason: BaseException) -> None:
        self._release(group)
        for _, done in group:
            if not done.done():
                done.set_exception(reason)

    def _release(self, group: Waiting) -> None:
        self._samples -= sum(len(batch.times) for batch, _ in group)


def merged(batches: Sequence[Batch]) -> dict[int, SeriesBatch]:
    """By shard: series in the order of rows, samples of each in that of time, each time once.

    Of two samples of the same series and time the one that came first stays.
    """
    known = batches[0].known
    numbers = np.concatenate([batch.numbers for batch in batches])
    if not len(numbers):
        return {}
    times = np.concatenate([batch.times for batch in batches])
    values = np.concatenate([batch.values for batch in batches])
    starts = None
    if any(batch.starts is not None for batch in batches):
        starts = np.concatenate(
            [
                np.zeros(len(batch.times), np.int64) if batch.starts is None else batch.starts
                for batch in batches
            ]
        )
    places = known.places()[numbers]
    order = np.argsort(places, kind="stable")
    places, times = places[order], times[order]
    same = places[1:] == places[:-1]
    if (same & (times[1:] <= times[:-1])).any():
        again = np.lexsort((times, places))
        places, times, order = places[again], times[again], order[again]
        first = np.ones(len(order), bool)
        first[1:] = (places[1:] != places[:-1]) | (times[1:] != times[:-1])
        places, times, order = places[first], times[first], order[first]
        same = places[1:] == places[:-1]
    values = values[order]
    begins = np.concatenate([[0], np.flatnonzero(~same) + 1])
    offsets = np.append(begins, len(order))
    series = numbers[order[begins]]
    stale = values.view(np.uint64) == STALE_BITS
    whole = SeriesBatch(
        known.label_texts(series),
        offsets,
        times,
        values,
        stale if stale.any() else None,
        None if starts is None else starts[order],
    )
    return _by_shard(whole, known.shards(series))


def _by_shard(whole: SeriesBatch, shards: Whole) -> dict[int, SeriesBatch]:
    cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]
    found = {}
    for first, last in pairwise(cuts):
        low, high = int(whole.offsets[first]), int(whole.offsets[last])
        found[int(shards[first])] = SeriesBatch(
            whole.labels[first:last],
            whole.offsets[first : last + 1] - low,
            whole.times[low:high],
            whole.values[low:high],
            None if whole.stale is None else whole.stale[low:high],
            None if whole.starts is None else whole.starts[low:high],
        )
    return found


def _batch(
    body: bytes, version: int, most_bytes: int, known: SeriesIndex
) -> tuple[Batch, Refusals]:
    # Loads the kernels, which takes seconds: in a thread, and not before something is written.
    from kalla.query.store.ingest import remote_write

    request = remote_write.decode(body, version, most_bytes)
    refusals = Refusals()
    numbers = known.numbers(request.text, request.spans, request.split, refusals)
    counts = np.diff(request.offsets)
    if request.histograms.any():
        refusals.add(
            "native histograms are not supported, float samples are: "
            f"{int(request.histograms.sum())} were left out; send classic histograms instead"
        )
    if version == 2:
        empty = (counts == 0) & (request.histograms == 0) & (numbers != REFUSED)
        words = "TimeSeries must contain at least one sample or histogram"
        refusals.add_all(words, numbers[empty].tolist(), known)
    batch = Batch(
        known,
        np.repeat(numbers, counts),
        request.times,
        request.values,
        request.starts,
        request.metadata,
    )
    if (numbers == REFUSED).any():
        batch = _only(batch, batch.numbers != REFUSED)
    return batch, refusals


def _only(batch: Batch, kept: Mask) -> Batch:
    return Batch(
        batch.known,
        batch.numbers[kept],
        batch.times[kept],
        batch.values[kept],
        None if batch.starts is None else batch.starts[kept],
        batch.metadata,
    )


def _to_be_sent_again(error: Exception) -> Exception:
    """A sender gives up at 4xx: a temporary error of the store must not look like one."""
    if isinstance(error, (*AWAY, *NOT_MIGRATED)):
        return error
    return Unavailable(f"the samples could not be written, send them again: {error}")
