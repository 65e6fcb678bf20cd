"""Temporary folders of this machine: for the servers of one command, or for what a match spills.
What a killed process has left is removed by the next one: only SIGKILL leaves any.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "kalla-"
_OWNER = ".owner"  # locked for as long as the process lives


@contextmanager
def scratch(place: Path | None = None) -> Iterator[Path]:
    """A folder of its own below `place`, or where this process has room."""
    place = place or room()
    _sweep(place)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True) as made:
        folder = Path(made)
        # Locked before it has its name: who sweeps takes no folder for left that is only new.
        unnamed = folder / f"{_OWNER}-"
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            unnamed.rename(folder / _OWNER)
            yield folder
        finally:
            os.close(descriptor)


def room() -> Path:
    """Where this process has room: in Spark's task, the disk that its executor was given."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return Path(given) if given and os.access(given, os.W_OK) else Path(tempfile.gettempdir())


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody's who goes, or not ours, or in use
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    descriptor = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
