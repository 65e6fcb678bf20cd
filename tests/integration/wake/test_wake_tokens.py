"""Wake-ups by NATS: the stream's depth follows the jobs that wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, RetentionPolicy, StorageType

from kalla.work.job import NewJob
from kalla.work.services.depth import trusted
from kalla.work.state import jobs, queues
from kalla.work.wake import NatsWake
from kalla.work.wake.stream import TokenStream
from tests.wake_kit import (
    QUEUES,
    SOON,
    Channel,
    Scene,
    without_trouble,
)
from tests.work_kit import connect, put


async def test_a_scaler_finds_stream_and_consumers_before_the_first_job(
    scene: Scene, stream: JetStreamContext
) -> None:
    config = (await stream.stream_info("kalla-jobs")).config
    assert config.subjects == ["kalla.jobs.*"]
    assert config.retention == RetentionPolicy.WORK_QUEUE
    assert config.storage == StorageType.FILE
    infos = await stream.consumers_info("kalla-jobs")
    assert {info.name for info in infos} == {"workers-stage", "workers-exec"}
    for info in infos:
        assert info.config.durable_name == info.name
        assert info.config.filter_subject == info.name.replace("workers-", "kalla.jobs.")
        assert info.config.ack_policy == AckPolicy.EXPLICIT
        assert info.config.ack_wait == 10
        assert info.config.max_deliver == -1
        assert info.config.deliver_subject is None
        assert info.num_pending == 0


async def test_a_stream_that_serves_something_else_is_named_as_trouble(
    nats_channel: Channel, stream: JetStreamContext
) -> None:
    await stream.add_stream(name="kalla-jobs", subjects=["elsewhere"])
    wake = await nats_channel.open()
    assert "delete it" in (wake.error_message or "")
    await stream.delete_stream("kalla-jobs")
    await without_trouble(wake)


async def test_the_depth_follows_jobs_inserted_and_claimed(scene: Scene) -> None:
    await scene.insert(1500)
    await scene.insert(7, "stage")
    await scene.settles_on(1500)
    await scene.claim(400)
    await scene.settles_on(1100)
    await scene.claim(1100)
    await scene.settles_on(0)
    await scene.settles_on(7, "stage")


async def test_tokens_of_two_queues_that_lie_between_each_other_are_taken_out_apart(
    scene: Scene,
) -> None:
    for _ in range(30):
        await scene.insert(2)
        await scene.insert(1, "stage")
    await scene.claim(50)
    await scene.claim(10, "stage")
    await scene.settles_on(10)
    await scene.settles_on(20, "stage")


async def test_a_token_that_woke_a_worker_is_not_taken_out_again(scene: Scene) -> None:
    await scene.insert(3)
    assert await scene.wake.wait(QUEUES, SOON) == {"exec"}
    await scene.settles_on(2)
    await scene.claim(1)
    await scene.insert(1, "stage")
    await scene.claim(1, "stage")  # when this one is out, the one before would be, too
    await scene.settles_on(0, "stage")
    assert await scene.pending() == 2


async def test_two_workers_take_each_token_out_once(scene: Scene) -> None:
    other = await scene.channel.open()
    await scene.insert(1000)
    await asyncio.gather(scene.wake.claimed({"exec": 300}), other.claimed({"exec": 200}))
    await scene.settles_on(500)


async def test_a_claimed_job_leaves_no_token_when_its_worker_stops(scene: Scene) -> None:
    other = await scene.channel.open()
    await scene.insert(5)
    await other.claimed({"exec": 3})
    await other.stop()
    assert await scene.pending() == 2


async def test_a_token_for_a_wait_that_is_cancelled_goes_to_another(nats_channel: Channel) -> None:
    leaving, staying = await nats_channel.open(), await nats_channel.open()
    assert isinstance(leaving, NatsWake)
    waiting = asyncio.create_task(leaving.wait(QUEUES, SOON))
    await asyncio.sleep(0)
    (waiter,) = leaving._waiters
    telling = asyncio.create_task(staying.nudge({"exec": 1}))
    while not waiter.nudged:
        await asyncio.sleep(0)
    waiting.cancel()  # it has the token, and has not run since
    await asyncio.gather(waiting, telling, return_exceptions=True)
    assert waiting.cancelled()
    assert await staying.wait(QUEUES, SOON) == {"exec"}


async def test_a_channel_stops_though_a_request_swallows_the_cancel(
    nats_channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As wait_for does before Python 3.12 when answer and cancel come together."""
    wake, asked = await nats_channel.open(), asyncio.Event()

    async def swallow(_: TokenStream, _queue: str, _count: int) -> int:
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(SOON)
        return 0

    monkeypatch.setattr(TokenStream, "take_out", swallow)
    await wake.claimed({"exec": 1})
    async with asyncio.timeout(SOON / 2):
        await asked.wait()
        await wake.stop()


async def test_a_paused_queue_keeps_no_tokens_and_gets_them_back_when_it_is_resumed(
    scene: Scene,
) -> None:
    """They would wake workers for nothing, and a scaler that reads the lag would start more."""
    await queues.pause(scene.connection, "exec", "an operator")
    await scene.insert(50)
    await scene.set_right()
    await scene.settles_on(0)
    await queues.resume(scene.connection, "exec")
    await scene.wake.nudge({"exec": 1})
    await scene.set_right()
    await scene.settles_on(50)


async def test_a_job_nobody_was_woken_for_gets_its_wake_up(scene: Scene) -> None:
    await put(scene.connection)
    waiting = asyncio.create_task(scene.wake.wait(QUEUES, SOON))
    await scene.depth.tick()
    assert await waiting == {"exec"}


async def test_doubled_tokens_are_taken_away(scene: Scene) -> None:
    await scene.insert(20)
    await scene.wake.nudge({"exec": 20, "stage": 3})
    await scene.set_right()


async def test_missing_tokens_are_added(scene: Scene, stream: JetStreamContext) -> None:
    await scene.insert(20)
    await stream.purge_stream("kalla-jobs", subject="kalla.jobs.exec", keep=5)
    await scene.set_right()


async def test_cancelled_jobs_lose_their_tokens(scene: Scene) -> None:
    ids = await scene.insert(5)
    for job_id in ids[:3]:
        async with scene.connection.transaction():
            await jobs.cancel(scene.connection, job_id, "an operator")
    await scene.set_right()
    assert await scene.pending() == 2


async def test_a_delayed_job_has_no_token_until_it_is_due(scene: Scene) -> None:
    await put(scene.connection, NewJob("task", delay_seconds=3600))
    await scene.set_right()
    assert await scene.pending() == 0


async def test_a_token_in_dead_hands_is_replaced(scene: Scene, stream: JetStreamContext) -> None:
    await scene.insert(3)
    dead = await stream.pull_subscribe_bind("workers-exec", "kalla-jobs")
    assert len(await dead.fetch(2)) == 2
    await scene.set_right()


async def test_another_process_at_it_is_left_alone(scene: Scene, database_url: str) -> None:
    await put(scene.connection)
    async with await connect(database_url) as other, other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock(%s)", [0x6B616C6C6164])
        await scene.depth.tick()
        assert await scene.pending() == 0
    await scene.set_right()
    assert await scene.pending() == 1


def test_figures_that_stand_still_are_trusted() -> None:
    assert trusted({"exec": (3, 5)}, {"exec": (3, 5)}) == {"exec": 3}
    assert trusted({"exec": (0, 2)}, {"exec": (0, 2)}) == {"exec": 0}


def test_figures_that_move_are_not_trusted() -> None:
    assert trusted({"exec": (3, 5)}, {"exec": (4, 5)}) == {}
    assert trusted({"exec": (3, 5)}, {"exec": (3, 4)}) == {}
    assert trusted({}, {"exec": (3, 4)}) == {}


def test_figures_that_move_but_are_far_off_are_acted_on() -> None:
    assert trusted({"exec": (9000, 10)}, {"exec": (8900, 12)}) == {"exec": 8900}
    assert trusted({"exec": (0, 500)}, {"exec": (1, 480)}) == {"exec": 1}
    assert trusted({"exec": (9000, 10)}, {"exec": (8900, 8901)}) == {}
