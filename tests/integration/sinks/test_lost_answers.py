"""ClickHouse inserts, and its answer is lost on the way: the row is there once all the same."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from tests.integration.sinks.test_control import counted, every_offset_once, until
from tests.sinks_kit import Servers, Site, event

pytestmark = pytest.mark.timeout(300)  # a busy machine starts processes slowly

DROP_EVERY = 3


class Dropping(BaseHTTPRequestHandler):
    """Passes requests on, and closes the connection instead of answering every third insert."""

    protocol_version = "HTTP/1.1"
    upstream: ClassVar[str] = ""
    inserts: ClassVar[int] = 0
    dropped: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.passes():
            self._answer(503, b"not now")
            return
        connection = http.client.HTTPConnection(type(self).upstream, timeout=30)
        kept = {
            name: value
            for name, value in self.headers.items()
            if name.lower().startswith("x-clickhouse")
        }
        connection.request("POST", self.path, body, kept)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if "insert_deduplication_token" in self.path and self._drops():
            self.close_connection = True
            return
        self._answer(answer.status, content)

    def passes(self) -> bool:
        """Whether the request reaches the server at all."""
        return True

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _drops(self) -> bool:
        cls = type(self)
        with cls.lock:
            cls.inserts += 1
            drop = cls.inserts % DROP_EVERY == 0
            cls.dropped += drop
            return drop

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def close(self) -> None:
        self.server_close()


@pytest.fixture
def dropping_url(sink_servers: Servers) -> Iterator[str]:
    Dropping.upstream = sink_servers.clickhouse.address
    Dropping.inserts = Dropping.dropped = 0
    server = Quiet(("127.0.0.1", 0), Dropping)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(5)


async def test_an_insert_whose_answer_is_lost_is_not_made_twice(
    site: Site, dropping_url: str
) -> None:
    topic = site.servers.create_topic(2)
    plain = site.pipeline(topic, batch_rows=100)
    config = plain.clickhouse.model_dump() | {"url": dropping_url}
    pipeline = site.pipeline(topic, batch_rows=100, clickhouse=config)
    await site.apply(pipeline)
    values = [
        event(number, id="x") if number % 50 == 0 else event(number) for number in range(3000)
    ]
    site.servers.produce(topic, [*values])
    await site.start_slots()

    async def all_there() -> bool:
        return await counted(site, pipeline) == 3000

    await until(all_there, "all messages")
    assert Dropping.dropped >= 10
    every_offset_once(site, pipeline, 3000)
    (row,) = site.servers.rows(f"SELECT count() AS n FROM events.{config['table']}_dead_letters")
    assert int(row["n"]) == 60
