"""Every job type there is, with its handler. A new room adds its line here."""

from __future__ import annotations

from kalla.operate.probe import Probe, ProbePayload
from kalla.settings import Settings
from kalla.spark.session import SparkSessions
from kalla.work.kinds import Kind, Kinds


def kinds(settings: Settings, spark: SparkSessions) -> Kinds:
    return Kinds(settings, [Kind("probe", "exec", Probe(spark), ProbePayload)])
