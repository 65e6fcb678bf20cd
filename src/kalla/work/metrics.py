"""Prometheus metrics of one process. The names are fixed: scalers and alerts read them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kalla.work.job_slots import JobSlots
from kalla.work.state.queues import QueueRecord


class Metrics:
    """Counters that are updated as things happen. Gauges are read on request."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.completed = Counter(
            "kalla_worker_jobs_completed_total", "Jobs completed", ["type"], registry=registry
        )
        self.failed = Counter(
            "kalla_worker_jobs_failed_total", "Attempts that failed", ["type"], registry=registry
        )
        self.put_off = Counter(
            "kalla_worker_jobs_put_off_total",
            "Attempts that found a server away",
            ["type"],
            registry=registry,
        )
        self.lost = Counter(
            "kalla_worker_jobs_lost_total", "Claims lost while running", ["type"], registry=registry
        )
        self.rows = Counter(
            "kalla_worker_rows_processed_total", "Rows that completed jobs moved", registry=registry
        )
        self.reclaimed = Counter(
            "kalla_reaper_jobs_reclaimed_total",
            "Lost jobs returned to their queue",
            registry=registry,
        )
        self.reaper_failed = Counter(
            "kalla_reaper_jobs_failed_total", "Lost jobs with no attempt left", registry=registry
        )
        self.seconds = Histogram(
            "kalla_job_duration_seconds",
            "From claim to completion",
            ["type"],
            buckets=(0.01, 0.05, 0.2, 1, 5, 20, 60, 300, 1200, 3600, 14400),
            registry=registry,
        )
        self.queues = QueueGauges()
        registry.register(self.queues)

    def watch(self, slots: JobSlots) -> None:
        """Adds metrics of the jobs held."""
        self._slots = SlotGauges(slots)
        self.registry.register(self._slots)

    def heartbeat_succeeded(self) -> None:
        self._slots.heartbeat_at = time.monotonic()


class SlotGauges(Collector):
    def __init__(self, slots: JobSlots) -> None:
        self._slots = slots
        self._types: set[str] = set()
        self.heartbeat_at = time.monotonic()

    def collect(self) -> Iterator[Metric]:
        slots = self._slots
        yield _gauge("kalla_worker_active_jobs", "Jobs held", len(slots))
        yield _gauge(
            "kalla_worker_saturation", "Jobs held / concurrency", len(slots) / slots.concurrency
        )
        by_type = slots.by_type()
        self._types |= by_type.keys()
        types = GaugeMetricFamily(
            "kalla_worker_current_job_type", "Jobs held by type", labels=["type"]
        )
        for job_type in sorted(self._types):
            types.add_metric([job_type], by_type[job_type])
        yield types
        yield _gauge(
            "kalla_worker_current_job_duration_seconds",
            "Age of the longest job held",
            slots.longest_seconds(),
        )
        yield _gauge(
            "kalla_worker_last_heartbeat_seconds_ago",
            "Since a heartbeat last reached Postgres",
            time.monotonic() - self.heartbeat_at,
        )
        yield _gauge(
            "kalla_worker_stuck_seconds",
            "How long a thread has outlived its lost job",
            slots.stuck_seconds(),
        )


class QueueGauges(Collector):
    """The newest state of the queues. No value before the first read: absent is not zero."""

    def __init__(self) -> None:
        self._records: Sequence[QueueRecord] = ()
        self._refresh_p95 = 0.0

    def set(self, records: Sequence[QueueRecord], refresh_p95_seconds: float) -> None:
        self._records = records
        self._refresh_p95 = refresh_p95_seconds

    def collect(self) -> Iterable[Metric]:
        if not self._records:
            return
        by_name = {record.queue: record for record in self._records}
        depth = GaugeMetricFamily("kalla_queue_depth", "Waiting jobs", labels=["queue"])
        oldest = GaugeMetricFamily(
            "kalla_queue_oldest_wait_seconds", "Age of the longest-waiting job", labels=["queue"]
        )
        paused = GaugeMetricFamily("kalla_queue_paused", "1 while paused", labels=["queue"])
        for record in self._records:
            depth.add_metric([record.queue], record.depth)
            oldest.add_metric([record.queue], record.oldest_wait_seconds)
            paused.add_metric([record.queue], float(record.paused_at is not None))
        yield from (depth, oldest, paused)
        for queue in ("stage", "exec"):
            waiting = by_name.get(queue, QueueRecord(queue)).depth
            yield _gauge(f"kalla_{queue}_queue_depth", f"Waiting jobs of queue {queue}", waiting)
        refresh = by_name.get("refresh", QueueRecord("refresh"))
        yield _gauge("pending_refresh_count", "Waiting refreshes", refresh.depth)
        yield _gauge(
            "refresh_backlog_seconds",
            "Age of the longest-waiting refresh",
            refresh.oldest_wait_seconds,
        )
        yield _gauge(
            "refresh_duration_p95", "Seconds, refreshes of the last hour", self._refresh_p95
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
