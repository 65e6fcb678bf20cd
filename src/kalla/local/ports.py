"""Ports of this machine: whether one is free, and which process holds it if not."""

from __future__ import annotations

import atexit
import errno
import random
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack

import psutil

from kalla.errors import StartFailed

HOST = "127.0.0.1"

_marks: dict[int, socket.socket] = {}  # by port: chosen by this process and not yet in use
atexit.register(lambda: release(*_marks))


def require_free(port: int, name: str, setting: str, host: str = HOST, patience: float = 2) -> None:
    """Raise StartFailed with the holder and the setting to change, unless the port can be had.

    It waits for a predecessor that is just ending: a killed `kalla up` ends its servers with it.
    """
    deadline = time.monotonic() + patience
    while not is_free(port, host):
        if time.monotonic() >= deadline:
            variable = "KALLA_" + setting.upper().replace(".", "_")
            raise StartFailed(
                f"Port {port} for {name} is taken by {holder(port)}: "
                f"stop that, or choose another port with {setting} (or {variable})."
            )
        time.sleep(0.1)


def is_free(port: int, host: str = HOST) -> bool:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise StartFailed(f"{host}:{port} cannot be used: {error.strerror}.") from None
    return True


def holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr.port == port
                and connection.pid
            ):
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass  # another user's process does not show itself
    return "another process"


def choose_free(neighbours: int = 1) -> int:
    """The first of this many ports that are free now and not given to another call meanwhile.

    `release` them when a server listens on them, or when none will. Those above 32768 the system
    itself gives to connections; a server may add 10,000 to its own.
    """
    picked = random.SystemRandom()  # two processes must not draw the same
    while True:
        first = picked.randrange(12_000, 22_000)
        wanted = range(first, first + neighbours)
        if all(map(is_free, wanted)) and _mark(wanted):
            return first


def _mark(wanted: Iterable[int]) -> bool:
    """Hold the UDP ports of these numbers, which no server here uses, until they are released.

    A chosen port is bound later, by a child: until then it looks free to whoever chooses next.
    """
    with ExitStack() as failed:
        marks = {
            port: failed.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            for port in wanted
        }
        try:
            for port, mark in marks.items():
                mark.bind((HOST, port))
        except OSError:
            return False
        failed.pop_all()
    _marks.update(marks)
    return True


def release(*chosen: int) -> None:
    """Give these ports back, so that a process that starts servers for months keeps no sockets."""
    for port in chosen:
        if mark := _marks.pop(port, None):
            mark.close()


def answers(port: int, host: str = HOST, timeout: float = 1) -> bool:
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False
