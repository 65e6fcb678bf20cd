"""Reads the changes between two versions of a Delta table from its log."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class LogGap(Exception):
    """The log or a file that it names does not exist any more."""


@dataclass
class LogChanges:
    """Files with changed rows. A commit has either a change feed or whole files."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    # Files of the change feed: rows with `_change_type`.
    feed: list[str] = field(default_factory=list)
    # Files that commits without a change feed rewrote: unchanged rows are on both sides.
    rewrote: bool = False
    rows: int = 0  # about how many rows all these files have


def log_changes(location: str, after: int, until: int, bytes_per_row: float) -> LogChanges:
    """Of the commits after one version, up to and with another; raises LogGap."""
    found = LogChanges()
    folder = Path(location)
    for version in range(after + 1, until + 1):
        commit = folder / "_delta_log" / f"{version:020d}.json"
        try:
            lines = commit.read_text("utf-8").splitlines()
        except OSError:
            raise LogGap(f"version {version} is no longer in the log") from None
        actions = [json.loads(line) for line in lines if line.strip()]
        feed = [each["cdc"] for each in actions if "cdc" in each]
        adds = [each["add"] for each in actions if each.get("add", {}).get("dataChange")]
        removes = [each["remove"] for each in actions if each.get("remove", {}).get("dataChange")]
        if feed:
            found.feed += [_path(folder, each) for each in feed]
        else:
            found.rewrote |= bool(adds and removes)
            found.added += [_path(folder, each) for each in adds]
            found.removed += [_path(folder, each) for each in removes]
        for each in feed or [*adds, *removes]:
            found.rows += _rows(each, bytes_per_row)
    for path in (*found.added, *found.removed, *found.feed):
        if not Path(path).exists():
            raise LogGap("files of older versions were vacuumed")
    # A file that was added and removed between the two versions is not a change.
    passing = set(found.added) & set(found.removed)
    found.added = [path for path in found.added if path not in passing]
    found.removed = [path for path in found.removed if path not in passing]
    return found


def _path(folder: Path, action: dict[str, Any]) -> str:
    return str(folder / unquote(action["path"]))


def _rows(action: dict[str, Any], bytes_per_row: float) -> int:
    stats = json.loads(action.get("stats") or "{}")
    if isinstance(stats.get("numRecords"), int):
        return int(stats["numRecords"])
    return max(1, round((action.get("size") or 0) / max(bytes_per_row, 1.0)))
