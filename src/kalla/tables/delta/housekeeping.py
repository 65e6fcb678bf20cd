"""Keeps a Delta table small: checkpoints of its log, and no files of versions older than a day."""

from __future__ import annotations

from kalla import logs

KEPT_HOURS = 24  # what readers of an older version then miss, they compute anew
_EVERY = 64  # commits

_log = logs.get(__name__)


def tidy_if_due(location: str, version: int) -> None:
    """After a commit. The rows are safe: what goes wrong with old files is tried again later."""
    from deltalake.exceptions import DeltaError

    if version % _EVERY >= 2:  # every other commit is the barrier of a refresh
        return
    try:
        tidy(location)
    except (DeltaError, OSError) as error:
        _log.warning("old files of a table stay", table=location, error=str(error)[:200])


def tidy(location: str, kept_hours: int = KEPT_HOURS) -> None:
    """Files that no commit names go as well once they are as old: a refresh that lost its claim
    left them."""
    from deltalake import DeltaTable

    table = DeltaTable(location)
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(
        retention_hours=kept_hours, dry_run=False, enforce_retention_duration=False, full=True
    )
