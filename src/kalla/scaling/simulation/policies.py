"""The policies that a simulation compares: the workers each requests from its inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from kalla.scaling.policy import Inputs, Need, Policy, desired
from kalla.scaling.simulation.controller import Behaviour, HorizontalAutoscaler
from kalla.scaling.simulation.trace import DAY, Trace


@dataclass(frozen=True)
class Machine:
    """What a worker is, in a simulation."""

    concurrency: int = 4
    startup_seconds: float = 10.0
    poll_seconds: float = 1.0  # a waiting job is claimed within this time
    drain_seconds: float = 120.0
    max_workers: int = 1000


@dataclass(frozen=True)
class View:
    """The inputs of a policy at one moment."""

    at: float
    waiting: int
    running: int
    oldest_wait_seconds: float
    current: int  # workers that run or start, without those that drain
    busy: int
    mean_seconds: float  # of the jobs that ended so far


class Scaler(ABC):
    """Returns the number of workers at every sync."""

    sync_seconds = 15.0
    takes_idle_first = True  # whether victims are chosen by what they do

    @abstractmethod
    def workers(self, view: View) -> int: ...


class _Horizontal(Scaler):
    """A metric behind an HPA."""

    def __init__(self, machine: Machine, behaviour: Behaviour) -> None:
        self.machine = machine
        behaviour = replace(behaviour, max_workers=machine.max_workers)
        self.sync_seconds = behaviour.sync_seconds
        self._autoscaler = HorizontalAutoscaler(behaviour)

    def workers(self, view: View) -> int:
        return self._autoscaler.sync(view.at, view.current, self.wanted(view))

    @abstractmethod
    def wanted(self, view: View) -> float: ...


class StreamDepth(_Horizontal):
    """The older design: waiting jobs alone, and whichever worker is newest is ended."""

    takes_idle_first = False

    def wanted(self, view: View) -> float:
        return view.waiting / self.machine.concurrency


class Demand(_Horizontal):
    """Waiting and running work, with Kubernetes' own behaviour."""

    takes_idle_first = False

    def wanted(self, view: View) -> float:
        return (view.waiting + view.running) / (self.machine.concurrency * 0.8)


class Keda(_Horizontal):
    """The triggers of the ScaledObjects in deploy/k8s: the demand, and never below the busy."""

    def wanted(self, view: View) -> float:
        return max((view.waiting + view.running) / (self.machine.concurrency * 0.8), view.busy)


class DrainTime(_Horizontal):
    """As many as finish the waiting work within a minute, in addition to the running work."""

    def wanted(self, view: View) -> float:
        places = view.running + view.waiting * view.mean_seconds / 60
        return places / self.machine.concurrency


class TargetTracking(_Horizontal):
    """Keeps the workers' places 70 % full, as clouds do for groups of VMs."""

    def wanted(self, view: View) -> float:
        if not view.current:
            return 1.0 if view.waiting else 0.0
        saturation = min(view.running / (view.current * self.machine.concurrency), 1.0)
        if saturation >= 1 and view.waiting:
            return view.current * 1.5  # all that can be seen is that there are too few
        return view.current * saturation / 0.7


class Predictive(_Horizontal):
    """Demand now, or what was needed at this time yesterday, whichever is more."""

    def __init__(self, machine: Machine, behaviour: Behaviour) -> None:
        super().__init__(machine, behaviour)
        self._past: deque[tuple[float, float]] = deque()

    def wanted(self, view: View) -> float:
        now = (view.waiting + view.running) / (self.machine.concurrency * 0.8)
        self._past.append((view.at, now))
        while self._past[0][0] < view.at - DAY - self.sync_seconds:
            self._past.popleft()
        first, then = self._past[0]
        return max(now, then) if view.at - first >= DAY - self.sync_seconds else now


class Kalla(Scaler):
    """`kalla.scaling.policy.desired`, as `kalla autoscale` and the endpoint use it."""

    sync_seconds = 5.0

    def __init__(self, machine: Machine, policy: Policy) -> None:
        self._machine = machine
        self._policy = replace(policy, max_workers=machine.max_workers)
        self._needs: deque[Need] = deque()

    def workers(self, view: View) -> int:
        inputs = Inputs(
            role="simulated",
            at=view.at,
            waiting=view.waiting,
            running=view.running,
            oldest_wait_seconds=view.oldest_wait_seconds,
            current=view.current,
            busy=view.busy,
            concurrency=self._machine.concurrency,
        )
        while self._needs and self._needs[0].at < view.at - self._policy.scale_down_after_seconds:
            self._needs.popleft()
        decision = desired(inputs, self._policy, tuple(self._needs))
        self._needs.append(Need(view.at, min(decision.needed, decision.desired)))
        return decision.desired


class Static(Scaler):
    """So many, always."""

    def __init__(self, number: int) -> None:
        self._number = number

    def workers(self, view: View) -> int:  # noqa: ARG002
        return self._number


class Clairvoyant(Scaler):
    """Knows every job beforehand: a bound on what any policy can save, not a policy."""

    sync_seconds = 5.0

    def __init__(self, machine: Machine, trace: Trace) -> None:
        self._machine = machine
        self._times, self._running = _concurrency(trace)

    def workers(self, view: View) -> int:
        ahead = view.at + self._machine.startup_seconds + 2 * self.sync_seconds
        first = max(bisect_right(self._times, view.at) - 1, 0)
        last = bisect_left(self._times, ahead)
        most = max(self._running[first:last], default=0)
        needed = -(-max(most, view.waiting + view.running) // self._machine.concurrency)
        return min(max(needed, view.busy), self._machine.max_workers)


def _concurrency(trace: Trace) -> tuple[list[float], list[int]]:
    """How many jobs run at every moment at which that changes, if none had to wait."""
    changes = [(at, 1) for at in trace.arrivals]
    changes += [(a + s, -1) for a, s in zip(trace.arrivals, trace.seconds, strict=True)]
    changes.sort()
    times, running, now = [], [], 0
    for at, by in changes:
        now += by
        times.append(at)
        running.append(now)
    return times, running


def _peak(machine: Machine, trace: Trace) -> int:
    _, running = _concurrency(trace)
    return -(-max(running) // machine.concurrency)


# Bounded as the manifests are: at most four a minute go, after two minutes.
_TUNED = Behaviour(down_stabilisation_seconds=120, down_pods=4, down_period_seconds=60)

POLICIES: dict[str, Callable[[Machine, Trace], Scaler]] = {
    "stream-depth": lambda machine, _: StreamDepth(machine, Behaviour()),
    "demand": lambda machine, _: Demand(machine, Behaviour()),
    "keda": lambda machine, _: Keda(machine, _TUNED),
    "drain-time": lambda machine, _: DrainTime(machine, _TUNED),
    "target-tracking": lambda machine, _: TargetTracking(machine, _TUNED),
    "predictive": lambda machine, _: Predictive(machine, _TUNED),
    "demand-tuned": lambda machine, _: Kalla(machine, Policy()),
    "static": lambda machine, trace: Static(_peak(machine, trace)),
    "clairvoyant": lambda machine, trace: Clairvoyant(machine, trace),
}
DEFAULT_POLICY = "demand-tuned"
