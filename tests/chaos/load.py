"""Keeps the system loaded: plain jobs, jobs that write, runs with gates, and an operator's hand.

A batch is one transaction, which also leaves a receipt. When the answer to its commit is lost, the
receipt tells whether it happened, so that what was submitted is known exactly.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

from psycopg.types.json import Jsonb

from kalla.database import AWAY, Connection, Database
from kalla.errors import Conflict
from kalla.work.job import NewJob
from kalla.work.job_type import JobTypes
from kalla.work.state import jobs as job_store
from kalla.work.state import runs
from kalla.work.state.job_insertion import Woken
from kalla.work.wake import Wake
from tests.chaos.job_types import EXEC, GATE, PLAIN, PLAN, POISON_ATTEMPTS, WRITE

_FAN_OUTS = (0, 1, 1, 2, 2, 2, 3, 4, 6, 8, 12, 20)
_ROUND_SECONDS = 0.25
_RUN_TIMEOUT = 1800.0
_SHORT_TIMEOUT, _OVERLONG = 1.5, 6.0

SCHEMA = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.effects (
    job_id bigint NOT NULL, fence bigint NOT NULL, type text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE chaos.receipts (batch bigint PRIMARY KEY, submitted jsonb NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job outside any run, and how it may end."""

    job_id: int
    ends: tuple[str, ...]
    follow_ups: int = 0


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    run_id: int
    ends: tuple[str, ...]
    chunks: int
    poison: bool = False


@dataclass(frozen=True)
class Draft:
    """What one submission will be: a job, or a run that begins with a plan."""

    first: NewJob
    ends: tuple[str, ...]
    chunks: int | None = None  # a run has them
    poison: bool = False
    total_timeout: float = _RUN_TIMEOUT


@dataclass
class Submitted:
    jobs: list[SubmittedJob] = field(default_factory=list)
    runs: list[SubmittedRun] = field(default_factory=list)
    count: int = 0  # of jobs that these make, counting chunks and follow-ups

    def note(self, receipt: dict[str, Any]) -> None:
        for job_id, ends, follow_ups in receipt["jobs"]:
            self.jobs.append(SubmittedJob(job_id, tuple(ends), follow_ups))
            self.count += 1 + follow_ups
        for run_id, ends, chunks, poison in receipt["runs"]:
            self.runs.append(SubmittedRun(run_id, tuple(ends), chunks, poison))
            self.count += chunks + 2


class Load:
    """Submits at a steady rate as long as the backlog is not too long."""

    def __init__(
        self,
        database: Database,
        job_types: JobTypes,
        wake: Wake,
        chance: random.Random,
        *,
        rate: float,
        backlog: int,
        long_seconds: tuple[float, float],
        long_share: float = 0.06,
        sound: bool = False,
    ) -> None:
        """Of a sound load no job fails by itself, and none is cancelled."""
        self.submitted = Submitted()
        self.unfinished = 0
        self.claimed = 0
        self.commands: dict[str, int] = {"cancel": 0, "retry": 0}
        self._database = database
        self._job_types = job_types
        self._wake = wake
        self._chance = chance
        self._rate = rate
        self._backlog = backlog
        self._long_seconds = long_seconds
        self._long_share = long_share
        self._sound = sound
        self._fail_chance = 0.0 if sound else 0.03
        self._batch = 0
        self._going = True
        self._fan_outs: list[int] = []  # a deck, so that a short run meets every size too

    def stop(self) -> None:
        """After the batch in hand: one that is cut off might be there without being known."""
        self._going = False

    async def work(self) -> None:
        allowance, last = 0.0, time.monotonic()
        while self._going:
            now = time.monotonic()
            allowance = min(allowance + (now - last) * self._rate, self._rate * 2)
            last = now
            try:
                await self.look()
                room = min(allowance, self._backlog - self.unfinished)
                if room >= 1:
                    before = self.submitted.count
                    await self._submit(self._drafts(room))
                    allowance -= self.submitted.count - before
                if not self._sound:
                    await self._command()
            except AWAY:
                pass  # Postgres is being restarted: look again
            await asyncio.sleep(_ROUND_SECONDS)

    async def look(self) -> None:
        """Sets how many jobs wait or are claimed, and how many of these are claimed."""
        self.unfinished, self.claimed = await self._counts(
            "SELECT count(*), count(*) FILTER (WHERE status = 'claimed') AS claimed"
            " FROM kalla.jobs WHERE status IN ('pending', 'claimed')"
        )

    async def count_finished(self) -> int:
        (finished,) = await self._counts(
            "SELECT count(*) FROM kalla.jobs WHERE finished_at IS NOT NULL"
        )
        return finished

    async def _counts(self, statement: str) -> list[int]:
        async with self._database.transaction() as connection:
            (row,) = await (await connection.execute(statement.encode())).fetchall()
            return [int(value) for value in row.values()]

    # What is submitted

    def _drafts(self, room: float) -> list[Draft]:
        drafts = []
        made = 0
        while made < room:
            draft = self._run() if self._chance.random() < 0.05 else self._job()
            drafts.append(draft)
            made += 1 + (0 if draft.chunks is None else draft.chunks + 1)
        return drafts

    def _job(self) -> Draft:
        chance = self._chance
        payload = {
            "sleep": self._seconds(),
            "fail_chance": self._fail_chance,
            "deaf": chance.random() < 0.2,
        }
        if not self._sound and chance.random() < 0.01:
            poison = payload | {"poison": True, "sleep": 0.01}
            return Draft(NewJob(PLAIN, poison, max_attempts=POISON_ATTEMPTS), ("failed",))
        if chance.random() < 0.3:
            follow_ups = chance.choice((0, 0, 0, 1, 3))
            return Draft(NewJob(WRITE, payload | {"follow_ups": follow_ups}), ("completed",))
        ends: tuple[str, ...] = ("completed",)
        if not self._sound and chance.random() < 0.005:
            ends = ("completed", "cancelled")
        return Draft(NewJob(PLAIN, payload, priority=chance.choice((0, 0, 0, 1))), ends)

    def _run(self) -> Draft:
        chance = self._chance
        if not self._fan_outs:
            self._fan_outs = chance.sample(_FAN_OUTS, len(_FAN_OUTS))
        chunks = self._fan_outs.pop()
        payload: dict[str, Any] = {
            "chunks": chunks,
            "sleep": chance.uniform(0, 0.05),
            "chunk_sleep": self._seconds(),
            "fail_chance": self._fail_chance,
            "together": chance.random() < 0.5,
        }
        fate = 1.0 if self._sound else chance.random()
        ends: tuple[str, ...] = ("completed",)
        poison, total_timeout = False, _RUN_TIMEOUT
        if fate < 0.06 and chunks:
            payload["poison_chunk"] = chance.randrange(chunks)
            ends, poison = ("failed",), True
        elif fate < 0.10:
            ends = ("completed", "cancelled")
        elif fate < 0.12 and chunks:
            payload["chunk_sleep"] = _OVERLONG
            ends, total_timeout = ("completed", "failed"), _SHORT_TIMEOUT
        return Draft(NewJob(PLAN, payload, gate=GATE), ends, chunks, poison, total_timeout)

    def _seconds(self) -> float:
        """Mostly short; some long enough that a kill finds them running."""
        fate = self._chance.random()
        if fate < self._long_share:
            return self._chance.uniform(*self._long_seconds)
        return self._chance.uniform(0, 0.2 if fate < 0.4 else 0.02)

    # How it is submitted

    async def _submit(self, drafts: list[Draft]) -> None:
        """Once, even when the answer to the commit is lost on the way."""
        self._batch += 1
        while True:
            try:
                receipt, woken = await self._database.retrying(
                    lambda connection: self._insert(connection, drafts)
                )
                break
            except AWAY:
                found = await self._receipt()
                if found is not None:
                    receipt, woken = found, Woken()
                    break
        self.submitted.note(receipt)
        await self._wake.nudge(woken)

    async def _insert(
        self, connection: Connection, drafts: list[Draft]
    ) -> tuple[dict[str, Any], Woken]:
        alone = [draft for draft in drafts if draft.chunks is None]
        inserted = await job_store.insert(
            connection, self._job_types, [draft.first for draft in alone]
        )
        woken = inserted.woken
        receipt: dict[str, Any] = {"runs": []}
        receipt["jobs"] = [
            (job_id, draft.ends, draft.first.payload.get("follow_ups", 0))
            for job_id, draft in zip(inserted.job_ids, alone, strict=True)
        ]
        for draft in drafts:
            if draft.chunks is None:
                continue
            payload = {"chunks": draft.chunks, "sleep": 0.01, "fail_chance": self._fail_chance}
            behind = NewJob(EXEC, payload)
            run_id, started = await runs.create(
                connection, self._job_types, "chaos", [draft.first], {GATE: [behind]},
                draft.total_timeout,
            )  # fmt: skip
            woken += started
            receipt["runs"].append((run_id, draft.ends, draft.chunks, draft.poison))
        await connection.execute(
            "INSERT INTO chaos.receipts (batch, submitted) VALUES (%s, %s)",
            [self._batch, Jsonb(receipt)],
        )
        return receipt, woken

    async def _receipt(self) -> dict[str, Any] | None:
        """What this batch left, if its commit happened; asked until Postgres answers."""
        while True:
            try:
                async with self._database.transaction() as connection:
                    cursor = await connection.execute(
                        "SELECT submitted FROM chaos.receipts WHERE batch = %s", [self._batch]
                    )
                    row = await cursor.fetchone()
                    return None if row is None else dict(row["submitted"])
            except AWAY:
                await asyncio.sleep(_ROUND_SECONDS)

    # The operator

    async def _command(self) -> None:
        """Cancel or retry something recent now and then."""
        chance = self._chance
        if chance.random() < 0.5:
            ends = ("completed", "cancelled")
            jobs = [each for each in self.submitted.jobs[-200:] if each.ends == ends]
            recent = [each for each in self.submitted.runs[-10:] if each.ends == ends]
            async with self._database.transaction() as connection:
                try:
                    if recent:
                        await runs.cancel(connection, chance.choice(recent).run_id, "chaos")
                    elif jobs:
                        await job_store.cancel(connection, chance.choice(jobs).job_id, "chaos")
                    else:
                        return
                except Conflict:
                    return  # it had ended before
            self.commands["cancel"] += 1
            await self._wake.alarm()
        elif chance.random() < 0.2:
            poisoned = [each for each in self.submitted.runs[-200:] if each.poison]
            if not poisoned:
                return
            async with self._database.transaction() as connection:
                try:
                    woken = await runs.revive(
                        connection, chance.choice(poisoned).run_id, _RUN_TIMEOUT
                    )
                except Conflict:
                    return  # it is still running
            self.commands["retry"] += 1
            await self._wake.nudge(woken)
