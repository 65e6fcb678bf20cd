"""Samples for bench/promql.py, in Kalla's metric store and in blocks of a Prometheus.

One metric `m`: counters of the buckets of a histogram, by pod and zone. A pod's samples lie at the
same moments, some milliseconds off the second, as scrapes do.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import SecretStr

from kalla.database import Database
from kalla.local import ports
from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.sample_source import SeriesBatch, shard_of
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.store import catalogue
from kalla.query.store.maintenance.compaction import carry_out
from kalla.query.store.maintenance.compaction_plan import plan, together
from kalla.query.store.metric_store import MetricStore
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings
from kalla.storage import Storage, join
from tests.prometheus_server import Prometheus

# At the border of two blocks of both stores.
START = 1_700_006_400_000
HALF_HOUR = 1_800_000
BOUNDS = ("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "+Inf")
ZONES = 8
# One sample so long after the others: then every block of theirs is closed, and compacted.
AFTERWARDS = 1_500_000
_REQUEST_SAMPLES = 600_000
_FOR_EVER = 1 << 62


@dataclass(frozen=True)
class Extent:
    """How much: series, one sample of each in so many milliseconds, over so long."""

    name: str
    series: int
    spacing: int
    length: int

    @property
    def samples(self) -> int:
        return self.series * (self.length // self.spacing)

    @property
    def end(self) -> int:
        return START + self.length


@dataclass(frozen=True)
class Piece:
    """Half an hour of all series: a row of `values` for each, and when its pod was scraped."""

    labels: list[Labels]
    times: Whole
    offsets: Whole
    values: Floats

    def series(self) -> Iterator[tuple[Labels, Whole, Floats]]:
        for row, labels in enumerate(self.labels):
            yield labels, self.times + self.offsets[row], self.values[row]


def pieces(extent: Extent) -> Iterator[Piece]:
    """In the order of time."""
    rng = np.random.default_rng(extent.series)
    pods = extent.series // len(BOUNDS)
    labels = [
        labels_of(
            {
                "__name__": "m",
                "instance": f"10.0.{pod // 250}.{pod % 250}:9100",
                "job": "web",
                "le": bound,
                "pod": f"web-{pod:05d}",
                "zone": f"zone-{pod % ZONES}",
            }
        )
        for pod in range(pods)
        for bound in BOUNDS
    ]
    # Never on a whole second, where 2.42 and 3.x put the edge of a window differently.
    offsets = np.repeat(rng.integers(0, extent.spacing // 10, pods) * 10 + 7, len(BOUNDS))
    pace = np.repeat(rng.integers(2, 40, pods), len(BOUNDS)) / len(BOUNDS)
    # Long under way: near zero 2.42 and 3.x differ in what they make of a gap.
    reached = np.outer(rng.integers(1_000_000, 2_000_000, pods), np.arange(1, len(BOUNDS) + 1))
    reached = reached.reshape(-1, 1).astype(np.float64)
    count = HALF_HOUR // extent.spacing
    for begin in range(START, extent.end, HALF_HOUR):
        more = rng.poisson(pace[:, None] * extent.spacing / 1000, (extent.series, count))
        # The count of a bucket is that of all below it as well.
        more = more.reshape(pods, len(BOUNDS), count).cumsum(axis=1).reshape(-1, count)
        values = reached + more.cumsum(axis=1)
        reached = values[:, -1:]
        times = begin + np.arange(count, dtype=np.int64) * extent.spacing
        yield Piece(labels, times, offsets, values)
    last = np.array([extent.end + AFTERWARDS], np.int64)
    yield Piece(
        [labels_of({"__name__": "afterwards"})], last, np.zeros(1, np.int64), np.ones((1, 1))
    )


async def fill_kalla(extent: Extent, database_url: str, data_dir: Path) -> int:
    """Through `MetricStore.commit` and the compaction kernel; returns the bytes that are listed."""
    settings = Settings(data_dir=data_dir, database=DatabaseSettings(url=SecretStr(database_url)))
    async with Database(settings.database) as database:
        store = MetricStore(settings, database)
        for piece in pieces(extent):
            await store.commit(_sharded(piece, await store.shards()))
        await _compact(database, store.storage, store.url)
        async with database.transaction() as connection:
            listed = await catalogue.live(connection, -_FOR_EVER, _FOR_EVER)
        await store.close()
    paths = {one.path for one in listed}
    return sum(store.storage.size(join(store.url, path)) for path in paths)


def fill_prometheus(extent: Extent, folder: Path) -> Path:
    """By remote write, then all of it as blocks; returns a folder to start another over."""
    server = Prometheus(folder / "loading", ports.choose_free())
    server.start()
    try:
        for piece in pieces(extent):
            step = max(1, _REQUEST_SAMPLES // len(piece.times))
            series = list(piece.series())
            for first in range(0, len(series), step):
                server.write(series[first : first + step])
        blocks = server.snapshot()
    finally:
        server.stop()
    place = folder / "blocks"
    place.mkdir(parents=True)
    shutil.move(blocks, place / "prometheus")
    shutil.rmtree(folder / "loading")
    return place


def _sharded(piece: Piece, shards: int) -> dict[int, SeriesBatch]:
    rows: dict[int, list[int]] = {}
    for row in sorted(range(len(piece.labels)), key=piece.labels.__getitem__):
        rows.setdefault(shard_of(piece.labels[row], shards), []).append(row)
    count = len(piece.times)
    return {
        shard: SeriesBatch(
            [piece.labels[row] for row in chosen],
            np.arange(len(chosen) + 1, dtype=np.int64) * count,
            (piece.times[None, :] + piece.offsets[chosen, None]).ravel(),
            piece.values[chosen].ravel(),
        )
        for shard, chosen in rows.items()
    }


async def _compact(database: Database, storage: Storage, url: str) -> None:
    """What upkeep and its jobs do, without Spark around the kernel."""
    for turn in range(20):
        async with database.transaction() as connection:
            live = await catalogue.live(connection, -_FOR_EVER, _FOR_EVER)
        tasks = together(plan(live))
        if not tasks:
            return
        for number, task in enumerate(tasks):
            merged = carry_out(storage, url, f"compacted/{turn}-{number}", task)
            assert isinstance(merged, list), merged
            async with database.transaction() as connection:
                for each in merged:
                    await catalogue.replace(connection, each.merge.inputs, each.news)
    raise RuntimeError("compaction finds no end")
