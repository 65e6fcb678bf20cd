"""The parts of PromQL that are enabled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """The parts of PromQL that are enabled; the defaults are those of a Prometheus 3.14 server."""

    experimental_functions: bool = False
    duration_expressions: bool = True
    extended_ranges: bool = False
    fill_modifiers: bool = False
    delayed_name_removal: bool = False
    start_timestamps: bool = False

    @classmethod
    def named(cls, names: Iterable[str]) -> Features:
        """The defaults, and these."""
        return cls(**dict.fromkeys(names, True))

    @classmethod
    def every(cls) -> Features:
        return cls(True, True, True, True, True, True)
