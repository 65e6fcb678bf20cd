"""A short chaos run over sinks, in a process of its own; `make chaos-sinks` is longer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kalla.local import ports
from kalla.local.servers.clickhouse import ClickHouse
from kalla.local.servers.kafka import Kafka
from tests.chaos_sinks import oracle
from tests.chaos_sinks.oracle import ProducerLog
from tests.servers import required

REPOSITORY = Path(__file__).resolve().parents[2]
_SECONDS = 240
_KINDS = "worker killed,worker stopped,clickhouse killed,answer dropped,scaled"


@pytest.mark.chaos
@pytest.mark.timeout(_SECONDS + 30)
def test_every_message_is_there_once_after_kills_stops_and_lost_answers(tmp_path: Path) -> None:
    with required():
        Kafka(tmp_path, ports.choose_free()).check()
        ClickHouse(tmp_path, ports.choose_free()).check()
    report = tmp_path / "report.json"
    command = [
        *(sys.executable, "-m", "tests.chaos_sinks", "--messages=20000", "--faults=6"),
        *("--every=1.5", "--rate=1500", "--batch-rows=500", f"--only={_KINDS}"),
        f"--report={report}",
    ]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = json.loads(report.read_text())
    assert found["messages"] == 20_000
    assert set(found["faults"]) == set(_KINDS.split(","))


def test_the_oracle_finds_what_is_lost_doubled_or_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ProducerLog([(0, 0, 10, True), (0, 1, 11, True), (1, 0, 12, False), (1, 1, 13, True)])
    tables = {
        "good": ([(0, 0, 10), (0, 1, 11), (1, 1, 13)], [(1, 0, 12)]),
        "lost": ([(0, 0, 10), (1, 1, 13)], [(1, 0, 12)]),
        "doubled": ([(0, 0, 10), (0, 1, 11), (0, 1, 11), (1, 1, 13)], [(1, 0, 12)]),
        "changed": ([(0, 0, 10), (0, 1, 99), (1, 1, 13)], [(1, 0, 12)]),
        "letter lost": ([(0, 0, 10), (0, 1, 11), (1, 1, 13)], []),
        "letter as row": ([(0, 0, 10), (0, 1, 11), (1, 0, 12), (1, 1, 13)], []),
    }
    for name, (rows, dead) in tables.items():
        answers = iter([rows, dead])
        monkeypatch.setattr(
            oracle,
            "_held",
            lambda *_, answers=answers: np.array(next(answers), np.int64).reshape(-1, 3),
        )
        found = oracle.judge("", "", "", "t", log)
        assert bool(found.violations) == (name != "good"), (name, found.violations)
