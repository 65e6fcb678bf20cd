"""Machines whose every step happens in the real store and in the model, and must end alike.

A transaction may be left open for some steps. Who has to wait for it goes on when it ends, and must
then act as if he had come after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kalla.database import COLLIDED, Connection
from kalla.errors import KallaError
from tests.integration.work import model_rows
from tests.integration.work.model_rows import Key, Row, Rows, View
from tests.work_kit import FROZEN, Clock, connect, empty, rows, waits

Result = TypeVar("Result")

# How a transaction ends: at once, or after some steps of others.
LEAVE = st.sampled_from([(0, True), (0, True), (2, True), (2, False), (4, True)])


class Stage:
    """Two connections that act, one that looks on, and a loop of their own for all examples."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.a, self.b, self.onlooker = [self.run(connect(url)) for _ in range(3)]
        self.clock = Clock(self.onlooker)

    def run(self, work: Awaitable[Result]) -> Result:
        return self._loop.run_until_complete(asyncio.wait_for(work, 60))

    def other(self, busy: Connection | None) -> Connection:
        return self.b if busy is self.a else self.a

    async def reset(self) -> None:
        for connection in (self.a, self.b):
            await connection.execute("ROLLBACK")
        await empty(self.onlooker)
        await self.clock.freeze()

    async def read(self) -> Rows:
        """All there is, as the model's rows; times in seconds since the clock was frozen."""
        (tables,) = await rows(self.onlooker, READ)
        found = [
            row_type(**values)
            for row_type in ROW_TYPES
            for values in tables[row_type.__name__.lower()] or []
        ]
        return {row.key: row for row in found}

    def close(self) -> None:
        for connection in (self.a, self.b, self.onlooker):
            self.run(connection.close())
        self._loop.close()


@dataclass
class Open:
    """A transaction left open: what it will have written, and what it keeps others from."""

    connection: Connection
    writes: dict[Key, Row | None]
    locks: set[Key]
    steps: int
    commits: bool
    keep: Callable[[], None]


class Mirrored(RuleBasedStateMachine):
    """Each rule of a subclass calls `both` with an act on the store and its mirror in the model."""

    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        self.rows: Rows = {}
        self.now = 0.0
        self.newest = 0  # the highest job id seen so far
        self.open: Open | None = None
        self.issued: set[tuple[object, ...]] = set()
        self.stage.run(self._begin())

    async def _begin(self) -> None:
        await self.stage.reset()
        (row,) = await rows(self.stage.onlooker, "SELECT nextval('kalla.jobs_job_id_seq')")
        self.newest = row["nextval"]

    def teardown(self) -> None:
        self.stage.run(self._end_open())

    @rule(seconds=st.sampled_from([-50, -5, 1, 10, 15, 16]))
    def jump(self, seconds: int) -> None:
        self.stage.run(self.stage.clock.jump(seconds))
        self.now += seconds

    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        found = self.stage.run(self.stage.read())
        assert found == self.rows
        model_rows.check(found)

    def issue(self, numbers: Sequence[tuple[object, ...]]) -> None:
        assert self.issued.isdisjoint(numbers), "a fence or an epoch was issued twice"
        self.issued.update(numbers)

    def both(
        self,
        leave: tuple[int, bool],
        act: Callable[[Connection], Awaitable[Any]],
        mirror: Callable[[View], Any],
        skips: bool = False,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        """Do it in the store, then in the model, and compare what came out.

        `skips`: it passes over rows that others hold; `keep` is called once it is committed.
        """
        self.stage.run(self._both(leave, act, mirror, skips, keep))

    async def _both(
        self,
        leave: tuple[int, bool],
        act: Callable[[Connection], Awaitable[Any]],
        mirror: Callable[[View], Any],
        skips: bool,
        keep: Callable[[], None],
    ) -> None:
        connection = self.stage.other(self.open.connection if self.open else None)
        view, result, waited = await self._attempts(connection, act, skips)
        born = await rows(
            connection,
            "SELECT job_id FROM kalla.jobs WHERE job_id > %s ORDER BY job_id",
            self.newest,
        )
        view.new_ids = iter([row["job_id"] for row in born])
        try:
            expected = mirror(view)
        except KallaError as error:
            expected = type(error)
        assert result == expected
        if isinstance(result, type):
            await connection.execute("ROLLBACK")
            return
        assert next(view.new_ids, None) is None
        self.newest = max([self.newest, *[row["job_id"] for row in born]])
        if waited:
            # What it locked and then found changed stays locked: more than the model knows.
            leave = (0, True)
        await self._leave(Open(connection, view.writes, view.locks, *leave, keep))

    async def _attempts(
        self, connection: Connection, act: Callable[[Connection], Awaitable[Any]], skips: bool
    ) -> tuple[View, Any, bool]:
        """Try until nobody is in the way: what it saw, what came out, and whether it waited."""
        view, waited = self._view(), False
        while True:
            task = asyncio.create_task(attempt(connection, act))
            if self.open is not None and await waits(self.stage.onlooker, task):
                event("waited for the other transaction")
                waited = True
                await self._end_open()
            result = await task
            if isinstance(result, COLLIDED):
                event("collided with the other transaction")
                view = self._view()
                continue
            if waited and not skips:
                view = self._view()
            return view, result, waited

    def _view(self) -> View:
        return View(self.rows, self.now, self.open.locks if self.open else frozenset())

    async def _leave(self, done: Open) -> None:
        if self.open is not None:
            done.commits = True
            await self._end(done)
            self.open.steps -= 1
            if self.open.steps <= 0:
                await self._end_open()
        elif done.steps:
            self.open = done
        else:
            await self._end(done)

    async def _end_open(self) -> None:
        if self.open is not None:
            ending, self.open = self.open, None
            await self._end(ending)

    async def _end(self, ending: Open) -> None:
        await ending.connection.execute("COMMIT" if ending.commits else "ROLLBACK")
        if not ending.commits:
            return
        for key, row in ending.writes.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        ending.keep()


async def attempt(connection: Connection, act: Callable[[Connection], Awaitable[Any]]) -> Any:
    """What came out, with the transaction still open; or the error that ended it."""
    await connection.execute("BEGIN")
    try:
        return await act(connection)
    except KallaError as error:
        return type(error)
    except COLLIDED as error:
        await connection.execute("ROLLBACK")
        return error


def _seconds(*columns: str) -> str:
    return ", ".join(
        f"round(extract(epoch FROM {column} - '{FROZEN}'), 6)::double precision AS {column}"
        for column in columns
    )


def _table(row_type: type, columns: str, table: str) -> str:
    return (
        f"(SELECT json_agg(t) FROM (SELECT {columns} FROM kalla.{table}) t)"
        f" AS {row_type.__name__.lower()}"
    )


ROW_TYPES: tuple[Any, ...] = (
    model_rows.JobRow,
    model_rows.AttemptRow,
    model_rows.RunRow,
    model_rows.GateRow,
    model_rows.QueueRow,
    model_rows.LeaseRow,
)
READ = "SELECT " + ", ".join(
    [
        _table(
            model_rows.JobRow,
            "job_id, type, queue, priority, max_attempts, due, run_id, gate, opened_by,"
            " dedupe_key, running_key, status, fence, failures, stopped_at IS NOT NULL AS stopped,"
            + _seconds("run_after", "claimed_at", "heartbeat_at", "finished_at", "away_since"),
            "jobs",
        ),
        _table(model_rows.AttemptRow, "job_id, fence, ending", "attempts"),
        _table(
            model_rows.RunRow,
            "run_id, status, jobs, completed," + _seconds("deadline", "finished_at"),
            "runs",
        ),
        _table(
            model_rows.GateRow,
            "run_id, gate, expected, arrived, opened_at IS NOT NULL AS opened,"
            " jsonb_array_length(opens) AS opens",
            "gates",
        ),
        _table(model_rows.QueueRow, "queue, paused_at IS NOT NULL AS paused", "queues"),
        _table(model_rows.LeaseRow, "resource, slot, epoch, holder," + _seconds("until"), "leases"),
    ]
)
