"""The engine over segments answers with the same bits as over memory, however they are cut."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kalla.query.engine import Engine
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.sample_source import (
    STALE_BITS,
    MemorySource,
    Samples,
    SeriesBatch,
    shard_of,
)
from kalla.query.labels.label_sets import Labels
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.store import segments
from kalla.query.store.segment_cache import SegmentCache
from kalla.query.store.segment_source import SegmentSource
from kalla.query.store.segments import Segment
from kalla.storage import LOCAL
from tests.integration.query.made_up import MINUTES, made_up
from tests.metrics_kit import listed
from tests.promqltest import runner

SCRIPTS = Path(runner.__file__).parent / "scripts"


def through_segments(
    folder: Path, series: Mapping[Labels, Samples], shards: int, commits: int = 3
) -> SegmentSource:
    held = written_segments(folder, series, shards, commits)
    return SegmentSource(SegmentCache(LOCAL, str(folder), 1 << 24), held, shards)


def written_segments(
    folder: Path, series: Mapping[Labels, Samples], shards: int, commits: int = 3
) -> list[Segment]:
    """Samples dealt to several objects, some of them twice, and the last object compacted."""
    held: list[Segment] = []
    for number in range(commits):
        parts: dict[int, list[tuple[Labels, Samples]]] = {}
        for labels in sorted(series):
            samples = series[labels]
            turn = np.arange(len(samples.times)) // 2 % commits
            dealt = (turn == number) | ((turn == number - 1) & (np.arange(len(turn)) % 3 == 0))
            some = Samples(
                samples.times[dealt],
                samples.values[dealt],
                None if samples.starts is None else samples.starts[dealt],
            )
            parts.setdefault(shard_of(labels, shards), []).append((labels, some))
        level = int(number == commits - 1)
        batches = {shard: batch(part) for shard, part in parts.items()}
        held += listed(segments.write(LOCAL, str(folder), level, batches), len(held) + 1)
    return held


def series_of(whole: SeriesBatch) -> dict[Labels, Samples]:
    found = {}
    for place, labels in enumerate(whole.labels):
        own = slice(whole.offsets[place], whole.offsets[place + 1])
        starts = None if whole.starts is None else whole.starts[own]
        found[labels] = Samples(whole.times[own], whole.values[own], starts)
    return found


def batch(part: list[tuple[Labels, Samples]]) -> SeriesBatch:
    values = np.concatenate([samples.values for _, samples in part])
    starts = [
        np.zeros(len(samples.times), np.int64) if samples.starts is None else samples.starts
        for _, samples in part
    ]
    return SeriesBatch(
        [labels for labels, _ in part],
        np.concatenate([[0], np.cumsum([len(samples.times) for _, samples in part])]),
        np.concatenate([samples.times for _, samples in part]),
        values,
        values.view(np.uint64) == STALE_BITS,
        np.concatenate(starts),
    )


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("name", ["windows", "starts", "extended", "buckets", "names"])
def test_scripts_hold_over_segments(
    name: str, shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = runner.stored
    made: list[SegmentSource] = []

    def stored(data: Any, shards: int = 1) -> SegmentSource:
        folder = tmp_path / str(len(made))
        whole = in_memory(data, 1).select(0, (), -(2**60), 2**60)
        made.append(through_segments(folder, series_of(whole), shards))
        return made[-1]

    monkeypatch.setattr(runner, "stored", stored)
    outcome = runner.run([SCRIPTS / f"{name}.test"], shards=shards)

    assert [str(failure) for failure in outcome.failures] == []
    assert outcome.passed > 0
    assert made


QUERIES = [
    "n",
    "timestamp(n)",
    "sum by (g) (rate(m_total[5m]))",
    "avg without (i) (n)",
    "topk(2, m_total)",
    "count_values('v', m_total)",
    "histogram_quantile(0.9, sum by (le) (increase(h_bucket[5m])))",
    "stddev_over_time(n[4m]) - on (g, i) group_left quantile_over_time(0.3, n[4m])",
    "max_over_time(deriv(m_total[3m])[6m:1m])",
    'absent(n{g="z"})',
]


@pytest.mark.parametrize("seed", [1, 2])
def test_segments_of_any_shards_and_memory_give_the_same_bits(tmp_path: Path, seed: int) -> None:
    series = made_up(seed)
    setting = PlanSettings(features=Features.every())
    memory = Engine(MemorySource(series), setting, Limits(seconds=60.0))
    kept = [
        Engine(through_segments(tmp_path / str(shards), series, shards), setting, workers=workers)
        for shards, workers in ((1, 1), (7, 2), (64, 2))
    ]
    for text in QUERIES:
        expected = memory.range(text, 0, 12 * MINUTES, 45_000)
        assert expected.series
        for engine in kept:
            got = engine.range(text, 0, 12 * MINUTES, 45_000)
            assert [one.labels for one in got.series] == [one.labels for one in expected.series]
            for ours, theirs in zip(got.series, expected.series, strict=True):
                assert np.array_equal(ours.times, theirs.times)
                assert np.array_equal(ours.values, theirs.values, equal_nan=True)


def test_what_a_leaf_read_is_told_with_the_answer(tmp_path: Path) -> None:
    engine = Engine(through_segments(tmp_path, made_up(1), 2))

    facts = engine.range("rate(m_total[5m])", 0, 12 * MINUTES, 60_000).stats.leaves

    assert {fact.shard for fact in facts} == {0, 1}
    assert all(fact.read["segments"] + fact.read["segments_pruned"] == 3 for fact in facts)
    assert sum(fact.read["rows"] for fact in facts) > 0
    assert sum(fact.read["bytes"] for fact in facts) > 0
