"""One set of series in a real Prometheus and in Kalla's engine, and a query put to both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from kalla.local import ports
from kalla.query.engine import Engine
from kalla.query.evaluate.sample_source import Samples
from kalla.query.labels.label_sets import Labels
from kalla.query.plan.planner import PlanSettings
from kalla.query.promql.features import Features
from kalla.query.promql.query_errors import QueryError
from tests.differential.comparing import Outcome, of_answer, of_json
from tests.differential.queries import Query, Times
from tests.differential.sample_series import sample_series
from tests.numbered_source import NumberedSource
from tests.prometheus_server import Prometheus, asked, seconds
from tests.servers import started

# double_exponential_smoothing, the holt_winters of 2.42, is experimental now.
SETTING = PlanSettings(features=Features(experimental_functions=True))
# Open on the left as in 3.x: the lookback of 5m without its first millisecond.
LOOKBACK = "--query.lookback-delta=299999ms"


@dataclass(frozen=True)
class Both:
    series: dict[Labels, Samples]
    engine: Engine
    client: httpx.Client

    def ours(self, text: str, times: Times) -> Outcome:
        try:
            if times.step:
                answer = self.engine.range(text, times.start, times.end, times.step)
            else:
                answer = self.engine.instant(text, times.start)
        except QueryError as problem:
            return Outcome(problem.kind, {}, str(problem))
        return of_answer(answer, times.start)

    def theirs(self, text: str, times: Times) -> Outcome:
        if not times.step:
            return of_json(
                asked(self.client, "/api/v1/query", query=text, time=seconds(times.start))
            )
        return of_json(
            asked(
                self.client,
                "/api/v1/query_range",
                query=text,
                start=seconds(times.start),
                end=seconds(times.end),
                step=seconds(times.step),
            )
        )

    def answers(self, query: Query, times: Times) -> tuple[Outcome, Outcome]:
        return self.ours(query.ours, times), self.theirs(query.theirs, times)


@contextmanager
def both_engines(folder: Path, seed: int) -> Iterator[Both]:
    series = sample_series(seed)
    server = Prometheus(folder, ports.choose_free(), [LOOKBACK])
    with started(server):
        # In the order of labels, in which Kalla goes through them: a variance depends on it.
        server.write(
            (labels, one.times, one.values)
            for labels, one in sorted(series.items(), key=lambda pair: pair[0])
        )
        with httpx.Client(base_url=server.url, timeout=60) as client:
            yield Both(series, Engine(NumberedSource(series, shards=3), SETTING), client)
