"""A worker tells Kubernetes how busy it is, over a recorded API on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kalla.app.deletion_cost import ANNOTATION, DeletionCost, Pod, own_pod


class Api(HTTPServer):
    """Answers PATCH with `status`, and keeps what it was sent."""

    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, str, dict[str, object]]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_PATCH(self) -> None:
        assert isinstance(self.server, Api)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def pod(api: Api, tmp_path: Path) -> Pod:
    token = tmp_path / "token"
    token.write_text("secret\n", "utf-8")
    url = f"http://127.0.0.1:{api.server_port}/api/v1/namespaces/kalla/pods/worker-1"
    return Pod(url, token, None)


def _costs(api: Api) -> list[str]:
    found = []
    for path, token, body in api.seen:
        assert path == "/api/v1/namespaces/kalla/pods/worker-1"
        assert token == "Bearer secret"
        metadata = body["metadata"]
        assert isinstance(metadata, dict)
        found.append(metadata["annotations"][ANNOTATION])
    return found


async def test_the_cost_is_sent_at_once_when_busy_or_idle_changes_and_seldom_otherwise(
    api: Api, pod: Pod
) -> None:
    active, seconds = 0, 0.0
    cost = DeletionCost(pod, lambda: active, lambda: seconds)
    for active in (0, 0, 3, 3, 1):  # noqa: B007 -- the function above reads it
        await cost.tick()
    assert _costs(api) == ["0", "3"]
    seconds = 10.0
    await cost.tick()
    active = 0
    await cost.tick()
    assert _costs(api) == ["0", "3", "1", "0"]


async def test_without_the_right_it_asks_once_and_leaves_it(api: Api, pod: Pod) -> None:
    api.status = 403
    active, seconds = 1, 0.0
    cost = DeletionCost(pod, lambda: active, lambda: seconds)
    await cost.tick()
    active, seconds = 0, 3600.0
    await cost.tick()
    assert len(api.seen) == 1


async def test_a_token_that_is_refused_is_tried_again_after_a_minute(api: Api, pod: Pod) -> None:
    api.status = 401
    seconds = 0.0
    cost = DeletionCost(pod, lambda: 1, lambda: seconds)
    await cost.tick()
    api.status = 200
    await cost.tick()
    assert len(api.seen) == 1
    seconds = 60.0
    await cost.tick()
    await cost.tick()
    assert _costs(api) == ["1", "1"]


def test_outside_of_kubernetes_there_is_no_pod(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "POD_NAME": "w", "POD_NAMESPACE": "kalla"}
    assert own_pod({}, tmp_path) is None
    assert own_pod(inside, tmp_path) is None  # no token is mounted
    (tmp_path / "token").write_text("secret", "utf-8")
    found = own_pod(inside, tmp_path)
    assert found is not None
    assert found.url == "https://10.0.0.1:443/api/v1/namespaces/kalla/pods/w"
