"""Tells Kubernetes which workers are busy, so that scaling down removes idle pods first."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from kalla import logs
from kalla.work.service import Periodic

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_INTERVAL = 2.0
_log = logs.get(__name__)


@dataclass(frozen=True)
class Pod:
    """This process's own pod, and how to reach the API that knows it."""

    url: str
    token_file: Path  # read at each call: Kubernetes renews it
    certificate: Path | None


def own_pod(environment: Mapping[str, str] = os.environ, account: Path = _ACCOUNT) -> Pod | None:
    """None outside of Kubernetes, and where the pod has no token or does not know its name."""
    host, name = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("POD_NAME")
    token = account / "token"
    if not host or not name or not token.is_file():
        return None
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"[{host}]" if ":" in host else host
    namespace = environment.get("POD_NAMESPACE", "default")
    url = f"https://{address}:{port}/api/v1/namespaces/{namespace}/pods/{name}"
    return Pod(url, token, account / "ca.crt")


class DeletionCost(Periodic):
    """Sets the pod's deletion cost to the number of its jobs, whenever that changes.

    Without the right to, it says so once and leaves it: scaling down then takes any pod, which
    drains as well.
    """

    def __init__(self, pod: Pod, active: Callable[[], int]) -> None:
        super().__init__("deletion cost", _INTERVAL)
        self._pod = pod
        self._active = active
        self._told: int | None = None
        self._refused = False

    async def tick(self) -> None:
        active = self._active()
        if self._refused or active == self._told:
            return
        pod = self._pod
        verify = ssl.create_default_context(cafile=pod.certificate) if pod.certificate else True
        async with httpx.AsyncClient(verify=verify, timeout=5, trust_env=False) as client:
            answer = await client.patch(
                pod.url,
                json={"metadata": {"annotations": {ANNOTATION: str(active)}}},
                headers={
                    "Authorization": f"Bearer {pod.token_file.read_text('utf-8').strip()}",
                    "Content-Type": "application/merge-patch+json",
                },
            )
        if answer.status_code in (401, 403):
            self._refused = True
            _log.warning("may not set its deletion cost", status=answer.status_code)
            return
        answer.raise_for_status()
        self._told = active
