"""The error that a task raised in Python, as a sentence: Spark reports it as a stack trace below a
first line that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kalla.errors import KallaError, Unavailable
from kalla.redaction import scrub
from kalla.storage.storage_failures import NO_ROOM

_FRAME = '  File "'


@contextmanager
def translate_errors() -> Iterator[None]:
    """An unexpected failure of a task is described by what the task raised."""
    try:
        yield
    except Exception as error:
        if (raised := _raised(error)) is None:
            raise
        if any(reason in raised for reason in NO_ROOM):
            raise Unavailable(
                f"no disk space is left where a Spark task writes ({raised}): free some, or"
                " write the evidence elsewhere"
            ) from error
        raise KallaError(f"a Spark task failed: {raised}") from error


def _raised(error: Exception) -> str | None:
    """The first line of what is below the trace: its words may go on in further lines, indented or
    not."""
    from pyspark.errors import PythonException

    if not isinstance(error, PythonException):
        return None
    lines = str(error).splitlines()
    frames = [place for place, line in enumerate(lines) if line.startswith(_FRAME)]
    below = lines[frames[-1] :] if frames else []
    return next((scrub(line) for line in below if line and not line.startswith(" ")), None)
