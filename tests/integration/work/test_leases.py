"""Leases: slots held as long as they are renewed, with the epoch as the fence."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psycopg
import pytest

from kalla.database import Connection, Database
from kalla.errors import InvalidInput, Lost
from kalla.work.state import leases
from kalla.work.state.leases import Lease
from tests.work_kit import Clock, Waiting, rows

TTL = 15.0


async def acquire(
    connection: Connection,
    holder: str = "anna",
    replicas: int = 3,
    resource: str = "orders",
    cap: int | None = None,
) -> Lease | None:
    async with connection.transaction():
        return await leases.acquire(connection, resource, holder, replicas, TTL, cap)


async def must_acquire(connection: Connection, holder: str = "anna", replicas: int = 3) -> Lease:
    lease = await acquire(connection, holder, replicas)
    assert lease is not None
    return lease


async def held(connection: Connection) -> list[tuple[int, str]]:
    return [(each.slot, each.holder) for each in await leases.holders(connection) if each.live]


async def test_the_first_free_slot_is_taken(a: Connection) -> None:
    assert [await acquire(a, name) for name in ("anna", "ben", "cleo", "dora")] == [
        Lease("orders", 0, 1),
        Lease("orders", 1, 1),
        Lease("orders", 2, 1),
        None,
    ]
    assert await leases.release(a, "ben", Lease("orders", 1, 1))
    assert await acquire(a, "dora") == Lease("orders", 1, 2)


async def test_resources_do_not_share_slots(a: Connection) -> None:
    await acquire(a, replicas=1)
    assert await acquire(a, replicas=1) is None
    assert await acquire(a, replicas=1, resource="payments") == Lease("payments", 0, 1)
    assert [each.resource for each in await leases.holders(a)] == ["orders", "payments"]
    assert [each.resource for each in await leases.holders(a, "payments")] == ["payments"]


async def test_two_acquisitions_at_once_get_two_slots(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    """The rows of the slots are there already, so that nobody waits."""
    await must_acquire(a, "zoe")
    async with a.transaction():
        first = await leases.acquire(a, "orders", "anna", 3, TTL)
        second = await acquire(b, "ben")
    assert (first, second) == (Lease("orders", 1, 1), Lease("orders", 2, 1))


async def test_many_acquisitions_at_once_never_share_a_slot(pool: Database) -> None:
    async def take(number: int) -> Lease | None:
        return await pool.retrying(
            lambda each: leases.acquire(each, "orders", f"worker {number}", 5, TTL)
        )

    taken = await asyncio.gather(*[take(number) for number in range(12)])
    slots = sorted(lease.slot for lease in taken if lease is not None)
    assert len(slots) == len(set(slots))
    while await take(99) is not None:
        pass
    async with pool.transaction() as connection:
        assert [slot for slot, _ in await held(connection)] == [0, 1, 2, 3, 4]


async def test_an_acquisition_meets_one_that_just_ended(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    """The slot is looked at again once it is locked: what was free may be taken by now."""
    async with a.transaction():
        assert await leases.acquire(a, "orders", "anna", 1, TTL) is not None
        second = await waiting(acquire(b, "ben", replicas=1))
    assert await second is None


async def test_a_lease_ends_when_it_is_not_renewed(a: Connection, clock: Clock) -> None:
    lease = await must_acquire(a, replicas=1)
    await clock.jump(TTL - 1)
    assert await leases.renew(a, "anna", [lease], TTL) == {lease}
    await clock.jump(TTL - 1)
    assert await acquire(a, "ben", replicas=1) is None
    await clock.jump(2)
    (record,) = await leases.holders(a)
    assert (record.holder, record.live) == ("anna", False)
    assert await acquire(a, "ben", replicas=1) == Lease("orders", 0, 2)


async def test_a_lease_that_ended_is_not_renewed_though_nobody_took_it(
    a: Connection, clock: Clock
) -> None:
    """Trap 12: its holder must have stopped by then, and must not go on as if nothing was."""
    lease = await must_acquire(a)
    await clock.jump(TTL)
    assert await leases.renew(a, "anna", [lease], TTL) == set()
    assert await held(a) == []
    with pytest.raises(Lost):
        await leases.assert_held(a, "anna", lease)


async def test_a_lease_that_another_took_is_not_renewed(a: Connection, clock: Clock) -> None:
    """Trap 9: neither by the epoch nor by the name alone."""
    old = await must_acquire(a, replicas=1)
    await clock.jump(TTL)
    new = await must_acquire(a, "ben", replicas=1)
    assert await leases.renew(a, "anna", [old, replace(old, epoch=new.epoch)], TTL) == set()
    assert await leases.renew(a, "ben", [old], TTL) == set()
    assert await leases.renew(a, "ben", [old, new], TTL) == {new}


async def test_all_leases_are_renewed_together_and_the_lost_ones_told_apart(
    a: Connection, clock: Clock
) -> None:
    first, second, third = [await must_acquire(a) for _ in range(3)]
    assert await leases.release(a, "anna", second)
    assert await leases.renew(a, "anna", [third, first, second], TTL) == {first, third}
    assert await leases.renew(a, "anna", [], TTL) == set()


async def test_a_release_of_what_one_no_longer_holds_changes_nothing(
    a: Connection, clock: Clock
) -> None:
    """Trap 9: not even when the same worker came back to the same slot."""
    old = await must_acquire(a, replicas=1)
    await clock.jump(TTL)
    new = await must_acquire(a, "ben", replicas=1)
    assert not await leases.release(a, "anna", old)
    assert not await leases.release(a, "anna", new)
    assert await held(a) == [(0, "ben")]
    await clock.jump(TTL)
    again = await must_acquire(a, "anna", replicas=1)
    assert not await leases.release(a, "anna", old)
    assert await held(a) == [(0, "anna")]
    assert await leases.release(a, "anna", again)
    assert not await leases.release(a, "anna", again)
    assert await held(a) == []


async def test_an_epoch_survives_release_and_expiry(a: Connection, clock: Clock) -> None:
    epochs = []
    for turn in range(6):
        lease = await must_acquire(a, replicas=1)
        epochs.append(lease.epoch)
        if turn % 2:
            await leases.release(a, "anna", lease)
        else:
            await clock.jump(TTL)
    assert epochs == [1, 2, 3, 4, 5, 6]


async def test_slots_above_a_lowered_number_of_replicas_are_not_taken_again(
    a: Connection, clock: Clock
) -> None:
    """Trap 11: neither when they are given up, nor when their holder died."""
    for name in ("anna", "ben", "cleo"):
        await must_acquire(a, name)
    assert await leases.release(a, "cleo", Lease("orders", 2, 1))
    assert await acquire(a, "cleo", replicas=2) is None
    assert await leases.release(a, "anna", Lease("orders", 0, 1))
    assert await acquire(a, "cleo", replicas=1) == Lease("orders", 0, 2)
    await clock.jump(TTL)
    assert await leases.renew(a, "ben", [Lease("orders", 1, 1)], TTL) == set()
    assert (await must_acquire(a, "dora", replicas=1)).slot == 0
    assert await acquire(a, "dora", replicas=1) is None
    assert await acquire(a, "dora", replicas=0) is None
    assert await held(a) == [(0, "dora")]


async def test_slots_come_back_with_a_raised_number_of_replicas(a: Connection) -> None:
    """Trap 11: and their epoch goes on counting."""
    for _ in range(3):
        lease = await must_acquire(a)
    await leases.release(a, "anna", lease)
    assert await acquire(a, replicas=2) is None
    assert await acquire(a, replicas=3) == Lease("orders", 2, 2)


async def test_a_negative_number_of_replicas_is_refused(a: Connection) -> None:
    with pytest.raises(InvalidInput, match="replicas: must not be negative"):
        await acquire(a, replicas=-1)


async def test_a_cap_holds_over_all_resources(a: Connection, clock: Clock) -> None:
    assert await acquire(a, cap=2) is not None
    assert await acquire(a, resource="payments", cap=2) is not None
    assert await acquire(a, cap=2) is None
    assert await acquire(a, "ben", cap=2) is not None
    await clock.jump(TTL)
    assert await acquire(a, cap=2) is not None


async def test_a_cap_holds_though_its_worker_acquires_twice_at_once(
    a: Connection, b: Connection, waiting: Waiting
) -> None:
    await must_acquire(a, "ben")
    await acquire(a, "ben", resource="payments")
    async with a.transaction():
        assert await leases.acquire(a, "orders", "anna", 3, TTL, cap=1) is not None
        second = await waiting(acquire(b, "anna", resource="payments", cap=1))
    assert await second is None


async def test_a_write_under_a_lease_keeps_others_from_taking_the_slot(
    a: Connection, b: Connection, clock: Clock
) -> None:
    """Trap 12: until the writing transaction ends, even if the lease runs out meanwhile."""
    lease = await must_acquire(a, replicas=1)
    async with a.transaction():
        await leases.assert_held(a, "anna", lease)
        await clock.jump(TTL)
        assert await acquire(b, "ben", replicas=1) is None
    assert await acquire(b, "ben", replicas=1) == Lease("orders", 0, 2)
    with pytest.raises(Lost, match="no longer held under epoch 1"):
        await leases.assert_held(a, "anna", lease)
    with pytest.raises(Lost):
        await leases.assert_held(a, "anna", Lease("orders", 0, 2))


async def test_a_write_under_a_lease_does_not_hold_up_its_renewal(
    a: Connection, b: Connection
) -> None:
    """Trap 12: else a slow write would cost its worker every slot it has."""
    lease = await must_acquire(a)
    async with a.transaction():
        await leases.assert_held(a, "anna", lease)
        await b.execute("SET lock_timeout = '200ms'")
        assert await leases.renew(b, "anna", [lease], TTL) == {lease}


async def test_a_renewal_that_meets_an_acquisition_is_lost(
    a: Connection, b: Connection, clock: Clock, waiting: Waiting
) -> None:
    """Trap 9: the clock stepped back between the two, so that both believe in themselves."""
    lease = await must_acquire(a, replicas=1)
    await clock.jump(TTL)
    async with b.transaction():
        assert await leases.acquire(b, "orders", "ben", 1, TTL) is not None
        await clock.jump(-TTL)
        renewal = await waiting(leases.renew(a, "anna", [lease], TTL))
    assert await renewal == set()
    assert (await leases.holders(a))[0].holder == "ben"


async def test_a_clock_that_jumps_back_gives_no_slot_to_two(a: Connection, clock: Clock) -> None:
    lease = await must_acquire(a, replicas=1)
    await clock.jump(-3600)
    assert await acquire(a, "ben", replicas=1) is None
    assert await leases.renew(a, "anna", [lease], TTL) == {lease}
    await clock.jump(TTL)
    assert await acquire(a, "ben", replicas=1) == Lease("orders", 0, 2)


async def test_the_table_itself_knows_no_holder_without_an_end(a: Connection) -> None:
    await must_acquire(a)
    with pytest.raises(psycopg.errors.CheckViolation):
        await rows(a, "UPDATE kalla.leases SET until = NULL RETURNING 1")
