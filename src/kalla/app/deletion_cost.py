"""Tells Kubernetes which workers are busy, so that scaling down removes idle pods first."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from kalla import logs
from kalla.work.service import Periodic

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_INTERVAL = 2.0
_SELDOM_SECONDS = 10.0
_RETRY_SECONDS = 60.0
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
    """Sets the pod's deletion cost to the number of its jobs and sink slots: at once when the pod
    becomes busy or idle, otherwise seldom, as each change is a write to Kubernetes.

    Without the right to, it says so once and leaves it: scaling down then takes any pod, which
    drains as well.
    """

    def __init__(
        self, pod: Pod, active: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("deletion cost", _INTERVAL)
        self._pod = pod
        self._active = active
        self._clock = clock
        self._cost: int | None = None
        self._next_at = -math.inf
        self._refused = False

    async def tick(self) -> None:
        active = self._active()
        is_urgent = not self._refused and (active > 0) != ((self._cost or 0) > 0)
        if active == self._cost or not (is_urgent or self._clock() >= self._next_at):
            return
        status = await self._patch(active)
        if status in (401, 403):
            # A rotated token is accepted again soon; a missing right is not granted by asking.
            self._next_at = self._clock() + _RETRY_SECONDS if status == 401 else math.inf
            if not self._refused:
                _log.warning("may not set its deletion cost", status=status)
            self._refused = True
            return
        self._refused = False
        self._cost = active
        self._next_at = self._clock() + _SELDOM_SECONDS

    async def _patch(self, cost: int) -> int:
        pod = self._pod
        verify = ssl.create_default_context(cafile=pod.certificate) if pod.certificate else True
        async with httpx.AsyncClient(verify=verify, timeout=5, trust_env=False) as client:
            answer = await client.patch(
                pod.url,
                json={"metadata": {"annotations": {ANNOTATION: str(cost)}}},
                headers={
                    "Authorization": f"Bearer {pod.token_file.read_text('utf-8').strip()}",
                    "Content-Type": "application/merge-patch+json",
                },
            )
        if answer.status_code not in (401, 403):
            answer.raise_for_status()
        return answer.status_code
