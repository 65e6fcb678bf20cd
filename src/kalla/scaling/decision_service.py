"""The background service that decides for every role, a few times a minute, in any process."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kalla.database import Database
from kalla.scaling import store
from kalla.scaling.policy import Decision, Policy
from kalla.scaling.store import CLUSTER
from kalla.settings import Settings
from kalla.work.service import Periodic

_INTERVAL = 5.0
_KEEP_DECISIONS_SECONDS = 7 * 24 * 3600.0


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
    """Decides and records. Whichever process comes first does it; the others read its result."""

    def __init__(self, settings: Settings, database: Database, gauges: ScalingGauges) -> None:
        super().__init__("scaling", _INTERVAL)
        self._settings = settings
        self._database = database
        self._gauges = gauges

    async def tick(self) -> None:
        policy = policy_of(self._settings)
        async with self._database.transaction() as connection:
            due = await store.is_due(connection, CLUSTER, _INTERVAL * 0.8)
            decided = []
            for inputs in await store.role_inputs(connection, self._settings):
                decision = await store.decide(connection, CLUSTER, inputs, policy)
                decided.append(decision)
                if due:
                    await store.record(connection, CLUSTER, decision)
            if due:
                await store.forget(connection, CLUSTER, decided[0].inputs.at, policy)
                await store.sweep(connection, _KEEP_DECISIONS_SECONDS)
        self._gauges.set(decided)


class ScalingGauges(Collector):
    """The newest decisions as metrics. Nothing before the first: absent is not zero."""

    def __init__(self) -> None:
        self._decisions: list[Decision] = []

    def set(self, decisions: list[Decision]) -> None:
        self._decisions = decisions

    def collect(self) -> Iterable[Metric]:
        demand = _family("kalla_scaling_demand", "Waiting and running jobs of a role")
        current = _family("kalla_scaling_current_workers", "Workers that take a role")
        wanted = _family("kalla_scaling_desired_workers", "Workers that a role should have")
        for decision in self._decisions:
            role = [decision.inputs.role]
            demand.add_metric(role, decision.inputs.demand)
            current.add_metric(role, decision.inputs.current)
            wanted.add_metric(role, decision.desired)
        return (demand, current, wanted)


def _family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["role"])
