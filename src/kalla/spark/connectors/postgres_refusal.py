"""Why a Postgres server lets nobody in: by its code, for its words are in the server's language."""

from __future__ import annotations

import os
import re
from select import POLLIN, POLLOUT, poll
from time import monotonic

from psycopg.pq import PGconn, PollingStatus, abc

_PATIENCE = 10.0  # seconds
_CODE = re.compile(rb'\tErrorResponse\t.*? C "([0-9A-Z]{5})"')
_NO_PASSWORD = "28P01"  # noqa: S105 -- what a server says of a wrong one


def code_of_refusal(conninfo: str) -> str | None:
    """The SQLSTATE with which the server refuses a session; None if it does not, or is not there.

    A driver passes on the sentence alone, so one more session is tried, and what goes over its line
    is looked at. That may hold a password: it is kept in memory, and gone at the end.
    """
    line = os.memfd_create("line")
    try:
        attempt = PGconn.connect_start(conninfo.encode())
        try:
            attempt.trace(line)
            _tried(attempt)
            if attempt.needs_password:  # which is seen here, before the server could say so
                return _NO_PASSWORD
        finally:
            attempt.untrace()  # nothing is left to be written once the number is another file's
            attempt.finish()
        found = _CODE.findall(os.pread(line, os.fstat(line).st_size, 0))
        return found[-1].decode() if found else None
    finally:
        os.close(line)


def _tried(attempt: abc.PGconn) -> None:
    """As far as it comes; of several hosts the last one is what counts."""
    awaited: dict[int, int] = {PollingStatus.READING: POLLIN, PollingStatus.WRITING: POLLOUT}
    until = monotonic() + _PATIENCE
    while (left := until - monotonic()) > 0 and (event := awaited.get(attempt.connect_poll())):
        line = poll()  # another one each time, for each host has a socket of its own
        line.register(attempt.socket, event)
        line.poll(left * 1000)
