"""Points in time are counted in microseconds: a finer one cannot be represented and counts as
unreadable. DuckDB would round it, and two of them would be equal.
"""

from __future__ import annotations

_SHORTEST = 24  # signs of a text that tells a ten-millionth of a second
_FINER = r"\.\d{6}\d*[1-9]"


def of_time(time: str, type_: str) -> str:
    """A time of nanoseconds as one of microseconds, of the type given, or null."""
    return f"(CASE WHEN epoch_ns({time}) % 1000 = 0 THEN CAST({time} AS {type_}) END)"


def of_text(text: str, instant: str) -> str:
    """The point in time that a text was read as, or null if the text is more precise."""
    finer = f"strlen({text}) >= {_SHORTEST} AND regexp_matches({text}, '{_FINER}')"
    return f"(CASE WHEN {finer} THEN NULL ELSE {instant} END)"
