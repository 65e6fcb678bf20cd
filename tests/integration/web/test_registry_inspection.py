"""Looking into registered sources: columns, first rows, and whether they can be read at all."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from kalla.errors import Unavailable
from kalla.local import ports
from kalla.reconcile.registry import entries
from kalla.reconcile.registry.admission import SourceDocument
from kalla.reconcile.registry.timed_inspection import SourceInspector
from kalla.reconcile.sources import inspection
from kalla.reconcile.sources.scanning.duckdb_files import opened, readable
from kalla.storage import LOCAL
from tests.web_kit import Site, until

RECIPE = """
name: May
sources:
  left: {uri: 'source://books', primary_key: [no]}
  right: {uri: 'source://bank', primary_key: [id]}
rules:
  - name: paid
    conditions: [{left: invoice_no, op: eq, right: refrence}]
"""


@pytest.fixture
async def books(site: Site, tmp_path: Path) -> str:
    """A registered CSV."""
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "may.csv").write_text("invoice_no,amount\nA1,2.50\nA2,3.00\n")
    await register(site, "books", {"uri": str(folder)})
    return str(folder)


@pytest.fixture
async def bank(site: Site, site_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered table."""
    at = conninfo_to_dict(site_database)
    uri = f"postgresql://{at['user']}@{at['host']}:{at['port']}/{at['dbname']}"
    await site.execute("DROP TABLE IF EXISTS payments")
    await site.execute(
        "CREATE TABLE payments AS SELECT g::int AS id, 'A' || g AS reference,"
        " (g / 4.0)::numeric(12, 2) AS amount FROM generate_series(1, 200) g"
    )
    await site.execute("ALTER TABLE payments ADD PRIMARY KEY (id)")
    monkeypatch.setenv("KALLA_SECRET_BANK", str(at.get("password") or "unused"))
    await register(site, "bank", {"uri": uri, "table": "payments", "password": "secret://bank"})


async def register(site: Site, name: str, source: dict[str, Any]) -> None:
    async with site.client("admin") as client:
        answer = await client.post("/api/sources", json={"name": name, "source": source})
    assert answer.status_code == 201, answer.text


@pytest.mark.usefixtures("books")
async def test_a_file_shows_its_columns_its_key_and_its_rows(site: Site) -> None:
    async with site.client("viewer") as client:
        columns = (await client.get("/api/sources/books/columns")).json()
        preview = (await client.get("/api/sources/books/preview")).json()
        few = (await client.get("/api/sources/books/preview?rows=1")).json()
        many = await client.get("/api/sources/books/preview?rows=100000")
    assert [(each["name"], each["type"]) for each in columns["columns"]] == [
        ("invoice_no", "text"),
        ("amount", "text"),
    ]
    assert columns["primary_key"] == ["invoice_no"]
    assert preview == {
        "columns": ["invoice_no", "amount"],
        "rows": [["A1", "2.50"], ["A2", "3.00"]],
    }
    assert few["rows"] == [["A1", "2.50"]]
    assert many.status_code == 422


async def test_a_key_that_is_registered_is_not_guessed(site: Site, tmp_path: Path) -> None:
    (tmp_path / "lines.csv").write_text("id,line\n1,7\n2,8\n")
    keyed = {"uri": str(tmp_path / "lines.csv"), "primary_key": ["line"]}
    await register(site, "lines", keyed)
    async with site.client("viewer") as client:
        columns = (await client.get("/api/sources/lines/columns")).json()
    assert (columns["primary_key"], columns["primary_key_note"]) == (["line"], "as registered")


@pytest.mark.usefixtures("bank")
async def test_a_table_shows_its_columns_its_key_and_fifty_rows(site: Site) -> None:
    async with site.client("operator") as client:
        columns = (await client.get("/api/sources/bank/columns")).json()
        preview = (await client.get("/api/sources/bank/preview")).json()
        tested = await client.post("/api/sources/bank/test")
    assert [(each["name"], each["type"]) for each in columns["columns"]] == [
        ("id", "integer"),
        ("reference", "text"),
        ("amount", "decimal"),
    ]
    assert columns["primary_key"] == ["id"]
    assert len(preview["rows"]) == 50
    assert tested.status_code == 200
    assert tested.json()["reachable"] is True, tested.text


@pytest.mark.usefixtures("bank")
async def test_a_whole_database_is_tested_by_itself_and_looked_into_by_table(site: Site) -> None:
    source = await _registered(site, "bank")
    nobody = f"postgresql://reader@127.0.0.1:{ports.choose_free()}/bank"
    await register(site, "whole", {"uri": source.uri, "password": source.password})
    await register(site, "away", {"uri": nobody})
    async with site.client("operator") as client:
        tested = [
            (await client.post(f"/api/sources/{name}/test")).json() for name in ("whole", "away")
        ]
        looks = [await client.get(f"/api/sources/whole/{look}") for look in ("columns", "preview")]
    assert [each["reachable"] for each in tested] == [True, False], tested
    for answer in looks:
        assert answer.status_code == 422
        assert "the source is a whole database (register the table" in answer.json()["detail"]


@pytest.mark.usefixtures("bank", "books")
async def test_a_check_knows_the_columns_of_registered_sources(site: Site) -> None:
    async with site.client("viewer") as client:
        verdict = (await client.post("/api/recipes/validate", content=RECIPE)).json()
        right = RECIPE.replace("[no]", "[invoice_no]").replace("refrence", "reference")
        good = (await client.post("/api/recipes/validate", content=right)).json()
    assert verdict["valid"] is False
    found = {each["path"]: (each["value"], each["suggestion"]) for each in verdict["problems"]}
    assert found["rules[0].conditions[0].right"] == ("refrence", "did you mean reference?")
    assert found["sources.left.primary_key[0]"][0] == "no"
    assert good == {"valid": True, "problems": [], "notes": [], "needs": []}


async def test_a_check_does_not_look_at_what_is_not_registered(site: Site, tmp_path: Path) -> None:
    """Or a viewer could read the header of any file of the server."""
    (tmp_path / "secret.csv").write_text("hunter2\n1\n")
    side = f"{{uri: {tmp_path}/secret.csv, primary_key: [id]}}"
    text = RECIPE.replace("{uri: 'source://books', primary_key: [no]}", side)
    text = text.replace("{uri: 'source://bank', primary_key: [id]}", side)
    async with site.client("viewer") as client:
        answer = await client.post("/api/recipes/validate", content=text)
    verdict = answer.json()
    assert verdict["valid"] is True
    assert len(verdict["notes"]) == 2
    assert "is not a registered source" in verdict["notes"][0]
    assert "hunter2" not in answer.text


async def test_a_source_that_cannot_be_read_says_why(
    site: Site, books: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KALLA_SECRET_NOBODY", raising=False)
    nobody = f"postgresql://reader@127.0.0.1:{ports.choose_free()}/bank"
    table = {"uri": nobody, "table": "t"}
    await register(site, "away", table)
    await register(site, "locked", table | {"password": "secret://nobody"})
    await register(site, "gone", {"uri": f"{books}/june.csv"})
    async with site.client("operator") as client:
        tested = {
            name: (await client.post(f"/api/sources/{name}/test")).json()
            for name in ("away", "locked", "gone")
        }
        refused = await client.get("/api/sources/gone/preview")
        missing = await client.post("/api/sources/nothing/test")
    assert [each["reachable"] for each in tested.values()] == [False] * 3
    assert "kalla secret set nobody" in tested["locked"]["message"]
    assert "june.csv does not exist" in tested["gone"]["message"]
    assert tested["away"]["message"]
    assert refused.status_code in (404, 422)
    assert "june.csv does not exist" in refused.json()["detail"]
    assert missing.status_code == 404


async def test_a_link_out_of_a_registered_folder_is_not_followed(
    site: Site, books: str, tmp_path: Path
) -> None:
    (tmp_path / "secret.csv").write_text("hunter2,amount\n1,2\n")
    (Path(books) / "june.csv").symlink_to(tmp_path / "secret.csv")
    async with site.client("operator") as client:
        answers = [
            await client.get("/api/sources/books/preview"),
            await client.get("/api/sources/books/columns"),
            await client.post("/api/sources/books/test"),
        ]
    assert [answer.status_code for answer in answers] == [422, 422, 200]
    for answer in answers:
        assert "is a link that leads out" in answer.text
        assert "hunter2" not in answer.text


async def test_a_source_that_never_answers_is_given_up() -> None:
    released = threading.Event()

    def resolve(_name: str) -> SecretStr:
        released.wait(60)
        return SecretStr("")

    look = SourceInspector(LOCAL, resolve, seconds=0.05)
    source = SourceDocument(uri="postgresql://127.0.0.1:1/x", table="t", password="secret://x")
    try:
        with pytest.raises(Unavailable, match="did not answer within"):
            await look.preview(source, 1)
        assert (await look.reach(source)).reachable is False
    finally:
        released.set()


@pytest.mark.usefixtures("bank")
async def test_a_look_at_a_locked_table_ends_at_the_database_too(site: Site) -> None:
    """Or a few of them would hold all the threads that there are for looks."""
    source = await _registered(site, "bank")
    look = replace(SourceInspector.of(site.settings), seconds=0.2)

    async def waiting() -> int:
        found = await site.one(
            "SELECT count(*) AS n FROM pg_locks"
            " WHERE NOT granted AND relation = 'payments'::regclass"
        )
        return int(found["n"])

    async with site.database.transaction() as connection:
        await connection.execute("LOCK TABLE payments IN ACCESS EXCLUSIVE MODE")
        for ask in (look.inspect(source), look.preview(source, 1)):
            with pytest.raises(Unavailable):
                await ask
        assert not (await look.reach(source)).reachable

        async def at_rest() -> bool:
            return await waiting() == 0

        await until(at_rest, "the looks to end", 30)
    assert (await SourceInspector.of(site.settings).reach(source)).reachable


def test_a_look_at_files_that_takes_too_long_is_interrupted() -> None:
    bounds = replace(inspection.LOOK, seconds=0.2)
    with (
        pytest.raises(Unavailable, match="took too long"),
        opened(LOCAL, bounds) as connection,
        readable(["rows.parquet"]),
    ):
        connection.execute("SELECT count(*) FROM range(100000000000) a, range(100000) b").fetchall()


async def test_a_check_knows_a_column_of_json_that_comes_late(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a recipe would be refused that can be run; for a guess at the key a sample will do."""
    (tmp_path / "may.json").write_text('{"id": 1}\n{"id": 2}\n{"late": 3}\n')
    monkeypatch.setattr(inspection, "SAMPLE_ROWS", 2)
    await register(site, "books", {"uri": str(tmp_path / "may.json"), "primary_key": ["id"]})
    text = RECIPE.replace("bank", "books").replace(", primary_key: [no]", "")
    text = text.replace("left: invoice_no", "left: lat").replace("right: refrence", "right: late")
    async with site.client("viewer") as client:
        verdict = (await client.post("/api/recipes/validate", content=text)).json()
        columns = (await client.get("/api/sources/books/columns")).json()
    found = {each["path"]: each["suggestion"] for each in verdict["problems"]}
    assert found == {"rules[0].conditions[0].left": "did you mean late?"}
    assert [each["name"] for each in columns["columns"]] == ["id"]


def test_duckdb_for_looks_has_little_memory_and_few_threads() -> None:
    with opened(LOCAL, inspection.LOOK) as connection:
        (found,) = connection.execute(
            "SELECT current_setting('memory_limit'), current_setting('threads'),"
            " current_setting('preserve_insertion_order')"
        ).fetchall()
    assert found == ("488.2 MiB", inspection.LOOK.threads, True)


async def _registered(site: Site, name: str) -> SourceDocument:
    async with site.database.transaction() as connection:
        return (await entries.source(connection, name)).source
