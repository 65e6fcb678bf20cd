"""Keeps a Delta table small: checkpoints of its log, and no files of versions older than a day."""

from __future__ import annotations

from kalla import logs

KEPT_HOURS = 24  # readers of an older version then recompute
_EVERY = 64  # commits

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
