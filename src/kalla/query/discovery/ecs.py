"""Query workers of an ECS service: the private addresses of its running tasks.

Authenticates with the task's own role, or with AWS_* from the environment.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from kalla.query.discovery.addresses import DiscoveryFailed, invalid

_SECONDS = 5.0
_TARGET = "AmazonEC2ContainerServiceV20141113"
_ROLE_HOST = "http://169.254.170.2"
_USUAL_PORT = 9321
_TASKS_AT_ONCE = 100


@dataclass(frozen=True)
class Credentials:
    access_key: str
    secret_key: str
    session_token: str = ""


@dataclass(frozen=True)
class EcsService:
    """`api` is ECS' address, `role_host` where a task asks for its role's keys."""

    cluster: str
    service: str
    port: int
    region: str
    api: str
    role_host: str = _ROLE_HOST

    @classmethod
    def of(cls, text: str) -> EcsService:
        cluster, _, rest = text.partition("/")
        service, _, port = rest.partition(":")
        if not cluster or not service or (port and not port.isdigit()):
            raise invalid("write ecs://cluster/service, or ecs://cluster/service:port")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        api = os.environ.get("AWS_ENDPOINT_URL_ECS", f"https://ecs.{region}.amazonaws.com")
        return cls(cluster, service, int(port or _USUAL_PORT), region, api)

    async def addresses(self) -> list[str]:
        try:
            async with httpx.AsyncClient(timeout=_SECONDS, trust_env=False) as client:
                keys = await self._credentials(client)
                tasks = await self._task_names(client, keys)
                hosts: set[str] = set()
                for first in range(0, len(tasks), _TASKS_AT_ONCE):
                    some = tasks[first : first + _TASKS_AT_ONCE]
                    asked = {"cluster": self.cluster, "tasks": some}
                    answer = await self._request(client, keys, "DescribeTasks", asked)
                    hosts.update(host for task in answer["tasks"] for host in _hosts(task))
        except (OSError, ValueError, KeyError, httpx.HTTPError) as error:
            raise DiscoveryFailed(
                f"the tasks of {self.cluster}/{self.service} could not be listed: {error!r}"
            ) from error
        return sorted(f"{host}:{self.port}" for host in hosts)

    async def _task_names(self, client: httpx.AsyncClient, keys: Credentials) -> list[str]:
        found: list[str] = []
        token: str | None = None
        while True:
            asked: dict[str, Any] = {
                "cluster": self.cluster,
                "serviceName": self.service,
                "desiredStatus": "RUNNING",
            }
            if token:
                asked["nextToken"] = token
            answer = await self._request(client, keys, "ListTasks", asked)
            found += answer["taskArns"]
            token = answer.get("nextToken")
            if not token:
                return found

    async def _request(
        self, client: httpx.AsyncClient, keys: Credentials, action: str, asked: Mapping[str, Any]
    ) -> Any:
        body = json.dumps(asked).encode()
        host = httpx.URL(self.api).netloc.decode()
        headers = {
            "content-type": "application/x-amz-json-1.1",
            "host": host,
            "x-amz-target": f"{_TARGET}.{action}",
        }
        signed = headers | signature(headers, body, keys, self.region, datetime.now(UTC))
        answer = await client.post(self.api, content=body, headers=signed)
        return answer.raise_for_status().json()

    async def _credentials(self, client: httpx.AsyncClient) -> Credentials:
        given = os.environ
        if "AWS_ACCESS_KEY_ID" in given:
            return Credentials(
                given["AWS_ACCESS_KEY_ID"],
                given["AWS_SECRET_ACCESS_KEY"],
                given.get("AWS_SESSION_TOKEN", ""),
            )
        path = given.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        if not path:
            raise DiscoveryFailed(
                "there are no AWS credentials: give the task a role, or set AWS_ACCESS_KEY_ID"
            )
        found = (await client.get(self.role_host + path)).raise_for_status().json()
        return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["Token"])


def signature(
    headers: Mapping[str, str],
    body: bytes,
    keys: Credentials,
    region: str,
    now: datetime,
    service: str = "ecs",
) -> dict[str, str]:
    """The headers that sign a POST to `/` (AWS Signature Version 4)."""
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    extra = {"x-amz-date": moment}
    if keys.session_token:
        extra["x-amz-security-token"] = keys.session_token
    every = {name.lower(): value.strip() for name, value in {**headers, **extra}.items()}
    names = ";".join(sorted(every))
    request = "\n".join(
        [
            "POST",
            "/",
            "",
            *(f"{name}:{every[name]}" for name in sorted(every)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{keys.secret_key}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signed = hmac.new(key, text.encode(), "sha256").hexdigest()
    extra["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={names}, "
        f"Signature={signed}"
    )
    return extra


def _hosts(task: Mapping[str, Any]) -> list[str]:
    if task.get("lastStatus") != "RUNNING":
        return []
    return [
        interface["privateIpv4Address"]
        for container in task.get("containers") or ()
        for interface in container.get("networkInterfaces") or ()
        if interface.get("privateIpv4Address")
    ]
