"""Query workers behind a DNS name: every address that it resolves to."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from kalla.query.discovery.addresses import DiscoveryFailed, host_and_port


@dataclass(frozen=True)
class DnsName:
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> DnsName:
        return cls(*host_and_port(text))

    async def addresses(self) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            raise DiscoveryFailed(f"{self.host} does not resolve: {error}") from error
        hosts = sorted({str(address[0]) for *_, address in found})
        return [f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in hosts]
