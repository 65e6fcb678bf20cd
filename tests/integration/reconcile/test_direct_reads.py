"""Direct reads in a run: the same evidence as from staged rows, with no file between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import duckdb
import psycopg
import pytest
from pydantic import SecretStr

from kalla.errors import InvalidInput, Permanent, Unavailable
from kalla.reconcile import kernel
from kalla.reconcile.partitioned import shuffle
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.runs.execute import execute_recipe
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.session.match_progress import FETCHING
from kalla.reconcile.sources import direct_reads, inspection, source_planning
from kalla.reconcile.sources.source_planning import Limits
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from kalla.storage import LOCAL
from tests.integration.connectors.postgres_shelf import PostgresShelf
from tests.servers import PostgresServer, SparkServer

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = pytest.mark.spark

ROWS = 1_000
LIMITS = Limits(memory="500MB", threads=2, chunk_threshold_rows=300)
RULE = {
    "name": "r",
    "conditions": [
        {"left": "ref", "op": "eq", "right": "ref"},
        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "1"},
    ],
}
SQL = """
SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r
ON l.ref = r.ref AND tolerance_match(l.amount, r.amount, 1)
"""


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    found = connect(SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token)))
    yield found
    found.stop()


@pytest.fixture
def bank(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = postgres_server.create()
    url = postgres_server.url(name)
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE invoices (id bigint, ref text, amount numeric(12, 2), tags text[]);"
            "CREATE TABLE payments (id bigint PRIMARY KEY, memo text, ref text,"
            " amount numeric(12, 2))"
        )
        connection.execute(
            f"INSERT INTO payments SELECT n, NULL, 'INV-' || n, n + CASE WHEN n % 10 = 0 THEN 5"
            f" ELSE 0 END FROM generate_series(1, {ROWS}) AS n;"
            # Every tenth invoice has the id of the one before it.
            "INSERT INTO invoices SELECT n - CASE WHEN n % 10 = 5 THEN 1 ELSE 0 END, 'INV-' || n,"
            f" n, ARRAY['x', n::text] FROM generate_series(1, {ROWS}) AS n".encode()
        )
    monkeypatch.setenv("KALLA_SECRET_BANK", urlsplit(url).password or "")
    yield url
    postgres_server.drop(name)


def table(url: str, name: str, **more: Any) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "uri": f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}",
        "table": name,
        "password": "secret://bank",
        "primary_key": ["id"],
        "amount": "amount",
        **more,
    }


def recipe(url: str, left: dict[str, Any], right: dict[str, Any], **how: Any) -> Recipe:
    sources = {"left": table(url, "invoices", **left), "right": table(url, "payments", **right)}
    return Recipe.model_validate({"name": "test", "sources": sources, **(how or {"rules": [RULE]})})


def run(
    session: SparkSession, url: str, folder: Path, read: str, limits: Limits = LIMITS, **how: Any
) -> dict[str, Any]:
    sides = ({"partition_key": "id"}, {"consistency": "snapshot", "max_parallel_chunks": 3})
    wanted = recipe(url, *({"read": read, **side} for side in sides), **how)
    folder.mkdir()
    execute_recipe(session, wanted, folder, limits, lambda *_: None)
    text = (folder / "metadata.json").read_text()
    assert (urlsplit(url).password or "no password") not in text
    metadata: dict[str, Any] = json.loads(text)
    return metadata


def digests(metadata: dict[str, Any]) -> dict[str, str]:
    return {name: part["digest"] for name, part in metadata["datasets"].items()}


@pytest.mark.parametrize("how", [{"rules": [RULE]}, {"match_sql": SQL}], ids=["rules", "sql"])
def test_a_direct_read_gives_the_evidence_of_a_staged_one(
    session: SparkSession, bank: str, tmp_path: Path, how: dict[str, Any]
) -> None:
    staged = run(session, bank, tmp_path / "staged", "staged", **how)
    found = run(session, bank, tmp_path / "direct", "direct", **how)
    assert digests(found) == digests(staged)
    for side, name in (("left", "public.invoices"), ("right", "public.payments")):
        for metadata in (staged, found):
            (mark,) = metadata["sources"][side]["marks"]
            assert mark.keys() == {"table", "snapshot", "lsn", "at"}
            assert mark["table"] == name
            assert None not in mark.values()
    assert found["sources"]["left"]["format"] == "direct"
    assert found["sources"]["left"]["rows_with_doubled_or_null_keys"] == ROWS // 5
    assert found["sources"]["right"]["states"]["unmatched"]["rows"] >= ROWS // 10
    assert not (tmp_path / "direct" / ".staged").exists()
    if "rules" in how:
        spread = run(session, bank, tmp_path / "3", "direct", replace(LIMITS, buckets=3), **how)
        assert digests(spread) == digests(staged)
        assert spread["sources"]["left"]["rows_with_doubled_or_null_keys"] == ROWS // 5


def test_sql_sees_the_same_values_of_a_direct_table_as_of_a_staged_one(
    session: SparkSession, bank: str, tmp_path: Path
) -> None:
    with psycopg.connect(bank) as connection:
        connection.execute(
            "ALTER TABLE invoices ADD at time, ADD odd time[], ADD naive timestamp;"
            "ALTER TABLE payments ADD at time, ADD naive timestamp;"
            "UPDATE invoices SET at = '09:00', naive = '2024-01-31 09:00';"
            "UPDATE payments SET at = '09:00', naive = '2024-01-31 09:00';"
            "ALTER TABLE invoices ALTER amount TYPE text USING replace(amount::text, '.', ',');"
            "UPDATE invoices SET amount = '1e3' WHERE id = 1000"
        )
    sql = f"{SQL} AND l.at = r.at AND l.naive = r.naive AND string(r.naive) LIKE '%09:00:00'"
    sides = ({"csv": {"decimal": ","}, "partition_key": "id"}, {"max_parallel_chunks": 3})
    found = {}
    for read in ("staged", "direct"):
        (tmp_path / read).mkdir()
        wanted = recipe(bank, *({"read": read, **side} for side in sides), match_sql=sql)
        execute_recipe(session, wanted, tmp_path / read, LIMITS, lambda *_: None)
        found[read] = json.loads((tmp_path / read / "metadata.json").read_text())
    assert digests(found["direct"]) == digests(found["staged"])
    states = [found[read]["sources"]["left"]["states"] for read in found]
    assert states[0] == states[1]
    assert states[0]["matched"]["rows"] > ROWS // 2


def test_all_slices_see_one_moment_also_where_rows_are_added(bank: str) -> None:
    wanted = recipe(bank, {}, {})
    with (
        source_planning.connector(wanted.sources.right, "right", "UTC") as connector,
        direct_reads.open_input(connector, wanted, "right", LIMITS) as given,
    ):
        with psycopg.connect(bank) as other:
            other.execute("INSERT INTO payments SELECT id + 10000, NULL, ref FROM payments")
        assert len(given.slices) > 2
        assert given.connector is not None
        read = [
            row
            for part in given.slices
            for batch in given.connector.read(part, ["id"])
            for row in batch.column("id").to_pylist()
        ]
    assert sorted(read) == list(range(1, ROWS + 1))


def test_a_match_that_fetches_its_tables_tells_each_slice(bank: str, tmp_path: Path) -> None:
    wanted = recipe(bank, {"read": "direct"}, {"read": "direct"})
    told: list[float] = []
    with ExitStack() as held:
        inputs = {}
        for side in SIDES:
            connector = held.enter_context(
                source_planning.connector(wanted.sources[side], side, "UTC")
            )
            inputs[side] = held.enter_context(
                direct_reads.open_input(connector, wanted, side, LIMITS)
            )
        resources = Resources("500MB", 2, tmp_path / "temp")
        made = plan.make(wanted, inputs)
        kernel.match(
            made, tmp_path / "e", resources, "2026-01-01 00:00:00Z", progress_callback=told.append
        )
    slices = sum(len(each.slices) for each in inputs.values())
    fetched = FETCHING["fetch"]
    assert slices > 4
    assert told[: slices + 1] == pytest.approx([n * fetched / slices for n in range(slices + 1)])
    assert told[-1] == pytest.approx(100)


@pytest.mark.parametrize("asked", [{}, {"consistency": "snapshot"}], ids=["direct", "asked"])
def test_a_run_whose_snapshot_is_lost_is_tried_again(bank: str, asked: dict[str, Any]) -> None:
    wanted = recipe(bank, {}, {"read": "direct", **asked})

    def read() -> None:
        with (
            source_planning.connector(wanted.sources.right, "right", "UTC") as connector,
            direct_reads.open_input(connector, wanted, "right", LIMITS) as given,
            duckdb.connect() as connection,
        ):
            PostgresShelf(bank).cut("%pg_export_snapshot%")
            direct_reads.fetch(connection, given, threads=2)

    with pytest.raises(Unavailable, match="must be read anew"):
        read()


def test_a_source_that_refuses_a_snapshot_is_read_without_unless_it_was_asked_for(
    bank: str,
) -> None:
    grant = "GRANT SELECT (id, ref, amount) ON payments TO {}"
    with PostgresShelf(bank).clerk(grant) as clerk:
        right = recipe(bank, {}, {"uri": clerk}).sources.right
        with source_planning.connector(right, "right", "UTC", at_one_moment=True) as connector:
            assert connector.snapshot is None
            read = connector.read(connector.split(1)[0], ["id"])
            assert sum(batch.num_rows for batch in read) == ROWS
        asked = right.model_copy(update={"consistency": "snapshot"})
        with (
            pytest.raises(InvalidInput, match="permission denied"),
            source_planning.connector(asked, "right", "UTC", at_one_moment=True),
        ):
            pass


def test_a_table_that_is_not_read_in_one_snapshot_says_so_in_its_mark(
    session: SparkSession, bank: str, tmp_path: Path
) -> None:
    grant = "GRANT SELECT (id, memo, ref, amount) ON payments TO {}"
    with PostgresShelf(bank).clerk(grant) as clerk:  # who may read it all, but not lock it
        wanted = recipe(bank, {}, {"uri": clerk})
        execute_recipe(session, wanted, tmp_path, LIMITS, lambda *_: None)
    (mark,) = json.loads((tmp_path / "metadata.json").read_text())["sources"]["right"]["marks"]
    assert (mark["table"], mark["snapshot"]) == ("public.payments", None)
    assert mark["read_from"] < mark["read_to"]


def test_columns_that_no_rule_names_are_read_only_to_tell_rows_of_one_key_apart(bank: str) -> None:
    def columns(side: Side, **more: Any) -> tuple[str, ...] | None:
        wanted = recipe(bank, *(more if each == side else {} for each in SIDES))
        with source_planning.connector(wanted.sources[side], side, "UTC") as connector:
            return source_planning.columns_to_read(connector, wanted, side)

    assert columns("right") == ("id", "ref", "amount")
    assert columns("left") is None, "its ids are not unique"
    assert columns("right", partition_key="ref") is None, "a row may be read twice"
    assert columns("right", partition_key="ref", consistency="snapshot") is not None
    assert columns("right", primary_key=["id", "ref"]) is not None
    assert columns("right", primary_key=["id", "ref", "memo"]) is None, "a|b and c, or a and b|c"
    assert columns("right", amount="amounts") is None, "what is missing is told with all there is"


def test_a_column_that_cannot_be_read_is_in_nobodys_way_unless_it_is_named(bank: str) -> None:
    with psycopg.connect(bank) as connection:
        connection.execute("ALTER TABLE invoices ADD address inet")
    for how in ({"rules": [RULE]}, {"match_sql": SQL}):
        wanted = recipe(bank, {}, {}, **how)
        with source_planning.connector(wanted.sources.left, "left", "UTC") as connector:
            with direct_reads.open_input(connector, wanted, "left", LIMITS) as given:
                assert list(given.types) == ["id", "ref", "amount", "tags"]
                assert any(note.startswith("address: left out") for note in given.notes)
            ((chunk, *_), notes) = source_planning.chunks(connector, wanted, "left", "-", LIMITS)
            assert sum(batch.num_rows for batch in connector.read(chunk.part, chunk.columns)) > 0
            assert any(note.startswith("address: left out") for note in notes)
    named = recipe(bank, {"amount": "address"}, {})
    with (
        source_planning.connector(named.sources.left, "left", "UTC") as connector,
        pytest.raises(InvalidInput, match="address: the type inet is not supported"),
    ):
        source_planning.columns_to_read(connector, named, "left")


def test_columns_that_differ_by_case_alone_are_refused_wherever_a_table_is_looked_at(
    bank: str,
) -> None:
    with psycopg.connect(bank) as connection:
        connection.execute('ALTER TABLE payments ADD "Ref" text')
    wanted = recipe(bank, {}, {})
    problem = "table: payments has several columns Ref, ref"
    with pytest.raises(InvalidInput, match=problem):
        inspection.columns(wanted.sources.right)
    assert problem in inspection.reach(wanted.sources.right).message
    with pytest.raises(InvalidInput, match=f"sources.right.{problem}"):
        source_planning.preview(wanted, "right")
    with source_planning.connector(wanted.sources.right, "right", "UTC") as connector:
        with pytest.raises(InvalidInput, match=problem):
            source_planning.chunks(connector, wanted, "right", "-", LIMITS)
        with (
            pytest.raises(InvalidInput, match=problem),
            direct_reads.open_input(connector, wanted, "right", LIMITS),
        ):
            pass


def test_a_source_may_bound_how_many_of_its_chunks_are_read_at_once(bank: str) -> None:
    wanted = recipe(bank, {}, {"max_parallel_chunks": 2})
    with (
        source_planning.connector(wanted.sources.right, "right", "UTC") as connector,
        direct_reads.open_input(connector, wanted, "right", LIMITS) as given,
    ):
        assert (len(given.slices), given.at_once) == (4, 2)
        made = plan.make(wanted, {"left": given, "right": given})
        dealt = [piece for piece in shuffle.pieces(made, 16, LOCAL) if piece.side == "right"]
        assert sorted(len(piece.input.slices) for piece in dealt) == [2, 2]


def test_what_goes_wrong_at_the_source_is_told_as_it_is(
    session: SparkSession, bank: str, tmp_path: Path
) -> None:
    with psycopg.connect(bank) as connection:
        connection.execute("ALTER TABLE invoices ALTER amount TYPE numeric")
        connection.execute("UPDATE invoices SET amount = 'NaN' WHERE id = 7")
    with pytest.raises(Permanent, match="column amount") as failed:
        run(session, bank, tmp_path / "out", "direct", rules=[RULE])
    assert "'nan'" in str(failed.value)
