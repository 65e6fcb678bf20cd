"""What tests of the metric store share: a store over a folder and a migrated database, batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import SecretStr

from kalla.database import Database
from kalla.query.evaluate.sample_source import STALE_BITS, SeriesBatch, shard_of
from kalla.query.labels.label_sets import Labels, labels_of
from kalla.query.store.metric_store import MetricStore
from kalla.query.store.segments import NewSegment, Segment
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Metrics, Settings, Storage

Points = Sequence[tuple[int, float]]


def metrics_settings(
    database_url: str, place: Path | str, storage: Storage | None = None, **metrics: Any
) -> Settings:
    kept = (storage or Storage()).model_copy(update={"metrics": str(place)})
    return Settings(
        database=DatabaseSettings(url=SecretStr(database_url)),
        storage=kept,
        metrics=Metrics(**metrics),
    )


@asynccontextmanager
async def metric_store(settings: Settings) -> AsyncIterator[MetricStore]:
    async with Database(settings.database) as database:
        store = MetricStore(settings, database)
        try:
            yield store
        finally:
            await store.close()


def named(name: str, **labels: str) -> Labels:
    return labels_of({"__name__": name, **labels})


def batch_of(series: Mapping[Labels, Points]) -> SeriesBatch:
    """Sorted by labels; staleness markers are told by their bits."""
    order = sorted(series)
    points = [point for labels in order for point in sorted(series[labels], key=lambda p: p[0])]
    values = np.array([value for _, value in points], np.float64)
    stale = values.view(np.uint64) == STALE_BITS
    return SeriesBatch(
        order,
        np.concatenate([[0], np.cumsum([len(series[labels]) for labels in order])]).astype(
            np.int64
        ),
        np.array([time for time, _ in points], np.int64),
        values,
        stale if stale.any() else None,
    )


def spread(series: Mapping[Labels, Points], shards: int) -> dict[int, SeriesBatch]:
    """Each series in its shard."""
    parts: dict[int, dict[Labels, Points]] = {}
    for labels, points in series.items():
        parts.setdefault(shard_of(labels, shards), {})[labels] = points
    return {shard: batch_of(part) for shard, part in parts.items()}


async def commit(store: MetricStore, series: Mapping[Labels, Points]) -> None:
    await store.commit(spread(series, await store.shards()))


def contents(batch: SeriesBatch) -> dict[Labels, list[tuple[int, float]]]:
    """Each series' points; of markers and other NaNs only that they are NaN."""
    return {
        labels: list(
            zip(
                batch.times[batch.offsets[place] : batch.offsets[place + 1]].tolist(),
                batch.values[batch.offsets[place] : batch.offsets[place + 1]].tolist(),
                strict=True,
            )
        )
        for place, labels in enumerate(batch.labels)
    }


def listed(new: Iterable[NewSegment], first: int = 1) -> list[Segment]:
    """As the catalogue would list them, without one."""
    return [Segment(**asdict(one), segment_id=first + place) for place, one in enumerate(new)]
