"""The job type `refresh`: one table, for one tick."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kalla.database import Connection
from kalla.errors import InvalidInput, Unavailable
from kalla.redaction import scrub
from kalla.spark.sandbox import searches
from kalla.spark.session import SparkSessions, require_reading
from kalla.tables import store
from kalla.tables.delta import housekeeping
from kalla.tables.delta.commit import Committed, Stale, committed_frontier, delta_id
from kalla.tables.refresh.payload import Refreshed, RefreshPayload, StrictRefused
from kalla.tables.refresh.run import refresh
from kalla.tables.sources.snapshots import PinGone, csv_refusal
from kalla.work.handler import Context
from kalla.work.job import Job, Outcome

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_FENCE_BITS = 20

# Classes of SQLSTATE that mean the query or the data: such a failure is permanent.
_LASTING = ("0A", "21", "22", "42", "54")


@dataclass(frozen=True)
class Failure:
    """A refresh without a commit."""

    error: str
    counts: bool  # towards suspending the table


Facts = Refreshed | Committed | Failure


class Refresh:
    """Refreshes a table on Spark and commits under the fence of its claim."""

    def __init__(self, spark: SparkSessions) -> None:
        self._spark = spark

    def run(self, job: Job, context: Context) -> Outcome:
        asked = RefreshPayload.model_validate(job.payload)
        facts = self._facts(job, asked, context)
        result: dict[str, object] = {"table": asked.name, "tick": asked.tick}
        rows = 0
        if isinstance(facts, Refreshed):
            rows = facts.rows
            result |= {"strategy": facts.strategy, "reason": facts.reason, "rows": rows}
        elif isinstance(facts, Failure):
            result |= {"error": facts.error}
        identity = None if isinstance(facts, Failure) else delta_id(asked.location)
        return Outcome(result, rows=rows, facts=(asked, facts, identity))

    def _facts(self, job: Job, asked: RefreshPayload, context: Context) -> Facts:
        from pyspark.errors import AnalysisException, PySparkException

        # Rises with every claim of any job: a later job has a higher id, a later claim of it a
        # higher fence.
        sequence = (job.job_id << _FENCE_BITS) | job.fence
        try:
            with self._spark.session(job, context) as session:
                require_reading(session)
                facts = refresh(session, asked, sequence, f"{job.job_id}.{job.fence}")
            if isinstance(facts, Refreshed) and facts.strategy != "NO_DATA":
                housekeeping.tidy_if_due(asked.location, facts.committed.version)
            return facts
        except Stale as stale:
            context.check()
            if (stale.holder or 0) >> _FENCE_BITS > job.job_id:
                # Of one database, a later job would have taken the claim of this one.
                return Failure(_foreign(asked), counts=True)
            found = committed_frontier(asked.location)
            if (
                found is not None
                and found.frontier.table_id == asked.table_id
                and found.frontier.tick >= asked.tick
            ):
                return found
            raise Unavailable(f"{asked.name} is being refreshed elsewhere: {stale}") from None
        except PinGone as gone:
            return Failure(str(gone), counts=False)
        except (StrictRefused, InvalidInput) as refused:
            return Failure(str(refused), counts=True)
        except AnalysisException as error:
            return Failure(_explained(error), counts=True)
        except PySparkException as error:
            if refusal := searches.refusal(str(error)) or csv_refusal(str(error)):
                return Failure(refusal, counts=True)
            if (error.getSqlState() or "").startswith(_LASTING):
                return Failure(_first_line(error), counts=True)
            raise

    async def settle(self, connection: Connection, job: Job, outcome: Outcome) -> None:
        asked, facts, identity = outcome.facts
        await store.lock_graph(connection)
        ticks = await store.open_ticks(connection, asked.tick)
        entry = {
            each.table_id: each for each in (await store.entries(connection, asked.tick)).values()
        }.get(asked.table_id)
        if not ticks or entry is None or entry.job_id != job.job_id:
            # The table was dropped, or its tick was closed without it.
            if asked.name not in await store.tables(connection):
                await asyncio.to_thread(housekeeping.drop, asked.location)
            return
        line = {"table_id": asked.table_id, "tick_id": asked.tick, "job_id": job.job_id}
        if isinstance(facts, Failure):
            await store.set_entry(connection, asked.tick, asked.table_id, "failed")
            await store.record(
                connection, **line, status="failed", strategy="", reason="", error=facts.error
            )
            if facts.counts:
                await store.count_error(connection, asked.table_id, facts.error)
            return
        committed = facts.committed if isinstance(facts, Refreshed) else facts
        frontier = committed.frontier
        if isinstance(facts, Refreshed):
            await store.record(
                connection,
                **line,
                status="completed",
                strategy=facts.strategy,
                reason=facts.reason,
                predicted_seconds=facts.predicted_seconds,
                seconds=facts.seconds,
                rows_deleted=facts.deleted,
                rows_inserted=facts.inserted,
                row_count=facts.rows,
                changed_rows=facts.changed_rows,
                affected_keys=facts.affected_keys,
            )
        else:
            await store.record(
                connection,
                **line,
                status="completed" if frontier.tick == asked.tick else "skipped",
                strategy="ADOPTED",
                reason=f"committed by claim {frontier.refresh}",
            )
        if frontier.tick != asked.tick:
            await store.set_entry(connection, asked.tick, asked.table_id, "skipped")
            return
        await store.set_entry(connection, asked.tick, asked.table_id, "done", frontier.data_version)
        await store.refreshed(
            connection,
            asked.table_id,
            ticks[0].pinned_at,
            {"definition": frontier.definition, "inputs": dict(frontier.inputs)},
            frontier.data_version,
            identity or "",
            facts.rows if isinstance(facts, Refreshed) else None,
        )


def _foreign(asked: RefreshPayload) -> str:
    return (
        f"{asked.location} was written by a Kalla with another database, or this database is an"
        f" older copy: `kalla tables drop {asked.name}` removes the folder, then apply the table"
        " again"
    )


def _explained(error: PySparkException) -> str:
    """The query was checked when it was applied: a missing column was removed from its source."""
    line = _first_line(error)
    if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
        return (
            f"the schema of a source changed: {line} Apply the table again with existing"
            " columns, or restore the column; then its rows are recomputed."
        )
    return line


def _first_line(error: Exception) -> str:
    return scrub(str(error).strip().splitlines()[0] if str(error) else type(error).__name__)
