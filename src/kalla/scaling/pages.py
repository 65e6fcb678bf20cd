"""The page Scaling: what each role needs now, and the decisions so far, live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from kalla.database import Connection
from kalla.scaling import store
from kalla.scaling.chart import HEIGHT, WIDTH, charts
from kalla.scaling.decision_service import policy_of
from kalla.scaling.model import RoleScaling, ScalingDecision
from kalla.scaling.routes import OptionalText
from kalla.scaling.store import CLUSTER
from kalla.web.access import GuardedRoute
from kalla.web.app_state import AppState, State
from kalla.web.pages import live_page

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_ROWS = 50


@router.get("/scaling")
async def scaling(
    request: Request,
    state: State,
    role: OptionalText = None,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    return await live_page(request, ScalingView(role or None, before, state), "scaling.html")


@dataclass(frozen=True)
class ScalingView:
    """Every role, and the decisions of one or all of them."""

    role: str | None
    before: int | None
    state: AppState = field(compare=False, repr=False)

    async def fragments(
        self, connection: Connection, now: datetime | None = None
    ) -> Mapping[str, str]:
        settings = self.state.settings
        policy = policy_of(settings)
        found = await store.role_inputs(connection, settings)
        decided = [await store.decide(connection, CLUSTER, inputs, policy) for inputs in found]
        records = await store.decisions(connection, None, self.role, self.before, _ROWS)
        looked = await store.samples(connection, CLUSTER)
        context = {
            "now": now,
            "charts": charts(looked, await store.now(connection)),
            "chart_width": WIDTH,
            "chart_height": HEIGHT,
            "view": self,
            "roles": [RoleScaling.of(decision) for decision in decided],
            "decisions": [ScalingDecision.of(record) for record in records],
            "next_before": records[-1].decision_id if len(records) == _ROWS else None,
        }
        return {
            name: self.state.layout.fragment(f"{name}.html", **context)
            for name in ("scaling_roles", "scaling_charts", "scaling_decisions")
        }
