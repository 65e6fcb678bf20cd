"""Keeps a Delta table small: checkpoints of its log, and no files of versions older than a day.
Removes the folder of one that was dropped.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from threading import Thread
from uuid import uuid4

from kalla import logs

KEPT_HOURS = 24  # readers of an older version then recompute
_EVERY = 64  # commits
_DROPPED = "_dropped-"  # no table can have such a name

_log = logs.get(__name__)


def is_due(version: int) -> bool:
    """Whether the commit of this version is followed by a checkpoint: every other commit is the
    barrier of a refresh."""
    return version % _EVERY < 2


def tidy_if_due(location: str, version: int) -> None:
    """After a commit. The rows are safe: errors with old files are retried later."""
    from deltalake.exceptions import DeltaError

    if not is_due(version):
        return
    try:
        tidy(location)
    except (DeltaError, OSError) as error:
        _log.warning("old files of a table stay", table=location, error=str(error)[:200])


def tidy(location: str, kept_hours: int = KEPT_HOURS) -> None:
    """Also removes old files that no commit names, left by refreshes that lost their claim."""
    from deltalake import DeltaTable

    table = DeltaTable(location)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(
        retention_hours=kept_hours, dry_run=False, enforce_retention_duration=False, full=True
    )


def drop(location: str) -> None:
    """Renames the folder of a table, and removes it beside the caller, who holds a lock: its files
    may be many. What a process left that ended meanwhile goes with the next one."""
    place = Path(location)
    with suppress(FileNotFoundError):
        place.rename(place.with_name(f"{_DROPPED}{uuid4().hex}"))
        Thread(target=_remove_dropped, args=(place.parent,), daemon=True).start()


def _remove_dropped(folder: Path) -> None:
    for each in folder.glob(f"{_DROPPED}*"):
        shutil.rmtree(each, ignore_errors=True)
