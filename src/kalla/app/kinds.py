"""Every job type there is, with its handler. A new room adds its line here."""

from __future__ import annotations

from kalla.errors import InvalidSettings, Problem
from kalla.operate.probe import Probe, ProbePayload
from kalla.query.store.compaction import Compact, Compaction
from kalla.query.store.retention import Leftovers, Retain
from kalla.reconcile.conclusion import Call, Callback, Tidied, Tidy
from kalla.reconcile.handlers import (
    Asked,
    AskedChunk,
    AskedSide,
    Exec,
    Ground,
    StageChunk,
    StagePlan,
)
from kalla.secrets import Vault
from kalla.settings import Settings
from kalla.spark.session import SparkSessions
from kalla.work.kinds import Kind, Kinds


def kinds(settings: Settings, spark: SparkSessions) -> Kinds:
    vault = Vault(settings)
    ground = Ground(settings, spark, vault.resolve)
    known = Kinds(
        settings,
        [
            Kind("probe", "exec", Probe(spark), ProbePayload, submittable=True),
            Kind("stage_plan", "stage", StagePlan(ground), AskedSide),
            Kind("stage_chunk", "stage", StageChunk(ground), AskedChunk),
            Kind("exec", "exec", Exec(ground), Asked),
            # Its attempts say how long an address may be away.
            Kind("callback", "stage", Callback(vault.resolve), Call, patient=False),
            Kind("tidy", "stage", Tidy(settings), Tidied),
            Kind("compact", "compact", Compact(settings, spark), Compaction),
            Kind("retain", "compact", Retain(settings, spark), Leftovers),
        ],
    )
    if unknown := sorted(settings.jobs.keys() - {"default", *known.types}):
        raise InvalidSettings(
            *(
                Problem(f"jobs.{name}", f"there is no such job type; known are: {known.types}")
                for name in unknown
            )
        )
    return known
