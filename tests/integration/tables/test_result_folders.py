"""The folder of a result that another database wrote, or whose table was dropped meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema
from pydantic import SecretStr

from kalla.database import Database
from kalla.settings import Database as DatabaseSettings
from kalla.tables import store
from kalla.tables.delta.commit import FencedTable, Frontier
from kalla.tables.delta.data_files import written
from kalla.tables.model import TableDefinition, parse
from kalla.tables.refresh import handlers
from kalla.tables.refresh.handlers import Failure, Refresh
from kalla.tables.refresh.payload import RefreshPayload
from tests.worker_kit import eventually


class Sessions:
    """A Spark that is never asked: the table is refused before."""

    @contextmanager
    def session(self, *_given: object) -> Iterator[None]:
        yield


def payload(place: str) -> RefreshPayload:
    return RefreshPayload(
        name="sold",
        table_id=1,
        tick=3,
        location=place,
        query="SELECT 1 AS a",
        definition="d",
        inputs={},
        strategy="AUTO",
        strict=False,
        deduplication=True,
        cardinality_threshold=0.3,
    )


@pytest.mark.parametrize("table_id", [1, 2])
def test_a_folder_of_another_database_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_id: int
) -> None:
    place = str(tmp_path / "sold")
    fenced = FencedTable(place, (900 << 20) | 1)  # by job 900 of the other database
    rows = pa.table({"a": [1]})
    files = written(fenced.folder, rows.schema, rows.to_batches())
    frontier = Frontier(table_id, "d", tick=70, refresh="900.1", data_version=0, inputs={})
    fenced.overwrite([files[0].path], Schema.from_arrow(rows.schema).to_json(), frontier)
    monkeypatch.setattr(handlers, "require_reading", lambda _session: None)
    asked = payload(place)
    job: Any = SimpleNamespace(job_id=5, fence=1, payload=asked.model_dump(mode="json"))
    context: Any = SimpleNamespace(check=lambda: None)
    sessions: Any = Sessions()
    _, facts, _ = Refresh(sessions).run(job, context).facts
    assert isinstance(facts, Failure)
    assert facts.counts
    assert "with another database" in facts.error
    assert "`kalla tables drop sold`" in facts.error


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_refresh_removes_the_folder_of_a_table_that_was_dropped_meanwhile(
    database_url: str, tmp_path: Path, is_made_again: bool
) -> None:
    place = tmp_path / "sold"
    (place / "_delta_log").mkdir(parents=True)
    job: Any = SimpleNamespace(job_id=5, fence=1)
    outcome: Any = SimpleNamespace(facts=(payload(str(place)), Failure("", False), None))
    sessions: Any = Sessions()
    async with (
        Database(DatabaseSettings(url=SecretStr(database_url))) as database,
        database.transaction() as connection,
    ):
        if is_made_again:
            (given,) = parse("CREATE DYNAMIC TABLE sold TARGET_LAG = '1 hour' AS SELECT a FROM b")
            assert isinstance(given, TableDefinition)
            await store.put_table(connection, given, given.query, ["a"], {"b"}, "test", None)
        await Refresh(sessions).settle(connection, job, outcome)
    assert place.exists() == is_made_again

    def is_alone() -> bool:
        return [each.name for each in tmp_path.iterdir()] == ["sold"] * is_made_again

    async def is_removed() -> bool:
        return await asyncio.to_thread(is_alone)

    await eventually(is_removed)
