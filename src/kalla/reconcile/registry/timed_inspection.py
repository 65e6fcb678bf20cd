"""Inspects sources while a caller waits: in threads, a few at once, with a time limit.

A check may be answered without a source that could not be read; a note then says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypedDict, TypeVar

from kalla.database import Connection
from kalla.errors import InvalidInput, KallaError, Problem, Unavailable
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.column_checks import Columns
from kalla.reconcile.recipe.model import Recipe, Side, Source
from kalla.reconcile.registry import admission, entries, uri_coverage
from kalla.reconcile.registry.admission import Known
from kalla.reconcile.registry.drafts import RequestedColumns
from kalla.reconcile.registry.uri_coverage import Refused
from kalla.reconcile.sources import inspection
from kalla.reconcile.sources.inspection import Inspection, Preview, Reach
from kalla.reconcile.sources.source_planning import Resolve, is_staged, password_of
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.redaction import scrub
from kalla.secrets import Vault
from kalla.settings import Settings
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.storage import Storage

Result = TypeVar("Result")

# A pool of its own: sources that do not answer must not block other threads.
_threads = ThreadPoolExecutor(4, thread_name_prefix="look")

_PATIENCE = 50  # seconds, of which reading columns takes at most 20; less than `be_patient` allows
_MOST_PATIENT = 4  # each holds a connection of the pool
_patient = 0


class _Means(TypedDict):
    storage: Storage
    resolve: Resolve
    bounds: Bounds


@dataclass(frozen=True)
class InspectedColumns:
    """The columns of the sides that could be read, and a note for each that could not."""

    columns: dict[Side, Columns] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __call__(self, *_: object) -> dict[Side, Columns]:
        """What was inspected, for the next reading of the recipe."""
        return self.columns


@dataclass(frozen=True)
class SourceInspector:
    """Inspects sources with the storage and the secrets of these settings."""

    storage: Storage
    resolve: Resolve
    seconds: float = inspection.LOOK.seconds

    @classmethod
    def of(cls, settings: Settings) -> SourceInspector:
        return cls(Storage.of(settings.storage), Vault(settings).resolve)

    async def inspect(self, source: Source) -> Inspection:
        """Columns with their types, size, and what the primary key may be."""
        found = await self._in_time(lambda: inspection.inspect(_one(source), **self._means()))
        if not source.primary_key:
            return found
        return replace(found, primary_key=source.primary_key, primary_key_note="as registered")

    async def preview(self, source: Source, rows: int) -> Preview:
        """The first rows."""
        return await self._in_time(lambda: inspection.preview(_one(source), rows, **self._means()))

    async def reach(self, source: Source) -> Reach:
        """Whether it can be read, and if not, why."""
        reach = _reach_database if _is_whole_database(source) else inspection.reach
        try:
            return await self._in_time(lambda: reach(_inside(source), **self._means()))
        except (Unavailable, InvalidInput) as error:
            return Reach(False, str(error))

    async def columns_for(
        self, judge: Callable[[parsing.ColumnLookup], object], known: Known
    ) -> InspectedColumns:
        """The columns that a check needs: it runs once here to record them, and once with them by
        the caller.
        """
        requested = RequestedColumns()

        def ask() -> None:
            with suppress(InvalidInput):
                judge(requested)

        await asyncio.to_thread(ask)
        return (
            await self._columns_of(requested.recipe, requested.sides, known)
            if requested.recipe
            else InspectedColumns()
        )

    async def columns_for_command(
        self, connection: Connection, judge: Callable[[parsing.ColumnLookup], object], known: Known
    ) -> InspectedColumns:
        """The same for a command, which holds a connection: continues without columns if too many
        others are being read.
        """
        try:
            async with patiently(connection):
                return await self.columns_for(judge, known)
        except Unavailable as error:
            return InspectedColumns(notes=[f"the columns were not checked: {error}"])

    async def _columns_of(
        self, recipe: Recipe, sides: Collection[Side], known: Known
    ) -> InspectedColumns:
        """The columns of a recipe's registered sources; others are not read."""
        looks = await asyncio.gather(*(self._columns(recipe, side, known) for side in sides))
        inspected = InspectedColumns()
        for side, found in zip(sides, looks, strict=True):
            if isinstance(found, KallaError):
                note = f"the {side} source's columns were not checked: {_reason(found)}"
                inspected.notes.append(scrub(note))
            else:
                inspected.columns[side] = found
        return inspected

    async def _columns(self, recipe: Recipe, side: Side, known: Known) -> Columns | KallaError:
        def look() -> Columns:
            source = admission.admit_source(recipe.sources[side], side, known)
            return inspection.columns(source, **self._means())

        try:
            return await self._in_time(look)
        except KallaError as error:
            return error

    def _means(self) -> _Means:
        return {"storage": self.storage, "resolve": self.resolve, "bounds": self._bounds()}

    def _bounds(self) -> Bounds:
        """A thread cannot be ended: its queries have a time limit of their own."""
        return replace(inspection.LOOK, seconds=self.seconds)

    async def _in_time(self, look: Callable[[], Result]) -> Result:
        waiting = asyncio.get_running_loop().run_in_executor(_threads, look)
        try:
            return await asyncio.wait_for(waiting, self.seconds)
        except TimeoutError:
            raise Unavailable(
                f"the source did not answer within {self.seconds:g} seconds: see whether it can be "
                "reached from the API's machine"
            ) from None


@asynccontextmanager
async def patiently(connection: Connection) -> AsyncIterator[None]:
    """Limits commands that inspect files, which may be many: in time and in number."""
    global _patient
    if _patient >= _MOST_PATIENT:
        raise Unavailable("too many recipes are being checked: try again in a moment")
    _patient += 1
    try:
        async with in_patience(connection):
            yield
    finally:
        _patient -= 1


@asynccontextmanager
async def in_patience(connection: Connection) -> AsyncIterator[None]:
    """The same for work that must be done, whatever the number of others."""
    await entries.be_patient(connection)
    try:
        async with asyncio.timeout(_PATIENCE):
            yield
    except TimeoutError:
        raise InvalidInput(
            Problem("sources", f"could not be inspected within {_PATIENCE} seconds")
        ) from None


def _reason(error: KallaError) -> str:
    """Without the field: scrubbing would take `password: …` for a password."""
    if isinstance(error, InvalidInput):
        return "; ".join(str(replace(each, field="")) for each in error.problems)
    return str(error)


def _is_whole_database(source: Source) -> bool:
    return is_staged(source) and not source.table


def _one(source: Source) -> Source:
    """The source, if it is one table or the files of one table."""
    if _is_whole_database(source):
        raise InvalidInput(
            Problem(
                "table",
                "is missing: the source is a whole database",
                suggestion="register the table: `kalla sources add` with --table",
            )
        )
    return _inside(source)


def _reach_database(source: Source, *, resolve: Resolve, bounds: Bounds, **_: object) -> Reach:
    """It has no table before a recipe names one: only the login is checked."""
    try:
        password = password_of(source.password, resolve)
        PostgresConnector(source.uri, "", password, seconds=bounds.seconds).clock()
    except KallaError as error:
        return Reach(False, str(error))
    return Reach(True, f"{source.uri} can be reached: recipes name the table")


def _inside(source: Source) -> Source:
    """The source, unless a link in its folder leads out of it."""
    try:
        uri_coverage.covered(source.uri, source.uri)
    except Refused as refusal:
        raise InvalidInput(Problem("source.uri", str(refusal))) from None
    return source
