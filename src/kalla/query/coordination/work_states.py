"""The states of a work unit, and every transition there is between them."""

from __future__ import annotations

from typing import Literal

from kalla.errors import KallaError

State = Literal["pending", "assigned", "accepted", "ready", "fetched", "failed", "cancelled"]
Step = Literal["assign", "accept", "ready", "fetch", "retry", "cancel", "fail"]

STATES: tuple[State, ...] = (
    "pending", "assigned", "accepted", "ready", "fetched", "failed", "cancelled",
)  # fmt: skip
STEPS: tuple[Step, ...] = ("assign", "accept", "ready", "fetch", "retry", "cancel", "fail")
ENDS = frozenset[State]({"fetched", "failed", "cancelled"})

# `retry`: the worker rejected or failed it, was lost, or its artifact could not be fetched.
TRANSITIONS: dict[tuple[State, Step], State] = {
    ("pending", "assign"): "assigned",
    ("pending", "cancel"): "cancelled",
    ("pending", "fail"): "failed",
    ("assigned", "accept"): "accepted",
    ("assigned", "retry"): "pending",
    ("assigned", "cancel"): "cancelled",
    ("assigned", "fail"): "failed",
    ("accepted", "ready"): "ready",
    ("accepted", "retry"): "pending",
    ("accepted", "cancel"): "cancelled",
    ("accepted", "fail"): "failed",
    ("ready", "fetch"): "fetched",
    ("ready", "retry"): "pending",
    ("ready", "cancel"): "cancelled",
    ("ready", "fail"): "failed",
}


class IllegalTransition(KallaError):
    """A transition that the work unit's state does not allow."""


def following(state: State, step: Step) -> State:
    if (state, step) not in TRANSITIONS:
        raise IllegalTransition(f"work that is {state} cannot {step}")
    return TRANSITIONS[state, step]
