"""Queries under way in one process: so many at once, each ended by its limits or when nobody waits.

The engine is imported by the first thread that needs it: its compiler takes seconds to load.
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
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kalla import logs, query
from kalla.errors import Unavailable
from kalla.query.evaluate.frames import Steps, range_steps
from kalla.query.evaluate.samples import MemorySource, Source
from kalla.query.http.response_json import pieces
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.features import Features
from kalla.query.promql.matchers import Matcher
from kalla.query.promql.query_errors import Stopped, TimedOut
from kalla.query.promql.syntax_tree import Expr
from kalla.query.promql.type_checker import checked, require_steps
from kalla.query.store.catalogue import Metadata
from kalla.settings import Settings

if TYPE_CHECKING:
    from kalla.query.engine import Answer, Take
    from kalla.query.plan.planner import PlanSettings

Found = TypeVar("Found")

MOST_POINTS = 11_000
_FURTHEST = 2**62
_EVERY_PART = 'sum(rate(a{b=~"c.+"}[5m])) or vector(1.5)'
_GOODBYE_SECONDS = 5.0
_log = logs.get(__name__)


class ListableSource(Source, Protocol):
    """A source that can tell its series without their samples."""

    def labels(
        self, selectors: Sequence[Sequence[Matcher]], after: int, until: int
    ) -> set[Labels]: ...


class Store(Protocol):
    """What is asked of the metric store."""

    async def snapshot(
        self, after_ms: int, until_ms: int, check: Callable[[], None] | None = None
    ) -> ListableSource: ...

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

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings.metrics
        self.features = Features.named(settings.metrics.features)
        self._kernels = settings.data_dir / "kernels"
        self._store = store
        self._free = asyncio.Semaphore(self._settings.query_concurrency)
        self._threads = ThreadPoolExecutor(self._settings.query_concurrency, "query")
        self._running: dict[asyncio.Task[Any], threading.Event] = {}
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
        return await self._led(lambda stop: self._parsed(parsing, seconds), gone)  # noqa: ARG005

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
        self, question: QueryRequest, gone: Coroutine[Any, Any, None], take: Take | None = None
    ) -> QueryReply:
        """The whole answer, or an error; the work ends early when `gone` returns first.

        Points go to `take` while they are computed, if it is there: from a thread of the query.
        """
        return await self._led(lambda stop: self._carried_out(question, stop, take), gone)

    async def look(
        self,
        selectors: Sequence[Sequence[Matcher]],
        bounds: tuple[int, int],
        taken: Callable[[set[Labels]], Found],
        gone: Coroutine[Any, Any, None],
    ) -> Found:
        """What is `taken` from the series that match, bounded as a query is."""
        return await self._led(lambda stop: self._looked_up(selectors, bounds, taken, stop), gone)

    async def _led(
        self,
        carried_out: Callable[[threading.Event], Coroutine[Any, Any, Found]],
        gone: Coroutine[Any, Any, None],
    ) -> Found:
        if self._closed:
            gone.close()
            raise Unavailable("the API is stopping: ask again in a moment")
        stop = threading.Event()
        work = asyncio.create_task(carried_out(stop), name="query")
        self._running[work] = stop
        work.add_done_callback(self._ended)
        leaving = asyncio.create_task(gone, name="query left")
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Stopped("query was canceled in query execution")
            return work.result()
        finally:
            stop.set()
            leaving.cancel()
            work.cancel()

    def warm(self) -> threading.Thread:
        """Load the engine and its kernels beside everything else, so that no query waits for it."""
        # A daemon: whoever stops does not wait for a compiler.
        loading = threading.Thread(target=self._load, name="warm", daemon=True)
        loading.start()
        return loading

    def stop(self) -> None:
        """End every query, so that a server that stops need not wait for them."""
        self._closed = True
        for stop in self._running.values():
            stop.set()

    async def close(self) -> None:
        self.stop()
        if self._running:
            await asyncio.wait(list(self._running), timeout=_GOODBYE_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, work: asyncio.Task[Any]) -> None:
        del self._running[work]
        if not work.cancelled():
            work.exception()  # whoever asked may be gone

    async def _carried_out(
        self, question: QueryRequest, stop: threading.Event, take: Take | None
    ) -> QueryReply:
        watch = _Watch(question.options.seconds, self._settings.query_seconds)
        await watch.within(self._free.acquire(), "query queue")
        try:
            watch.stage("wait")
            found = await self._in_thread(lambda: _bounds(question, self._kernels))
            watch.stage("prepare")
            source: Source = MemorySource({})
            if found is not None:
                source = await self._snapshot(found, watch, stop)
            watch.stage("snapshot")
            answer = await self._in_thread(
                lambda: self._answer(question, source, watch.left, stop, take)
            )
        finally:
            self._free.release()
        parse = ("parse", question.parse_seconds)
        return QueryReply(question, answer, (parse, *watch.stages, *answer.stats.seconds.items()))

    async def _parsed(self, parsing: Callable[[], Found], seconds: float | None) -> Found:
        watch = _Watch(seconds, self._settings.query_seconds)
        await watch.within(self._free.acquire(), "query queue")
        try:
            return await watch.within(self._in_thread(parsing), "query parsing")
        finally:
            self._free.release()

    async def _looked_up(
        self,
        selectors: Sequence[Sequence[Matcher]],
        bounds: tuple[int, int],
        taken: Callable[[set[Labels]], Found],
        stop: threading.Event,
    ) -> Found:
        watch = _Watch(None, self._settings.query_seconds)
        await watch.within(self._free.acquire(), "query queue")
        try:
            source = await self._snapshot(bounds, watch, stop)
            return await self._in_thread(lambda: taken(source.labels(selectors, *bounds)))
        finally:
            self._free.release()

    async def _snapshot(
        self, bounds: tuple[int, int], watch: _Watch, stop: threading.Event
    ) -> ListableSource:
        def check() -> None:
            if stop.is_set():
                raise Stopped("query was canceled in query execution")
            watch.require_time()

        after, until = (max(-_FURTHEST, min(_FURTHEST, bound)) for bound in bounds)
        return await watch.within(self._store.snapshot(after, until, check), "query preparation")

    def _answer(
        self,
        question: QueryRequest,
        source: Source,
        seconds: float,
        stop: threading.Event,
        take: Take | None,
    ) -> Answer:
        from kalla.query.engine import Engine
        from kalla.query.evaluate.blocks import early_width, usual_width
        from kalla.query.evaluate.evaluation import Limits

        limits = Limits(
            samples=self._settings.query_samples,
            series=self._settings.query_series,
            memory_bytes=self._settings.query_bytes,
            seconds=seconds,
            points=MOST_POINTS,
        )
        engine = Engine(
            source,
            _plan_settings(question.options),
            limits,
            self._settings.query_threads,
            usual_width if take is None else early_width,
        )
        expr, text, steps, step_ms = question.expr, question.text, question.steps, question.step_ms
        return engine.run(expr, text, steps, step_ms, stop, take)

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


class _Watch:
    """The time a query may take, and what became of it."""

    def __init__(self, asked: float | None, most: float) -> None:
        self._began = self._mark = time.monotonic()
        self._until = self._began + (most if asked is None else min(asked, most))
        self.stages: list[tuple[str, float]] = []

    @property
    def left(self) -> float:
        return self._until - time.monotonic()

    def require_time(self) -> None:
        if self.left < 0:
            raise TimedOut("query timed out in query execution")

    def stage(self, name: str) -> None:
        """What was done since the last one had this name."""
        now = time.monotonic()
        self.stages.append((name, now - self._mark))
        self._mark = now

    async def within(self, work: Awaitable[Found], where: str) -> Found:
        try:
            async with asyncio.timeout(self.left):
                return await work
        except TimeoutError:
            raise TimedOut(f"query timed out in {where}") from None


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
