"""Kalla's own long-running commands as child processes: `kalla api` and `kalla worker`."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from kalla.local import ports
from kalla.local.process import Server

# After the drain a worker hands its jobs back and stops its services, slots of sinks and Spark.
STOP_SECONDS = 25.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


class Program(Server):
    """A command of this Kalla that answers on /health."""

    start_seconds = 180.0

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        data_dir: Path,
        host: str,
        port: int,
        port_setting: str,
        stop_seconds: float = 10,
        watched: bool = False,
        variables: Mapping[str, str] | None = None,
        other_ports: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(name, port, data_dir / "logs", host)
        self.arguments = arguments
        self.port_setting = port_setting
        self.stop_seconds = stop_seconds
        self.watched = watched
        self._other_ports = other_ports or {}  # by setting; 0 is any
        self._variables = {"KALLA_DATA_DIR": str(data_dir), **(variables or {})}

    @property
    def version(self) -> str:
        return metadata.version("kalla")

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "kalla.cli.main", *self.arguments]

    def check(self) -> None:
        super().check()
        for setting, port in self._other_ports.items():
            if port:
                ports.require_free(port, self.name, setting, self.host)

    def own_ports(self) -> Sequence[int]:
        return (self.port, *self._other_ports.values())

    def environment(self) -> Mapping[str, str]:
        return self._variables

    def probe(self) -> bool:
        return healthy(reachable(self.host), self.port)


def healthy(host: str, port: int, timeout: float = 2) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def reachable(host: str) -> str:
    """The address at which this machine reaches a server bound to `host`."""
    return _EVERYWHERE.get(host, host)
