"""The models of scaling for the API and the pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from kalla.scaling.policy import Decision
from kalla.scaling.store import DecisionRecord


class RoleScaling(BaseModel):
    """One role: how much work there is, how many workers there are and should be."""

    role: str
    waiting: int = Field(description="jobs that a worker could claim now")
    running: int
    demand: int = Field(description="waiting and running; of a paused queue, running alone")
    oldest_wait_seconds: float
    current: int = Field(description="workers that take this role and are not draining")
    busy: int
    saturation: float = Field(description="running jobs / places of the current workers")
    desired: int
    held_by: str | None = Field(description="the limit that keeps `desired` from the demand")
    reason: str

    @classmethod
    def of(cls, decision: Decision) -> RoleScaling:
        inputs = decision.inputs
        return cls(
            role=inputs.role,
            waiting=inputs.waiting,
            running=inputs.running,
            demand=inputs.demand,
            oldest_wait_seconds=round(inputs.oldest_wait_seconds, 3),
            current=inputs.current,
            busy=inputs.busy,
            saturation=round(inputs.saturation, 3),
            desired=decision.desired,
            held_by=decision.limit,
            reason=decision.reason,
        )


class Autoscale(BaseModel):
    """Every role by its name, so that a scaler can point at `roles.exec.demand`."""

    roles: dict[str, RoleScaling]


class ScalingDecision(BaseModel):
    """A recorded decision with everything that led to it."""

    decision_id: int
    pool: str = Field(description="`cluster`, or the machine that scales its own workers")
    role: str
    at: datetime
    current: int
    needed: int = Field(description="workers by demand alone")
    recent_need: int = Field(description="highest need within the stabilisation window")
    desired: int
    held_by: str | None
    reason: str
    inputs: dict[str, Any]
    policy: dict[str, Any]

    @classmethod
    def of(cls, record: DecisionRecord) -> ScalingDecision:
        return cls(**vars(record))
