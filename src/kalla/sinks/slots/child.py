"""A child process of a slot that delivers ranges; it always ends with its slot.

Requests and answers are pickled, with their length before them, on its standard streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from kalla.errors import KallaError, Unavailable
from kalla.redaction import scrub
from kalla.sinks.kernel import Delivery, Facts, Kernel, prepare
from kalla.sinks.records.letters import (
    Chunk,
    ChunkRequest,
    ReplayFacts,
    ReplayRequest,
    next_chunk,
    replay_chunk,
)
from kalla.sinks.servers.clickhouse_client import ClickHouse, TableState, Target, describe
from kalla.sinks.servers.message_ranges import OffsetsGone

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Connections:
    """The connections of a kernel, with passwords in the clear: sent only through the pipe."""

    kafka: Mapping[str, str] = field(repr=False)
    target: Target
    dead_letters: str


class ChildEnded(Unavailable):
    """The process was killed in its work, which may have taken too much memory."""


class Child:
    """The child process, from its slot: one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lock = asyncio.Lock()

    @classmethod
    async def start(cls, connections: Connections) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kalla.sinks.slots.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is handled by the worker, which then ends its slots
        )
        child = cls(process)
        try:
            await child._ask(("open", connections))
        except BaseException:
            await child.kill()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def clock(self) -> float:
        """ClickHouse's clock."""
        return float(await self._ask(("clock",)))

    async def tables(self, *names: str) -> list[TableState | None]:
        return cast("list[TableState | None]", await self._ask(("tables", names)))

    async def deliver(self, delivery: Delivery, deadline: float) -> Facts:
        return cast(Facts, await self._ask(("deliver", delivery, deadline)))

    async def next_chunk(self, request: ChunkRequest) -> Chunk | None:
        return cast("Chunk | None", await self._ask(("next_chunk", request)))

    async def replay(self, request: ReplayRequest, deadline: float) -> ReplayFacts:
        return cast(ReplayFacts, await self._ask(("replay", request, deadline)))

    async def kill(self) -> None:
        """Kills the process; returns when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _ask(self, request: tuple[Any, ...]) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise AssertionError("the child has no pipes")
        async with self._lock:
            try:
                body = pickle.dumps(request)
                stdin.write(_LENGTH.pack(len(body)) + body)
                await stdin.drain()
                (length,) = _LENGTH.unpack(await stdout.readexactly(_LENGTH.size))
                answer = pickle.loads(await stdout.readexactly(length))  # noqa: S301
            except (OSError, asyncio.IncompleteReadError):
                raise ChildEnded("the process that delivers ended by itself") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = _Requests(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not corrupt the answers
    kernel: Kernel | None = None
    server: ClickHouse | None = None
    letters = ""
    while True:
        request = requests.next()
        try:
            if request[0] == "open":
                connections: Connections = request[1]
                prepare()
                kernel = Kernel(connections.kafka, connections.target, connections.dead_letters)
                server = ClickHouse(connections.target)
                letters = connections.dead_letters
                answer: Any = None
            elif kernel is None or server is None:
                raise AssertionError("not opened")
            elif request[0] == "clock":
                answer = kernel.clock()
            elif request[0] == "tables":
                answer = [describe(server, name) for name in request[1]]
            elif request[0] == "next_chunk":
                answer = next_chunk(server, letters, request[1])
            elif request[0] == "replay":
                answer = replay_chunk(server, letters, *request[1:])
            else:
                answer = kernel.deliver(*request[1:])
        except Exception as error:  # whatever the error, the slot must receive it
            answer = reported(error)
        body = pickle.dumps(answer)
        answers.write(_LENGTH.pack(len(body)) + body)
        answers.flush()


def reported(error: Exception) -> KallaError | OffsetsGone:
    """The error for the slot: an unknown one costs a range another try, never the whole slot."""
    if isinstance(error, KallaError | OffsetsGone):
        return error
    print(scrub("".join(traceback.format_exception(error))), file=sys.stderr)
    return KallaError(f"{type(error).__name__}: {error}")


class _Requests(threading.Thread):
    """Reads ahead, so that the end of the slot's process is noticed during a delivery too."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._waiting: list[Any] = []
        self._arrived = threading.Condition()
        self.start()

    def run(self) -> None:
        while True:
            head = self._stream.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                os._exit(0)
            body = self._stream.read(_LENGTH.unpack(head)[0])
            with self._arrived:
                self._waiting.append(pickle.loads(body))  # noqa: S301
                self._arrived.notify()

    def next(self) -> Any:
        with self._arrived:
            while not self._waiting:
                self._arrived.wait()
            return self._waiting.pop(0)


if __name__ == "__main__":
    main()
