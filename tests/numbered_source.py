"""Series in memory whose labels are told by number, as the metric store tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from kalla.query.evaluate.sample_source import MemorySource, Samples, SeriesBatch
from kalla.query.labels.interned import Interned
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.matchers import Matcher
from kalla.query.store.series_table import SeriesTable, text_of


class NumberedSource(MemorySource):
    """A series gets its number when it is met: in no order, and between two leaves of a query."""

    def __init__(self, series: Mapping[Labels, Samples], shards: int = 1) -> None:
        super().__init__(series, shards)
        self._table = SeriesTable()

    def select(
        self, shard: int, matchers: Sequence[Matcher], after: int, until: int
    ) -> SeriesBatch:
        batch = super().select(shard, matchers, after, until)
        numbers = self._table.numbers(
            pa.array([text_of(labels) for labels in batch.labels], pa.string())
        )
        return replace(batch, labels=Interned(self._table, numbers.astype(np.int64)))
