"""Kalla in the lab: the real overlay `scale-to-zero`, applied as docs/deploy.md says."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
from typing import Any

import httpx
import yaml

from tests.cluster_lab.build import TOOLS
from tests.cluster_lab.control_plane import ControlPlane
from tests.cluster_lab.servers import Servers
from tests.manifests.rendering import overlay_text
from tests.waiting import until

URL = "http://kalla-api.kalla.svc:3001"
NAMESPACE = "kalla"


class Installation:
    def __init__(self, control_plane: ControlPlane, servers: Servers, *, patient: bool) -> None:
        self._control_plane = control_plane
        self._servers = servers
        self._patient = patient
        self._token = ""

    def install(self) -> None:
        """Applies the manifests, strictly validated by the server, and waits for the API."""
        self._definitions()
        objects = [each for each in yaml.safe_load_all(overlay_text("scale-to-zero")) if each]
        nats = secrets.token_hex(16)
        settings = self._servers.secrets() | {
            "KALLA_WAKE_NATS_URL": f"nats://{nats}@kalla-nats:4222",
            "KALLA_SECRETS_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
            "KALLA_QUERY_TOKEN": secrets.token_hex(32),
        }
        namespace = [each for each in objects if each["kind"] == "Namespace"]
        self.apply(namespace)
        self.apply([_secret("kalla-nats", {"token": nats}), _secret("kalla-secrets", settings)])
        self.apply([self._hurried(each) for each in objects if each["kind"] != "Namespace"])
        until(self._answers, "the API of Kalla answers", seconds=420)
        self.give_keda(self.create_token("keda", "viewer"))
        self._token = self.create_token("lab", "admin")

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self._token}"}
        return httpx.Client(base_url=URL, headers=headers, timeout=30)

    def give_keda(self, token: str) -> None:
        """Puts the token by which KEDA reads the demand in its Secret."""
        self.apply([_secret("kalla-viewer", {"token": token})])

    def create_token(self, name: str, role: str) -> str:
        """A new token; earlier ones of this name are refused from now on."""
        command = [
            sys.executable,
            "-m",
            "kalla.cli.main",
            "token",
            "create",
            "--name",
            name,
            "--role",
            role,
            "--replace",
        ]
        environment = os.environ | {"KALLA_DATABASE_URL": self._servers.database_url()}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def apply(self, objects: list[dict[str, Any]]) -> None:
        arguments = ("apply", "--server-side", "--validate=strict", "--force-conflicts", "-f", "-")
        self._control_plane.kubectl(*arguments, text=yaml.safe_dump_all(objects))

    def _definitions(self) -> None:
        """The kinds of the Prometheus operator; KEDA's own are there."""
        version = "v0.85.0"
        source = TOOLS / f"mod/github.com/prometheus-operator/prometheus-operator@{version}"
        for kind in ("podmonitors", "prometheusrules"):
            file = source / f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
            self._control_plane.kubectl("apply", "--server-side", "-f", str(file))

    def _hurried(self, each: dict[str, Any]) -> dict[str, Any]:
        """Shorter waits before workers are removed, and no other change."""
        if self._patient:
            return each
        if each["kind"] == "ScaledObject":
            each["spec"]["cooldownPeriod"] = 30
            down = each["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"][
                "scaleDown"
            ]
            down["stabilizationWindowSeconds"] = 15
            down["policies"] = [{"type": "Pods", "value": 4, "periodSeconds": 15}]
        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "kalla-spark":
            arguments = each["spec"]["template"]["spec"]["containers"][0]["args"]
            arguments += ["--conf", "spark.dynamicAllocation.executorIdleTimeout=15s"]
            arguments += ["--conf", "spark.dynamicAllocation.shuffleTracking.timeout=20s"]
        return each

    def _answers(self) -> bool:
        try:
            return (
                httpx.get(f"{URL}/login", timeout=5).status_code < httpx.codes.INTERNAL_SERVER_ERROR
            )
        except httpx.HTTPError:
            return False


def _secret(name: str, data: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}
