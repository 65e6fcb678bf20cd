"""The metrics of a query worker, on /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class WorkerMetrics:
    """Counters as things happen; gauges are read on request."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.accepted = Counter(
            "kalla_query_worker_accepted_total", "Work units begun", registry=registry
        )
        self.rejected = Counter(
            "kalla_query_worker_rejected_total", "Work units not taken", registry=registry
        )
        self.failed = Counter(
            "kalla_query_worker_failed_total",
            "Work units that failed, by whether another worker may do it",
            ["final"],
            registry=registry,
        )
        self.task_seconds = Histogram(
            "kalla_query_worker_task_seconds",
            "From begin to artifact",
            buckets=_SECONDS,
            registry=registry,
        )
        self.wait_seconds = Histogram(
            "kalla_query_worker_wait_seconds",
            "From assignment to begin",
            buckets=_SECONDS,
            registry=registry,
        )
        self.cancel_seconds = Histogram(
            "kalla_query_worker_cancel_seconds",
            "From a cancel to the end of the work",
            buckets=_SECONDS,
            registry=registry,
        )
        self.cache_hits = Counter(
            "kalla_query_worker_cache_total",
            "Work units by whether their segments were in memory",
            ["hit"],
            registry=registry,
        )
        self.cleanups = Counter(
            "kalla_query_worker_artifact_cleanups_total",
            "Artifacts deleted because nobody fetched them in time",
            registry=registry,
        )
        self.download_seconds = Histogram(
            "kalla_query_worker_download_seconds",
            "Downloading an object of the metric store",
            buckets=_SECONDS,
            registry=registry,
        )

    def watch(self, gauges: Callable[[], dict[str, float]]) -> None:
        self.registry.register(_Gauges(gauges))


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], dict[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for name, value in self._gauges().items():
            family = GaugeMetricFamily(f"kalla_query_worker_{name}", name.replace("_", " "))
            family.add_metric([], value)
            yield family
