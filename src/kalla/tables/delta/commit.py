"""The fenced commit of a refresh into its Delta table: barrier, frontier, check, commit, verify.

Each claim of a refresh has a number; the table's log holds the number of the newest one. Every
commit is on the checked version and never on a later one, so a worker that was paused anywhere
commits nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from kalla.tables.delta import housekeeping
from kalla.tables.delta.data_files import described
from kalla.tables.delta.log_commit import (
    NO_CHANGE,
    FileChange,
    VersionTaken,
    put_commit,
    table_actions,
)
from kalla.tables.delta.row_changes import TableFiles

if TYPE_CHECKING:
    from deltalake import DeltaTable

_APP = "kalla-refresh"
_FRONTIER = "kalla.frontier"
_LOOK_BACK = (5, 100, None)  # commits; a barrier repeats the frontier, so the first one has it
_UNFINISHED = "_refresh"  # folder of files that no commit names yet; Delta readers skip it


class Stale(Exception):
    """A newer claim holds the table: nothing was committed."""

    holder: int | None = None  # the number of that claim, if it is known


def _held(number: int) -> Stale:
    stale = Stale(f"the table is held by claim {number // 2}")
    stale.holder = number // 2
    return stale


@dataclass(frozen=True)
class Frontier:
    """The state that the rows of a table represent."""

    table_id: int  # of the definition: a table that was dropped and created again has another
    definition: str  # hash of the query
    tick: int
    refresh: str  # the claim that committed it
    # The Delta version that readers pin: the last one that changed a row, or a later one with the
    # same rows, because the log below the newest checkpoint is removed after a day.
    data_version: int
    inputs: Mapping[str, Any]  # the pin of every source and upstream table


@dataclass(frozen=True)
class Committed:
    version: int
    frontier: Frontier


class FencedTable:
    """The Delta table of one refresh, under the number of its claim."""

    def __init__(self, location: str, sequence: int) -> None:
        self._location = location
        self._barrier = 2 * sequence
        self._version: int | None = None  # of the barrier; None: the table does not exist yet
        # Files here are never read; a later claim removes them.
        self.folder = Path(location) / _UNFINISHED / f"{sequence}-{uuid4().hex[:8]}"

    @property
    def existed(self) -> bool:
        return self._version is not None

    def raise_barrier(self) -> Frontier | None:
        """Fences off every earlier claim; returns the table's frontier, if there is one."""
        table = _open(self._location)
        if table is None:
            return None
        newest = table.transaction_version(_APP)
        if newest is not None and newest >= self._barrier:
            raise _held(newest)
        frontier = read_frontier(table)
        self._version = table.version() + 1
        self._put(self._version, self._barrier, frontier)
        self._remove_obsolete_files()
        return frontier

    def _remove_obsolete_files(self) -> None:
        """Of earlier claims, even if these still run: a later one may have raised its own barrier
        since, and writes its files now."""
        for folder in (Path(self._location) / _UNFINISHED).glob("*-*"):
            if int(folder.name.partition("-")[0]) < self._barrier // 2:
                shutil.rmtree(folder, ignore_errors=True)

    def files(self) -> TableFiles | None:
        """The files of the table as it was when the barrier was raised."""
        if self._version is None:
            return None
        return table_files(self._location, self._version)

    def commit(self, change: FileChange, frontier: Frontier) -> Committed:
        """Commits changed files; the frontier also moves without any."""
        version = self._checked()
        if change.adds or change.removes or housekeeping.is_due(version):
            frontier = replace(frontier, data_version=version)
        self._put(version, self._barrier + 1, frontier, change)
        return self._verified(frontier)

    def overwrite(self, paths: Sequence[str], schema_json: str, frontier: Frontier) -> Committed:
        """Replaces all rows by these files, with their schema; creates the table if it does not
        exist.
        """
        placed = [_moved(path, Path(self._location)) for path in paths]
        try:
            frontier = self._put_overwrite(placed, schema_json, frontier)
        except Stale:
            for path in placed:
                path.unlink(missing_ok=True)
            raise
        return self._verified(frontier)

    def require_held(self) -> None:
        """Raises Stale if a later claim holds the table: it removed the files of this one."""
        table = _open(self._location)
        newest = None if table is None else table.transaction_version(_APP)
        if newest is not None and newest > self._barrier + 1:
            raise _held(newest)

    def _put_overwrite(
        self, paths: Sequence[Path], schema_json: str, frontier: Frontier
    ) -> Frontier:
        version = self._checked()
        known: dict[str, Any] | None = None
        removes: tuple[str, ...] = ()
        if version > 0:
            table = _open_at(self._location, version - 1)
            metadata = table.metadata()
            known = {"id": metadata.id, "createdTime": metadata.created_time}
            removes = _paths(table)
        columns = [field["name"] for field in json.loads(schema_json)["fields"]]
        described_files = [described(path, columns) for path in paths]
        # Files without rows matter only for the columns that one of them stores.
        adds = [each for each in described_files if each.rows] or described_files[:1]
        frontier = replace(frontier, data_version=version)
        self._put(
            version,
            self._barrier + 1,
            frontier,
            FileChange(adds, removes),
            table_actions(schema_json, known),
        )
        return frontier

    def _checked(self) -> int:
        """The version to commit, if nothing was committed since the barrier."""
        table = _open(self._location)
        if self._version is None:
            if table is not None:
                raise Stale("another claim made the table")
            return 0
        newest = None if table is None else table.transaction_version(_APP)
        if table is None or newest != self._barrier:
            raise Stale(f"the table is held by claim {'none' if newest is None else newest // 2}")
        if table.version() != self._version:
            raise Stale("another commit came first")
        return self._version + 1

    def _verified(self, frontier: Frontier) -> Committed:
        table = _open(self._location)
        if table is None or table.transaction_version(_APP) != self._barrier + 1:
            raise Stale("another claim committed after this one")
        found = read_frontier(table)
        if found is None or found.refresh != frontier.refresh:
            raise Stale("the newest refresh in the table's log is another one")
        return Committed(table.version(), found)

    def _put(
        self,
        version: int,
        number: int,
        frontier: Frontier | None,
        change: FileChange = NO_CHANGE,
        table: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        metadata = {} if frontier is None else {_FRONTIER: json.dumps(asdict(frontier))}
        try:
            put_commit(self._location, version, (_APP, number), metadata, change, table)
        except VersionTaken:
            raise Stale("another commit came first") from None


def read_frontier(table: DeltaTable) -> Frontier | None:
    for limit in _LOOK_BACK:
        for entry in table.history(limit):
            if _FRONTIER in entry:
                return Frontier(**json.loads(entry[_FRONTIER]))
    return None


def committed_frontier(location: str) -> Committed | None:
    """The table's current frontier, from any claim."""
    table = _open(location)
    frontier = None if table is None else read_frontier(table)
    return None if table is None or frontier is None else Committed(table.version(), frontier)


def delta_id(location: str) -> str:
    """The id of the Delta table itself: a reader sees by it that the table was replaced."""
    table = _open(location)
    return "" if table is None else str(table.metadata().id)


def table_files(location: str, version: int) -> TableFiles:
    """Columns missing in some file, because another writer rewrote it, count as missing."""
    table = _open_at(location, version)
    columns = tuple(field.name for field in table.schema().fields)
    paths = _paths(table)
    schemas = [pq.read_schema(path) for path in paths]
    schema = None
    if schemas:
        names = [*columns, *(name for name in schemas[0].names if name not in columns)]
        kept = [name for name in names if all(name in each.names for each in schemas)]
        schema = pa.schema([schemas[0].field(name) for name in kept])
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    return TableFiles(
        location, version, columns, schema, paths, rows, str(table.schema().to_json())
    )


def _moved(path: str, folder: Path) -> Path:
    """Into the folder of the table, under a name of its own."""
    target = folder / f"{uuid4().hex}.parquet"
    Path(path).rename(target)
    return target


def _paths(table: DeltaTable) -> tuple[str, ...]:
    return tuple(unquote(uri.removeprefix("file://")) for uri in table.file_uris())


def _open(location: str) -> DeltaTable | None:
    from deltalake import DeltaTable

    return DeltaTable(location) if DeltaTable.is_deltatable(location) else None


def _open_at(location: str, version: int) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(location, version=version)
