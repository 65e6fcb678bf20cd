"""One look at the work: what lists, pages and probes read, by one set of filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files

from kalla.database import Connection
from kalla.errors import Unavailable
from kalla.operate.api_models import JobPage, JobSummary
from kalla.statements import load
from kalla.work.job import Status

sql = load("kalla.operate", "overview.sql")

UPKEEP = ("compact", "retain", "tidy")
"""Types of jobs that nobody submits: they merge and remove what others have left."""


@dataclass(frozen=True)
class Filter:
    """Which jobs to list; `before` is the last job_id of the page before."""

    status: Status | None = None
    queue: str | None = None
    type: str | None = None
    run_id: int | None = None
    before: int | None = None
    upkeep: bool = True  # Kalla's own upkeep too

    @property
    def shows_upkeep(self) -> bool:
        return self.upkeep or self.type in UPKEEP


async def jobs(connection: Connection, which: Filter, limit: int) -> JobPage:
    values = asdict(which) | {"upkeep": which.shows_upkeep, "upkeep_types": list(UPKEEP)}
    # One more than asked for tells whether there is a next page.
    cursor = await connection.execute(sql.jobs, values | {"limit": limit + 1})
    found = [JobSummary(**row) for row in await cursor.fetchall()]
    more = len(found) > limit
    return JobPage(jobs=found[:limit], next_before=found[limit - 1].job_id if more else None)


async def require_migrated(connection: Connection) -> None:
    """Raise Unavailable if this version's tables are not all there."""
    rows = await (await connection.execute(sql.migrations)).fetchall()
    if missing := sorted(set(_known_migrations()) - {row["name"] for row in rows}):
        raise Unavailable(f"the database lacks migration {missing[0]}: run `kalla migrate`")


def _known_migrations() -> Sequence[str]:
    return [item.name for item in files("kalla.migrations").iterdir() if item.name.endswith(".sql")]
