"""Queries under way in one process: so many at once, each ended by its limits or when nobody waits.

Their leaves are executed by query workers; what stands above is evaluated here, in threads. The
engine is imported by the first thread that needs it: its compiler takes seconds to load.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import structlog

from kalla import logs, query
from kalla.errors import NotFound, Unavailable
from kalla.query.dispatch.query_records import Ending, QueryRecord
from kalla.query.evaluate.frames import Steps, range_steps
from kalla.query.evaluate.sample_source import MemorySource, Source
from kalla.query.http.response_json import pieces
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.features import Features
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import QueryError, Stopped, TimedOut
from kalla.query.promql.syntax_tree import Expr
from kalla.query.promql.type_checker import checked, require_steps
from kalla.query.store.catalogue import Listing, Metadata
from kalla.settings import Settings

if TYPE_CHECKING:
    from kalla.query.dispatch.dispatcher import Dispatcher
    from kalla.query.dispatch.worker_source import WorkerSource
    from kalla.query.engine import Answer, Take
    from kalla.query.evaluate.evaluation import Limits
    from kalla.query.plan.planner import PlanSettings
    from kalla.query.store.series_table import SeriesTable

Found = TypeVar("Found")

MOST_POINTS = 11_000
_FURTHEST = 2**62
_EVERY_PART = 'sum(rate(a{b=~"c.+"}[5m])) or vector(1.5)'
_GOODBYE_SECONDS = 5.0
# Work units of one query that its threads wait for at once.
_UNITS_AT_ONCE = 16
# Series of which the API remembers the labels; beyond that it begins anew.
_MOST_SERIES = 2_000_000
_log = logs.get(__name__)


class Store(Protocol):
    """What is asked of the metric store."""

    async def shards(self) -> int: ...

    async def listing(self, after_ms: int, until_ms: int) -> Listing: ...

    async def metadata(
        self, metric: str | None = None, limit: int | None = None
    ) -> dict[str, Metadata]: ...


@dataclass(frozen=True)
class QueryOptions:
    """Options of one query: its time limit, lookback and what is counted."""

    lookback_ms: int = 0  # 0: the usual one
    seconds: float | None = None  # None: as long as any query may take
    counted: bool = False  # whether to count the samples that each step sees
    features: Features = field(default_factory=Features)


@dataclass(frozen=True)
class QueryRequest:
    """A checked expression and when to evaluate it; `ranged` tells many steps from one moment."""

    text: str
    expr: Expr
    steps: Steps
    ranged: bool
    options: QueryOptions
    parse_seconds: float

    @property
    def step_ms(self) -> int:
        return self.steps.step if self.ranged else 0


@dataclass(frozen=True)
class QueryReply:
    """The answer, and the seconds that each stage took, in their order."""

    question: QueryRequest
    answer: Answer
    stages: tuple[tuple[str, float], ...]
    record: QueryRecord

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.stages)


def instant(text: str, time_ms: int, options: QueryOptions) -> QueryRequest:
    began = time.monotonic()
    expr = checked(text, options.features)
    steps = Steps(time_ms, time_ms, 1)
    return QueryRequest(text, expr, steps, False, options, time.monotonic() - began)


def ranged(
    text: str, start_ms: int, end_ms: int, step_ms: int, options: QueryOptions
) -> QueryRequest:
    steps = range_steps(start_ms, end_ms, step_ms, MOST_POINTS)
    began = time.monotonic()
    expr = checked(text, options.features)
    require_steps(expr)
    return QueryRequest(text, expr, steps, True, options, time.monotonic() - began)


class QueryService:
    """Asks the engine in threads of its own; waiting for one counts against a query's time."""

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
        parsing: Callable[[], Found],
        gone: Coroutine[Any, Any, None],
        seconds: float | None = None,
    ) -> Found:
        """What is parsed in a query's thread and time; its regular expressions may take a while."""
        return await self._led(None, lambda: self._parsed(parsing, seconds), gone)

    async def prepare(
        self,
        posing: Callable[[], QueryRequest],
        gone: Coroutine[Any, Any, None],
        seconds: float | None = None,
    ) -> QueryRequest:
        """A query's request; the time that parsing took is taken from that of the query."""
        began = time.monotonic()
        question = await self.parse(posing, gone, seconds)
        most = self._settings.query_seconds if seconds is None else seconds
        left = max(most - (time.monotonic() - began), 0.0)
        return replace(question, options=replace(question.options, seconds=left))

    async def ask(
        self,
        question: QueryRequest,
        gone: Coroutine[Any, Any, None],
        take: Take | None = None,
        user: str = "",
    ) -> QueryReply:
        """The whole answer, or an error; the work ends early when `gone` returns first.

        Points go to `take` while they are computed, if it is there: from a thread of the query.
        """
        kind: Literal["instant", "range"] = "range" if question.ranged else "instant"
        record = QueryRecord(question.text, user, kind=kind)
        return await self._led(record, lambda: self._carried_out(question, record, take), gone)

    def record(self, query_id: str) -> QueryRecord:
        found = self.dispatcher.records.get(query_id)
        if found is None:
            raise NotFound(f"there is no query {query_id}: `kalla query list` shows the last ones")
        return found

    def kill(self, query_id: str) -> QueryRecord:
        """Ends a query and its work on all workers; whoever asked is told that it was canceled."""
        record = self.dispatcher.records.live.get(query_id)
        if record is None:
            raise NotFound(f"no query {query_id} is under way: `kalla query list` shows those")
        record.stop.set()
        self.dispatcher.cancel_query(query_id)
        return record

    async def look(
        self,
        selectors: Sequence[Sequence[Matcher]],
        bounds: tuple[int, int],
        taken: Callable[[set[Labels]], Found],
        gone: Coroutine[Any, Any, None],
        user: str = "",
    ) -> Found:
        """What is `taken` from the series that match, bounded as a query is."""
        record = QueryRecord("", user, kind="series")
        return await self._led(
            record, lambda: self._looked_up(selectors, bounds, taken, record), gone
        )

    async def _led(
        self,
        record: QueryRecord | None,
        carried_out: Callable[[], Coroutine[Any, Any, Found]],
        gone: Coroutine[Any, Any, None],
    ) -> Found:
        """The result, unless `gone` returns first; what is only parsed has no record."""
        if self._closed:
            gone.close()
            raise Unavailable("the API is stopping: ask again in a moment")
        carrying = self._recorded(record, carried_out) if record else carried_out()
        work = asyncio.create_task(carrying, name="query")
        self._running[work] = record
        work.add_done_callback(self._ended)
        leaving = asyncio.create_task(gone, name="query left")
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Stopped("query was canceled in query execution")
            return work.result()
        finally:
            if not work.done():
                self._cancel(record)
            leaving.cancel()
            work.cancel()

    async def _recorded(
        self, record: QueryRecord, carried_out: Callable[[], Coroutine[Any, Any, Found]]
    ) -> Found:
        """The query with its line on the page Queries, and what became of it."""
        structlog.contextvars.bind_contextvars(query_id=record.query_id)
        records, metrics = self.dispatcher.records, self.dispatcher.metrics
        records.begin(record)
        self.dispatcher.open_query(record)
        ending: Ending = "cancelled"
        reason = ""
        try:
            found = await carried_out()
            ending = "answered"
            return found
        except Stopped as problem:
            reason = str(problem)
            metrics.errors.labels(problem.kind).inc()
            raise
        except Exception as problem:
            if record.stop.is_set():  # what its work says of the end is no failure
                canceled = Stopped("query was canceled in query execution")
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
            metrics.duration.observe(record.seconds)
            fetched = [one.ready_at for one in record.work if one.ready_at]
            if fetched:
                metrics.first_result.observe(min(fetched) - record.began)

    def warm(self) -> threading.Thread:
        """Load the engine and its kernels beside everything else, so that no query waits for it."""
        # A daemon: whoever stops does not wait for a compiler.
        loading = threading.Thread(target=self._load, name="warm", daemon=True)
        loading.start()
        return loading

    def stop(self) -> None:
        """End every query, so that a server that stops need not wait for them."""
        self._closed = True
        for record in self._running.values():
            self._cancel(record)

    async def close(self) -> None:
        self.stop()
        if self._running:
            await asyncio.wait(list(self._running), timeout=_GOODBYE_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _cancel(self, record: QueryRecord | None) -> None:
        if record is not None:
            record.stop.set()
            self.dispatcher.cancel_query(record.query_id)

    def _ended(self, work: asyncio.Task[Any]) -> None:
        del self._running[work]
        if not work.cancelled():
            work.exception()  # whoever asked may be gone

    async def _carried_out(
        self, question: QueryRequest, record: QueryRecord, take: Take | None
    ) -> QueryReply:
        watch = _Watch(question.options.seconds, self._settings.query_seconds, record)
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
                lambda: self._answer(question, self._source(listing, shards, watch), watch, take)
            )
        finally:
            self._free.release()
        parse = ("parse", question.parse_seconds)
        stages = (parse, *watch.stages, *answer.stats.seconds.items())
        return QueryReply(question, answer, stages, record)

    async def _parsed(self, parsing: Callable[[], Found], seconds: float | None) -> Found:
        limit = _TimeLimit(seconds, self._settings.query_seconds)
        await limit.within(self._free.acquire(), "query queue")
        try:
            return await limit.within(self._in_thread(parsing), "query parsing")
        finally:
            self._free.release()

    async def _looked_up(
        self,
        selectors: Sequence[Sequence[Matcher]],
        bounds: tuple[int, int],
        taken: Callable[[set[Labels]], Found],
        record: QueryRecord,
    ) -> Found:
        watch = _Watch(None, self._settings.query_seconds, record)
        await watch.within(self._free.acquire(), "query queue")
        try:
            watch.stage("wait", "snapshot")
            listing, shards = await self._listed(bounds, watch)
            watch.stage("snapshot", "evaluation")
            return await self._in_thread(
                lambda: taken(self._source(listing, shards, watch).labels(selectors, *bounds))
            )
        finally:
            self._free.release()

    async def _listed(self, bounds: tuple[int, int], watch: _Watch) -> tuple[Listing, int]:
        after, until = (max(-_FURTHEST, min(_FURTHEST, bound)) for bound in bounds)

        async def listed() -> tuple[Listing, int]:
            return await self._store.listing(after, until), await self._store.shards()

        return await watch.within(listed(), "query preparation")

    def _source(self, listing: Listing, shards: int, watch: _Watch) -> WorkerSource:
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
            self._limits(watch.left),
            self._table,
            watch,
        )

    def _limits(self, seconds: float) -> Limits:
        from kalla.query.evaluate.evaluation import Limits

        return Limits(
            samples=self._settings.query_samples,
            series=self._settings.query_series,
            memory_bytes=self._settings.query_bytes,
            seconds=seconds,
            points=MOST_POINTS,
        )

    def _answer(
        self, question: QueryRequest, source: Source, watch: _Watch, take: Take | None
    ) -> Answer:
        from kalla.query.engine import Engine
        from kalla.query.evaluate.blocks import early_width, usual_width

        engine = Engine(
            source,
            _plan_settings(question.options),
            self._limits(watch.left),
            _UNITS_AT_ONCE,
            usual_width if take is None else early_width,
        )
        expr, text, steps, step_ms = question.expr, question.text, question.steps, question.step_ms
        return engine.run(expr, text, steps, step_ms, watch.record.stop, take)

    async def _in_thread(self, function: Callable[[], Found]) -> Found:
        """A thread's work; whoever stops waiting for it keeps its place until it has ended."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, function)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()
            raise

    def _load(self) -> None:
        began = time.monotonic()
        keep_kernels(self._kernels)
        from kalla.compiling import prepare
        from kalla.query.engine import Engine
        from kalla.query.kernels import float_format  # noqa: F401  (the kernels of answers)
        from kalla.query.store import segment_source
        from kalla.query.store.ingest import remote_write_kernels  # noqa: F401  (the kernels of writes)

        segment_source.prepare()
        prepare("kalla.query")
        # Arrow, too, loads what it needs on first use.
        answer = Engine(MemorySource({})).instant(_EVERY_PART, 0)
        deque(pieces(answer, 0, 0), maxlen=0)
        _log.info("the query engine is ready", seconds=round(time.monotonic() - began, 1))


class _TimeLimit:
    """The time that a query may take."""

    def __init__(self, asked: float | None, most: float) -> None:
        self._until = time.monotonic() + (most if asked is None else min(asked, most))

    @property
    def left(self) -> float:
        return self._until - time.monotonic()

    async def within(self, work: Awaitable[Found], where: str) -> Found:
        try:
            async with asyncio.timeout(self.left):
                return await work
        except TimeoutError:
            raise TimedOut(f"query timed out in {where}") from None


class _Watch(_TimeLimit):
    """The time a query may take, and the stages it went through."""

    def __init__(self, asked: float | None, most: float, record: QueryRecord) -> None:
        super().__init__(asked, most)
        self.record = record
        self._mark = time.monotonic()
        self.stages: list[tuple[str, float]] = []

    def check(self) -> None:
        if self.record.stop.is_set():
            raise Stopped("query was canceled in query execution")
        if self.left < 0:
            raise TimedOut("query timed out in query execution")

    def stage(self, name: str, following: str) -> None:
        """What was done since the last one had this name; `following` begins."""
        self.record.stage = following
        now = time.monotonic()
        self.stages.append((name, now - self._mark))
        self._mark = now


def _bounds(question: QueryRequest, kernels: Path) -> tuple[int, int] | None:
    keep_kernels(kernels)
    from kalla.query.engine import bounds

    return bounds(question.expr, question.steps, question.step_ms, _plan_settings(question.options))


def _plan_settings(options: QueryOptions) -> PlanSettings:
    from kalla.query.plan.planner import PlanSettings

    if options.lookback_ms > 0:
        return PlanSettings(
            lookback=options.lookback_ms, counted=options.counted, features=options.features
        )
    return PlanSettings(counted=options.counted, features=options.features)


def keep_kernels(folder: Path) -> None:
    """Compiled kernels are kept beside the code, or in our own folder where that is read-only."""
    if not os.access(Path(query.__file__).parent, os.W_OK):
        os.environ.setdefault("NUMBA_CACHE_DIR", str(folder))
