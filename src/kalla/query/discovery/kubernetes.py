"""Query workers behind a Kubernetes service: the ready endpoints of its EndpointSlices.

Uses the pod's own service account, which needs `list` on endpointslices.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kalla.query.discovery.addresses import DiscoveryFailed, invalid

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECONDS = 5.0


@dataclass(frozen=True)
class KubernetesService:
    """`account` holds the token and the certificate; `api` is the API server's address."""

    namespace: str
    service: str
    api: str
    account: Path = ACCOUNT

    @classmethod
    def of(cls, text: str, account: Path = ACCOUNT) -> KubernetesService:
        namespace, _, service = text.partition("/")
        if not namespace or not service or "/" in service:
            raise invalid("write kubernetes://namespace/service")
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if ":" in host:
            host = f"[{host}]"
        return cls(namespace, service, f"https://{host}:{port}", account)

    async def addresses(self) -> list[str]:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        labels = {"labelSelector": f"kubernetes.io/service-name={self.service}"}
        try:
            # Read each time: Kubernetes replaces the token now and then.
            token = (self.account / "token").read_text("utf-8").strip()
            async with httpx.AsyncClient(
                base_url=self.api,
                headers={"Authorization": f"Bearer {token}"},
                verify=self._trust(),
                timeout=_SECONDS,
                trust_env=False,
            ) as client:
                answer = (await client.get(path, params=labels)).raise_for_status().json()
        except (OSError, ValueError, httpx.HTTPError) as error:
            raise DiscoveryFailed(
                f"the endpoints of {self.namespace}/{self.service} could not be listed: {error}"
            ) from error
        return sorted({one for item in answer.get("items") or () for one in _ready(item)})

    def _trust(self) -> ssl.SSLContext | bool:
        certificate = self.account / "ca.crt"
        return ssl.create_default_context(cafile=certificate) if certificate.exists() else True


def _ready(item: Mapping[str, Any]) -> list[str]:
    """A slice names one port, or the one that is called `control`."""
    ports = item.get("ports") or ()
    named = [port for port in ports if port.get("name") == "control"] or ports
    if not named or named[0].get("port") is None:
        return []
    found = []
    for endpoint in item.get("endpoints") or ():
        # A missing condition counts as ready, as Kubernetes defines it.
        if (endpoint.get("conditions") or {}).get("ready") is not False:
            for address in endpoint.get("addresses") or ():
                host = f"[{address}]" if item.get("addressType") == "IPv6" else address
                found.append(f"{host}:{named[0]['port']}")
    return found
