"""The event simulation: jobs arrive, wait, run and end; workers start, drain and go."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from kalla.scaling.simulation.policies import POLICIES, Machine, Scaler, View
from kalla.scaling.simulation.trace import Trace

_PATIENCE = 3600.0  # seconds after the last arrival; what has not ended then is unfinished


@dataclass(frozen=True)
class Result:
    """The results of the measured part of a trace."""

    trace: str
    policy: str
    jobs: int
    unfinished: int
    wait_p50: float  # seconds from arrival to claim
    wait_p95: float
    wait_p99: float
    worker_hours: float  # from the order to start a worker until it is gone
    highest: int  # most workers at once
    flips: int  # changes of direction
    busy_hit: int  # workers that were told to go while they had a job
    handed_back: int  # jobs that a drain did not let end
    history: tuple[tuple[float, int, int], ...] = field(repr=False)  # (at, demand, workers)


def simulate(trace: Trace, policy: str, machine: Machine | None = None) -> Result:
    """Run the policy of this name over the trace."""
    machine = machine or Machine()
    return Simulation(trace, policy, POLICIES[policy](machine, trace), machine).run()


@dataclass(frozen=True)
class _Job:
    number: int
    arrived: float
    seconds: float


@dataclass
class _Worker:
    number: int
    began: float
    ready: bool = False
    draining: bool = False
    jobs: dict[int, _Job] = field(default_factory=dict)


What = Literal["ready", "ended", "deadline"]


class Simulation:
    """One policy on one trace."""

    def __init__(self, trace: Trace, policy: str, scaler: Scaler, machine: Machine) -> None:
        self._trace = trace
        self._policy = policy
        self._scaler = scaler
        self._machine = machine
        self._waiting: deque[_Job] = deque()
        self._events: list[tuple[float, int, What, int, int]] = []  # at, order, what, worker, job
        self._order = 0
        self._started = 0
        self._workers: dict[int, _Worker] = {}
        self._free: deque[int] = deque()  # the number of a worker, once for every free place
        self._claimed_seconds = 0.0
        self._claims = 0
        self._running = 0
        self._waits: dict[int, float] = {}  # by job; a job that is handed back waits once more
        self._hours = 0.0
        self._direction = 0
        self._flips = 0
        self._busy_hit = 0
        self._handed_back = 0
        self._highest = 0
        self._history: list[tuple[float, int, int]] = []

    def run(self) -> Result:
        arrivals = (
            _Job(number, at, seconds)
            for number, (at, seconds) in enumerate(
                zip(self._trace.arrivals, self._trace.seconds, strict=True)
            )
        )
        following = next(arrivals, None)
        end = self._trace.end + _PATIENCE
        sync_at = now = 0.0
        while following or self._waiting or self._running:
            event_at = self._events[0][0] if self._events else end
            arrival_at = following.arrived if following else end
            now = min(event_at, arrival_at, sync_at)
            if now >= end:
                break
            if following and arrival_at == now:
                self._waiting.append(following)
                following = next(arrivals, None)
            elif event_at == now:
                self._happen(now)
            else:
                self._sync(now)
                sync_at = now + self._scaler.sync_seconds
            self._claim(now)
        return self._result(now)

    def _happen(self, now: float) -> None:
        _, _, what, number, job = heapq.heappop(self._events)
        worker = self._workers.get(number)
        if worker is None:
            return
        if what == "ready":
            worker.ready = True
            self._free.extend([number] * self._machine.concurrency)
        elif what == "ended":
            del worker.jobs[job]
            self._running -= 1
            if not worker.draining:
                self._free.append(number)
            elif not worker.jobs:
                self._remove(worker, now)
        else:
            # The drain has ended: jobs that still run go back to the queue, and start again.
            self._handed_back += len(worker.jobs) if self._is_measured(now) else 0
            self._running -= len(worker.jobs)
            self._waiting.extendleft(worker.jobs.values())
            self._remove(worker, now)

    def _claim(self, now: float) -> None:
        while self._waiting and self._free:
            worker = self._workers.get(self._free.popleft())
            if worker is None or worker.draining:
                continue
            job = self._waiting.popleft()
            worker.jobs[job.number] = job
            self._running += 1
            self._claims += 1
            self._claimed_seconds += job.seconds
            # An idle worker is woken; one in eight claims waits for the next poll.
            delay = self._machine.poll_seconds / 2 if self._claims % 8 == 0 else 0.0
            if self._is_measured(job.arrived):
                self._waits[job.number] = now + delay - job.arrived
            self._push(now + delay + job.seconds, "ended", worker.number, job.number)

    def _sync(self, now: float) -> None:
        living = [worker for worker in self._workers.values() if not worker.draining]
        view = View(
            at=now,
            waiting=len(self._waiting),
            running=self._running,
            oldest_wait_seconds=now - self._waiting[0].arrived if self._waiting else 0.0,
            current=len(living),
            busy=sum(1 for worker in living if worker.jobs),
            mean_seconds=self._claimed_seconds / self._claims if self._claims else 1.0,
        )
        target = self._scaler.workers(view)
        self._history.append((now, view.waiting + view.running, len(living)))
        change = target - len(living)
        if change and self._is_measured(now):
            direction = 1 if change > 0 else -1
            self._flips += self._direction == -direction
            self._direction = direction
        for _ in range(change):
            self._start(now)
        self._drain(living, -change, now)
        self._highest = max(self._highest, len(self._workers))

    def _start(self, now: float) -> None:
        self._started += 1
        self._workers[self._started] = _Worker(self._started, now)
        self._push(now + self._machine.startup_seconds, "ready", self._started)

    def _drain(self, living: list[_Worker], number: int, now: float) -> None:
        """Those that are not ready go first, as in Kubernetes; then idle ones, or the newest."""
        if number <= 0:
            return
        if self._scaler.takes_idle_first:
            victims = sorted(living, key=lambda each: (each.ready, len(each.jobs), -each.number))
        else:
            victims = sorted(living, key=lambda each: (each.ready, -each.number))
        for worker in victims[:number]:
            worker.draining = True
            if worker.jobs:
                self._busy_hit += self._is_measured(now)
                self._push(now + self._machine.drain_seconds, "deadline", worker.number)
            else:
                self._remove(worker, now)

    def _remove(self, worker: _Worker, now: float) -> None:
        del self._workers[worker.number]
        began = max(worker.began, self._trace.measure_from)
        self._hours += max(now - began, 0.0) / 3600

    def _push(self, at: float, what: What, worker: int, job: int = -1) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, what, worker, job))

    def _is_measured(self, at: float) -> bool:
        return at >= self._trace.measure_from

    def _result(self, now: float) -> Result:
        unfinished = len(self._waiting) + self._running
        for worker in list(self._workers.values()):
            self._remove(worker, now)
        waits = sorted(self._waits.values())
        return Result(
            trace=self._trace.name,
            policy=self._policy,
            jobs=sum(1 for at in self._trace.arrivals if self._is_measured(at)),
            unfinished=unfinished,
            wait_p50=_quantile(waits, 0.50),
            wait_p95=_quantile(waits, 0.95),
            wait_p99=_quantile(waits, 0.99),
            worker_hours=self._hours,
            highest=self._highest,
            flips=self._flips,
            busy_hit=self._busy_hit,
            handed_back=self._handed_back,
            history=tuple(self._history),
        )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
