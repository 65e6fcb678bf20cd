"""Two executors: both read and match, and one that dies takes nothing with it."""

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
from pydantic import SecretStr

from kalla.reconcile import kernel
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.evidence.writing.digests import combined
from kalla.reconcile.evidence.writing.output_lock import WORK
from kalla.reconcile.plan import plan
from kalla.reconcile.recipe.model import SIDES, Recipe
from kalla.reconcile.runs.execute import carry_out
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import direct_reads, source_planning
from kalla.reconcile.sources.source_planning import Limits
from kalla.spark import datasource, sql_functions
from kalla.spark.connectors.postgres_connector import PostgresConnector
from kalla.spark.placing import place
from kalla.spark.session import connect
from tests.cluster import WORKERS, Cluster
from tests.servers import PostgresServer
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


def test_an_executor_that_is_killed_changes_nothing_in_the_evidence(
    session: SparkSession,
    spark_cluster: Cluster,
    bank: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if password := urlsplit(bank).password:
        monkeypatch.setenv("KALLA_SECRET_BANK", password)
    recipe = invoices_and_payments(bank, tmp_path, with_password=bool(password))
    (tmp_path / "out").mkdir()
    killer = Killer(spark_cluster, tmp_path / "out")
    done = carry_out(
        session,
        recipe,
        tmp_path / "out",
        Limits("500MB", 1, chunk_threshold_rows=ROWS // SLICES, buckets=4),
        killer.progress,
    )
    killer.thread.join(60)
    assert killer.killed is not None
    assert not psutil.pid_exists(killer.killed)
    assert done.facts.sides["left"].states["matched"].rows == ROWS * 9 // 10
    metadata = json.loads((tmp_path / "out" / "metadata.json").read_text())
    digests = {name: metadata["datasets"][name]["digest"] for name in DATASETS}
    assert digests == in_one_bucket(recipe, tmp_path)


class Killer:
    """Kills an executor as soon as a bucket is being matched."""

    def __init__(self, cluster: Cluster, evidence: Path) -> None:
        self._cluster, self._evidence = cluster, evidence
        self.killed: int | None = None
        self.thread = threading.Thread(target=self._kill)
        self._seen: set[str] = set()

    def progress(self, stage: str, done: int, _known: int) -> None:
        if stage == "match" and done and self.thread.ident is None:
            self._seen = self._running()
            self.thread.start()

    def _kill(self) -> None:
        until(lambda: self._running() - self._seen, "a task that began", 120)
        self.killed = min(self._cluster.executors())
        os.kill(self.killed, signal.SIGKILL)

    def _running(self) -> set[str]:
        """Each task has a folder of its own to spill into."""
        return {each.name for each in self._evidence.glob(f"{WORK}*/temp/*")}


def invoices_and_payments(bank: str, folder: Path, *, with_password: bool) -> Recipe:
    numbers = list(range(1, ROWS + 1))
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "ref": pa.array([f"INV-{n}" for n in numbers]),
        "amount": pa.array(numbers, pa.int64()),
    }
    pq.write_table(pa.table(columns), folder / "invoices.parquet")
    side: dict[str, Any] = {"primary_key": ["id"], "amount": "amount"}
    right = side | {"uri": address(bank), "table": "payments", "read": "direct"}
    if with_password:
        right["password"] = "secret://bank"
    amounts = {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "1"}
    return Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side | {"uri": str(folder / "invoices.parquet")}, "right": right},
            "rules": [
                {"name": "a", "conditions": [{"left": "ref", "op": "eq", "right": "ref"}, amounts]},
                {"name": "b", "conditions": [{"left": "id", "op": "eq", "right": "id"}, amounts]},
            ],
        }
    )


def in_one_bucket(recipe: Recipe, folder: Path) -> dict[str, str]:
    """The digests of the same recipe, matched in this process."""
    source = recipe.sources.right
    with (
        source_planning.connector(source, "right", "UTC") as connector,
        direct_reads.open_input(connector, recipe, "right", Limits()) as right,
    ):
        inputs = {"left": source_planning.look(recipe.sources.left, "left"), "right": right}
        made = plan.make(recipe, {side: inputs[side] for side in SIDES})
        resources = Resources("500MB", 1, folder / "temp")
        facts = kernel.match(made, folder / "one", resources, "2026-01-01 00:00:00Z")
    return {
        name: combined([each.digest for each in facts.written if each.dataset == name])
        for name in DATASETS
    }
