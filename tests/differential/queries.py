"""A query in two spellings, as Kalla reads it and as Prometheus 2.42 does, and when it is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_UNITS = {"m": 60_000, "s": 1000}


@dataclass(frozen=True)
class Known:
    """What can be relied on of a vector's values.

    `same_bits`: both engines have the very same; `positive`: none is below zero; `eighths`:
    multiples of 1/8 so small that sums of them need no rounding.
    """

    same_bits: bool = True
    positive: bool = True
    eighths: bool = False

    def both(self, other: Known) -> Known:
        return Known(
            self.same_bits and other.same_bits,
            self.positive and other.positive,
            self.eighths and other.eighths,
        )


WHOLE = Known(eighths=True)
EXACT = Known(positive=False)
ROUNDED = Known(same_bits=False, positive=False)
ROUNDED_POSITIVE = Known(same_bits=False)


@dataclass(frozen=True)
class Query:
    ours: str
    theirs: str
    known: Known

    @classmethod
    def alike(cls, text: str, known: Known) -> Query:
        return cls(text, text, known)

    @classmethod
    def of(cls, left: Query, operator: str, right: Query, known: Known) -> Query:
        return cls(
            f"({left.ours} {operator} {right.ours})",
            f"({left.theirs} {operator} {right.theirs})",
            known,
        )

    def wrapped(self, head: str, tail: str = ")", known: Known | None = None) -> Query:
        return replace(
            self,
            ours=head + self.ours + tail,
            theirs=head + self.theirs + tail,
            known=known or self.known,
        )


@dataclass(frozen=True)
class Times:
    """Of a query, in milliseconds; an instant query has no step."""

    start: int
    end: int
    step: int


def less(length: str) -> str:
    """A duration less a millisecond."""
    whole = sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([ms])", length))
    return f"{whole - 1}ms"
