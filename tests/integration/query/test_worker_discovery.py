"""Query workers are found by a list, by DNS, by Kubernetes and by ECS: one suite for all four.

Kubernetes and ECS are recorded answers of their APIs, served on loopback.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kalla.app.serving import address_of, bind, serving
from kalla.errors import InvalidInput
from kalla.query.discovery.addresses import Discovery, DiscoveryFailed, discovery_of
from kalla.query.discovery.dns import DnsName
from kalla.query.discovery.ecs import Credentials, EcsService, signature
from kalla.query.discovery.kubernetes import KubernetesService
from kalla.query.discovery.static import StaticList


@dataclass
class Recorded:
    """A recorded API: the hosts that it tells, whether it is away, and what it was asked."""

    hosts: list[str] = field(default_factory=list)
    away: bool = False
    asked: list[Any] = field(default_factory=list)

    async def endpoint_slices(self, request: Request) -> Response:
        self.asked.append((request.url.path, dict(request.query_params), dict(request.headers)))
        if self.away:
            return JSONResponse({"kind": "Status", "code": 503}, 503)
        endpoints = [
            {"addresses": [host], "conditions": {"ready": True, "serving": True}}
            for host in self.hosts
        ]
        endpoints.append({"addresses": ["10.9.9.9"], "conditions": {"ready": False}})
        return JSONResponse(
            {
                "kind": "EndpointSliceList",
                "apiVersion": "discovery.k8s.io/v1",
                "items": [
                    {
                        "addressType": "IPv4",
                        "endpoints": endpoints,
                        "ports": [
                            {"name": "artifacts", "port": 9322, "protocol": "TCP"},
                            {"name": "control", "port": 9321, "protocol": "TCP"},
                        ],
                    }
                ],
            }
        )

    async def ecs(self, request: Request) -> Response:
        body = json.loads(await request.body())
        action = request.headers["x-amz-target"].rpartition(".")[2]
        self.asked.append((action, body, dict(request.headers)))
        if self.away:
            return JSONResponse({"__type": "ServerException"}, 500)
        if action == "ListTasks":
            first = int(body.get("nextToken", 0))
            some = self.hosts[first : first + 2]  # two a page
            more = first + 2 < len(self.hosts)
            arns = [f"arn:aws:ecs:task/{host}" for host in some]
            return JSONResponse(
                {"taskArns": arns} | ({"nextToken": str(first + 2)} if more else {})
            )
        tasks = [
            {
                "lastStatus": "RUNNING",
                "containers": [
                    {"networkInterfaces": [{"privateIpv4Address": arn.rpartition("/")[2]}]}
                ],
            }
            for arn in body["tasks"]
        ]
        return JSONResponse({"tasks": [*tasks, {"lastStatus": "STOPPED", "containers": []}]})


@asynccontextmanager
async def served(route: Callable[[Request], Any], *paths: str) -> AsyncIterator[str]:
    app = Starlette(routes=[Route(path, route, methods=["GET", "POST"]) for path in paths])
    listener = bind("127.0.0.1", 0, "a test")
    async with serving(app, listener):
        yield f"http://{address_of(listener)}"


Change = Callable[[list[str]], None]


@pytest.fixture(params=["static", "dns", "kubernetes", "ecs"])
async def discovered(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Discovery, Recorded]]:
    """One discovery of each kind over hosts that the test sets."""
    recorded = Recorded(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    match request.param:
        case "static":
            yield StaticList.of("10.0.0.1:9321, 10.0.0.2:9321,10.0.0.3:9321"), recorded
        case "dns":

            async def resolved(host: str, port: int, **_: Any) -> list[Any]:
                assert host == "query-workers.internal"
                if recorded.away:
                    raise socket.gaierror(-2, "Name or service not known")
                return [(2, 1, 6, "", (one, port)) for one in [*recorded.hosts, *recorded.hosts]]

            loop = asyncio.get_running_loop()
            monkeypatch.setattr(type(loop), "getaddrinfo", lambda _, *a, **k: resolved(*a, **k))
            yield DnsName.of("query-workers.internal:9321"), recorded
        case "kubernetes":
            (tmp_path / "token").write_text("the pod's token")
            path = "/apis/discovery.k8s.io/v1/namespaces/data/endpointslices"
            async with served(recorded.endpoint_slices, path) as url:
                service = KubernetesService.of("data/query-workers", tmp_path)
                yield replace(service, api=url), recorded
        case "ecs":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
            async with served(recorded.ecs, "/") as url:
                monkeypatch.setenv("AWS_ENDPOINT_URL_ECS", url)
                yield EcsService.of("main/query-workers"), recorded


async def test_every_worker_is_found_once(discovered: tuple[Discovery, Recorded]) -> None:
    discovery, _ = discovered

    assert await discovery.addresses() == ["10.0.0.1:9321", "10.0.0.2:9321", "10.0.0.3:9321"]


async def test_workers_come_and_go(discovered: tuple[Discovery, Recorded]) -> None:
    discovery, recorded = discovered
    if isinstance(discovery, StaticList):
        pytest.skip("a list does not change")
    recorded.hosts[:] = ["10.0.0.2", "10.0.0.7"]
    assert await discovery.addresses() == ["10.0.0.2:9321", "10.0.0.7:9321"]
    recorded.hosts.clear()
    if not isinstance(discovery, DnsName):  # a name without addresses does not resolve
        assert await discovery.addresses() == []


async def test_a_lookup_that_fails_says_so(discovered: tuple[Discovery, Recorded]) -> None:
    discovery, recorded = discovered
    recorded.away = True
    if isinstance(discovery, StaticList):
        pytest.skip("a list is always there")
    with pytest.raises(DiscoveryFailed):
        await discovery.addresses()


async def test_kubernetes_is_asked_for_the_service_with_the_pods_token(tmp_path: Path) -> None:
    recorded = Recorded(["10.0.0.1"])
    (tmp_path / "token").write_text("the pod's token\n")
    path = "/apis/discovery.k8s.io/v1/namespaces/data/endpointslices"
    async with served(recorded.endpoint_slices, path) as url:
        await replace(KubernetesService.of("data/workers", tmp_path), api=url).addresses()
    [(_, query, headers)] = recorded.asked
    assert query == {"labelSelector": "kubernetes.io/service-name=workers"}
    assert headers["authorization"] == "Bearer the pod's token"


async def test_ecs_is_asked_with_the_keys_of_the_tasks_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Recorded(["10.0.0.1"])

    async def role(_: Request) -> Response:
        keys = {"AccessKeyId": "ASIA", "SecretAccessKey": "s", "Token": "of the session"}
        return JSONResponse(keys)

    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/x")
    async with served(recorded.ecs, "/") as url, served(role, "/v2/credentials/x") as roles:
        service = replace(EcsService.of("main/workers:7000"), api=url, role_host=roles)
        assert await service.addresses() == ["10.0.0.1:7000"]
    for _, _, headers in recorded.asked:
        assert headers["x-amz-security-token"] == "of the session"
        assert re.match(r"AWS4-HMAC-SHA256 Credential=ASIA/\d{8}/", headers["authorization"])


def test_a_request_is_signed_as_amazon_signs_it() -> None:
    """`post-vanilla` of Amazon's own test suite of Signature Version 4."""
    now = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
    keys = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    headers = {"host": "example.amazonaws.com"}
    signed = signature(headers, b"", keys, "us-east-1", now, "service")

    assert signed["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=host;x-amz-date, "
        "Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
    )


@pytest.mark.parametrize(
    "text",
    ["host", "host:port", "dns://name", "kubernetes://service", "ecs://cluster", "consul://x"],
)
def test_what_names_no_workers_is_refused_by_its_setting(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"query\.workers"):
        discovery_of(text)
