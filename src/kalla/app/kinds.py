"""Every job type there is, with its handler. A new room adds its line here."""

from __future__ import annotations

from kalla.errors import InvalidSettings, Problem
from kalla.operate.probe import Probe, ProbePayload
from kalla.settings import Settings
from kalla.spark.session import SparkSessions
from kalla.work.kinds import Kind, Kinds


def kinds(settings: Settings, spark: SparkSessions) -> Kinds:
    known = Kinds(settings, [Kind("probe", "exec", Probe(spark), ProbePayload)])
    if unknown := sorted(settings.jobs.keys() - {"default", *known.types}):
        raise InvalidSettings(
            *(
                Problem(f"jobs.{name}", f"there is no such job type; known are: {known.types}")
                for name in unknown
            )
        )
    return known
