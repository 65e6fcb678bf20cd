"""`kalla doctor --cluster` against real servers: what is well, and what it finds missing."""

from __future__ import annotations

import platform
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from kalla import release
from kalla.local import cluster_checkup, ports
from kalla.local.cluster_checkup import ExecutorReport, examine_cluster
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Query, Settings, Storage, Wake
from kalla.settings import Spark as SparkSettings
from tests.query_kit import query_worker, with_workers
from tests.servers import SparkServer

pytestmark = [pytest.mark.timeout(240), pytest.mark.spark]


def the_settings(url: str, spark: SparkServer, folder: Path, evidence: str = "") -> Settings:
    return Settings(
        data_dir=folder,
        database=DatabaseSettings(url=SecretStr(url)),
        wake=Wake(channel="postgres"),
        spark=SparkSettings(remote=spark.remote, token=SecretStr(spark.token)),
        storage=Storage(evidence=evidence, tables=str(folder / "shared tables")),
        query=Query(workers=f"127.0.0.1:{ports.choose_free()}"),
    )


async def test_a_healthy_cluster_has_every_executor_write_everywhere(
    database_url: str, spark_server: SparkServer, tmp_path: Path
) -> None:
    settings = the_settings(database_url, spark_server, tmp_path)
    async with query_worker(settings) as worker:
        findings = await examine_cluster(with_workers(settings, worker))
    states = {finding.part: (finding.state, finding.reason) for finding in findings}
    assert {part for part, (state, _) in states.items() if state == "away"} == set(), states
    assert "executor" in states["executors"][1]
    assert "writable from every executor" in states["storage"][1]
    assert str(tmp_path / "shared tables") in states["storage"][1]
    answered = {(each.version, each.address) for each in findings if each.part == "query worker"}
    assert answered == {(release.version(), worker.address)}
    assert list(tmp_path.rglob(".doctor-*")) == []  # noqa: ASYNC240


async def test_a_missing_grant_a_newer_database_and_a_place_that_cannot_be_written_are_told(
    database_url: str, spark_server: SparkServer, tmp_path: Path
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        role = "kalla_reader"
        for statement in (
            "DROP ROLE IF EXISTS {role}",
            "CREATE ROLE {role} LOGIN PASSWORD 'reader'",
            "GRANT USAGE ON SCHEMA kalla TO {role}",
            "GRANT SELECT ON ALL TABLES IN SCHEMA kalla TO {role}",
        ):
            connection.execute(sql.SQL(statement).format(role=sql.Identifier(role)))
        connection.execute("UPDATE kalla.release SET version = '9.1.0'")
    file = tmp_path / "file"
    file.touch()
    reader = make_conninfo(database_url, user=role, password="reader")
    settings = the_settings(reader, spark_server, tmp_path, evidence=str(file / "below"))
    try:
        found = await examine_cluster(settings)
        findings = {finding.part: finding for finding in found}
    finally:
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
    assert findings["grants"].state == "away"
    assert "UPDATE on jobs" in findings["grants"].reason
    assert "database belongs to Kalla 9.1.0" in findings["versions"].reason
    # The doctor itself could not write there; the other places are checked all the same.
    storage = {each.address: each.state for each in found if each.part == "storage"}
    assert storage == {str(file / "below"): "away", "": "ok"}
    assert findings["executors"].state == "ok"
    assert findings["query worker"].state == "away"
    assert "Connection refused" in findings["query worker"].reason


def test_a_place_that_some_executors_cannot_write_is_named_with_their_number() -> None:
    def report(executor: str, **failures: str) -> ExecutorReport:
        return ExecutorReport(executor, "0.1.0", platform.python_version(), 5.0, failures)

    reports = [report("one"), report("two", staging="is read-only"), report("one")]
    found = cluster_checkup._of_executors(reports, ["evidence", "staging"], 0.0, 9.0)
    assert found[0].reason == "2 executors answered"
    (storage,) = [each for each in found if each.part == "storage"]
    assert (storage.address, storage.state) == ("staging", "away")
    assert storage.reason == "1 of 2 executors: is read-only"
