"""The answer to a range query as server-sent events: points by time, while later ones are computed.

A stream is complete when `done` arrives; a client that closes it ends the work.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kalla.errors import Unavailable
from kalla.query.array_types import Floats, Whole
from kalla.query.evaluate.frames import Frame, Steps
from kalla.query.http import request_times
from kalla.query.http.error_responses import REFUSALS, PrometheusRoute, described
from kalla.query.http.explain import stats
from kalla.query.http.query_routes import Queries, caller_name, left
from kalla.query.http.response_json import LabelJson, compact, encoded, numbers, stamps
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.features import Features
from kalla.query.promql.query_errors import TimedOut
from kalla.query.service import query_request
from kalla.query.service.query_request import QueryOptions, QueryReply, QueryRequest
from kalla.query.service.query_service import QueryService
from kalla.web.access import harmless, needs

router = APIRouter(
    prefix="/api/v1/metrics", route_class=PrometheusRoute, tags=["query"], responses=REFUSALS
)

# Points of one event at most.
EVENT_POINTS = 5_000
_BEAT_SECONDS = 5.0
# Blocks that wait for their reader, some megabytes each; and how long the next waits for a place.
_BLOCKS = 4
READER_SECONDS = 30.0

Block = tuple[Steps, Frame]
Seconds = Annotated[float | str, Field(description="Seconds, or text such as 15s.")]
# Half of a surrogate pair is not a character, but JSON can contain it; Go reads it as this.
_HALVES = re.compile("[\ud800-\udfff]")
Expression = Annotated[
    str,
    AfterValidator(lambda text: _HALVES.sub("\ufffd", text)),
    Field(description="The expression."),
]
Moment = Annotated[float | str, Field(description="Seconds since 1970, or RFC 3339.")]


class StreamRequest(BaseModel):
    """What to evaluate, from when to when."""

    model_config = ConfigDict(extra="forbid")

    q: Expression
    s: Moment
    e: Moment
    step: Seconds | None = None
    timeout: Seconds | None = None
    lookback_delta: Seconds | None = None

    @property
    def seconds(self) -> float | None:
        """The time limit that was asked for."""
        if self.timeout is None:
            return None
        return request_times.duration_of(str(self.timeout), "timeout") / 1000

    def question(self, features: Features) -> QueryRequest:
        start, end = (
            request_times.time_of(str(self.s), "s"),
            request_times.time_of(str(self.e), "e"),
        )
        step = request_times.usual_step(start, end)
        if self.step is not None:
            step = int(request_times.duration_of(str(self.step), "step"))
        options = QueryOptions(features=features, seconds=self.seconds)
        if self.lookback_delta is not None:
            options = replace(
                options, lookback_ms=request_times.lookback_of(str(self.lookback_delta))
            )
        return query_request.ranged(self.q, start, end, step, options)


@router.post("/query")
@needs("viewer")
@harmless
async def stream_query(request: Request, queries: Queries, streamed: StreamRequest) -> Response:
    """The values of an expression over a time, as server-sent events: result, summary, done."""
    question = await queries.prepare(
        lambda: streamed.question(queries.features), left(request), streamed.seconds
    )
    return StreamingResponse(
        _events(request, queries, question),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _events(
    request: Request, queries: QueryService, question: QueryRequest
) -> AsyncIterator[bytes]:
    yield b": the query is running\n\n"
    handover = BlockQueue()
    asked = queries.ask(question, left(request), handover.put, caller_name(request))
    work = asyncio.create_task(asked, name="stream")
    work.add_done_callback(lambda _: handover.end())
    sent = SentSeries()
    try:
        async for block in handover.blocks():
            if block is None:
                yield b":\n\n"
                continue
            events = sent.events(*block)
            while event := await asyncio.to_thread(next, events, b""):
                if queries.stopping:
                    raise Unavailable("the API is stopping: ask again in a moment")
                yield event
        yield _event("summary", _summary(work.result(), sent))
        yield _event("done", {})
    except Exception as error:
        _, problem, _ = described(request, error)
        yield _event("error", problem)
    finally:
        handover.close()
        work.cancel()


class BlockQueue:
    """Blocks between the query's thread and the reader: only a few, so that a slow reader delays
    its own query and never fills the memory.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[Block | None] = asyncio.Queue()
        self._places = threading.Semaphore(_BLOCKS)
        self._closed = threading.Event()

    def put(self, steps: Steps, frame: Frame) -> None:
        """Called by the query's thread: waits for a place."""
        begun = time.monotonic()
        while not self._places.acquire(timeout=0.1):
            if self._closed.is_set():
                return
            if time.monotonic() - begun > READER_SECONDS:
                raise TimedOut(f"the client did not read the points for {READER_SECONDS:g} s")
        self._loop.call_soon_threadsafe(self._blocks.put_nowait, (steps, frame))

    def end(self) -> None:
        self._blocks.put_nowait(None)

    def close(self) -> None:
        """The reader has stopped."""
        self._closed.set()

    async def blocks(self) -> AsyncIterator[Block | None]:
        """Every block until the end; a None for every while in which there is none."""
        while True:
            try:
                async with asyncio.timeout(_BEAT_SECONDS):
                    block = await self._blocks.get()
            except TimeoutError:
                yield None
                continue
            if block is None:
                return
            yield block
            self._places.release()


class SentSeries:
    """What a stream has sent so far; each series is sent once, with a number."""

    def __init__(self) -> None:
        self.points = 0
        self._numbers: dict[Labels, int] = {}
        self._last: Sequence[Labels] = ()
        self._ids = np.zeros(0, np.int64)
        self._introduced = np.zeros(0, bool)
        self._quoted = LabelJson()

    @property
    def series(self) -> int:
        return len(self._numbers)

    def events(self, steps: Steps, frame: Frame) -> Iterator[bytes]:
        """A block's points: by time, and within one time in the order of the series' numbers."""
        if frame.labels is not self._last:
            self._meet(frame.labels)
        ids, times = self._ids, steps.times
        order = np.argsort(ids)
        columns, rows = np.nonzero(frame.present[order].T)
        rows = order[rows]
        for first in range(0, len(rows), EVENT_POINTS):
            some = slice(first, first + EVENT_POINTS)
            at, row = columns[some], rows[some]
            self.points += len(row)
            new = np.unique(row[~self._introduced[ids[row]]])
            self._introduced[ids[new]] = True
            series = (
                f'{{"id":{ids[one]},"metric":{self._quoted.labels(frame.labels[one])}}}'
                for one in new.tolist()
            )
            yield self._event(",".join(series), times[at], ids[row], frame.values[row, at])

    def _meet(self, labels: Sequence[Labels]) -> None:
        known = self._numbers
        self._ids = np.array([known.setdefault(one, len(known)) for one in labels], np.int64)
        new = np.zeros(len(known) - len(self._introduced), bool)
        self._introduced = np.concatenate([self._introduced, new])
        self._last = labels

    @staticmethod
    def _event(series: str, times: Whole, ids: Whole, values: Floats) -> bytes:
        points = pc.binary_join_element_wise(
            "[",
            stamps(times),
            ",",
            pc.cast(pa.array(ids), pa.string()),
            ',"',
            numbers(values),
            '"]',
            "",
        )
        text = ",".join(points.to_pylist())
        return encoded(
            f'data: {{"type":"result","data":{{"series":[{series}],"points":[{text}]}}}}\n\n'
        )


def _summary(reply: QueryReply, sent: SentSeries) -> dict[str, Any]:
    answer, steps = reply.answer, reply.question.steps
    return {
        "resultType": answer.type,
        "series": sent.series,
        "points": sent.points,
        "start": steps.start / 1000,
        "end": steps.end / 1000,
        "step": steps.step / 1000,
        "warnings": list(answer.warnings),
        "infos": list(answer.infos),
        "seconds": reply.seconds,
        "stats": stats(reply),
    }


def _event(kind: str, data: Mapping[str, Any]) -> bytes:
    return encoded(f"data: {compact({'type': kind, 'data': data})}\n\n")
