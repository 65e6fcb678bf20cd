"""How many workers a role should have: one pure function that every scaler shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kalla.plurals import counted

# The limits that kept a decision from following the demand.
Limit = Literal["minimum", "maximum", "stabilisation", "busy", "step", "paused", "brief"]


@dataclass(frozen=True)
class Inputs:
    """The state of one role at one moment."""

    role: str
    at: float  # seconds since 1970, by the database's clock
    waiting: int
    running: int
    oldest_wait_seconds: float
    current: int  # workers that take this role and are not draining
    busy: int  # those of them that have a job
    concurrency: int  # jobs one of them runs at once
    paused: bool = False  # nothing of the queue is claimed, so more workers would not help
    free_slots: int = 0  # waiting work that no running worker will end, as slots of sinks

    @property
    def demand(self) -> int:
        """Waiting and running work: without the running part a scaler ends busy workers.

        Jobs that wait in a paused queue do not count: no worker can claim them.
        """
        return self.running if self.paused else self.waiting + self.running

    @property
    def saturation(self) -> float:
        """Running work / places of the current workers."""
        places = self.current * self.concurrency
        return self.running / places if places else 0.0


@dataclass(frozen=True)
class Policy:
    """How a role is scaled. docs/scaling.md has the table by which the defaults were chosen."""

    min_workers: int = 0
    max_workers: int = 50
    max_reason: str = ""  # why the machine allows no more, where it lowers `max_workers`
    utilisation: float = 0.95  # share of a worker's places that demand should fill
    scale_down_after_seconds: float = 90.0  # demand must have been lower for this long
    scale_down_step: int = 4  # workers that one decision may remove at most
    patience_seconds: float = 20.0  # a job that waits longer asks for one more worker
    small_rise: float = 0.25  # so much more, or one worker, is added only once a job waits ...
    small_rise_wait_seconds: float = 1.0  # ... for so long: most peaks end before a worker starts
    lasting_seconds: float = 15.0  # a shorter peak keeps no worker for `scale_down_after_seconds`


@dataclass(frozen=True)
class Need:
    """The workers that were needed at an earlier moment, and from then on until the next one."""

    at: float
    workers: int


@dataclass(frozen=True)
class Decision:
    """How many workers there should be, and why."""

    inputs: Inputs
    policy: Policy
    needed: int  # by demand alone
    recent_need: int  # the highest lasting need of the stabilisation window, or that of now
    desired: int
    limit: Limit | None
    reason: str


def desired(inputs: Inputs, policy: Policy, history: Sequence[Need] = ()) -> Decision:
    """Decide. Up at once; down only after a while, in steps, and never below the busy workers."""
    recent = max(_needed(inputs, policy), lasting_need(history, inputs.at, policy))
    return decide(inputs, policy, recent)


def decide(inputs: Inputs, policy: Policy, recent_need: int) -> Decision:
    """The decision that follows from the highest recent need: the only history it needs."""
    needed = _needed(inputs, policy)
    wanted, limit = _limited(inputs, policy, needed, recent_need)
    reason = _reason(inputs, policy, needed, recent_need, wanted, limit)
    return Decision(inputs, policy, needed, recent_need, wanted, limit, reason)


def lasting_need(history: Sequence[Need], at: float, policy: Policy) -> int:
    """The most workers that were needed for `lasting_seconds` in all within the window.

    The highest need of a window is mostly chance: with jobs of a few seconds it keeps half as many
    workers again as the load takes.
    """
    since = at - policy.scale_down_after_seconds
    recent = [need for need in history if since <= need.at <= at]
    ends = [*(need.at for need in recent[1:]), at]
    lasted = 0.0
    spans = ((need.workers, end - need.at) for need, end in zip(recent, ends, strict=False))
    for workers, seconds in sorted(spans, reverse=True):
        lasted += seconds
        if lasted >= policy.lasting_seconds:
            return workers
    return 0


def _needed(inputs: Inputs, policy: Policy) -> int:
    if inputs.paused:
        return -(-inputs.running // inputs.concurrency)
    places = max(inputs.concurrency * policy.utilisation, 1.0)
    # The quotient of whole numbers may lie a rounding error above a whole one.
    needed = math.ceil(round(inputs.demand / places, 9))
    if inputs.waiting and inputs.oldest_wait_seconds > policy.patience_seconds:
        # Work waits although demand says there are enough: some worker does not take it.
        needed = max(needed, min(inputs.current + 1, inputs.demand))
    return needed


def _limited(inputs: Inputs, policy: Policy, needed: int, recent: int) -> tuple[int, Limit | None]:
    floors: list[tuple[int, Limit]] = [(policy.min_workers, "minimum")]
    if needed < inputs.current:
        floors += [
            (inputs.busy, "busy"),
            (inputs.current - policy.scale_down_step, "step"),
            (min(recent, inputs.current), "stabilisation"),
        ]
    floor, limit = max(floors, key=lambda each: each[0])
    if max(floor, needed) > policy.max_workers:
        return policy.max_workers, "maximum"
    if floor <= inputs.current and _is_brief(inputs, policy, needed):
        return inputs.current, "brief"
    if floor > needed:
        return floor, limit
    return needed, "paused" if inputs.paused and inputs.waiting else None


def _is_brief(inputs: Inputs, policy: Policy, needed: int) -> bool:
    """Whether a rise is so small, and the queue so young, that it may be over in a moment."""
    rise = needed - inputs.current
    return (
        0 < rise <= max(1, policy.small_rise * inputs.current)
        and inputs.current > 0
        and not inputs.free_slots
        and inputs.oldest_wait_seconds < policy.small_rise_wait_seconds
    )


def _reason(
    inputs: Inputs, policy: Policy, needed: int, recent: int, wanted: int, limit: Limit | None
) -> str:
    demand = (
        f"{inputs.waiting} waiting and {inputs.running} running need {counted(needed, 'worker')}"
    )
    if limit is None:
        return demand
    why = {
        "minimum": f"min_workers is {policy.min_workers}",
        "maximum": _maximum(policy),
        "stabilisation": f"{counted(recent, 'worker')} {'was' if recent == 1 else 'were'} needed"
        f" within the last {policy.scale_down_after_seconds:g} s",
        "busy": f"{counted(wanted, 'worker')} {'is' if wanted == 1 else 'are'} still busy",
        "step": f"at most {policy.scale_down_step} are removed at once",
        "brief": f"no job has waited for {policy.small_rise_wait_seconds:g} s",
        "paused": "the queue is paused, so waiting jobs do not count",
    }[limit]
    return f"{demand}; {'not scaled because ' if wanted == inputs.current else ''}{why}"


def _maximum(policy: Policy) -> str:
    if policy.max_reason:
        room = counted(policy.max_workers, "worker")
        return f"this machine has room for {room}: {policy.max_reason}"
    return f"max_workers is {policy.max_workers}"
