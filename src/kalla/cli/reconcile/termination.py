"""A command that is ended by SIGTERM, Ctrl-C or its terminal cleans up first.

An exception in the middle of starting a thread or a process would leave it running: there, the
signal only leaves word. State of the module, as signals are of the process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_signal: int | None = None  # the signal
_deferring = False


@contextmanager
def clearing_up() -> Iterator[None]:
    """While this holds, what is running is ended by an exception, once."""
    global _signal
    _signal = None
    before = {
        number: signal.signal(number, _hear)
        for number in _SIGNALS
        # Under nohup the end of the terminal is nothing to hear of.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferring() -> Iterator[None]:
    """Raises no exception meanwhile; long work checks whether it is `asked_to_end`."""
    global _deferring
    _deferring = True
    try:
        yield
    finally:
        _deferring = False
        _end()


def asked_to_end() -> bool:
    return _signal is not None


def _hear(number: int, _frame: FrameType | None) -> None:
    global _signal
    if _signal is None:  # who clears up is not disturbed
        _signal = number
        if not _deferring:
            _end()


def _end() -> None:
    if _signal is not None:
        raise SystemExit(128 + _signal)
