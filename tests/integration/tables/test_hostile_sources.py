"""What hostile data does to a dynamic table: it fails alone, in a sentence, and loses no row."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pyarrow as pa
import pytest

from kalla.errors import InvalidInput
from kalla.spark.session import SparkSessions
from kalla.tables.sources.snapshots import frame, pin
from kalla.work.handler import Context
from kalla.work.job import Job
from tests.tables_kit import TablesSite
from tests.worker_kit import eventually

pytestmark = [pytest.mark.spark, pytest.mark.attack]

PIECES = ["a", "1", " ", '"', ",", "\n", "\r\n", "\\", "ü", "'", '5" pipe', ";"]


def value(chance: random.Random) -> str:
    return "v" + "".join(chance.choices(PIECES, k=chance.randrange(6)))


def test_a_csv_source_has_the_rows_and_values_that_another_reader_finds(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    chance = random.Random(7)
    written: list[tuple[str, ...]] = []
    for number in range(4):
        with (tmp_path / f"{number}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator=chance.choice(["\n", "\r\n"]))
            writer.writerow(["id", "the memo", "n"])
            rows = [(value(chance), value(chance), value(chance)) for _ in range(50)]
            writer.writerows(rows)
        written += rows
    job = Job(1, 1, "csv", "exec", {}, 0, 0, 3, 15, 60, None, None, None)
    with sessions.session(job, Context()) as session:
        table = pa.table(frame(session, pin("s", str(tmp_path), "csv")).toArrow())
        assert table.column_names == ["id", "the memo", "n"]
        # A line break within a value is one sign, however the file ends its lines.
        read = [tuple(map(_plain, row.values())) for row in table.to_pylist()]
        assert sorted(read) == sorted(tuple(map(_plain, row)) for row in written)
        (tmp_path / "latin.csv").write_bytes("id,the memo,n\n1,ü,2\n".encode("latin-1"))
        with pytest.raises(InvalidInput, match="is not UTF-8"):
            frame(session, pin("s", str(tmp_path), "csv"))


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


async def test_a_table_whose_data_is_hostile_fails_in_a_sentence_beside_one_that_refreshes(
    site: TablesSite, tmp_path: Path
) -> None:
    for name, text in (
        ("long", f"id,memo\n1,{'x' * 20_000}\n2,{'x' * 19_999}\n"),
        ("wide", "id,memo\n1,a\n2,b,c\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text(text)
    await site.apply(
        f"""
        CREATE SOURCE long LOCATION '{tmp_path}/long' FORMAT CSV;
        CREATE SOURCE wide LOCATION '{tmp_path}/wide' FORMAT CSV;
        CREATE DYNAMIC TABLE searching TARGET_LAG = '1 hour' AS
            SELECT id FROM long WHERE memo RLIKE '.*.*y';
        CREATE DYNAMIC TABLE lost TARGET_LAG = '1 hour' AS SELECT id FROM wide;
        CREATE DYNAMIC TABLE plain TARGET_LAG = '1 hour' AS SELECT id FROM long;
        """
    )

    async def errors() -> list[str] | None:
        found = [(await site.history(name)) for name in ("searching", "lost")]
        return [each[0]["error"] for each in found] if all(found) else None

    async with site.worker():
        assert (await site.refreshed("plain"))["rows"] == 2
        searching, lost = await eventually(errors, 60)
        assert "a text of 20,000 characters" in searching or "of 19,999" in searching
        assert "wide/a.csv has more or fewer values than its header" in lost
        sql = "SELECT id FROM long WHERE memo RLIKE '.*.*y'"
        asked = await site.runs.post("/api/tables/query", {"query": sql}, status=202)

        async def failed() -> str | None:
            job = await site.runs.get(f"/api/jobs/{asked['job_id']}")
            return str(job["error"]) if job["status"] == "failed" else None

        assert "the SQL searches a text of" in await eventually(failed, 60)
