"""Two executors that share no folder: both read and match; one that dies takes nothing along."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pydantic import SecretStr

from kalla.reconcile import kernel
from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.evidence.reading.evidence_export import export
from kalla.reconcile.evidence.reading.evidence_pages import Query
from kalla.reconcile.evidence.verifying.verification import verify
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.digests import combined
from kalla.reconcile.kernel import Facts
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import SIDES, Recipe
from kalla.reconcile.runs.execute import execute_recipe
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import direct_reads, source_planning
from kalla.reconcile.sources.source_planning import Limits
from kalla.spark import datasource, sql_functions
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.spark.placing import place
from kalla.spark.session import connect
from kalla.storage import join
from tests.cluster import WORKERS, Cluster
from tests.servers import PostgresServer, S3Server
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 20_000
SLICES = 8


@pytest.fixture(scope="module")
def session(spark_cluster: Cluster) -> Iterator[SparkSession]:
    found = connect(spark_cluster.spark)
    until(lambda: len(set(place(found, finder(), range(SLICES)))) == WORKERS, "both at work", 120)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def bank(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create()
    url = postgres_server.url(name)
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE payments (id bigint PRIMARY KEY, ref text, amount numeric(12, 2))"
        )
        connection.execute(
            "INSERT INTO payments SELECT n, 'INV-' || n, n + CASE WHEN n % 10 = 0 THEN 5 ELSE 0 END"
            f" FROM generate_series(1, {ROWS}) AS n".encode()
        )
    yield url
    postgres_server.drop(name)


def finder() -> Callable[[object], int]:
    """A kernel that tells its executor. Made here, since executors know nothing of tests."""

    def find(_: object) -> int:
        import psutil

        pids = [each.pid for each in psutil.Process().parents() if "java" in each.name()]
        return int(pids[0])

    return find


def address(url: str) -> str:
    parts = urlsplit(url)
    return f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"


def test_direct_reads_and_tolerance_match_run_on_both_executors(
    session: SparkSession, spark_cluster: Cluster, bank: str
) -> None:
    password = SecretStr(urlsplit(bank).password or "")
    connector = PostgresConnector(address(bank), "payments", password)
    parts = connector.split(SLICES)
    assert len(parts) == SLICES
    sql_functions.install(session)
    find_executor = finder()

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = [row for batch in batches for row in batch.to_pylist()]
        import pyarrow as pa

        yield pa.RecordBatch.from_pylist(
            [
                {
                    "executor": find_executor(None),
                    "least": min(row["id"] for row in seen),
                    "rows": len(seen),
                    "near": sum(row["near"] for row in seen),
                    "far": sum(row["far"] for row in seen),
                }
            ]
        )

    told = (
        datasource.read(session, connector, parts)
        .selectExpr(
            "id",
            "CAST(tolerance_match(amount, amount + 0.01, 0.01) AS INT) AS near",
            "CAST(tolerance_match(amount, amount + 0.02, 0.01) AS INT) AS far",
        )
        .mapInArrow(tell, "executor long, least long, rows long, near long, far long")
        .collect()
    )
    assert len(told) == len({row["least"] for row in told}) == SLICES, "a partition is a slice"
    assert {row["executor"] for row in told} == spark_cluster.executors()
    assert sum(row["rows"] for row in told) == ROWS
    assert all((row["near"], row["far"]) == (row["rows"], 0) for row in told)


def test_executors_have_no_writable_place_in_common(
    session: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    if not spark_cluster.isolated:
        pytest.skip("no mount namespaces can be made here")
    finder_of, folder = finder(), tmp_path

    def look(_: object) -> tuple[int, bool, bool, int]:
        import time

        from kalla.storage.scratch import room

        own = room() / f"mark-{finder_of(None)}"
        own.touch()
        time.sleep(0.5)  # so that both are at work
        try:
            (folder / "shared").touch()
            shared = True
        except OSError:
            shared = False
        return finder_of(None), shared, own.exists(), len(list(room().glob("mark-*")))

    seen = set(place(session, look, range(2 * WORKERS)))
    assert {(shared, kept, marks) for _, shared, kept, marks in seen} == {(False, True, 1)}
    assert {executor for executor, *_ in seen} == spark_cluster.executors()


@pytest.mark.parametrize("buckets", [4, 1])
def test_evidence_made_where_nothing_is_shared_is_that_of_one_machine(
    session: SparkSession,
    spark_cluster: Cluster,
    s3_server: S3Server,
    bucket: str,
    bank: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    buckets: int,
) -> None:
    """Also where an executor is killed while buckets are matched: one side is staged from Postgres,
    the other is read from S3."""
    if password := urlsplit(bank).password:
        monkeypatch.setenv("KALLA_SECRET_BANK", password)
    storage, url = s3_server.storage, join(bucket, "evidence")
    invoices(tmp_path)
    storage.put(tmp_path / "invoices", join(bucket, "invoices"))
    local = invoices_and_payments(bank, str(tmp_path / "invoices"), with_password=bool(password))
    recipe = invoices_and_payments(bank, join(bucket, "invoices"), with_password=bool(password))
    killer = Killer(spark_cluster)
    done = execute_recipe(
        session,
        recipe,
        url,
        Limits("500MB", 1, ROWS // SLICES, buckets=buckets, storage=storage),
        killer.progress if buckets > 1 else lambda *_: None,
    )
    if buckets > 1:
        killer.thread.join(60)
        assert killer.killed is not None
        assert not psutil.pid_exists(killer.killed)
    alone = in_one_bucket(local, tmp_path)
    assert done.facts.sides == alone.sides
    metadata = json.loads(storage.read_text(join(url, "metadata.json")))
    digests = {name: metadata["datasets"][name]["digest"] for name in DATASETS}
    assert digests == {
        name: combined([each.digest for each in alone.written if each.dataset == name])
        for name in DATASETS
    }
    filesystem, path = storage.filesystem(url)
    there = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    assert {each.path for each in there if each.is_file} == {
        f"{path}/metadata.json",
        *(
            f"{path}/{name}/{file}"
            for name in DATASETS
            for file in metadata["datasets"][name]["files"]
        ),
    }, "nothing is left that does not count"
    assert verify(url, storage).holds
    assert run_report.of_evidence(url, storage).exceptions >= ROWS // 10
    export(url, "unmatched_left", Query((), ()), "csv", tmp_path / "left.csv", storage)
    lines = (tmp_path / "left.csv").read_text().splitlines()
    assert len(lines) == metadata["datasets"]["unmatched_left"]["rows"] + 1


def test_a_recipe_of_sql_needs_no_shared_folder(
    session: SparkSession, s3_server: S3Server, bucket: str
) -> None:
    """Spark reads no S3 itself: what it is given, and what it finds, goes through the matching."""
    storage = s3_server.storage
    days = "\n".join(f"{n},2026-05-{n % 28 + 1:02},{n}.50" for n in range(100))
    for side in SIDES:
        storage.write_text(join(bucket, f"{side}.csv"), f"id,day,amount\n{days}\n")
    given = {"primary_key": ["id"], "amount": "amount"}
    document = {
        "name": "test",
        "sources": {side: given | {"uri": join(bucket, f"{side}.csv")} for side in SIDES},
        "match_sql": "SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r"
        " ON l.id = r.id AND l.amount = r.amount AND l.amount > {least}",
    }
    for least, matched in ((50, 50), (1_000, 0)):
        statement = str(document["match_sql"]).format(least=least)
        recipe = Recipe.model_validate(document | {"match_sql": statement})
        url = join(bucket, str(least))
        done = execute_recipe(
            session, recipe, url, Limits("500MB", 1, storage=storage), lambda *_: None
        )
        assert done.facts.sides["left"].states["matched"].rows == matched
        assert verify(url, storage).holds


class Killer:
    """Kills an executor as soon as a bucket is being matched."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.killed: int | None = None
        self.thread = threading.Thread(target=self._kill)
        self._seen: set[str] = set()

    def progress(self, stage: str, done: int, _known: int) -> None:
        if stage == "match" and done and self.thread.ident is None:
            self._seen = self._cluster.spilling()
            self.thread.start()

    def _kill(self) -> None:
        until(lambda: self._cluster.spilling() - self._seen, "a task that began", 120)
        self.killed = min(self._cluster.executors())
        os.kill(self.killed, signal.SIGKILL)


def invoices(folder: Path) -> None:
    """Two files; some rows are in both."""
    (folder / "invoices").mkdir()
    for number in range(2):
        numbers = [*range(1, 21), *range(21 + number, ROWS + 1, 2)]
        columns = {
            "id": pa.array(numbers, pa.int64()),
            "ref": pa.array([f"INV-{n}" for n in numbers]),
            "amount": pa.array(numbers, pa.int64()),
        }
        pq.write_table(pa.table(columns), folder / "invoices" / f"{number}.parquet")


def invoices_and_payments(bank: str, invoices: str, *, with_password: bool) -> Recipe:
    side: dict[str, Any] = {"primary_key": ["id"], "amount": "amount"}
    right = side | {"uri": address(bank), "table": "payments"}
    if with_password:
        right["password"] = "secret://bank"
    amounts = {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "1"}
    return Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side | {"uri": invoices}, "right": right},
            "rules": [
                {"name": "a", "conditions": [{"left": "ref", "op": "eq", "right": "ref"}, amounts]},
                {"name": "b", "conditions": [{"left": "id", "op": "eq", "right": "id"}, amounts]},
            ],
        }
    )


def in_one_bucket(recipe: Recipe, folder: Path) -> Facts:
    """The same recipe, matched in this process from files of this machine."""
    source = recipe.sources.right
    with (
        source_planning.connector(source, "right", "UTC") as connector,
        direct_reads.open_input(connector, recipe, "right", Limits()) as right,
    ):
        inputs = {
            "left": source_planning.inspect_files(recipe.sources.left, "left"),
            "right": right,
        }
        made = plan.make(recipe, {side: inputs[side] for side in SIDES})
        resources = Resources("500MB", 1, folder / "temp")
        return kernel.match(made, folder / "one", resources, "2026-01-01 00:00:00Z")
