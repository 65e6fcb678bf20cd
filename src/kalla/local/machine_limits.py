"""How many workers this machine has room for, or the container that Kalla runs in."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from kalla.scaling.policy import Policy

_WORKERS_PER_CORE = 4


def bounded(
    policy: Policy, workers: int, worker_memory: int, pids: Sequence[int], root: Path = Path("/")
) -> Policy:
    """The policy with as many workers at most as there are cores and memory for.

    `workers` are running or starting; a moment's shortage of memory ends none of them.
    """
    free = available_memory(root)
    # A worker that has just started will take more than it does now.
    unused = sum(max(worker_memory - _resident(pid), 0) for pid in pids)
    unused += (workers - len(pids)) * worker_memory
    by_memory = max(workers + (free - unused) // worker_memory, workers, 1)
    number_of_cores = cores(root)
    by_cores = _WORKERS_PER_CORE * number_of_cores
    most = min(by_memory, by_cores)
    if most >= policy.max_workers:
        return policy
    reason = (
        f"{free / 1e9:.1f} GB of memory is free"
        if by_memory < by_cores
        else f"{_WORKERS_PER_CORE} workers per core, {number_of_cores} cores"
    )
    return replace(
        policy, max_workers=most, min_workers=min(policy.min_workers, most), max_reason=reason
    )


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be used without swapping."""
    free = int(psutil.virtual_memory().available)
    for group in _control_groups(root):
        with suppress(OSError, ValueError):  # no such limit, or `max`
            limit = int((group / "memory.max").read_text("ascii"))
            statistics = (group / "memory.stat").read_text("ascii").split()
            # The kernel gives back cached files that nobody uses.
            cached = int(statistics[statistics.index("inactive_file") + 1])
            used = int((group / "memory.current").read_text("ascii")) - cached
            free = min(free, limit - used)
    return max(free, 0)


def cores(root: Path = Path("/")) -> int:
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    number = number or 1
    for group in _control_groups(root):
        with suppress(OSError, ValueError):
            quota, period = map(int, (group / "cpu.max").read_text("ascii").split())
            number = min(number, math.ceil(quota / period))
    return number


def _control_groups(root: Path) -> Iterator[Path]:
    """The control group (v2) of this process, and those around it: each may limit it."""
    top = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text("ascii").splitlines():
            if line.startswith("0::"):
                group = top / line.removeprefix("0::").lstrip("/")
                yield from (each for each in (group, *group.parents) if each.is_relative_to(top))


def _resident(pid: int) -> int:
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0
