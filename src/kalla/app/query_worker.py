"""The query worker process: settings in, streams and artifacts served, SIGTERM drains, exit 0."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from kalla import logs
from kalla.app.serving import bind, serving
from kalla.query.http.query_service import keep_kernels
from kalla.settings import Settings

_log = logs.get(__name__)


async def run_query_worker(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT, then drain."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    keep_kernels(settings.data_dir / "kernels")
    from kalla.query.worker.server import QueryWorkerServer

    own = settings.query_worker
    listener = bind(own.host, own.artifact_port, "query_worker.artifact_port")
    worker = QueryWorkerServer(settings, listener)
    async with serving(worker.http(), listener), worker.serving():
        threading.Thread(target=_load, name="warm", daemon=True).start()
        await stopping.wait()
        await worker.drain()
    if worker.table.running:
        # A thread that does not stop would keep the interpreter from ending. Its work is elsewhere.
        sys.stderr.flush()
        os._exit(0)


def _load() -> None:
    """Loads the engine's kernels beside everything else, so that no work unit waits for them."""
    began = time.monotonic()
    from kalla.compiling import prepare
    from kalla.query.engine import Engine
    from kalla.query.evaluate.sample_source import MemorySource
    from kalla.query.store import segment_source

    segment_source.prepare()
    prepare("kalla.query")
    Engine(MemorySource({})).instant('sum(rate(a{b=~"c.+"}[5m])) or vector(1.5)', 0)
    _log.info("the query engine is ready", seconds=round(time.monotonic() - began, 1))
