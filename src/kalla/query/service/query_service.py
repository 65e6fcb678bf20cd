"""Runs the queries of one process: a bounded number at once; limits or a disconnect end each.

Query workers execute their leaves; the rest is evaluated here, in threads. The
engine is imported by the first thread that needs it: its compiler takes seconds to load.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import structlog

from kalla import logs, tracing
from kalla.errors import NotFound, Unavailable
from kalla.query.dispatch.query_records import Ending, QueryRecord
from kalla.query.evaluate.sample_source import Source
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.features import Features
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import QueryError, Stopped
from kalla.query.service.engine_loading import load_engine, set_kernel_cache
from kalla.query.service.query_request import MOST_POINTS, QueryOptions, QueryReply, QueryRequest
from kalla.query.service.time_limit import Stopwatch, TimeLimit
from kalla.query.store.catalogue import Listing, Metadata
from kalla.settings import Metrics, Settings

if TYPE_CHECKING:
    from kalla.query.dispatch.dispatcher import Dispatcher
    from kalla.query.dispatch.worker_source import WorkerSource
    from kalla.query.engine import Answer, BlockCallback
    from kalla.query.evaluate.evaluation import Limits
    from kalla.query.plan.planner import PlanSettings
    from kalla.query.store.series_table import SeriesTable

Result = TypeVar("Result")

_FURTHEST = 2**62
# Kernels that only an API needs: those that write answers, and those that read remote write.
_API_KERNELS = ("kalla.query.kernels.float_format", "kalla.query.store.ingest.remote_write_kernels")
_GOODBYE_SECONDS = 5.0
# Work units of one query that its threads wait for at once.
_UNITS_AT_ONCE = 16
# Series whose labels the API keeps in memory; beyond this number it starts again.
_MOST_SERIES = 2_000_000
_CANCELED = "query was canceled in query execution"  # Prometheus' words
_log = logs.get(__name__)


class Store(Protocol):
    """What is asked of the metric store."""

    async def shards(self) -> int: ...

    async def listing(self, after_ms: int, until_ms: int) -> Listing: ...

    async def metadata(
        self, metric: str | None = None, limit: int | None = None
    ) -> dict[str, Metadata]: ...


class QueryService:
    """Runs the engine in its own threads; waiting for a thread counts against a query's time."""

    def __init__(self, settings: Settings, store: Store, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._table: SeriesTable | None = None
        self._settings = settings.metrics
        self.features = Features.named(settings.metrics.features)
        self._kernels = settings.data_dir / "kernels"
        self._store = store
        self._free = asyncio.Semaphore(self._settings.query_concurrency)
        self._threads = ThreadPoolExecutor(self._settings.query_concurrency, "query")
        self._running: dict[asyncio.Task[Any], QueryRecord | None] = {}
        self._closed = False

    @property
    def running(self) -> int:
        """Queries whose work has not ended, waited for or not."""
        return len(self._running)

    @property
    def stopping(self) -> bool:
        return self._closed

    async def parse(
        self,
        parsing: Callable[[], Result],
        disconnected: Coroutine[Any, Any, None],
        seconds: float | None = None,
    ) -> Result:
        """Parses in a query's thread and within its time; regular expressions may take a while."""
        return await self._until_disconnected(
            None, lambda: self._parsed(parsing, seconds), disconnected
        )

    async def prepare(
        self,
        posing: Callable[[], QueryRequest],
        disconnected: Coroutine[Any, Any, None],
        seconds: float | None = None,
    ) -> QueryRequest:
        """A query's request; the time that parsing took is taken from that of the query."""
        began = time.monotonic()
        question = await self.parse(posing, disconnected, seconds)
        most = self._settings.query_seconds if seconds is None else seconds
        left = max(most - (time.monotonic() - began), 0.0)
        return replace(question, options=replace(question.options, seconds=left))

    async def ask(
        self,
        question: QueryRequest,
        disconnected: Coroutine[Any, Any, None],
        on_block: BlockCallback | None = None,
        user: str = "",
    ) -> QueryReply:
        """The whole answer, or an error; the work ends early when `disconnected` returns first.

        Passes points to `on_block` while they are computed, from a thread of the query.
        """
        kind: Literal["instant", "range"] = "range" if question.ranged else "instant"
        record = QueryRecord(question.text, user, kind=kind)
        return await self._until_disconnected(
            record, lambda: self._execute(question, record, on_block), disconnected
        )

    def record(self, query_id: str) -> QueryRecord:
        found = self.dispatcher.records.get(query_id)
        if found is None:
            raise NotFound(f"this API process has no query {query_id}: see `kalla query list`")
        return found

    def kill(self, query_id: str) -> QueryRecord:
        """Ends a query and its work on all workers; its caller gets the error `canceled`."""
        record = self.dispatcher.records.live.get(query_id)
        if record is None:
            raise NotFound(
                f"no query {query_id} is running on this API process: see `kalla query list`"
            )
        [task] = [task for task, one in self._running.items() if one is record]
        self._cancel(task)
        return record

    async def search(
        self,
        selectors: Sequence[Sequence[Matcher]],
        bounds: tuple[int, int],
        extract: Callable[[set[Labels]], Result],
        disconnected: Coroutine[Any, Any, None],
        user: str = "",
    ) -> Result:
        """The result of `extract` on the matching series, within a query's limits."""
        record = QueryRecord("", user, kind="series")
        return await self._until_disconnected(
            record, lambda: self._execute_search(selectors, bounds, extract, record), disconnected
        )

    async def _until_disconnected(
        self,
        record: QueryRecord | None,
        execute: Callable[[], Coroutine[Any, Any, Result]],
        disconnected: Coroutine[Any, Any, None],
    ) -> Result:
        """The result, unless `disconnected` returns first; a request that is only parsed has no
        record.
        """
        if self._closed:
            disconnected.close()
            raise Unavailable("the API is stopping: ask again in a moment")
        execution = self._recorded(record, execute) if record else execute()
        work = asyncio.create_task(execution, name="query")
        self._running[work] = record
        work.add_done_callback(self._ended)
        leaving = asyncio.create_task(disconnected, name="query left")
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() or work.cancelled():
                raise Stopped(_CANCELED)
            return work.result()
        finally:
            self._cancel(work)
            leaving.cancel()

    async def _recorded(
        self, record: QueryRecord, execute: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Runs the query and keeps its record for the page Queries up to date."""
        structlog.contextvars.bind_contextvars(query_id=record.query_id)
        span = tracing.start(
            "query",
            record.query_id,
            record.query_id,
            query_id=record.query_id,
            kind=record.kind,
            expression=record.expression,
        )
        records, metrics = self.dispatcher.records, self.dispatcher.metrics
        records.begin(record)
        self.dispatcher.open_query(record)
        ending: Ending = "cancelled"
        reason = ""
        try:
            found = await execute()
            ending = "answered"
            return found
        except Stopped as problem:
            reason = str(problem)
            metrics.errors.labels(problem.kind).inc()
            raise
        except (Exception, asyncio.CancelledError) as problem:
            # An error after the end is not a failure.
            if record.stop.is_set() or isinstance(problem, asyncio.CancelledError):
                canceled = Stopped(_CANCELED)
                reason = str(canceled)
                metrics.errors.labels(canceled.kind).inc()
                raise canceled from problem
            ending, reason = "failed", str(problem)
            kind = problem.kind if isinstance(problem, QueryError) else "unavailable"
            metrics.errors.labels(kind).inc()
            _log.info("a query has no answer", reason=reason, seconds=round(record.seconds, 3))
            raise
        finally:
            self.dispatcher.close_query(record.query_id)
            records.end(record, ending, reason)
            span.end(reason, ending=ending, work_units=len(record.work), retries=record.retries)
            metrics.duration.observe(record.seconds)
            fetched = [one.fetched_at for one in record.work if one.fetched_at]
            if fetched:
                metrics.first_result.observe(min(fetched) - record.began)

    def warm(self, use: Callable[[Answer], object] | None = None) -> threading.Thread:
        """Load the engine and its kernels in the background, so that no query waits for them."""
        loading = threading.Thread(
            target=load_engine,
            args=(self._kernels, _API_KERNELS, use),
            name="warm",
            daemon=True,  # a stop does not wait for a compiler
        )
        loading.start()
        return loading

    def stop(self) -> None:
        """End every query, so that a server that stops need not wait for them."""
        self._closed = True
        for task in self._running:
            self._cancel(task)

    async def close(self) -> None:
        self.stop()
        if self._running:
            await asyncio.wait(list(self._running), timeout=_GOODBYE_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        """Ends a query, also one that waits for its turn; its thread ends when it sees `stop`."""
        if task.done() or task.cancelling():
            return
        record = self._running[task]
        if record is not None:
            record.stop.set()
            self.dispatcher.cancel_query(record.query_id)
        task.cancel()

    def _ended(self, work: asyncio.Task[Any]) -> None:
        del self._running[work]
        if not work.cancelled():
            work.exception()  # the caller may have disconnected

    async def _execute(
        self, question: QueryRequest, record: QueryRecord, on_block: BlockCallback | None
    ) -> QueryReply:
        watch = Stopwatch(question.options.seconds, self._settings.query_seconds, record)
        await watch.within(self._free.acquire(), "query queue")
        try:
            watch.stage("wait", "prepare")
            found = await self._in_thread(lambda: _bounds(question, self._kernels))
            watch.stage("prepare", "snapshot")
            listing, shards = Listing((), {}), 1
            if found is not None:
                listing, shards = await self._listed(found, watch)
            watch.stage("snapshot", "evaluation")
            answer = await self._in_thread(
                lambda: self._answer(
                    question, self._source(listing, shards, watch), watch, on_block
                )
            )
        finally:
            self._free.release()
        parse = ("parse", question.parse_seconds)
        stages = (parse, *watch.stages, *answer.stats.seconds.items())
        return QueryReply(question, answer, stages, record)

    async def _parsed(self, parsing: Callable[[], Result], seconds: float | None) -> Result:
        limit = TimeLimit(seconds, self._settings.query_seconds)
        await limit.within(self._free.acquire(), "query queue")
        try:
            return await limit.within(self._in_thread(parsing), "query parsing")
        finally:
            self._free.release()

    async def _execute_search(
        self,
        selectors: Sequence[Sequence[Matcher]],
        bounds: tuple[int, int],
        extract: Callable[[set[Labels]], Result],
        record: QueryRecord,
    ) -> Result:
        watch = Stopwatch(None, self._settings.query_seconds, record)
        await watch.within(self._free.acquire(), "query queue")
        try:
            watch.stage("wait", "snapshot")
            listing, shards = await self._listed(bounds, watch)
            watch.stage("snapshot", "evaluation")
            return await self._in_thread(
                lambda: extract(self._source(listing, shards, watch).labels(selectors, *bounds))
            )
        finally:
            self._free.release()

    async def _listed(self, bounds: tuple[int, int], watch: Stopwatch) -> tuple[Listing, int]:
        after, until = (max(-_FURTHEST, min(_FURTHEST, bound)) for bound in bounds)

        async def listed() -> tuple[Listing, int]:
            return await self._store.listing(after, until), await self._store.shards()

        return await watch.within(listed(), "query preparation")

    def _source(self, listing: Listing, shards: int, watch: Stopwatch) -> WorkerSource:
        from kalla.query.dispatch.worker_source import WorkerSource
        from kalla.query.store.series_table import SeriesTable

        if self._table is None or len(self._table) > _MOST_SERIES:
            self._table = SeriesTable()
        return WorkerSource(
            self.dispatcher,
            watch.record,
            listing.segments,
            listing.listed,
            shards,
            limits_of(self._settings, watch.left),
            self._table,
            watch,
        )

    def _answer(
        self,
        question: QueryRequest,
        source: Source,
        watch: Stopwatch,
        on_block: BlockCallback | None,
    ) -> Answer:
        from kalla.query.engine import Engine
        from kalla.query.evaluate.blocks import early_width, usual_width

        engine = Engine(
            source,
            plan_settings(question.options),
            limits_of(self._settings, watch.left),
            _UNITS_AT_ONCE,
            usual_width if on_block is None else early_width,
        )
        expr, text, steps, step_ms = question.expr, question.text, question.steps, question.step_ms
        return engine.run(expr, text, steps, step_ms, watch.record.stop, on_block)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        """Runs a function in a thread, which stays occupied until the function ends."""
        run = contextvars.copy_context().run  # its log lines name the query, too
        work = asyncio.get_running_loop().run_in_executor(self._threads, run, function)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()
            raise


def _bounds(question: QueryRequest, kernels: Path) -> tuple[int, int] | None:
    set_kernel_cache(kernels)
    from kalla.query.engine import bounds

    return bounds(question.expr, question.steps, question.step_ms, plan_settings(question.options))


def limits_of(settings: Metrics, seconds: float) -> Limits:
    from kalla.query.evaluate.evaluation import Limits

    return Limits(
        samples=settings.query_samples,
        series=settings.query_series,
        memory_bytes=settings.query_bytes,
        seconds=seconds,
        points=MOST_POINTS,
    )


def plan_settings(options: QueryOptions) -> PlanSettings:
    from kalla.query.plan.planner import PlanSettings

    if options.lookback_ms > 0:
        return PlanSettings(
            lookback=options.lookback_ms, counted=options.counted, features=options.features
        )
    return PlanSettings(counted=options.counted, features=options.features)
