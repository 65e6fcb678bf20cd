"""Reads demand from the queues and workers, and keeps needs and decisions in Postgres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from kalla.database import Connection
from kalla.errors import NotFound
from kalla.scaling.policy import Decision, Inputs, Need, Policy, desired
from kalla.scaling.policy import decide as decided
from kalla.settings import ROLES, Settings
from kalla.statements import load
from kalla.work.state import presence, queues
from kalla.work.state.presence import Member, WorkerRecord
from kalla.work.state.queues import QueueRecord

sql = load("kalla.scaling", "store.sql")

CLUSTER = "cluster"
KEEP_SAMPLES_SECONDS = 3600.0


@dataclass(frozen=True)
class DecisionRecord:
    """A decision as it was recorded."""

    decision_id: int
    pool: str
    role: str
    at: datetime
    current: int
    needed: int
    recent_need: int
    desired: int
    held_by: str | None
    reason: str
    inputs: dict[str, Any]
    policy: dict[str, Any]

    def replayed(self) -> Decision:
        """The same decision, made again from what was recorded."""
        return decided(Inputs(**self.inputs), Policy(**self.policy), self.recent_need)


async def now(connection: Connection) -> float:
    (row,) = await (await connection.execute(sql.now)).fetchall()
    return float(row["at"])


async def role_inputs(connection: Connection, settings: Settings) -> list[Inputs]:
    """The inputs of each role. A queue has the name of the role that takes it."""
    at = await now(connection)
    depths = {record.queue: record for record in await queues.depths(connection, ROLES)}
    workers = _live(await presence.workers(connection))
    found = []
    for role in ROLES:
        takers = [worker for worker in workers if role in worker.roles]
        found.append(
            _inputs(
                role,
                at,
                [depths[role]],
                running=depths[role].running,
                current=len(takers),
                busy=sum(worker.active > 0 for worker in takers),
                concurrency=min(
                    (worker.concurrency for worker in takers), default=settings.worker.concurrency
                ),
            )
        )
    slots = await _sink_slots(connection)
    places = settings.sinks.replicas_per_worker
    return [
        _with_slots(each, slots.wanted - slots.held, slots.held, places)
        if each.role == "sinks"
        else each
        for each in found
    ]


async def pool_inputs(
    connection: Connection, members: Sequence[Member], settings: Settings
) -> Inputs:
    """The inputs of a group of equal workers: all that waits, and what these workers run.

    What others run, on another machine, needs no worker here.
    """
    roles = settings.worker.roles
    at = await now(connection)
    depths = [record for record in await queues.depths(connection, roles) if record.queue in roles]
    found = _inputs(
        "+".join(roles),
        at,
        depths,
        running=sum(member.jobs for member in members),
        current=len(members),
        busy=sum(member.jobs > 0 for member in members),
        concurrency=min(
            (member.concurrency for member in members), default=settings.worker.concurrency
        ),
    )
    if "sinks" not in roles:
        return found
    # These workers have places for jobs and slots beside each other: count slots as jobs.
    slots = await _sink_slots(connection)
    share = found.concurrency / settings.sinks.replicas_per_worker
    free = math.ceil((slots.wanted - slots.held) * share)
    held = math.ceil(sum(member.slots for member in members) * share)
    return _with_slots(found, free, held, found.concurrency)


@dataclass(frozen=True)
class SinkSlots:
    """Slots of started pipelines: how many there should be, and how many a worker holds."""

    wanted: int
    held: int


async def _sink_slots(connection: Connection) -> SinkSlots:
    (row,) = await (await connection.execute(sql.sink_slots)).fetchall()
    return SinkSlots(**row)


def _with_slots(inputs: Inputs, free: int, held: int, concurrency: int) -> Inputs:
    """A slot that nobody holds waits, one that is held runs, also while the queue is paused."""
    slots_alone = inputs.paused and free + held > 0
    return replace(
        inputs,
        waiting=free + (0 if slots_alone else inputs.waiting),
        running=held + inputs.running,
        free_slots=free,
        concurrency=concurrency,
        paused=inputs.paused and not slots_alone,
    )


def _live(workers: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    return [worker for worker in workers if worker.state in ("working", "idle")]


def _inputs(
    role: str,
    at: float,
    depths: Sequence[QueueRecord],
    *,
    running: int,
    current: int,
    busy: int,
    concurrency: int,
) -> Inputs:
    open_queues = [record for record in depths if record.paused_at is None]
    return Inputs(
        role=role,
        at=at,
        waiting=sum(record.depth for record in open_queues or depths),
        running=running,
        oldest_wait_seconds=max((r.oldest_wait_seconds for r in open_queues), default=0.0),
        current=current,
        busy=busy,
        concurrency=concurrency,
        paused=not open_queues,
    )


async def decide(connection: Connection, pool: str, inputs: Inputs, policy: Policy) -> Decision:
    """Decide from the needs on record; changes nothing."""
    which = {
        "pool": pool,
        "role": inputs.role,
        "since": inputs.at - policy.scale_down_after_seconds,
    }
    rows = await (await connection.execute(sql.needs, which)).fetchall()
    return desired(inputs, policy, [Need(row["at"], row["workers"]) for row in rows])


async def record(connection: Connection, pool: str, decision: Decision) -> None:
    """Remember the need, and the decision if it differs from the one before it."""
    inputs = decision.inputs
    which = {"pool": pool, "role": inputs.role, "at": inputs.at}
    sample = {
        # An ignored rise does not keep workers later.
        "workers": min(decision.needed, decision.desired),
        "demand": inputs.demand,
        "current": inputs.current,
        "desired": decision.desired,
        "saturation": inputs.saturation,
    }
    await connection.execute(sql.remember, which | sample)
    await connection.execute(
        sql.record,
        which
        | {
            "current": inputs.current,
            "needed": decision.needed,
            "recent_need": decision.recent_need,
            "desired": decision.desired,
            "held_by": decision.limit,
            "reason": decision.reason,
            "inputs": Jsonb(asdict(inputs)),
            "policy": Jsonb(asdict(decision.policy)),
        },
    )


async def is_due(connection: Connection, pool: str, interval: float) -> bool:
    """Whether this process should decide now: no other does, and the last one is old enough.

    A last one in the future was recorded before the database's clock stepped back.
    """
    (row,) = await (await connection.execute(sql.lock)).fetchall()
    if not row["locked"]:
        return False
    (last,) = await (await connection.execute(sql.last_look, {"pool": pool})).fetchall()
    if last["at"] is None:
        return True
    age = await now(connection) - last["at"]
    return bool(age < 0 or age >= interval)


@dataclass(frozen=True)
class Sample:
    """One role in one half minute of the last hour."""

    role: str
    at: float
    demand: int
    current: int
    desired: int
    saturation: float


async def samples(connection: Connection, pool: str) -> list[Sample]:
    """The last hour, by role and time."""
    which = {"pool": pool, "seconds": KEEP_SAMPLES_SECONDS}
    rows = await (await connection.execute(sql.samples, which)).fetchall()
    return [Sample(**row) for row in rows]


async def forget(connection: Connection, pool: str, at: float, policy: Policy) -> None:
    """Removes samples that neither a decision nor a chart needs any more."""
    kept = max(policy.scale_down_after_seconds, KEEP_SAMPLES_SECONDS)
    await connection.execute(sql.forget, {"pool": pool, "before": at - kept})


async def sweep(connection: Connection, seconds: float) -> None:
    """Remove decisions and needs that are older than this."""
    await connection.execute(sql.sweep, {"seconds": seconds})


async def decisions(
    connection: Connection,
    pool: str | None = None,
    role: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[DecisionRecord]:
    """Recorded decisions, newest first."""
    which = {"pool": pool, "role": role, "before": before, "limit": limit}
    rows = await (await connection.execute(sql.decisions, which)).fetchall()
    return [DecisionRecord(**row) for row in rows]


async def decision(connection: Connection, decision_id: int) -> DecisionRecord:
    cursor = await connection.execute(sql.decision, {"decision_id": decision_id})
    row = await cursor.fetchone()
    if row is None:
        raise NotFound(f"there is no scaling decision {decision_id}")
    return DecisionRecord(**row)
