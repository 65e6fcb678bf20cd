"""The parts of the chaos run do what they say: the ledger, the proxy, the recovery times."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kalla.local import ports
from tests.chaos import ledger
from tests.chaos.facts import AttemptFact, Facts
from tests.chaos.faults import Fault
from tests.chaos.fleet import REPOSITORY
from tests.chaos.ledger import Execution, Ledger, Life
from tests.chaos.proxy import Proxy
from tests.chaos.recovery import Spread, recoveries, slowest_of_each_kill

_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.chaos.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), "worker-1")
ledger.write("born", pid=1, name="anna")
for job in range(100):
    ledger.write("start", job=job, fence=1, type="plain")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_no_line_of_its_ledger(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], cwd=REPOSITORY, check=False)
    executions, lives = ledger.read(tmp_path)
    assert [each.job_id for each in executions] == list(range(100))
    assert {each.ending for each in executions} == {None}
    assert [life.worker for life in lives] == ["anna"]


def test_an_execution_is_read_with_its_start_and_its_end(tmp_path: Path) -> None:
    book = Ledger(tmp_path, "worker-1")
    book.write("born", pid=1, name="anna")
    book.write("start", job=5, fence=2, type="exec")
    book.write("start", job=6, fence=1, type="plain")
    book.write("end", job=5, fence=2, ending="completed", inputs=[None, 0])
    (first, second), _ = ledger.read(tmp_path)
    assert (first.job_id, first.ending, first.inputs) == (5, "completed", (None, 0))
    assert (second.job_id, second.ending, second.ended) == (6, None, None)


def test_two_starts_under_one_fence_are_both_read(tmp_path: Path) -> None:
    book = Ledger(tmp_path, "worker-1")
    book.write("born", pid=1, name="anna")
    for _ in range(2):
        book.write("start", job=5, fence=2, type="plain")
    assert len(ledger.read(tmp_path)[0]) == 2


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client connected through a proxy to a server that says everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(echo, ports.HOST, 0)
    proxy = Proxy(server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection(ports.HOST, await proxy.start())
    try:
        yield proxy, reader, writer
    finally:
        writer.close()
        await proxy.stop()
        server.close()


async def test_a_proxy_carries_both_ways() -> None:
    async with proxied() as (_, reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"


async def test_a_cut_resets_the_connection() -> None:
    async with proxied() as (proxy, reader, writer):
        writer.write(b"hello")
        await reader.readexactly(5)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_a_stalled_line_carries_nothing_until_it_flows_again() -> None:
    async with proxied() as (proxy, reader, writer):
        proxy.stall()
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                asyncio.shield(answer := asyncio.ensure_future(reader.readexactly(5))), 0.1
            )
        proxy.flow()
        assert await answer == b"hello"


async def test_a_muted_line_loses_answers_only() -> None:
    async with proxied() as (proxy, reader, writer):
        writer.write(b"before")
        await reader.readexactly(6)
        proxy.mute()
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        proxy.unmute()
        with pytest.raises(ConnectionResetError):
            await reader.read()


def test_recovery_is_counted_from_the_kill_to_the_next_start_elsewhere() -> None:
    kill = Fault("worker killed", 100.0, 100.1, 0, pid=1)
    facts = Facts(
        lives=[Life("anna", 1, 0), Life("boris", 2, 0)],
        attempts=[
            AttemptFact(5, 1, "lost", "anna"),
            AttemptFact(6, 3, "lost", "anna"),
            AttemptFact(7, 1, "lost", "anna"),  # cancelled later: it never ran again
            AttemptFact(8, 1, "failed", "anna"),
            AttemptFact(9, 1, "lost", "boris"),
        ],
        executions=[
            Execution(5, 1, "plain", "anna", 99.0),
            Execution(5, 2, "plain", "boris", 114.0, 115.0, "completed"),
            Execution(6, 2, "plain", "boris", 90.0, 91.0, "failed"),
            Execution(6, 4, "plain", "boris", 116.5, 117.0, "completed"),
            Execution(7, 1, "plain", "anna", 99.0),
            Execution(8, 2, "plain", "boris", 130.0),
            Execution(9, 2, "plain", "anna", 131.0),
        ],
    )
    found = recoveries(facts, [kill, Fault("postgres killed", 115.0, 116.0)])
    assert [(each.job_id, each.seconds, each.was_running) for each in found] == [
        (5, 14.0, True),
        (6, 16.5, False),
    ]
    assert [each.postgres_away for each in found] == [False, True]
    assert slowest_of_each_kill(found) == [16.5]


def test_a_job_whose_next_worker_is_killed_as_well_is_counted_for_each_kill() -> None:
    kills = [
        Fault("worker killed", 100.0, 100.1, 0, pid=1),
        Fault("worker killed", 115.1, 115.2, 1, pid=2),
    ]
    facts = Facts(
        lives=[Life("anna", 1, 0), Life("boris", 2, 0), Life("carla", 3, 0)],
        attempts=[
            AttemptFact(5, 1, "lost", "anna", claimed=99.0),
            AttemptFact(5, 2, "lost", "boris", claimed=115.0),  # it never began
        ],
        executions=[
            Execution(5, 1, "plain", "anna", 99.0),
            Execution(5, 3, "plain", "carla", 130.1, 131.0, "completed"),
        ],
    )
    assert [each.seconds for each in recoveries(facts, kills)] == [15.0, 15.0]


def test_the_99th_percentile_of_200_is_the_198th() -> None:
    spread = Spread.of(range(1, 201))
    assert spread == Spread(200, p50=100, p99=198, most=200)
    assert Spread.of([]) is None
