"""Query workers that are listed in the settings."""

from __future__ import annotations

from dataclasses import dataclass

from kalla.query.discovery.addresses import host_and_port


@dataclass(frozen=True)
class StaticList:
    listed: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> StaticList:
        """host:port, several with commas."""
        found = tuple(one.strip() for one in text.split(",") if one.strip())
        for one in found:
            host_and_port(one)
        return cls(found)

    async def addresses(self) -> list[str]:
        return list(self.listed)
