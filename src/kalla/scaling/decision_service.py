"""The background service that decides for every role, a few times a minute, in any process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kalla.database import Connection, Database
from kalla.scaling import store
from kalla.scaling.policy import Decision, Inputs, Policy
from kalla.scaling.store import CLUSTER
from kalla.settings import Settings
from kalla.work.service import Periodic, SetAside

_INTERVAL = 5.0
_FRESH_SECONDS = 60.0
_KEEP_DECISIONS_SECONDS = 7 * 24 * 3600.0
_GAUGES: tuple[tuple[str, str, Callable[[Decision], float]], ...] = (
    (
        "kalla_scaling_waiting",
        "Jobs of a role that a worker could claim now",
        lambda d: d.inputs.waiting,
    ),
    ("kalla_scaling_running", "Jobs of a role that run", lambda d: d.inputs.running),
    ("kalla_scaling_demand", "Waiting and running jobs of a role", lambda d: d.inputs.demand),
    (
        "kalla_scaling_oldest_wait_seconds",
        "How long a job has waited",
        lambda d: d.inputs.oldest_wait_seconds,
    ),
    ("kalla_scaling_current_workers", "Workers that take a role", lambda d: d.inputs.current),
    ("kalla_scaling_busy_workers", "Workers of a role that have a job", lambda d: d.inputs.busy),
    (
        "kalla_scaling_saturation",
        "Running jobs / places of a role's workers",
        lambda d: d.inputs.saturation,
    ),
    ("kalla_scaling_desired_workers", "Workers that a role should have", lambda d: d.desired),
)


def policy_of(settings: Settings) -> Policy:
    """The policy of every role, from the settings."""
    scaling = settings.scaling
    return Policy(
        min_workers=scaling.min_workers,
        max_workers=scaling.max_workers,
        utilisation=scaling.utilisation,
        scale_down_after_seconds=scaling.scale_down_after_seconds,
        scale_down_step=scaling.scale_down_step,
        patience_seconds=scaling.patience_seconds,
    )


class ScalingDecisions(Periodic):
    """Decides and records. The first process does it; the others read its result."""

    def __init__(self, settings: Settings, database: Database, gauges: ScalingGauges) -> None:
        super().__init__("scaling", _INTERVAL)
        self._settings = settings
        self._database = database
        self._gauges = gauges
        self._aside = SetAside("scaling")

    async def tick(self) -> None:
        policy = policy_of(self._settings)
        async with self._database.transaction() as connection:
            due = await store.is_due(connection, CLUSTER, _INTERVAL * 0.8)
            roles = await store.role_inputs(connection, self._settings)
            decided = []
            for inputs in roles:  # a role that cannot be decided does not block others
                decide = partial(self._decide, connection, inputs, policy, is_recorded=due)
                decision = await self._aside.attempt(inputs.role, decide)
                if decision is not None:
                    decided.append(decision)
            if due:
                await store.forget(connection, CLUSTER, roles[0].at, policy)
                await store.sweep(connection, _KEEP_DECISIONS_SECONDS)
        self._gauges.set(decided)

    async def _decide(
        self, connection: Connection, inputs: Inputs, policy: Policy, *, is_recorded: bool
    ) -> Decision:
        async with connection.transaction():
            decision = await store.decide(connection, CLUSTER, inputs, policy)
            if is_recorded:
                await store.record(connection, CLUSTER, decision)
        return decision


class ScalingGauges(Collector):
    """The newest decisions as metrics. Nothing before the first, nor once it is old: absent is not
    zero, and a scaler that reads yesterday's demand would keep yesterday's workers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decisions: list[Decision] = []
        self._set_at = 0.0

    def set(self, decisions: list[Decision]) -> None:
        self._decisions = decisions
        self._set_at = self._clock()

    def collect(self) -> Iterable[Metric]:
        families = [
            (GaugeMetricFamily(name, text, labels=["role"]), value) for name, text, value in _GAUGES
        ]
        held = GaugeMetricFamily(
            "kalla_scaling_held", "1 while a limit holds the decision", labels=["role", "held_by"]
        )
        fresh = self._clock() - self._set_at <= _FRESH_SECONDS
        for decision in self._decisions if fresh else []:
            role = decision.inputs.role
            for family, value in families:
                family.add_metric([role], value(decision))
            if decision.limit is not None:
                held.add_metric([role, decision.limit], 1)
        return (*(family for family, _ in families), held)
