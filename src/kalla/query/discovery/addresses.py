"""Where query workers are: one interface over a list, DNS, Kubernetes and ECS."""

from __future__ import annotations

from typing import Protocol

from kalla.errors import InvalidInput, KallaError, Problem


class DiscoveryFailed(KallaError):
    """The workers could not be looked up; the previous list stays in use."""


class Discovery(Protocol):
    async def addresses(self) -> list[str]:
        """host:port of every query worker there is now."""


def discovery_of(workers: str) -> Discovery:
    """From the setting `query.workers`."""
    from kalla.query.discovery.dns import DnsName
    from kalla.query.discovery.ecs import EcsService
    from kalla.query.discovery.kubernetes import KubernetesService
    from kalla.query.discovery.static import StaticList

    scheme, separator, rest = workers.partition("://")
    if not separator:
        return StaticList.of(workers)
    match scheme:
        case "dns":
            return DnsName.of(rest)
        case "kubernetes":
            return KubernetesService.of(rest)
        case "ecs":
            return EcsService.of(rest)
    raise invalid(f"knows no {scheme}://: write host:port, dns://, kubernetes:// or ecs://")


def invalid(message: str) -> InvalidInput:
    return InvalidInput(Problem("query.workers", message))


def host_and_port(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise invalid(f"{text!r} is not host:port")
    return host, int(port)
