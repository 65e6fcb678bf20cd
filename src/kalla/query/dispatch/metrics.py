"""The metrics of query workers in the API process, on /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class DispatchMetrics:
    """Counters and histograms as things happen; gauges are read on request."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"kalla_query_{name}", text, list(labels), registry=registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"kalla_query_{name}", text, buckets=_SECONDS, registry=registry)

        self.heartbeat = seconds("heartbeat_seconds", "Round trip of a heartbeat")
        self.reconnect = seconds("reconnect_seconds", "From a lost stream to the next")
        self.assignment = seconds("assignment_seconds", "From a work unit to its begin")
        self.ready_to_fetch = seconds("ready_to_fetch_seconds", "From ready to the fetch")
        self.fetch = seconds("fetch_seconds", "Fetching an artifact")
        self.duration = seconds("duration_seconds", "From a query to its answer")
        self.first_result = seconds("first_result_seconds", "From a query to its first artifact")
        self.disconnects = counter(
            "disconnects_total", "Control streams that ended without a drain"
        )
        self.accepted = counter("work_accepted_total", "Work units that a worker began")
        self.rejected = counter("work_rejected_total", "Work units that a worker did not take")
        self.reassigned = counter("work_reassigned_total", "Work units given to another worker")
        self.affinity = counter(
            "work_affinity_total", "Work units by whether the worker had their segments", "hit"
        )
        self.mismatches = counter("checksum_mismatches_total", "Artifacts damaged in transit")
        self.errors = counter("errors_total", "Queries without an answer", "reason")

    def watch(self, gauges: Callable[[], dict[str, float]]) -> None:
        self.registry.register(_Gauges(gauges))


class QueryGauges(Collector):
    """These metrics among the others of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], dict[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for name, value in self._gauges().items():
            family = GaugeMetricFamily(f"kalla_query_{name}", name.replace("_", " "))
            family.add_metric([], value)
            yield family
