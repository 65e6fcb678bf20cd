"""The answer to a range query as server-sent events: points in the order of time, in small parts.

A stream is whole when `done` came; whoever closes it ends the work.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kalla.errors import Unavailable
from kalla.query.prometheus import asking, times
from kalla.query.prometheus.answers import Quoted, compact, encoded, numbers, stamps
from kalla.query.prometheus.asking import Queries, Question, Reply, Terms
from kalla.query.prometheus.explain import stats
from kalla.query.prometheus.refusals import PrometheusRoute, described
from kalla.query.prometheus.routes import Asking, left
from kalla.web.access import harmless, needs

if TYPE_CHECKING:
    from kalla.query.engine import Answer

router = APIRouter(prefix="/api/v1/metrics", route_class=PrometheusRoute, tags=["query"])

# Points of one event at most.
EVENT_POINTS = 5_000
_BEAT_SECONDS = 5.0

Seconds = Annotated[float | str, Field(description="Seconds, or text such as 15s.")]
# Half of a pair is no character, but JSON can spell it; what Go reads then is this.
_HALVES = re.compile("[\ud800-\udfff]")
Expression = Annotated[
    str,
    AfterValidator(lambda text: _HALVES.sub("\ufffd", text)),
    Field(description="The expression."),
]
Moment = Annotated[float | str, Field(description="Seconds since 1970, or RFC 3339.")]


class Streamed(BaseModel):
    """What to evaluate, from when to when."""

    model_config = ConfigDict(extra="forbid")

    q: Expression
    s: Moment
    e: Moment
    step: Seconds | None = None
    timeout: Seconds | None = None
    lookback_delta: Seconds | None = None

    def question(self) -> Question:
        start, end = times.time_of(str(self.s), "s"), times.time_of(str(self.e), "e")
        step = times.usual_step(start, end)
        if self.step is not None:
            step = int(times.duration_of(str(self.step), "step"))
        terms = Terms()
        if self.timeout is not None:
            seconds = times.duration_of(str(self.timeout), "timeout") / 1000
            terms = replace(terms, seconds=seconds)
        if self.lookback_delta is not None:
            terms = replace(terms, lookback_ms=times.lookback_of(str(self.lookback_delta)))
        return asking.ranged(self.q, start, end, step, terms)


@router.post("/query")
@needs("viewer")
@harmless
async def stream_query(request: Request, queries: Asking, streamed: Streamed) -> Response:
    """The values of an expression over a time, as server-sent events: result, summary, done."""
    question = await asyncio.to_thread(streamed.question)
    return StreamingResponse(
        _events(request, queries, question),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _events(request: Request, queries: Queries, question: Question) -> AsyncIterator[bytes]:
    yield b": the query is running\n\n"
    work = asyncio.create_task(queries.ask(question, left(request)), name="stream")
    try:
        while not (await asyncio.wait({work}, timeout=_BEAT_SECONDS))[0]:
            yield b":\n\n"
        reply = work.result()
        parts = results(reply.answer)
        while part := await asyncio.to_thread(next, parts, b""):
            if queries.stopping:
                raise Unavailable("the API is stopping: ask again in a moment")
            yield part
        yield _event("summary", _summary(reply))
        yield _event("done", {})
    except Exception as error:
        _, told, _ = described(request, error)
        yield _event("error", told)
    finally:
        work.cancel()


def results(answer: Answer) -> Iterator[bytes]:
    """Events of a matrix's points: by time, and within one time in the order of the series."""
    if not answer.series:
        return
    lengths = [len(one.times) for one in answer.series]
    every = np.concatenate([one.times for one in answer.series])
    order = np.argsort(every, kind="stable")
    every = every[order]
    values = np.concatenate([one.values for one in answer.series])[order]
    ids = np.repeat(np.arange(len(lengths)), lengths)[order]
    met = np.zeros(len(lengths), bool)
    quoted = Quoted()
    for first in range(0, len(every), EVENT_POINTS):
        part = slice(first, first + EVENT_POINTS)
        new = np.unique(ids[part])
        new = new[~met[new]].tolist()
        met[new] = True
        known = ",".join(
            f'{{"id":{one},"metric":{quoted.labels(answer.series[one].labels)}}}' for one in new
        )
        points = pc.binary_join_element_wise(
            "[",
            stamps(every[part]),
            ",",
            pc.cast(pa.array(ids[part]), pa.string()),
            ',"',
            numbers(values[part]),
            '"]',
            "",
        )
        text = ",".join(points.to_pylist())
        yield encoded(
            f'data: {{"type":"result","data":{{"series":[{known}],"points":[{text}]}}}}\n\n'
        )


def _summary(reply: Reply) -> dict[str, Any]:
    answer, steps = reply.answer, reply.question.steps
    return {
        "resultType": answer.type,
        "series": len(answer.series),
        "points": sum(len(one.times) for one in answer.series),
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
