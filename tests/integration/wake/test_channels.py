"""What every wake channel keeps: a nudge may be lost, late or doubled without harm."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from kalla.database import Database
from kalla.local.servers.postgres import Postgres
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings
from kalla.settings import Wake as WakeSettings
from kalla.work.state import jobs
from kalla.work.wake import NatsWake, PostgresWake, open_channel
from tests.wake_kit import (
    QUEUES,
    SOON,
    Channel,
    emptied,
    in_trouble,
    without_trouble,
)
from tests.work_kit import Clock, connect, install_clock, put, take


async def test_a_nudge_wakes_who_waits(channel: Channel) -> None:
    teller, listener = await channel.open(), await channel.open()
    waiting = asyncio.create_task(listener.wait(QUEUES, SOON))
    await asyncio.sleep(0)
    await teller.nudge({"exec": 1})
    assert await waiting == {"exec"}


async def test_a_nudge_counts_though_it_came_before_the_wait(channel: Channel) -> None:
    wake = await channel.open()
    await wake.nudge({"exec": 1, "stage": 2})
    woken: set[str] = set()
    while woken != set(QUEUES):
        more = await wake.wait(QUEUES, SOON)
        assert more
        woken |= more


async def test_doubled_nudges_do_no_harm(channel: Channel) -> None:
    wake = await channel.open()
    for _ in range(3):
        await wake.nudge({"exec": 1})
    assert await wake.wait(QUEUES, SOON) == {"exec"}
    await emptied(wake)
    await wake.nudge({"exec": 1})
    assert await wake.wait(QUEUES, SOON) == {"exec"}


async def test_a_nudge_of_nothing_wakes_nobody(channel: Channel) -> None:
    wake = await channel.open()
    await wake.nudge({})
    await wake.nudge({"exec": 0})
    assert await wake.wait(QUEUES, 0.2) == set()


async def test_a_wait_in_vain_ends_empty(channel: Channel) -> None:
    wake = await channel.open()
    assert await wake.wait(QUEUES, 0.05) == set()


async def test_a_nudge_for_another_queue_wakes_nobody(channel: Channel) -> None:
    wake = await channel.open()
    await wake.nudge({"exec": 1})
    assert await wake.wait(["stage"], 0.2) == set()
    assert await wake.wait(["exec"], SOON) == {"exec"}


async def test_a_queue_nobody_knew_before_wakes_too(channel: Channel) -> None:
    teller, listener = await channel.open(), await channel.open()
    await teller.nudge({"special": 1})
    assert await listener.wait(["special"], SOON) == {"special"}


async def test_two_workers_share_two_wake_ups(channel: Channel) -> None:
    teller, anna, ben = [await channel.open() for _ in range(3)]
    both = asyncio.gather(anna.wait(QUEUES, SOON), ben.wait(QUEUES, SOON))
    await asyncio.sleep(0)
    await teller.nudge({"exec": 2})
    assert list(await both) == [{"exec"}, {"exec"}]


async def test_a_busy_worker_keeps_no_wake_up_from_an_idle_one(channel: Channel) -> None:
    teller, busy, idle = [await channel.open() for _ in range(3)]
    await busy.wait(QUEUES, 0.05)
    given_up = asyncio.create_task(busy.wait(QUEUES, SOON))
    await asyncio.sleep(0.05)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    waiting = asyncio.create_task(idle.wait(QUEUES, SOON))
    await asyncio.sleep(0)
    await teller.nudge({"exec": 1})
    assert await waiting == {"exec"}


async def test_a_worker_that_stops_keeps_no_wake_up_from_the_others(channel: Channel) -> None:
    teller, leaving, staying = [await channel.open() for _ in range(3)]
    await leaving.wait(QUEUES, 0.05)
    stopping = asyncio.create_task(leaving.stop())
    await teller.nudge({"exec": 1})
    await stopping
    assert await staying.wait(QUEUES, SOON) == {"exec"}


async def test_an_alarm_reaches_everybody_who_listens(channel: Channel) -> None:
    wakes = [await channel.open() for _ in range(3)]
    listening = asyncio.gather(*(wake.alarmed() for wake in wakes))
    await wakes[0].alarm()
    async with asyncio.timeout(SOON):
        await listening


async def test_an_alarm_counts_once_though_it_came_before_the_listening(channel: Channel) -> None:
    teller, listener = await channel.open(), await channel.open()
    await teller.alarm()
    async with asyncio.timeout(SOON):
        await listener.alarmed()
    again = asyncio.create_task(listener.alarmed())
    done, _ = await asyncio.wait({again}, timeout=0.1)
    again.cancel()
    assert not done


async def test_there_is_no_trouble_when_all_is_well(channel: Channel) -> None:
    wake = await channel.open()
    assert wake.error_message is None


async def test_a_server_that_is_away_costs_latency_only(channel: Channel) -> None:
    wake = await channel.open()
    waiting = asyncio.create_task(wake.wait(QUEUES, 0.5))
    await channel.stop_server()
    assert await waiting == set()
    await in_trouble(wake)
    secret = urlsplit(channel.url).password
    assert wake.error_message is not None
    assert secret
    assert secret not in wake.error_message
    assert str(channel.server.port) in wake.error_message
    async with asyncio.timeout(SOON):
        await wake.nudge({"exec": 1})
        await wake.claimed({"exec": 1})
        await wake.alarm()
        await wake.settle({"exec": 1})
        assert await wake.depth() == {}
        assert await wake.wait(QUEUES, 0.05) == set()

    await channel.start_server()
    await without_trouble(wake)
    # What was said meanwhile, nobody repeats: so everybody looks once.
    assert await wake.wait(QUEUES, SOON) == set(QUEUES)
    async with asyncio.timeout(SOON):
        await wake.alarmed()
    other = await channel.open()
    await emptied(wake)
    await other.nudge({"stage": 1})
    assert await wake.wait(QUEUES, SOON) == {"stage"}
    await other.alarm()
    async with asyncio.timeout(SOON):
        await wake.alarmed()


async def test_a_channel_opened_while_the_server_is_away_finds_it_later(channel: Channel) -> None:
    await channel.stop_server()
    async with asyncio.timeout(SOON):
        wake = await channel.open()
    assert wake.error_message is not None
    assert await wake.wait(QUEUES, 0.05) == set()
    await channel.start_server()
    await without_trouble(wake)
    await emptied(wake)
    await wake.nudge({"exec": 1})
    assert await wake.wait(QUEUES, SOON) == {"exec"}


async def test_a_reclaimed_job_wakes_somebody(channel: Channel, database_url: str) -> None:
    teller, idle = await channel.open(), await channel.open()
    await install_clock(database_url)
    async with await connect(database_url) as connection:
        await put(connection)
        await take(connection)
        await Clock(connection).jump(3600)
        reclaimed = await jobs.reap(connection)
        assert len(reclaimed) == 1
        await teller.nudge(jobs.waiting_in(reclaimed))
    assert await idle.wait(QUEUES, SOON) == {"exec"}


async def test_a_cut_connection_to_postgres_is_made_again(
    postgres_channel: Channel, own_postgres: Postgres
) -> None:
    wake = await postgres_channel.open()
    async with await connect(own_postgres.url("postgres")) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
    assert await wake.wait(QUEUES, SOON) == set(QUEUES)
    await wake.nudge({"exec": 1})
    assert await wake.wait(QUEUES, SOON) == {"exec"}


async def test_the_settings_choose_the_channel() -> None:
    database = Database(DatabaseSettings())
    over_nats = open_channel(Settings(wake=WakeSettings(channel="nats")), database, QUEUES)
    over_postgres = open_channel(Settings(wake=WakeSettings(channel="postgres")), database, QUEUES)
    assert isinstance(over_nats, NatsWake)
    assert isinstance(over_postgres, PostgresWake)
