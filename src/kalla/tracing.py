"""Spans of work for an OpenTelemetry endpoint; without one nothing is recorded or imported.

Whoever starts a span names its ids: processes then need not hand each other a context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from kalla.errors import StartFailed
from kalla.release import version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Attribute = str | int | float | bool

_provider: TracerProvider | None = None
# The trace and the span that is about to start; zero: any.
_next_ids: ContextVar[tuple[int, int]] = ContextVar("next_ids", default=(0, 0))
_SPAN_DIGITS = 16


class Span(Protocol):
    def end(self, error: str = "", **attributes: Attribute) -> None: ...


class _NoSpan:
    def end(self, error: str = "", **attributes: Attribute) -> None:
        """Nothing was recorded."""


def configure(endpoint: str, service: str) -> None:
    """Send spans to `endpoint` (OTLP over HTTP) from now on; empty: none are recorded."""
    global _provider
    if not endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    except ModuleNotFoundError as error:
        raise StartFailed(
            f"telemetry.endpoint needs {error.name}: install kalla[telemetry], or leave it empty."
        ) from None

    class ChosenIds(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            return _next_ids.get()[0] or super().generate_trace_id()

        def generate_span_id(self) -> int:
            return _next_ids.get()[1] or super().generate_span_id()

    resource = Resource.create({"service.name": service, "service.version": version()})
    provider = TracerProvider(resource=resource, id_generator=ChosenIds(), shutdown_on_exit=False)
    url = endpoint.rstrip("/") + "/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
    _provider = provider


def close() -> None:
    """Sends what is recorded, and records no more."""
    global _provider
    if _provider is not None:
        _provider.shutdown()
        _provider = None


def start(
    name: str, trace_id: str, span_id: str = "", parent_id: str = "", **attributes: Attribute
) -> Span:
    """`trace_id` has 32 hexadecimal digits; of the other two 16 count, and they may be empty."""
    if _provider is None:
        return _NoSpan()
    from opentelemetry import trace
    from opentelemetry.context import Context

    context = Context()
    if parent_id:
        parent = trace.SpanContext(
            int(trace_id, 16), _number(parent_id), True, trace.TraceFlags(trace.TraceFlags.SAMPLED)
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
    mark = _next_ids.set((int(trace_id, 16), _number(span_id)))
    try:
        span = _provider.get_tracer("kalla").start_span(
            name, context=context, attributes=attributes
        )
    finally:
        _next_ids.reset(mark)
    return _Recorded(span)


class _Recorded:
    def __init__(self, span: object) -> None:
        self._span = span

    def end(self, error: str = "", **attributes: Attribute) -> None:
        from opentelemetry.trace import Span as Recording
        from opentelemetry.trace import Status, StatusCode

        span = self._span
        if not isinstance(span, Recording):
            raise AssertionError("a recorded span is one of OpenTelemetry")
        span.set_attributes(attributes)
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end()


def _number(digits: str) -> int:
    return int(digits[:_SPAN_DIGITS] or "0", 16)
