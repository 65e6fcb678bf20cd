"""Jobs that read dynamic tables on Spark: a user's query, and the audit of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from kalla.errors import InvalidInput, Permanent, Problem
from kalla.redaction import scrub
from kalla.spark.sandbox import searches
from kalla.spark.session import SparkSessions, require_reading
from kalla.tables.incremental.changes import placed
from kalla.tables.refresh.views import Views
from kalla.tables.sources.snapshots import Pin, PinGone, csv_refusal, frame
from kalla.work.handler import Context, Stateless
from kalla.work.job import Job, Outcome

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

MOST_ROWS = 1000


class QueryPayload(BaseModel):
    """A SELECT over dynamic tables and sources at fixed versions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: str  # as the sandbox wrote it
    inputs: dict[str, dict[str, Any]]


class AuditPayload(BaseModel):
    """A table at the version its frontier names, against its query at the same inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    query: str
    table: dict[str, Any]
    inputs: dict[str, dict[str, Any]]


class TableQuery(Stateless):
    def __init__(self, spark: SparkSessions) -> None:
        self._spark = spark

    def run(self, job: Job, context: Context) -> Outcome:
        from pyspark.errors import AnalysisException, PySparkException

        asked = QueryPayload.model_validate(job.payload)
        with self._spark.session(job, context) as session:
            require_reading(session)
            views = Views(session)
            names = _added(session, views, asked.inputs)
            try:
                query = placed(searches.bounded(asked.query), names)
                rows = views.sql(query).limit(MOST_ROWS + 1).toArrow()
            except AnalysisException as error:
                message = scrub(str(error).strip().splitlines()[0])
                raise InvalidInput(Problem("query", message)) from None
            except PySparkException as error:
                if refusal := searches.refusal(str(error)) or csv_refusal(str(error)):
                    raise Permanent(refusal) from None
                raise
        shown = [
            [None if value is None else str(value) for value in row.values()]
            for row in rows.slice(0, MOST_ROWS).to_pylist()
        ]
        columns = list(rows.column_names)
        return Outcome({"columns": columns, "rows": shown, "more": rows.num_rows > MOST_ROWS})


class TableAudit(Stateless):
    """Compares by Spark's EXCEPT ALL both ways; a refresh compares differently."""

    def __init__(self, spark: SparkSessions) -> None:
        self._spark = spark

    def run(self, job: Job, context: Context) -> Outcome:
        asked = AuditPayload.model_validate(job.payload)
        try:
            with self._spark.session(job, context) as session:
                require_reading(session)
                views = Views(session)
                names = _added(session, views, asked.inputs)
                stored = frame(session, Pin.from_json(asked.table))
                fresh = views.sql(placed(searches.bounded(asked.query), names)).toDF(
                    *stored.columns
                )
                missing = fresh.exceptAll(stored).count()
                extra = stored.exceptAll(fresh).count()
                rows = stored.count()
        except PinGone as gone:
            raise Permanent(
                f"a version that the audit needs does not exist any more: {gone}"
            ) from None
        equal = missing == 0 and extra == 0
        return Outcome(
            {"table": asked.name, "equal": equal, "rows": rows, "missing": missing, "extra": extra}
        )


def _added(
    session: SparkSession, views: Views, inputs: dict[str, dict[str, Any]]
) -> dict[str, str]:
    return {name: views.add(frame(session, Pin.from_json(pin))) for name, pin in inputs.items()}
