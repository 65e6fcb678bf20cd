"""How many workers the cores and the memory of a machine, or of its container, allow."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kalla.local.machine_limits import available_memory, bounded, cores
from kalla.scaling.policy import Policy

GB = 10**9
POLICY = Policy(min_workers=2, max_workers=50)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, of which this process may use four, and 10 GB of memory."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GB))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A container of 1.5 cores; the group around it has 4 GB, of which 2 GB are in use."""
    group = tmp_path / "sys/fs/cgroup/pods/one"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("1:name=systemd:/\n0::/pods/one\n")
    (group / "memory.max").write_text("max\n")
    (group / "cpu.max").write_text("150000 100000\n")
    (group.parent / "memory.max").write_text(f"{4 * GB}\n")
    (group.parent / "memory.current").write_text(f"{3 * GB}\n")
    (group.parent / "memory.stat").write_text(f"anon {2 * GB}\ninactive_file {GB}\n")
    return tmp_path


def test_workers_are_bounded_by_four_per_core_of_this_process(tmp_path: Path) -> None:
    policy = bounded(POLICY, 0, GB // 4, [], tmp_path)
    assert policy.max_workers == 16
    assert policy.max_reason == "4 workers per core, 4 cores"


def test_workers_are_bounded_by_free_memory_beside_those_that_run(tmp_path: Path) -> None:
    policy = bounded(POLICY, 0, 4 * GB, [], tmp_path)
    assert (policy.max_workers, policy.min_workers) == (2, 2)
    assert policy.max_reason == "10.0 GB of memory is free"
    # Two that are still starting will take 8 GB of the 10.
    assert bounded(POLICY, 2, 4 * GB, [], tmp_path).max_workers == 2
    # One that has what it needs leaves room for two more.
    grown = bounded(POLICY, 1, 4 * GB, [os.getpid()], tmp_path)
    assert grown.max_workers == 2
    assert bounded(POLICY, 1, 1, [os.getpid()], tmp_path).max_workers == 16


def test_a_shortage_of_memory_ends_no_worker(tmp_path: Path) -> None:
    assert bounded(POLICY, 7, 100 * GB, [], tmp_path).max_workers == 7
    assert bounded(POLICY, 0, 100 * GB, [], tmp_path).max_workers == 1


def test_a_lower_setting_is_left_alone(tmp_path: Path) -> None:
    policy = Policy(max_workers=3)
    assert bounded(policy, 0, GB, [], tmp_path) == policy


def test_the_limits_of_a_container_and_of_the_groups_around_it_count(container: Path) -> None:
    assert cores(container) == 2
    assert available_memory(container) == 2 * GB
    assert bounded(POLICY, 0, GB, [], container).max_workers == 2
