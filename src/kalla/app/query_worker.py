"""The query worker process: settings in, streams and artifacts served, SIGTERM drains, exit 0."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kalla import logs
from kalla.app.serving import Certificates, address_of, bind, serving
from kalla.query.service.engine_loading import load_engine, set_kernel_cache
from kalla.settings import Settings

if TYPE_CHECKING:
    from kalla.query.worker.server import QueryWorkerServer

_log = logs.get(__name__)


async def run_query_worker(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT, then drain."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    kernels = settings.data_dir / "kernels"
    set_kernel_cache(kernels)
    from kalla.query.worker.server import QueryWorkerServer

    own = settings.query_worker
    listener = bind(own.host, own.artifact_port, "query_worker.artifact_port")
    worker = QueryWorkerServer(settings, listener)
    async with open_http(worker, listener), worker.serving():
        threading.Thread(target=load_engine, args=(kernels,), name="warm", daemon=True).start()
        await stopping.wait()
        await worker.drain()
    if worker.table.running:
        # A thread that does not stop would keep the interpreter from ending. Its work is elsewhere.
        sys.stderr.flush()
        os._exit(0)


@asynccontextmanager
async def open_http(worker: QueryWorkerServer, listener: socket.socket) -> AsyncIterator[str]:
    """Serves artifacts and probes; yields the address of the probes.

    Who probes shows no certificate: where artifacts ask for one, probes have a port of their own.
    """
    tls = worker.access.tls
    if tls is None:
        async with serving(worker.http(), listener):
            yield address_of(listener)
        return
    own = worker.settings
    beside = bind(own.host, own.metrics_port, "query_worker.metrics_port")
    certificates = Certificates(tls.authority, tls.certificate, tls.key)
    async with (
        serving(worker.artifacts(), listener, certificates=certificates),
        serving(worker.probes(), beside),
    ):
        yield address_of(beside)
