"""NATS is killed, wiped or frozen, its stream deleted: nothing is lost, the depth comes back."""

from __future__ import annotations

import asyncio
import signal

import pytest
from nats.js import JetStreamContext

from kalla.work.wake import Wake
from tests.wake_kit import (
    QUEUES,
    SOON,
    Scene,
    emptied,
    in_trouble,
    until,
    without_trouble,
)
from tests.work_kit import complete, connect, take


@pytest.mark.parametrize("wipe", [False, True], ids=["kept", "wiped"])
async def test_nats_killed_in_the_middle_has_its_depth_again(scene: Scene, wipe: bool) -> None:
    await scene.insert(30)
    await scene.restart(wipe)
    await scene.set_right()
    assert await scene.pending() == 30
    await emptied(scene.wake)
    await scene.insert(1, "stage")
    assert "stage" in await scene.wake.wait(["stage"], SOON)


async def test_a_stream_deleted_under_us_is_made_again(
    scene: Scene, stream: JetStreamContext
) -> None:
    waiting = asyncio.create_task(scene.wake.wait(QUEUES, SOON))
    await stream.delete_stream("kalla-jobs")
    await scene.insert(1)
    assert await waiting == {"exec"}
    await scene.claim(1)
    await scene.insert(1200)
    await stream.delete_stream("kalla-jobs")
    await scene.insert(1100, "stage")
    await scene.settles_on(1100, "stage")
    await scene.set_right()
    assert scene.wake.error_message is None


async def test_who_only_tells_makes_a_deleted_stream_again_too(
    scene: Scene, stream: JetStreamContext
) -> None:
    await stream.delete_stream("kalla-jobs")
    await scene.insert(3)
    assert await scene.pending() == 3


async def test_a_consumer_deleted_under_us_is_made_again(
    scene: Scene, stream: JetStreamContext
) -> None:
    waiting = asyncio.create_task(scene.wake.wait(QUEUES, SOON))
    await stream.delete_consumer("kalla-jobs", "workers-exec")
    await scene.insert(4)
    assert await waiting == {"exec"}
    await stream.delete_consumer("kalla-jobs", "workers-stage")
    await scene.set_right()


async def test_a_frozen_nats_holds_nobody_up(scene: Scene) -> None:
    process = scene.server.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(SOON):
            await scene.wake.nudge({"exec": 1})
            await in_trouble(scene.wake)
            await scene.wake.nudge({"exec": 1})
            assert await scene.wake.wait(QUEUES, 0.05) == set()
    finally:
        process.send_signal(signal.SIGCONT)
    await without_trouble(scene.wake)
    await scene.set_right()


async def test_nothing_is_lost_and_the_depth_comes_back_while_nats_is_killed_and_wiped(
    scene: Scene, database_url: str
) -> None:
    """Workers that live by wake-ups and a rare look of their own; a NATS that keeps dying."""
    total, left_over = 240, 25
    done: list[int] = []

    async def work(wake: Wake) -> None:
        async with await connect(database_url) as connection:
            while True:
                claimed = await take(connection, 4)
                await wake.claimed({"exec": len(claimed)})
                for job in claimed:
                    await complete(connection, job)
                    done.append(job.job_id)
                if not claimed:
                    await wake.wait(QUEUES, 0.5)

    async def insert() -> list[int]:
        return [each for _ in range(total // 8) for each in await scene.insert(8)]

    wakes = [await scene.channel.open() for _ in range(3)]
    workers = [asyncio.create_task(work(wake)) for wake in wakes]
    inserting = asyncio.create_task(insert())
    for wipe in (True, False, True):
        await scene.restart(wipe)
    expected = await inserting

    async def finished() -> bool:
        return len(done) >= total

    await until(finished, "every job done")
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(done) == sorted(expected)

    await scene.insert(left_over)
    await scene.set_right()
    assert await scene.pending() == left_over
