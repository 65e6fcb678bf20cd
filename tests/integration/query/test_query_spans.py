"""Spans of a query on both sides, sent to a collector on loopback; none without an endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kalla import tracing
from tests.integration.query.http_requests import END, SERIES, START, STEP
from tests.query_kit import query_site


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Its address, and the spans that arrive."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request = ExportTraceServiceRequest.FromString(body)
            spans.extend(
                span
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_a_query_is_one_trace_from_the_api_to_the_workers(
    database_url: str, tmp_path: Path
) -> None:
    given: dict[str, str | int] = {
        "query": "sum by (zone) (rate(http_requests_total[1m]))",
        "start": START,
        "end": END,
        "step": STEP,
    }
    with collector() as (endpoint, spans):
        tracing.configure(endpoint, "kalla-api")
        try:
            async with (
                query_site(database_url, tmp_path, SERIES) as site,
                site.client("viewer") as client,
            ):
                answer = await client.get("/api/v1/query_range", params=given, timeout=60)
                [listed] = (await client.get("/api/queries")).json()
                units = (await client.get(f"/api/queries/{listed['query_id']}/work")).json()
        finally:
            tracing.close()
    assert answer.status_code == 200
    named = {
        name: [one for one in spans if one.name == name]
        for name in ("query", "query work", "execute query work")
    }
    [query] = named["query"]
    assert {one.trace_id.hex() for one in spans} == {listed["query_id"]}
    assert attributes(query)["expression"] == given["query"]
    assert attributes(query)["ending"] == "answered"
    assert {one.parent_span_id for one in named["query work"]} == {query.span_id}
    work_ids = {one["work_id"] for one in units}
    for name, parents in (("query work", {query.span_id}), ("execute query work", None)):
        assert {attributes(one)["work_id"] for one in named[name]} == work_ids
        assert {attributes(one)["query_id"] for one in named[name]} == {listed["query_id"]}
        parents = parents or {one.span_id for one in named["query work"]}
        assert {one.parent_span_id for one in named[name]} == parents


def test_nothing_is_recorded_without_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing.configure("", "kalla-api")
    assert tracing._provider is None
    tracing.start("query", "0" * 31 + "1").end()
