"""Which version of Kalla this is, and which versions work together."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from kalla.errors import VersionSkew


@cache
def version() -> str:
    """The version of the Kalla that this process runs."""
    return metadata.version("kalla")


def series(of: str) -> str:
    """Versions of one series work together: 0.1 of 0.1.7."""
    return ".".join(of.split(".")[:2])


def is_newer(this: str, than: str) -> bool:
    """Whether one version is of a later series than another."""
    return _numbers(this) > _numbers(than)


def _numbers(of: str) -> list[int]:
    return [int(part) for part in series(of).split(".")]


def require_same_series(ours: str, own_version: str, theirs: str, their_version: str) -> None:
    """Raise VersionSkew, which names both, unless both are of one series."""
    if series(own_version) != series(their_version):
        raise VersionSkew(
            f"{ours} is Kalla {own_version}, but {theirs} Kalla {their_version}: "
            f"upgrade the older one (docs/deploy.md says in which order)"
        )
