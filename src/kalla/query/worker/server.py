"""The servers of a query worker: its control streams, and the HTTP of artifacts and probes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pyarrow as pa
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kalla import logs
from kalla.errors import StartFailed
from kalla.query.protocol.background import repeat
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.versions import PROTOCOL_VERSION
from kalla.query.worker.artifact_spool import SegmentFiles, Spool
from kalla.query.worker.disk_budget import DiskBudget
from kalla.query.worker.execution import Executor
from kalla.query.worker.metrics import WorkerMetrics
from kalla.query.worker.sessions import Sessions
from kalla.query.worker.work_table import WorkTable
from kalla.settings import Settings
from kalla.storage import Storage
from kalla.storage.scratch import scratch

_log = logs.get(__name__)

MESSAGE_BYTES = 64 << 20
_SWEEP_SECONDS = 1.0
_POLL_SECONDS = 0.05
_PIECE_BYTES = 1 << 20


class QueryWorkerServer:
    """One worker; `address` and `artifact_port` are known once it is open."""

    def __init__(self, settings: Settings, artifact_listener: socket.socket) -> None:
        own = settings.query_worker
        self.settings = own
        self.access = PeerAccess.of(settings.query)
        self.access.require_safe(own.host)
        artifact_port = artifact_listener.getsockname()[1]
        place = Path(own.folder or settings.data_dir / "query-worker")
        place.mkdir(parents=True, exist_ok=True)
        self._closing = ExitStack()
        # A new one for each process: files of a former process are of no use.
        folder = self._closing.enter_context(scratch(place))
        storage = Storage.of(settings.storage)
        self.metrics = WorkerMetrics()
        self.spool = Spool(
            folder,
            DiskBudget(own.disk_bytes),
            own.acknowledged_seconds,
            own.unfetched_seconds,
        )
        files = SegmentFiles(
            storage, settings.metrics_url, self.spool, self.metrics.download_seconds.observe
        )
        self._executor = Executor(storage, settings.metrics_url, files, own.memory_bytes)
        self.table = WorkTable(self._executor, self.spool, self.metrics, own.threads, own.queue)
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.max_send_message_length", MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
            ]
        )
        self.port = self._bound(f"{_bracketed(own.host)}:{own.port}")
        if not self.port:
            raise StartFailed(
                f"Cannot listen on {own.host}:{own.port}: stop what holds it, or set "
                "query_worker.port."
            )
        self.worker_id = own.name or f"{socket.gethostname()}:{self.port}"
        self.sessions = Sessions(self.worker_id, artifact_port, self.access, self.table)
        self.sessions.sizes = self._sizes
        self._grpc.add_generic_rpc_handlers((self.sessions.handler(),))
        self.metrics.watch(self._gauges)

    def _bound(self, address: str) -> int:
        """The port of the control streams; 0 if it is taken."""
        tls = self.access.tls
        try:
            if tls is None:
                return int(self._grpc.add_insecure_port(address))
            return int(self._grpc.add_secure_port(address, tls.server_credentials()))
        except RuntimeError:
            return 0

    @property
    def address(self) -> str:
        return f"{_bracketed(self.settings.host)}:{self.port}"

    def artifacts(self) -> Starlette:
        """/artifacts, with the authentication of peers."""
        return Starlette(routes=[Route("/artifacts/{name}", self._artifact)])

    def probes(self) -> Starlette:
        """/metrics, /health and /ready, without authentication."""
        return Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/health", self._health),
                Route("/ready", self._ready),
            ]
        )

    def http(self) -> Starlette:
        """All of them on one port."""
        return Starlette(routes=[*self.artifacts().routes, *self.probes().routes])

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        await self._grpc.start()
        background = [
            asyncio.create_task(repeat(_SWEEP_SECONDS, self._sweep, "sweep"), name="sweep"),
            asyncio.create_task(self.sessions.send_status_regularly(), name="status"),
        ]
        _log.info(
            "the query worker serves",
            worker_id=self.worker_id,
            address=self.address,
            protocol_version=PROTOCOL_VERSION,
        )
        try:
            yield
        finally:
            for task in background:
                task.cancel()
            await self._grpc.stop(grace=None)
            await self.table.close()
            self._closing.close()

    async def drain(self) -> None:
        """No new work; returns when all artifacts were fetched, or the time for that is over."""
        self.table.drain()
        self.sessions.send_status()
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                while self.table.running or (self.table.unfetched and self.sessions.count):
                    await self.table.changed(_POLL_SECONDS)
        except TimeoutError:
            _log.warning(
                "the drain took too long",
                running=self.table.running,
                unfetched=self.table.unfetched,
            )

    async def _artifact(self, request: Request) -> Response:
        shown = request.headers.get("authorization", "")
        if not self.access.admits(shown):
            return JSONResponse(
                {"detail": "the token is wrong: set the same query.token on both sides"}, 401
            )
        content = self.spool.content(request.path_params["name"])
        if content is None:
            return JSONResponse({"detail": "the artifact has expired"}, 404)
        kind, length = "application/vnd.apache.parquet", {"content-length": str(content.size)}
        if content.size <= _PIECE_BYTES:
            return Response(content.to_pybytes(), media_type=kind)
        return StreamingResponse(_pieces(content), headers=length, media_type=kind)

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        if self.table.draining:
            return JSONResponse({"status": "unavailable", "reasons": ["it is draining"]}, 503)
        return JSONResponse({"status": "ok"})

    async def _sweep(self) -> None:
        gone = await asyncio.to_thread(self.spool.sweep)
        self.metrics.cleanups.inc(gone)
        self.table.forget_expired()

    def _sizes(self) -> tuple[int, int, int, int]:
        cache, spool = self.spool.sizes()
        return cache, spool, self.spool.budget.total, self._executor.memory_bytes

    def _gauges(self) -> dict[str, float]:
        cache, spool, total, memory = self._sizes()
        return {
            "streams": self.sessions.count,
            "queue_depth": self.table.queued,
            "running": self.table.running,
            "oldest_age_seconds": self.table.oldest_age,
            "cache_bytes": cache,
            "spool_bytes": spool,
            "free_bytes": total - cache - spool,
            "memory_bytes": memory,
            "draining": float(self.table.draining),
        }


async def _pieces(content: pa.Buffer) -> AsyncIterator[bytes]:
    """Of a mapped file, just written: no thread is needed to read it."""
    for first in range(0, content.size, _PIECE_BYTES):
        yield content.slice(first, min(_PIECE_BYTES, content.size - first)).to_pybytes()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
