"""The keeper of leases: renews, notices losses, and stops in time when Postgres is out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from kalla.database import Connection, Database
from kalla.settings import Leases as LeaseSettings
from kalla.work.lease_keeper import LeaseKeeper
from kalla.work.state import leases
from kalla.work.state.leases import Lease
from tests.work_kit import Clock
from tests.worker_kit import eventually

SETTINGS = LeaseSettings(ttl_seconds=10, renew_seconds=0.05, margin_seconds=2)


class Seats:
    """What a carrier would do: note what was stopped, and why."""

    def __init__(self) -> None:
        self.stopped: list[tuple[int, str]] = []

    async def stop(self, lease: Lease, reason: str) -> None:
        self.stopped.append((lease.slot, reason))


class Watch:
    """A monotonic clock moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def keeper(pool: Database) -> AsyncIterator[LeaseKeeper]:
    keeper = LeaseKeeper(pool, "anna", SETTINGS)
    await keeper.start()
    yield keeper
    await keeper.stop()


async def test_a_held_slot_is_renewed_as_long_as_the_keeper_lives(
    keeper: LeaseKeeper, a: Connection
) -> None:
    lease = await keeper.acquire("pipe", 1, Seats().stop)
    assert lease is not None
    (before,) = await leases.holders(a, "pipe")

    async def renewed() -> bool:
        (now,) = await leases.holders(a, "pipe")
        return now.until > before.until and now.epoch == before.epoch

    await eventually(renewed)
    assert keeper.held("pipe") == [lease]


async def test_a_holder_cut_off_from_postgres_stops_before_its_lease_ends(
    pool: Database, a: Connection
) -> None:
    """Trap 12: by its own monotonic clock, though no renewal was ever answered."""
    watch, seats = Watch(), Seats()
    keeper = LeaseKeeper(pool, "anna", SETTINGS, clock=watch)
    lease = await keeper.acquire("pipe", 1, seats.stop)
    assert lease is not None
    await pool.close()  # from here on Postgres is out of reach
    await keeper.start()
    watch.now += SETTINGS.ttl_seconds - SETTINGS.margin_seconds - 0.01
    assert keeper.held() == [lease]
    watch.now += 0.02
    assert keeper.held() == []

    async def stopped() -> bool:
        return seats.stopped == [(0, "it could not be renewed in time")]

    await eventually(stopped)
    (holding,) = await leases.holders(a, "pipe")
    assert holding.live, "the work stopped while the lease still stood"
    await keeper.stop()


async def test_the_deadline_counts_from_the_request_and_not_from_its_answer(
    pool: Database, a: Connection
) -> None:
    """An answer that took long must not lengthen the holder's belief."""
    watch, seats = Watch(), Seats()
    keeper = LeaseKeeper(pool, "anna", SETTINGS, clock=watch)
    async with a.transaction():
        await a.execute("LOCK TABLE kalla.leases IN ACCESS EXCLUSIVE MODE")
        taking = asyncio.create_task(keeper.acquire("pipe", 1, seats.stop))
        await asyncio.wait([taking], timeout=0.1)
        watch.now += 5
    lease = await taking
    assert lease is not None
    watch.now += SETTINGS.ttl_seconds - SETTINGS.margin_seconds - 5 + 0.01
    assert keeper.held() == []


async def test_a_slot_taken_by_another_stops_its_old_work(
    keeper: LeaseKeeper, a: Connection, clock: Clock
) -> None:
    seats = Seats()
    lease = await keeper.acquire("pipe", 1, seats.stop)
    assert lease is not None
    await clock.jump(60)
    taken = await leases.acquire(a, "pipe", "berta", 1, 10)
    assert taken is None or taken.epoch > lease.epoch

    async def stopped() -> bool:
        return [slot for slot, _ in seats.stopped] == [0]

    await eventually(stopped)
    assert keeper.held() == []


async def test_a_scale_down_stops_and_frees_the_upper_slots(
    keeper: LeaseKeeper, a: Connection
) -> None:
    """Trap 11."""
    seats = Seats()
    for _ in range(3):
        assert await keeper.acquire("pipe", 3, seats.stop) is not None
    await keeper.trim("pipe", 1)
    assert [slot for slot, _ in seats.stopped] == [1, 2]
    assert [holding.slot for holding in await leases.holders(a, "pipe")] == [0]


async def test_a_stopping_keeper_gives_its_slots_to_others_at_once(
    pool: Database, a: Connection
) -> None:
    seats = Seats()
    keeper = LeaseKeeper(pool, "anna", SETTINGS)
    await keeper.start()
    first = await keeper.acquire("pipe", 1, seats.stop)
    await keeper.stop()
    assert seats.stopped == [(0, "the worker is stopping")]
    second = await leases.acquire(a, "pipe", "berta", 1, 10)
    assert first is not None
    assert second == Lease("pipe", 0, first.epoch + 1)


async def test_a_slow_stop_holds_up_no_other_seat_and_keeps_its_slot_meanwhile(
    pool: Database, a: Connection
) -> None:
    """Trap 12 for the second seat; and nobody takes the first one's slot while it still works."""
    watch, seats, finish = Watch(), Seats(), asyncio.Event()

    async def slow(lease: Lease, reason: str) -> None:
        await finish.wait()

    keeper = LeaseKeeper(pool, "anna", SETTINGS, clock=watch)
    await keeper.acquire("slow", 1, slow)
    await keeper.acquire("quick", 1, seats.stop)
    await keeper.start()
    trimming = asyncio.create_task(keeper.trim("slow", 0))
    (before,) = await leases.holders(a, "slow")

    async def renewed_while_it_stops() -> bool:
        (now,) = await leases.holders(a, "slow")
        return now.until > before.until

    await eventually(renewed_while_it_stops)
    assert keeper.held("slow") == []
    watch.now += SETTINGS.ttl_seconds

    async def stopped() -> bool:
        return [slot for slot, _ in seats.stopped] == [0]

    await eventually(stopped)
    finish.set()
    await trimming
    assert await leases.holders(a, "slow") == []
    await keeper.stop()


async def test_a_stop_that_fails_leaves_the_other_seats_watched(pool: Database) -> None:
    watch, seats = Watch(), Seats()

    async def broken(lease: Lease, reason: str) -> None:
        raise RuntimeError("it will not stop")

    keeper = LeaseKeeper(pool, "anna", SETTINGS, clock=watch)
    await keeper.acquire("broken", 1, broken)
    await keeper.start()
    watch.now += SETTINGS.ttl_seconds

    async def gone() -> bool:
        return keeper._seats == {}

    await eventually(gone)
    await keeper.acquire("well", 1, seats.stop)
    watch.now += SETTINGS.ttl_seconds

    async def stopped() -> bool:
        return [slot for slot, _ in seats.stopped] == [0]

    await eventually(stopped)
    assert keeper.death is None
    await keeper.stop()
