"""REST of scaling: what every role needs now, and the decisions so far."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from kalla.scaling import store
from kalla.scaling.decision_service import policy_of
from kalla.scaling.model import Autoscale, RoleScaling, ScalingDecision
from kalla.scaling.store import CLUSTER
from kalla.web.access import GuardedRoute
from kalla.web.app_state import State
from kalla.web.storable import Text

router = APIRouter(route_class=GuardedRoute, tags=["scaling"])

OptionalText = Annotated[Text | None, Query()]
Id = Annotated[int, Path(ge=1, le=2**63 - 1)]


@router.get("/autoscale")
async def autoscale(state: State) -> Autoscale:
    """For each role: waiting, running, demand, current and desired workers, and the reason."""
    policy = policy_of(state.settings)
    async with state.database.transaction() as connection:
        found = await store.role_inputs(connection, state.settings)
        decided = [await store.decide(connection, CLUSTER, inputs, policy) for inputs in found]
    return Autoscale(roles={d.inputs.role: RoleScaling.of(d) for d in decided})


@router.get("/api/scaling/decisions")
async def list_decisions(
    state: State,
    pool: OptionalText = None,
    role: OptionalText = None,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> list[ScalingDecision]:
    """Decisions that differed from the one before, newest first."""
    async with state.database.transaction() as connection:
        found = await store.decisions(connection, pool, role, before, limit)
    return [ScalingDecision.of(record) for record in found]


@router.get("/api/scaling/decisions/{decision_id}")
async def show_decision(state: State, decision_id: Id) -> ScalingDecision:
    """One decision with its inputs, its policy and the limit that held it."""
    async with state.database.transaction() as connection:
        return ScalingDecision.of(await store.decision(connection, decision_id))
