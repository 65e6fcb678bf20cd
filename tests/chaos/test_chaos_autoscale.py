"""A short chaos run of `kalla autoscale`; `make chaos-autoscale` is longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalla.local.servers import postgres
from tests.chaos.autoscale import carry_out
from tests.servers import required


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_no_job_is_lost_and_no_limit_exceeded_while_workers_and_the_scaler_die(
    tmp_path: Path,
) -> None:
    with required():
        postgres.binaries()
    report = await carry_out(tmp_path, faults=4, seed=5)  # the first four kinds
    assert report["violations"] == []
    assert report["jobs"] > 10
    assert report["most_workers"] >= 1
    assert report["disturbed_jobs"] > 0
    assert report["drained"] > 0
