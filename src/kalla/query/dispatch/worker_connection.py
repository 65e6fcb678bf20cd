"""Keeps the stream to one query worker open; dials again under the same identity."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Protocol

import grpc

from kalla import logs
from kalla.query.protocol import control_pb2 as pb
from kalla.query.protocol.peer_access import PeerAccess
from kalla.query.protocol.versions import PROTOCOL_VERSION
from kalla.release import require_same_series, version

_log = logs.get(__name__)

HEARTBEAT_SECONDS = 1.0
_WELCOME_SECONDS = 3.0
_BACKOFF_SECONDS = (0.1, 5.0)
# Messages that wait for a slow worker; then its stream is closed and its work goes elsewhere.
_MOST_MESSAGES = 10_000
_MESSAGE_BYTES = 64 << 20
_CONTROL = "/kalla.query.control.QueryWorker/Control"


class Listener(Protocol):
    """Receives a connection's state changes and messages."""

    def joined(self, connection: WorkerConnection) -> bool: ...

    def received(self, connection: WorkerConnection, message: pb.ToApi) -> None: ...

    def lost(self, connection: WorkerConnection) -> None: ...


class WorkerConnection:
    """`worker_id` and `kalla_version` are empty until the worker has sent them."""

    def __init__(self, address: str, api_id: str, access: PeerAccess, listener: Listener) -> None:
        self.address = address
        self.host = address.rpartition(":")[0]
        self.worker_id = self.kalla_version = ""
        self.artifact_port = 0
        self.problem = ""
        self.status = pb.WorkerStatus()
        self.round_trip = 0.0
        self.is_open = False
        self.lost_at: float | None = None
        self._api_id = api_id
        self._access = access
        self._listener = listener
        self._outgoing: asyncio.Queue[pb.ToWorker | None] = asyncio.Queue(_MOST_MESSAGES)
        self._unsent: set[str] = set()  # work units among the messages that wait
        self._sent_at: dict[int, float] = {}
        self._session: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._keep(), name=f"query worker {address}")

    def send(self, message: pb.ToWorker) -> bool:
        """Returns False where the worker reads too slowly, and closes its stream."""
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            self.hang_up("it does not read its messages")
            return False
        if message.HasField("assign"):
            self._unsent.add(message.assign.key.work_id)
        return True

    def withdraw(self, work_id: str) -> bool:
        """Removes work that was not sent yet, so that it needs no cancel message."""
        if work_id not in self._unsent:
            return False
        self._unsent.discard(work_id)
        return True

    def hang_up(self, reason: str) -> None:
        """Ends this session; the next is dialled after a while."""
        if self.is_open and self._session is not None:
            _log.warning(
                "the stream to a query worker is closed", worker=self.worker_id, reason=reason
            )
            self._session.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def artifact_host(self) -> tuple[str, int]:
        return self.host.strip("[]"), self.artifact_port

    async def _keep(self) -> None:
        attempt = 0
        while True:
            began = time.monotonic()
            self._session = asyncio.create_task(self._talk())
            try:
                await asyncio.wait({self._session})
            finally:
                self._session.cancel()
            self._note_end(self._session)
            attempt = 0 if time.monotonic() - began > _BACKOFF_SECONDS[1] else attempt + 1
            most = min(_BACKOFF_SECONDS[0] * 2**attempt, _BACKOFF_SECONDS[1])
            await asyncio.sleep(random.uniform(most / 2, most))  # noqa: S311  (jitter)

    def _note_end(self, session: asyncio.Task[None]) -> None:
        if self.is_open:
            self.is_open, self.lost_at = False, time.monotonic()
            self._listener.lost(self)
        error = None if session.cancelled() else session.exception()
        problem = ""
        if isinstance(error, grpc.aio.AioRpcError):
            problem = str(error.details() or error.code().name)
        elif error is not None:
            problem = str(error) or type(error).__name__
        if problem and problem != self.problem:
            _log.warning("cannot connect to a query worker", address=self.address, reason=problem)
        self.problem = problem

    async def _talk(self) -> None:
        """One session, from hello to its end."""
        self._outgoing = asyncio.Queue(_MOST_MESSAGES)
        self._sent_at, self._unsent = {}, set()
        options: list[tuple[str, int | str]] = [
            ("grpc.max_receive_message_length", _MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MESSAGE_BYTES),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        async with self._channel(options) as channel:
            control = channel.stream_stream(
                _CONTROL,
                request_serializer=pb.ToWorker.SerializeToString,
                response_deserializer=pb.ToApi.FromString,
            )
            token = self._access.token
            metadata = (("authorization", f"Bearer {token}"),) if token else ()
            call = control(self._messages(), metadata=metadata)
            try:
                await self._listen(call)
            finally:
                call.cancel()
                self._end_messages()

    def _channel(self, options: list[tuple[str, int | str]]) -> grpc.aio.Channel:
        tls = self._access.tls
        if tls is None:
            return grpc.aio.insecure_channel(self.address, options=options)
        if tls.server_name:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        credentials = tls.channel_credentials()
        return grpc.aio.secure_channel(self.address, credentials, options=options)

    async def _listen(self, call: grpc.aio.StreamStreamCall) -> None:
        try:
            async with asyncio.timeout(_WELCOME_SECONDS):
                first: pb.ToApi = await call.read()
        except TimeoutError:
            raise TimeoutError("the query worker did not answer") from None
        if first is grpc.aio.EOF or not first.HasField("welcome"):
            # The status of the stream gives the reason.
            code, details = await call.code(), await call.details()
            raise ConnectionError(details or f"the query worker closed the stream ({code})")
        self.kalla_version = first.welcome.kalla_version
        require_same_series("this API", version(), "the query worker is", self.kalla_version)
        self.worker_id = first.welcome.worker_id
        self.artifact_port = first.welcome.artifact_port
        if not self._listener.joined(self):
            raise ConnectionError(f"another query worker is called {self.worker_id} as well")
        self.is_open, self.problem = True, ""
        beating = asyncio.create_task(self._beat())
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self._receive(message)
        finally:
            beating.cancel()
        raise ConnectionError("the query worker closed the stream")

    def _receive(self, message: pb.ToApi) -> None:
        match message.WhichOneof("message"):
            case "heartbeat":
                sent = self._sent_at.pop(message.heartbeat.sequence, None)
                if sent is not None:
                    self.round_trip = time.monotonic() - sent
            case "status":
                self.status = message.status
        self._listener.received(self, message)

    async def _beat(self) -> None:
        sequence = 0
        while True:
            sequence += 1
            self._sent_at = {sequence: time.monotonic()}
            self.send(pb.ToWorker(heartbeat=pb.Heartbeat(sequence=sequence)))
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _messages(self) -> AsyncIterator[pb.ToWorker]:
        outgoing = self._outgoing
        yield pb.ToWorker(
            hello=pb.Hello(
                protocol_version=PROTOCOL_VERSION,
                api_id=self._api_id,
                kalla_version=version(),
            )
        )
        while True:
            # The stream that ends cancels this; heartbeats end the wait every second.
            async with asyncio.timeout(HEARTBEAT_SECONDS * 60):
                message = await outgoing.get()
            if message is None:
                return
            if message.HasField("assign"):
                if message.assign.key.work_id not in self._unsent:
                    continue  # withdrawn meanwhile
                self._unsent.discard(message.assign.key.work_id)
            yield message

    def _end_messages(self) -> None:
        """gRPC leaves the task that reads `_messages` waiting unless something ends it."""
        while self._outgoing.full():
            self._outgoing.get_nowait()
        self._outgoing.put_nowait(None)
