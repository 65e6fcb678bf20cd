"""Dynamic tables through the API and a worker: applied, refreshed in order, equal to their SQL."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tables_kit import TablesSite
from tests.web_kit import PAGE
from tests.worker_kit import eventually

pytestmark = pytest.mark.spark

FEED = {"delta.enableChangeDataFeed": "true"}


def orders(*rows: tuple[int, str, int]) -> pa.Table:
    ids, days, amounts = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array(days, pa.string()),
            "amount": pa.array(amounts, pa.int64()),
        }
    )


def statements(folder: Path, lag: str = "2 seconds") -> str:
    return f"""
    CREATE SOURCE orders LOCATION '{folder}/orders' FORMAT DELTA;
    CREATE DYNAMIC TABLE daily TARGET_LAG = DOWNSTREAM AS
        SELECT day, sum(amount) AS total, count(*) AS n FROM orders GROUP BY day;
    CREATE DYNAMIC TABLE busy TARGET_LAG = '{lag}' COMMENT 'days with two orders' AS
        SELECT day, total FROM daily WHERE n >= 2;
    """


async def test_a_change_of_base_data_reaches_tables_two_deep(
    site: TablesSite, tmp_path: Path
) -> None:
    write_deltalake(
        tmp_path / "orders", orders((1, "mon", 5), (2, "mon", 7), (3, "tue", 1)), configuration=FEED
    )
    plan = await site.apply(statements(tmp_path))
    assert [(step["name"], step["action"]) for step in plan] == [
        ("orders", "created"),
        ("daily", "created"),
        ("busy", "created"),
    ]
    async with site.worker():
        first = await site.refreshed("busy")
        assert (first["rows"], first["state"]) == (1, "active")
        write_deltalake(tmp_path / "orders", orders((4, "tue", 2)), mode="append")
        await site.refreshed("busy")
        busy = DeltaTable((await site.table("busy"))["location"]).to_pyarrow_table().to_pylist()
        assert sorted(busy, key=str) == [
            {"day": "mon", "total": 12},
            {"day": "tue", "total": 3},
        ]
        newest = (await site.history("daily"))[0]
        assert newest["strategy"] in ("DELTA", "AFFECTED_KEYS")
        assert newest["changed_rows"] == 1
        assert newest["predicted_seconds"] is not None
        for name in ("daily", "busy"):
            audit = await site.audit(name)
            assert (audit["equal"], audit["rows"]) == (True, 2)
        job = await site.runs.post(
            "/api/tables/query", {"query": "SELECT max(total) AS most FROM busy"}, status=202
        )
        assert (await site.result(job["job_id"]))["rows"] == [["12"]]
        refreshes = len(await site.history("busy"))
        # Without a change there is no job, and the data time advances all the same.
        await site.refreshed("busy")
        assert len(await site.history("busy")) == refreshes
    lineage = await site.runs.get("/api/tables/daily/lineage")
    assert (lineage["reads"], lineage["downstream"]) == (["orders"], ["busy"])
    for path, text in (("/tables", "days"), ("/tables/busy", "days with two orders")):
        page = await site.runs.client.get(path, headers=PAGE)
        assert page.status_code == 200
        assert text in page.text or path == "/tables"
        assert "busy" in page.text


async def test_all_tables_of_a_tick_read_the_same_moment(site: TablesSite, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "orders", orders((1, "mon", 5)), configuration=FEED)
    await site.apply(
        f"""
        CREATE SOURCE orders LOCATION '{tmp_path}/orders';
        CREATE DYNAMIC TABLE ids TARGET_LAG = '1 second' AS SELECT id FROM orders;
        CREATE DYNAMIC TABLE lone TARGET_LAG = '1 second' AS
            SELECT o.id FROM orders o LEFT JOIN ids i ON o.id = i.id WHERE i.id IS NULL;
        """
    )
    async with site.worker(), site.worker():
        for number in range(2, 5):
            write_deltalake(tmp_path / "orders", orders((number, "mon", 5)), mode="append")
            lone = await site.refreshed("lone")
            # `ids` holds every id of the tick that `lone` joins it with: never an order alone.
            assert lone["rows"] == 0
    # Two workers and their schedulers: each tick refreshed a table once.
    for name in ("ids", "lone"):
        ticks = [each["tick_id"] for each in await site.history(name)]
        assert len(ticks) == len(set(ticks))


async def test_a_source_that_lost_a_column_or_was_made_anew_is_a_clear_state(
    site: TablesSite, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "orders", orders((1, "mon", 5)), configuration=FEED)
    await site.apply(
        f"""
        CREATE SOURCE orders LOCATION '{tmp_path}/orders';
        CREATE DYNAMIC TABLE daily TARGET_LAG = '2 seconds' AS
            SELECT day, sum(amount) AS total FROM orders GROUP BY day;
        """
    )

    async def shows(text: str) -> bool:
        return text in (await site.table("daily"))["why"]

    async with site.worker():
        await site.refreshed("daily")
        shutil.rmtree(tmp_path / "orders")
        await eventually(lambda: shows("is not there"), 30)
        narrow = orders((1, "mon", 5)).select(["id", "day"])
        write_deltalake(tmp_path / "orders", narrow, configuration=FEED)
        await eventually(lambda: shows("the schema of a source changed"), 60)
        shutil.rmtree(tmp_path / "orders")
        write_deltalake(tmp_path / "orders", orders((1, "tue", 7)), configuration=FEED)
        await site.runs.client.post("/api/tables/daily/resume")
        found = await site.refreshed("daily")
        assert (found["state"], found["rows"]) == ("active", 1)
        (newest, *_) = await site.history("daily")
        assert (newest["strategy"], newest["reason"]) == ("FULL", "a source was replaced")


async def test_five_query_errors_suspend_a_table_and_its_readers_wait(
    site: TablesSite, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "orders", orders((1, "mon", 0)), configuration=FEED)
    await site.apply(
        f"""
        CREATE SOURCE orders LOCATION '{tmp_path}/orders';
        CREATE DYNAMIC TABLE shares TARGET_LAG = '1 second' AS
            SELECT day, CAST(day AS INT) AS share FROM orders;
        CREATE DYNAMIC TABLE most TARGET_LAG = '1 second' AS SELECT share FROM shares;
        """
    )

    async def suspended() -> bool:
        return bool((await site.table("shares"))["state"] == "suspended")

    async with site.worker():
        await eventually(suspended, 60)
    found = await site.table("shares")
    assert "5 refreshes in a row failed" in found["why"]
    assert "CAST_INVALID_INPUT" in found["why"]
    assert (await site.table("most"))["why"] == "waits for shares: suspended"
    assert [each["status"] for each in await site.history("shares")] == ["failed"] * 5


async def test_what_cannot_be_applied_is_refused_in_a_sentence(
    site: TablesSite, tmp_path: Path
) -> None:
    write_deltalake(tmp_path / "orders", orders((1, "mon", 5)))
    await site.apply(statements(tmp_path))
    table = "CREATE DYNAMIC TABLE t TARGET_LAG = '1 minute' AS "
    for sql, message in (
        (table + "SELECT nowhere FROM orders", "nowhere"),
        (table + "SELECT day FROM t", "t reads t"),
        (table + "SELECT day FROM missing", "neither a source nor a dynamic table"),
        (table + "SELECT day FROM orders WHERE id = reflect('a', 'b')", "reflect"),
        ("CREATE DYNAMIC TABLE t TARGET_LAG = '0.2 s' AS SELECT day FROM orders", "one second"),
        ("CREATE DYNAMIC TABLE daily TARGET_LAG = '1 day' AS SELECT 1 AS a", "CREATE OR REPLACE"),
        (
            """CREATE OR REPLACE DYNAMIC TABLE daily TARGET_LAG = '1 day' AS SELECT day FROM last;
            CREATE DYNAMIC TABLE last TARGET_LAG = '1 day' AS SELECT day FROM daily""",
            "in a cycle",
        ),
        (
            "CREATE OR REPLACE DYNAMIC TABLE daily TARGET_LAG = '1 day' AS SELECT day FROM orders",
            "busy",
        ),
        (table + "SELECT day FROM orders\n" + "-- x\n" * 5000 + "WHERE", "t"),
        ("CREATE SOURCE gone LOCATION '/nowhere/at/all'", "is not there"),
    ):
        answer = await site.runs.client.post("/api/tables/apply", json={"sql": sql})
        assert answer.status_code == 422, (sql, answer.text)
        assert message.lower() in answer.text.lower(), (sql, answer.text)
    for sql, message in (
        ("DROP DYNAMIC TABLE daily", "is read by busy"),
        ("DROP DYNAMIC TABLE nothing", "is not a dynamic table"),
    ):
        answer = await site.runs.client.post("/api/tables/apply", json={"sql": sql})
        assert (answer.status_code, message in answer.text) == (422, True), answer.text
    answer = await site.runs.client.post("/api/tables/daily/rename", json={"name": "days"})
    assert (answer.status_code, "read by busy" in answer.text) == (409, True)
    (step,) = await site.apply(
        "CREATE DYNAMIC TABLE hasty TARGET_LAG = '1 second' AS SELECT day FROM orders"
    )
    assert step["warning"].startswith("UNATTAINABLE")
    answer = await site.runs.client.post("/api/tables/daily/drop")
    assert answer.status_code == 409
    assert "read by busy" in answer.text
    assert (await site.runs.client.get("/api/tables/nothing")).status_code == 404


async def test_options_change_in_place_and_a_new_query_rebuilds(
    site: TablesSite, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.csv").write_text("id,day\n1,mon\n2,tue\n")
    source = f"CREATE SOURCE files LOCATION '{tmp_path}/files' FORMAT CSV;"
    table = "CREATE OR REPLACE DYNAMIC TABLE days TARGET_LAG = '{}'"
    table += " REFRESH_STRATEGY = AFFECTED_KEYS AS SELECT {} FROM files"
    await site.apply(source + table.format("2 s", "DISTINCT day"))
    again = await site.apply(source + table.format("2 s", "DISTINCT day"))
    assert {step["action"] for step in again} == {"unchanged"}
    changed = await site.apply(table.format("3 s", "DISTINCT day"))
    assert [step["action"] for step in changed] == ["changed"]
    async with site.worker():
        assert (await site.refreshed("days"))["rows"] == 2
        (tmp_path / "files" / "b.csv").write_text("id,day\n3,wed\n")
        assert (await site.refreshed("days"))["rows"] == 3
        assert (await site.history("days"))[0]["strategy"] == "AFFECTED_KEYS"
        (tmp_path / "files" / "a.csv").unlink()
        assert (await site.refreshed("days"))["rows"] == 1
        assert "its old rows are lost" in (await site.history("days"))[0]["reason"]
        rebuilt = await site.apply(table.format("3 s", "id, day"))
        assert [step["action"] for step in rebuilt] == ["rebuilt"]
        assert (await site.refreshed("days"))["columns"] == ["id", "day"]
        assert (await site.history("days"))[0]["reason"] == "the definition changed"
        assert rebuilt[0]["diff"] == [
            "@@ -1 +1 @@",
            "-SELECT DISTINCT day FROM files",
            "+SELECT id, day FROM files",
        ]
        versions = await site.runs.get("/api/tables/days/versions")
        assert [each["version"] for each in versions] == [3, 2, 1]
        assert "+SELECT id, day FROM files" in versions[0]["diff"]
        explained = await site.runs.get("/api/tables/days/explain")
        assert explained["keys"] == ["id", "day"]
        page = await site.runs.client.get("/tables/days", headers=PAGE)
        assert "Lag before each refresh" in page.text
        assert "-SELECT DISTINCT day FROM files" in page.text

        async def renamed() -> bool:
            # Refused while a refresh is under way.
            answer = await site.runs.client.post(
                "/api/tables/days/rename", json={"name": "Weekdays"}
            )
            return answer.status_code == 200

        await eventually(renamed, 30)
        assert (tmp_path / "data" / "tables" / "weekdays").exists()
        (tmp_path / "files" / "c.csv").write_text("id,day\n4,thu\n")
        assert (await site.refreshed("weekdays"))["rows"] == 2
        assert (await site.history("weekdays"))[0]["strategy"] in ("DELTA", "AFFECTED_KEYS")
    plan = await site.apply("DROP DYNAMIC TABLE weekdays")
    assert [(step["name"], step["action"]) for step in plan] == [("weekdays", "dropped")]
    assert not (tmp_path / "data" / "tables" / "weekdays").exists()
