"""Serves an ASGI app inside a running event loop, on a socket bound beforehand."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from kalla.app.connection_limits import ConnectionLimits
from kalla.errors import StartFailed


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket, or one sentence that names the port and the setting to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartFailed(
            f"Cannot listen on {host}:{port} ({error.strerror}): "
            f"stop what holds it, or set {setting}."
        ) from None
    listener.listen(1024)
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(uvicorn.Server):
    """Signals belong to the command, not to the servers it runs."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True)
class Certificates:
    """Files in PEM; clients must show a certificate that `authority` has signed."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def options(self) -> dict[str, Any]:
        return {
            "ssl_ca_certs": str(self.authority),
            "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.key),
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
        }


@asynccontextmanager
async def serving(
    app: Any,
    listener: socket.socket,
    limits: ConnectionLimits | None = None,
    certificates: Certificates | None = None,
) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app,
        # Declared as a class, but whatever makes a protocol will do.
        http=(limits or ConnectionLimits()).protocol,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        **({} if certificates is None else certificates.options),
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                await task
                raise StartFailed("the HTTP server ended while it started")
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task
        listener.close()
