"""Short chaos runs with both wake channels, in processes of their own; `make chaos` is longer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kalla.local.servers.nats import Nats
from kalla.local.servers.postgres import Postgres
from tests.chaos.faults import CLOCK, FREEZE, WEIGHTS
from tests.chaos.fleet import REPOSITORY
from tests.servers import required

_SEED = 3
_STEP_FIRST = 6  # a seed by which the freeze comes after the step, which its grace would hide
_SECONDS = 240
_QUICK = ("--quick", "--workers=4", "--every=0.9")


@pytest.mark.chaos
@pytest.mark.timeout(_SECONDS + 60)
def test_the_promise_holds_while_workers_servers_and_lines_fail(tmp_path: Path) -> None:
    options = ("--jobs=1200", "--faults=22", "--kills=2", "--channel=nats")
    report = chaos(tmp_path, *_QUICK, *options)
    assert set(report["faults"]["by_kind"]) == set(WEIGHTS)
    assert {"0", "1", "2"} <= set(report["runs"]["by_chunks"])
    assert {"lost", "failed"} <= set(report["jobs"]["attempts_by_ending"])


@pytest.mark.chaos
@pytest.mark.timeout(_SECONDS + 60)
def test_the_promise_holds_without_nats(tmp_path: Path) -> None:
    report = chaos(tmp_path, *_QUICK, "--jobs=400", "--faults=10", "--channel=postgres")
    assert not [kind for kind in report["faults"]["by_kind"] if kind.startswith("nats")]


@pytest.mark.chaos
@pytest.mark.timeout(_SECONDS + 60)
def test_neither_a_freeze_of_all_nor_a_step_of_the_clock_costs_an_attempt(tmp_path: Path) -> None:
    options = ("--jobs=100", "--faults=2", "--workers=3", "--every=4", "--rate=6")
    only = f"--only={FREEZE},{CLOCK}"
    report = chaos(tmp_path, "--once", only, *options, f"--seed={_STEP_FIRST}")
    assert list(report["faults"]["by_kind"].items()) == [(CLOCK, 1), (FREEZE, 1)]
    assert all(report["faults"]["fewest_jobs_in_hand"].values())
    assert set(report["jobs"]["by_status"]) == {"completed"}


def chaos(folder: Path, *options: str) -> dict[str, Any]:
    """The report of a run in which nothing was violated; otherwise the test fails with the seed."""
    with required():
        Postgres(folder, 0).command()
        Nats(folder, 0).command()
    report = folder / "report.json"
    command = [
        *(sys.executable, "-m", "tests.chaos"),
        *(f"--seed={_SEED}", f"--report={report}", f"--folder={folder / 'run'}"),
        *options,
    ]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=_SECONDS)
        except BaseException:
            process.send_signal(signal.SIGINT)  # it takes its servers and workers with it
            try:
                process.wait(30)
            finally:
                process.kill()
            raise
    assert process.returncode == 0, f"{' '.join(command[1:])}\n{said}"
    told: dict[str, Any] = json.loads(report.read_text("utf-8"))
    assert told["violations"]["total"] == 0
    return told
