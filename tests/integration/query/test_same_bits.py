"""Three query workers answer with the bits of one process, for every script there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kalla.query.engine import Answer, Engine
from kalla.query.evaluate.evaluation import Limits
from kalla.query.evaluate.sample_source import MemorySource
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.promql.query_errors import QueryError
from tests.integration.query.made_up import MINUTES, made_up
from tests.integration.query.test_segment_source import series_of, written_segments
from tests.promqltest import runner
from tests.promqltest.comparing import same_answers
from tests.promqltest.script import Eval
from tests.promqltest.test_scripts import OURS, SHARED
from tests.worker_fleet_kit import Fleet, fleet

SETTING = PlanSettings(features=Features.every())


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("segments")) as opened:
        yield opened


class BothWays:
    """Answers of the script runner, each also asked of one process: the bits must be the same."""

    def __init__(self, workers: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self._workers = workers
        self._alone: dict[int, tuple[Any, Engine]] = {}  # the source too: its id stays its own
        self._in_memory = runner.stored
        self._answer = runner._answer
        self.compared = 0
        monkeypatch.setattr(runner, "stored", self.stored)
        monkeypatch.setattr(runner, "_answer", self.answer)

    def stored(self, data: Any, shards: int = 1) -> Any:
        alone = self._in_memory(data, 1)
        if any(isinstance(point, str) for points in data.values() for point, _ in points.values()):
            return alone  # segments hold no native histograms
        series = series_of(alone.select(0, (), -(2**60), 2**60))
        written = written_segments(self._workers.folder, series, shards)
        source = self._workers.source(written, shards)
        self._alone[id(source)] = (source, Engine(alone, runner.SETTING, runner.LIMITS))
        return source

    def answer(self, command: Eval, engine: Engine) -> Answer:
        if id(engine.source) not in self._alone:
            return self._answer(command, engine)
        _, alone = self._alone[id(engine.source)]
        self.compared += 1
        wanted = _asked(lambda: self._answer(command, replace(alone, width=engine.width)))
        if self.compared % 25 == 0:
            self._lose_a_worker()
        got = _asked(lambda: self._answer(command, replace(engine, workers=16)))
        if isinstance(got, QueryError) or isinstance(wanted, QueryError):
            assert (type(got), str(got)) == (type(wanted), str(wanted))
            raise got if isinstance(got, QueryError) else AssertionError("an answer, and none")
        assert same_answers(got, wanted)
        assert (got.warnings, got.infos) == (wanted.warnings, wanted.infos)
        return got

    def _lose_a_worker(self) -> None:
        """Closes a stream while the next evaluation runs; the worker comes back by itself."""
        opened = list(self._workers.dispatcher.workers.open.values())
        if len(opened) > 1:
            lost = opened[self.compared % len(opened)]
            self._workers.loop.call_soon_threadsafe(lost.hang_up, "a test")


def _asked(ask: Callable[[], Answer]) -> Answer | QueryError:
    try:
        return ask()
    except QueryError as problem:
        return problem


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_scripts_have_the_same_bits(
    path: Path, workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = BothWays(workers, monkeypatch)

    outcome = runner.run([path], shards=4)

    assert [str(failure) for failure in outcome.failures] == []
    assert both.compared >= outcome.passed > 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="Prometheus' scripts are not beside this checkout")
def test_prometheus_scripts_have_the_same_bits(
    workers: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = BothWays(workers, monkeypatch)

    outcome = runner.run(sorted(SHARED.glob("*.test")), shards=4)

    assert [str(failure) for failure in outcome.failures] == []
    assert both.compared > 500  # data with native histograms stay in memory


QUERIES = [
    "n",
    "n[5m]",
    "sum by (g) (rate(m_total[5m]))",
    "avg(n) - avg by (g) (n)",
    "topk(2, m_total)",
    "limit_ratio(0.5, n)",
    "min by (g) (n) or max by (g) (n)",
    "quantile_over_time(0.3, n[4m])",
    "max_over_time(deriv(m_total[3m])[6m:1m])",
    "n[3m:30s]",
    "count_values('v', m_total)",
]


@pytest.mark.parametrize("shards", [1, 7, 32])
def test_made_up_series_have_the_same_bits(workers: Fleet, shards: int) -> None:
    series = made_up(shards)
    alone = Engine(MemorySource(series), replace(SETTING, counted=True), Limits(seconds=60.0))
    source = workers.source(written_segments(workers.folder, series, shards), shards)
    spread = replace(alone, source=source, workers=16)
    for text in QUERIES:
        wanted, got = (one.instant(text, 6 * MINUTES) for one in (alone, spread))
        assert same_answers(got, wanted), text
        assert got.stats.samples_by_step == wanted.stats.samples_by_step
        assert got.stats.samples_read == wanted.stats.samples_read
        if "n[" not in text or "(" in text:
            wanted, got = (one.range(text, 0, 12 * MINUTES, 45_000) for one in (alone, spread))
            assert same_answers(got, wanted), text
