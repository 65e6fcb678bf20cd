"""A TCP proxy on loopback between a worker and a server, which can cut, stall and mute the line."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

from kalla.local import ports

_RESET = struct.pack("ii", 1, 0)  # close by RST, without a farewell
_CHUNK = 65536


class Proxy:
    """One listening port in front of one server's port."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._lines: set[asyncio.Task[None]] = set()  # one for each client's connection
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._muted = False

    async def start(self, host: str = ports.HOST, port: int = 0) -> int:
        """Returns the port it listens on."""
        self._server = await asyncio.start_server(self._serve, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        lines = list(self._lines)
        self.cut()
        await asyncio.gather(*lines, return_exceptions=True)

    def cut(self) -> None:
        """End every connection by RST, on both sides."""
        for line in list(self._lines):
            line.cancel()

    def stall(self) -> None:
        """Nothing passes either way, nothing is closed: a black hole."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def mute(self) -> None:
        """What the server says is lost from now on; what it is told still arrives."""
        self._muted = True

    def unmute(self) -> None:
        """Connections that lost an answer are of no use any more."""
        self._muted = False
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        ends = [writer]
        try:
            await self._flowing.wait()
            far_reader, far_writer = await asyncio.open_connection(ports.HOST, self._target)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, far_writer, answers=False))
                pumps.create_task(self._pump(far_reader, writer, answers=True))
        except OSError:
            pass  # the server is away: the client sees its connection end
        except asyncio.CancelledError:
            for end in ends:  # a cut: the line ends here, and that is all it was asked
                _reset(end)
        finally:
            self._lines.discard(line)
            for end in ends:
                end.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool
    ) -> None:
        """Carry one direction. When one side hangs up, so does the other."""
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK):
                await self._flowing.wait()
                if answers and self._muted:
                    continue
                sink.write(data)
                await sink.drain()
        sink.close()


def _reset(end: asyncio.StreamWriter) -> None:
    connection: socket.socket = end.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.transport.abort()
