"""How Prometheus writes: remote write 1.0 and 2.0, and the same messages for history of any age.

A sender tries again after 5xx and gives up after 4xx: the status decides which.
"""

from __future__ import annotations

import asyncio
from email.message import Message
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse

from kalla.errors import KallaError, Unavailable
from kalla.query.http.error_responses import WRITE_REFUSALS
from kalla.query.store.ingest.intake import Intake, WriteResult
from kalla.query.store.ingest.series_index import MalformedWrite, WriteTooLarge
from kalla.web.access import GuardedRoute, harmless, needs
from kalla.web.app_state import State

router = APIRouter(
    prefix="/api/v1", route_class=GuardedRoute, tags=["metrics"], responses=WRITE_REFUSALS
)

WRITE_PATHS = ("/api/v1/write", "/api/v1/metrics/import")
# A sender that takes longer for a body has probably disconnected; Prometheus gives up after the
# same time.
BODY_SECONDS = 30.0
MESSAGES = {"prometheus.WriteRequest": 1, "io.prometheus.write.v2.Request": 2}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/x-protobuf": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class UnknownMessage(KallaError):
    status = 415
    title = "This kind of message is not known"


async def intake_of(request: Request) -> Intake:
    return cast(Intake, request.app.state.intake)


Taking = Annotated[Intake, Depends(intake_of)]


@router.post("/write", status_code=204, response_class=Response, openapi_extra=_BODY)
@harmless  # a retry adds nothing: neither an Idempotency-Key nor a command's transaction is of use
@needs("metrics-writer")
async def write(request: Request, intake: Taking, state: State) -> Response:
    """Remote write of Prometheus, 1.0 or 2.0; answered when the samples are durable.

    A 400 names samples that cannot be stored; the rest of the request is stored.
    """
    return await _received(request, intake, state.settings.metrics.write_bytes, history=False)


@router.post("/metrics/import", status_code=204, response_class=Response, openapi_extra=_BODY)
@harmless
@needs("metrics-writer")
async def import_history(request: Request, intake: Taking, state: State) -> Response:
    """The messages of remote write, with samples of any age: metrics.out_of_order_seconds is for
    those that arrive as they happen."""
    return await _received(request, intake, state.settings.metrics.write_bytes, history=True)


async def _received(
    request: Request, intake: Intake, most_bytes: int, *, history: bool
) -> Response:
    try:
        version = _version(request)
        with intake.room(_declared(request, most_bytes)):
            body = await _body(request)
            written = await intake.receive(body, version, history=history)
    except (MalformedWrite, WriteTooLarge, UnknownMessage) as error:
        # Prometheus logs the first line of the body: a sentence says more there than JSON.
        return PlainTextResponse(f"{error}\n", error.status)
    headers = _counted(written) if version == 2 or history else {}
    if written.refusals.count:
        return PlainTextResponse(f"{written.refusals}\n", 400, headers)
    return Response(status_code=204, headers=headers)


async def _body(request: Request) -> bytes:
    """A sender that stops in the middle must not occupy the memory that others need."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except TimeoutError:
        raise Unavailable(
            f"the body did not come within {BODY_SECONDS:g} s: send it again"
        ) from None


def _version(request: Request) -> int:
    encoding = request.headers.get("content-encoding", "snappy")
    if encoding != "snappy":
        raise UnknownMessage(
            f"{encoding} encoding (compression) is not accepted by this server; only snappy is "
            "acceptable"
        )
    message = Message()
    message["Content-Type"] = request.headers.get("content-type", "application/x-protobuf")
    proto = message.get_param("proto", "prometheus.WriteRequest")
    if message.get_content_type() == "application/x-protobuf" and proto in MESSAGES:
        return MESSAGES[proto]
    raise UnknownMessage(
        f"{message['Content-Type']} is not accepted by this server; application/x-protobuf is, "
        f"with proto={' or '.join(MESSAGES)}"
    )


def _declared(request: Request, most_bytes: int) -> int:
    header = request.headers.get("content-length", "")
    return min(int(header), most_bytes) if header.isdigit() else most_bytes


def _counted(written: WriteResult) -> dict[str, str]:
    counts = {"Samples": written.samples, "Histograms": 0, "Exemplars": 0}
    return {
        f"X-Prometheus-Remote-Write-{name}-Written": str(count) for name, count in counts.items()
    }
