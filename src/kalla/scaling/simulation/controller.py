"""Simulates how Kubernetes follows a policy: sync, tolerance, stabilisation and steps.

As the HorizontalPodAutoscaler and KEDA do it; a test compares the ramp with a measured one.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Behaviour:
    """The knobs of an HPA with KEDA in front of it. The defaults are those of Kubernetes."""

    sync_seconds: float = 15.0
    tolerance: float = 0.1
    down_stabilisation_seconds: float = 300.0
    up_pods: int = 4  # may be added in a period ...
    up_percent: float = 100.0  # ... or this share of those there are, whichever is more
    up_period_seconds: float = 15.0
    down_pods: int | None = None  # may be removed in a period; None: all
    down_period_seconds: float = 60.0
    cooldown_seconds: float = 300.0  # before KEDA removes the last one
    min_workers: int = 0
    max_workers: int = 1000


class HorizontalAutoscaler:
    """Takes a recommendation at every sync, and returns the number of workers."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()  # (when, by how many)
        self._active_at = -math.inf

    def sync(self, at: float, current: int, wanted: float) -> int:
        """`wanted` is the metric's total over its target for one worker: 3.2 becomes 4."""
        behaviour = self._behaviour
        if wanted > 0:
            self._active_at = at
        if current == 0:
            # KEDA activates one; the HPA takes over from there.
            number = 1 if wanted > 0 else 0
        else:
            ratio = wanted / current
            within = abs(ratio - 1) <= behaviour.tolerance
            number = current if within else math.ceil(round(wanted, 9))
            number = self._stabilised(at, current, max(number, 1))
            number = self._stepped(at, current, number)
            if wanted <= 0 and at - self._active_at >= behaviour.cooldown_seconds:
                number = 0
        number = max(behaviour.min_workers, min(number, behaviour.max_workers))
        if number != current:
            self._changes.append((at, number - current))
        return number

    def _stabilised(self, at: float, current: int, number: int) -> int:
        """Down only as far as the highest recommendation of the window."""
        self._recommended.append((at, number))
        oldest = at - self._behaviour.down_stabilisation_seconds
        while self._recommended[0][0] < oldest:
            self._recommended.popleft()
        highest = max(each for _, each in self._recommended)
        return min(highest, current) if number < current else number

    def _stepped(self, at: float, current: int, number: int) -> int:
        behaviour = self._behaviour
        periods = max(behaviour.up_period_seconds, behaviour.down_period_seconds)
        while self._changes and self._changes[0][0] <= at - periods:
            self._changes.popleft()
        if number > current:
            added = self._changed(at - behaviour.up_period_seconds, up=True)
            before = current - added
            most = max(
                before + behaviour.up_pods,
                math.ceil(before * (1 + behaviour.up_percent / 100)),
            )
            return max(current, min(number, most))
        if behaviour.down_pods is not None:
            removed = -self._changed(at - behaviour.down_period_seconds, up=False)
            return min(current, max(number, current + removed - behaviour.down_pods))
        return number

    def _changed(self, since: float, up: bool) -> int:
        return sum(by for at, by in self._changes if at > since and (by > 0) == up)
