"""The query worker process: settings in, streams and artifacts served, SIGTERM drains, exit 0."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

from kalla import logs
from kalla.app.serving import bind, serving
from kalla.query.service.engine_loading import keep_kernels, load_engine
from kalla.settings import Settings

_log = logs.get(__name__)


async def run_query_worker(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT, then drain."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    kernels = settings.data_dir / "kernels"
    keep_kernels(kernels)
    from kalla.query.worker.server import QueryWorkerServer

    own = settings.query_worker
    listener = bind(own.host, own.artifact_port, "query_worker.artifact_port")
    worker = QueryWorkerServer(settings, listener)
    async with serving(worker.http(), listener), worker.serving():
        threading.Thread(target=load_engine, args=(kernels,), name="warm", daemon=True).start()
        await stopping.wait()
        await worker.drain()
    if worker.table.running:
        # A thread that does not stop would keep the interpreter from ending. Its work is elsewhere.
        sys.stderr.flush()
        os._exit(0)
