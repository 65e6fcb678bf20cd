"""Control streams that API processes have opened to this worker: one session each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from uuid import uuid4

import grpc

from kalla import logs
from kalla.errors import VersionSkew
from kalla.query.protocol import control_pb2 as pb
from kalla.query.protocol.background import repeat
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.versions import PROTOCOL_VERSION
from kalla.query.worker.work_table import WorkTable, key_of
from kalla.release import require_same_series, version

_log = logs.get(__name__)

# Messages that wait for a slow API; then its stream is closed.
_MOST_MESSAGES = 10_000
# An API that is silent this long counts as disconnected, and its work ends.
DEAD_SECONDS = 3.0
_SILENT_WAITS = 12
_STATUS_SECONDS = 1.0


@dataclass
class _Session:
    """Messages to an API, and the task that reads its messages; the stream ends with the task."""

    outgoing: asyncio.Queue[pb.ToApi]
    reading: asyncio.Task[None]


class Sessions:
    """Serves `QueryWorker.Control`."""

    def __init__(
        self, worker_id: str, artifact_port: int, access: PeerAccess, table: WorkTable
    ) -> None:
        self._worker_id = worker_id
        self._artifact_port = artifact_port
        self._access = access
        self._table = table
        table.on_accepting = self.send_status
        self._open: dict[str, _Session] = {}
        self._last_status: pb.WorkerStatus | None = None
        # Bytes of downloaded segments, artifacts, the budget for both, and memory.
        self.sizes: Callable[[], tuple[int, int, int, int]] = lambda: (0, 0, 0, 0)

    @property
    def count(self) -> int:
        return len(self._open)

    def handler(self) -> grpc.GenericRpcHandler:
        method = grpc.stream_stream_rpc_method_handler(
            self.control,
            request_deserializer=pb.ToWorker.FromString,
            response_serializer=pb.ToApi.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            "kalla.query.control.QueryWorker", {"Control": method}
        )

    async def control(
        self, incoming: AsyncIterator[pb.ToWorker], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ToApi]:
        """One stream, from hello to its end; its work ends with it."""
        await self._require_token(context)
        hello = await self._hello(incoming, context)
        session = uuid4().hex
        # Bounded: `_put` ends the stream of an API that does not read.
        outgoing: asyncio.Queue[pb.ToApi] = asyncio.Queue(_MOST_MESSAGES)
        reading = asyncio.create_task(self._read(session, incoming), name="session")
        self._open[session] = _Session(outgoing, reading)
        _log.info("an API opened a stream", api_id=hello.api_id, session=session)
        try:
            yield pb.ToApi(
                welcome=pb.Welcome(
                    protocol_version=PROTOCOL_VERSION,
                    worker_id=self._worker_id,
                    kalla_version=version(),
                    artifact_port=self._artifact_port,
                )
            )
            yield pb.ToApi(status=self.status())
            while not reading.done():
                try:
                    async with asyncio.timeout(0.25):
                        message = await outgoing.get()
                except TimeoutError:
                    continue
                yield message
        finally:
            reading.cancel()
            del self._open[session]
            self._table.drop_session(session)
            _log.info("the stream of an API ended", api_id=hello.api_id, session=session)

    def status(self) -> pb.WorkerStatus:
        cache, spool, budget, memory = self.sizes()
        return pb.WorkerStatus(
            alive=True,
            accepting_work=self._table.accepting,
            draining=self._table.draining,
            queue_depth=self._table.queued,
            running=self._table.running,
            cache_bytes=cache,
            spool_bytes=spool,
            budget_bytes=budget,
            memory_bytes=memory,
        )

    def send_status(self) -> None:
        """Sends the status to every API when it has changed."""
        status = self.status()
        if status != self._last_status:
            self._last_status = status
            for session in list(self._open):
                self._put(session, pb.ToApi(status=status))

    async def send_status_regularly(self) -> None:
        async def send() -> None:
            self.send_status()

        await repeat(_STATUS_SECONDS, send, "status")

    async def _read(self, session: str, incoming: AsyncIterator[pb.ToWorker]) -> None:
        """Ends when the stream does, or when its API was silent for too long."""
        messages = aiter(incoming)
        while True:
            coming = asyncio.ensure_future(anext(messages))
            try:
                # Short waits, counted: a pause of this process does not count as the API's silence.
                for _ in range(_SILENT_WAITS):
                    if (await asyncio.wait({coming}, timeout=DEAD_SECONDS / _SILENT_WAITS))[0]:
                        break
                else:
                    _log.warning("an API was silent for too long", session=session)
                    return
                message = coming.result()
            except StopAsyncIteration:
                return
            finally:
                coming.cancel()
            self._take(session, message)

    def _take(self, session: str, message: pb.ToWorker) -> None:
        match message.WhichOneof("message"):
            case "heartbeat":
                self._put(session, pb.ToApi(heartbeat=message.heartbeat))
            case "assign":
                accepted_before = self._table.accepting
                self._table.assign(session, message.assign, lambda one: self._put(session, one))
                if accepted_before != self._table.accepting:
                    self.send_status()
            case "cancel":
                self._table.cancel(session, key_of(message.cancel.key))
            case "ack":
                ack = message.ack
                self._table.acknowledge(session, key_of(ack.key), ack.artifact_checksum)

    def _put(self, session: str, message: pb.ToApi) -> None:
        opened = self._open.get(session)
        if opened is None:
            return  # the stream ended while a thread worked for it
        try:
            opened.outgoing.put_nowait(message)
        except asyncio.QueueFull:
            # The stream ends as soon as the API reads on; it gives the work to another worker.
            if opened.reading.cancelling():
                return
            _log.warning("an API does not read its messages", session=session)
            opened.reading.cancel()
            self._table.drop_session(session)

    async def _require_token(self, context: grpc.aio.ServicerContext) -> None:
        shown = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not self._access.admits(str(shown)):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the token is wrong: set the same query.token on both sides",
            )

    async def _hello(
        self, incoming: AsyncIterator[pb.ToWorker], context: grpc.aio.ServicerContext
    ) -> pb.Hello:
        try:
            async with asyncio.timeout(DEAD_SECONDS):
                first = await anext(aiter(incoming))
        except (StopAsyncIteration, TimeoutError):
            first = pb.ToWorker()
        if first.hello.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this query worker speaks version {PROTOCOL_VERSION} of the protocol, the API "
                f"version {first.hello.protocol_version}: run the same Kalla on both",
            )
        api_version = first.hello.kalla_version
        try:
            require_same_series("this query worker", version(), "the API is", api_version)
        except VersionSkew as skew:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(skew))
        return first.hello
