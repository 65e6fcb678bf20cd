"""One suite for both wake channels, then what only NATS has: a depth that follows the jobs."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import nats
import pytest
import pytest_asyncio
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerInfo, RetentionPolicy, StorageType
from nats.js.errors import NotFoundError
from pydantic import SecretStr

from kalla.database import Connection, Database
from kalla.local import ports
from kalla.local.nats import Nats
from kalla.local.postgres import Postgres
from kalla.local.process import Server
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings
from kalla.settings import Wake as WakeSettings
from kalla.work import jobs, queues
from kalla.work.duties.depth import Depth, trusted
from kalla.work.job import NewJob
from kalla.work.wake import NatsWake, PostgresWake, Wake, open_channel
from kalla.work.wake.stream import TokenStream
from tests.servers import UNSAFE_BUT_FAST, started
from tests.work_kit import KINDS, Clock, complete, connect, install_clock, put, take

QUEUES = ("stage", "exec")
SOON = 10.0  # a deadline, not an expectation


@dataclass
class Channel:
    """Makes wake channels to one server, and takes that server away."""

    server: Server
    url: str
    new: Callable[[], Awaitable[Wake]]
    made: list[Wake] = field(default_factory=list)

    async def open(self) -> Wake:
        wake = await self.new()
        self.made.append(wake)
        await wake.start()
        return wake

    async def stop_server(self) -> None:
        await asyncio.to_thread(self.server.stop)

    async def start_server(self) -> None:
        await asyncio.to_thread(self.server.start)


@pytest.fixture(scope="module")
def own_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """One that may be killed: the shared server of the other tests may not."""
    server = Nats(tmp_path_factory.mktemp("wake"), ports.choose_free())
    with started(server):
        yield server


@pytest.fixture(scope="module")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    folder = tmp_path_factory.mktemp("wake")
    server = Postgres(folder, ports.choose_free(), options=UNSAFE_BUT_FAST)
    with started(server):
        yield server


@pytest_asyncio.fixture
async def nats_channel(own_nats: Nats) -> AsyncIterator[Channel]:
    await _forget_streams(own_nats)

    async def new() -> Wake:
        return NatsWake(_at(own_nats), QUEUES)

    channel = Channel(own_nats, own_nats.url, new)
    try:
        yield channel
    finally:
        await _finish(channel)


@pytest_asyncio.fixture
async def postgres_channel(own_postgres: Postgres) -> AsyncIterator[Channel]:
    async with AsyncExitStack() as stack:

        async def new() -> Wake:
            settings = DatabaseSettings(url=SecretStr(own_postgres.url("postgres")))
            return PostgresWake(await stack.enter_async_context(Database(settings)))

        channel = Channel(own_postgres, own_postgres.url(), new)
        try:
            yield channel
        finally:
            await _finish(channel)


@pytest.fixture(params=["nats", "postgres"])
def channel(request: pytest.FixtureRequest) -> Channel:
    found: Channel = request.getfixturevalue(f"{request.param}_channel")
    return found


async def _finish(channel: Channel) -> None:
    for wake in channel.made:
        await wake.stop()
    if not channel.server.running:
        await channel.start_server()


async def _forget_streams(server: Nats) -> None:
    async with await nats.connect(server.url) as client:
        for stream in await client.jetstream().streams_info():
            await client.jetstream().delete_stream(stream.config.name or "")


def _at(server: Nats) -> WakeSettings:
    return WakeSettings(nats_url=SecretStr(server.url))


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not await condition():
        assert time.monotonic() < deadline, f"waited {SOON:g} s in vain: {what}"
        await asyncio.sleep(0.02)


async def without_trouble(wake: Wake) -> None:
    async def well() -> bool:
        return wake.trouble is None

    await until(well, "no more trouble")


async def in_trouble(wake: Wake) -> None:
    async def ill() -> bool:
        return wake.trouble is not None

    await until(ill, "trouble")


async def emptied(wake: Wake) -> None:
    """Take every wake-up that is still under way."""
    while woken := await wake.wait(QUEUES, 0.05):
        await wake.claimed(dict.fromkeys(woken, 1))


# Both channels


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
    assert wake.trouble is None


async def test_a_server_that_is_away_costs_latency_only(channel: Channel) -> None:
    wake = await channel.open()
    waiting = asyncio.create_task(wake.wait(QUEUES, 0.5))
    await channel.stop_server()
    assert await waiting == set()
    await in_trouble(wake)
    secret = urlsplit(channel.url).password
    assert wake.trouble is not None
    assert secret
    assert secret not in wake.trouble
    assert str(channel.server.port) in wake.trouble
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
    assert wake.trouble is not None
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


# NATS alone: the depth


@dataclass
class Scene:
    """Jobs in Postgres, tokens in NATS, and the duty that keeps the two equal."""

    channel: Channel
    server: Nats
    wake: Wake
    connection: Connection
    depth: Depth

    async def insert(self, count: int, queue: str = "exec") -> list[int]:
        new = [NewJob("task", queue=queue)] * count
        inserted = await jobs.insert(self.connection, KINDS, new)
        await self.wake.nudge(inserted.woken)
        return list(inserted.job_ids)

    async def claim(self, count: int, queue: str = "exec") -> None:
        claimed = await take(self.connection, count, queue)
        await self.wake.claimed({queue: len(claimed)})

    async def pending(self, queue: str = "exec") -> int | None:
        """What KEDA reads; None while there is no such consumer."""
        info = await self.info(queue)
        return None if info is None else (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def info(self, queue: str = "exec") -> ConsumerInfo | None:
        async with await nats.connect(self.server.url) as client:
            try:
                found: ConsumerInfo = await client.jetstream().consumer_info(
                    "kalla-jobs", f"workers-{queue}"
                )
                return found
            except NotFoundError:
                return None

    async def settles_on(self, count: int, queue: str = "exec") -> None:
        """By itself, without the duty."""

        async def reached() -> bool:
            return await self.pending(queue) == count

        await until(reached, f"{count} pending in {queue}, not {await self.pending(queue)}")

    async def set_right(self) -> None:
        """The duty's work makes both figures equal, for every queue."""
        await self.depth.tick()
        waiting = await queues.waiting(self.connection)
        for queue in QUEUES:
            info = await self.info(queue)
            assert info is not None
            assert (info.num_pending, info.num_ack_pending) == (waiting[queue], 0), queue

    async def restart(self, wipe: bool) -> None:
        self.server.kill()
        if wipe:
            shutil.rmtree(self.server.store)
        self.server.process = None
        await in_trouble(self.wake)
        await self.channel.start_server()
        await without_trouble(self.wake)


@pytest_asyncio.fixture
async def scene(nats_channel: Channel, own_nats: Nats, database_url: str) -> AsyncIterator[Scene]:
    settings = DatabaseSettings(url=SecretStr(database_url))
    async with Database(settings) as database, await connect(database_url) as connection:
        wake = await nats_channel.open()
        yield Scene(nats_channel, own_nats, wake, connection, Depth(database, wake, 3))


@pytest_asyncio.fixture
async def stream(own_nats: Nats) -> AsyncIterator[JetStreamContext]:
    """Somebody else's hand in our stream."""
    async with await nats.connect(own_nats.url) as client:
        yield client.jetstream()


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
    assert "delete it" in (wake.trouble or "")
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


async def test_tokens_nobody_can_use_stay_and_do_not_keep_workers_running(scene: Scene) -> None:
    async def wakes(seconds: float) -> int:
        count, deadline = 0, time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            count += bool(await scene.wake.wait(QUEUES, left))
        return count

    await queues.pause(scene.connection, "exec", "an operator")
    await scene.insert(50)
    assert await wakes(0.5) < 25
    await scene.set_right()
    assert await wakes(0.5) < 5
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
    assert scene.wake.trouble is None


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
