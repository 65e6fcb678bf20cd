"""Inserts into the jobs table, for jobs and runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kalla.database import Connection
from kalla.statements import load

sql = load("kalla.work.state", "jobs.sql")

Woken = Counter[str]
"""How many jobs began to wait, by queue: sent to the wake channel after the commit."""


async def insert_rows(
    connection: Connection,
    rows: Sequence[dict[str, Any]],
    run_id: int | None = None,
    opened_by: str | None = None,
) -> list[dict[str, Any]]:
    """Inserts rows that passed `JobTypes.rows`; returns the result of each."""
    cursor = await connection.execute(
        sql.insert, {"jobs": json.dumps(rows), "run_id": run_id, "opened_by": opened_by}
    )
    return await cursor.fetchall()
