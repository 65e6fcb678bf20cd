"""Every job type there is, with its handler. A new room adds its line here."""

from __future__ import annotations

from kalla.errors import InvalidSettings, Problem
from kalla.operate.probe import Probe, ProbePayload
from kalla.query.store.maintenance.compaction import Compact, Compaction
from kalla.query.store.maintenance.retention import Retain, RetentionTask
from kalla.reconcile.runs.handlers import (
    Asked,
    AskedChunk,
    AskedSide,
    Exec,
    HandlerDependencies,
    StageChunk,
    StagePlan,
)
from kalla.reconcile.runs.run_completion import Call, Callback, Tidied, Tidy
from kalla.secrets import Vault
from kalla.settings import Settings
from kalla.spark.session import SparkSessions
from kalla.tables.refresh.handlers import Refresh
from kalla.tables.refresh.payload import RefreshPayload
from kalla.tables.refresh.reading import AuditPayload, QueryPayload, TableAudit, TableQuery
from kalla.tables.sources.mirrors import MirrorPayload, MirrorTable
from kalla.work.job_type import JobType, JobTypes


def job_types(settings: Settings, spark: SparkSessions) -> JobTypes:
    vault = Vault(settings)
    ground = HandlerDependencies(settings, spark, vault.resolve)
    known = JobTypes(
        settings,
        [
            JobType("probe", "exec", Probe(spark), ProbePayload, submittable=True),
            JobType("stage_plan", "stage", StagePlan(ground), AskedSide),
            JobType("stage_chunk", "stage", StageChunk(ground), AskedChunk),
            JobType("exec", "exec", Exec(ground), Asked),
            # Its attempts say how long an address may be away.
            JobType("callback", "stage", Callback(vault.resolve), Call, patient=False),
            JobType("tidy", "stage", Tidy(settings), Tidied),
            JobType("compact", "compact", Compact(settings, spark), Compaction),
            JobType("retain", "compact", Retain(settings, spark), RetentionTask),
            JobType("refresh", "refresh", Refresh(spark), RefreshPayload),
            JobType("table_mirror", "refresh", MirrorTable(vault.resolve), MirrorPayload),
            JobType("table_query", "refresh", TableQuery(spark), QueryPayload),
            JobType("table_audit", "refresh", TableAudit(spark), AuditPayload),
        ],
    )
    if unknown := sorted(settings.jobs.keys() - {"default", *known.types}):
        raise InvalidSettings(
            *(
                Problem(f"jobs.{name}", f"there is no such job type; known: {known.types}")
                for name in unknown
            )
        )
    return known
