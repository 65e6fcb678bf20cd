"""Direct reads with a real Spark: a slice is a partition, types as told, no password to be seen."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import SecretStr
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from kalla.spark import datasource
from kalla.spark.connectors.postgres_connector import PostgresConnector
from tests.servers import PostgresServer, SparkServer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[SparkSession]:
    remote = f"{spark_server.remote}/;token={spark_server.token}"
    session = SparkSession.builder.remote(remote).create()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def source(postgres_server: PostgresServer) -> Iterator[PostgresConnector]:
    name = postgres_server.create()
    url = postgres_server.url(name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id int8 PRIMARY KEY, amount numeric(38,9), at timestamptz,"
            " day date, tags text[], ref uuid, odd money);"
            "INSERT INTO t SELECT n, n + 0.000000001, '2024-01-01 12:00+02', '2024-01-01',"
            " ARRAY['a', NULL], gen_random_uuid(), 1 FROM generate_series(1, 1000) n;"
            "INSERT INTO t VALUES (0)"
        )
    parts = urlsplit(url)
    uri = f"postgresql://{parts.username}@{parts.hostname}:{parts.port}/{name}"
    yield PostgresConnector(uri, "t", SecretStr(parts.password or ""))
    postgres_server.drop(name)


COLUMNS = ["id", "amount", "at", "day", "tags", "ref"]


def test_each_slice_is_a_partition_and_each_row_arrives_once(
    spark: SparkSession, source: PostgresConnector
) -> None:
    frame = datasource.read(spark, source, source.split(4), COLUMNS)
    assert frame.dtypes == [
        ("id", "bigint"),
        ("amount", "decimal(38,9)"),
        ("at", "timestamp"),
        ("day", "date"),
        ("tags", "array<string>"),
        ("ref", "string"),
    ]
    placed = frame.selectExpr("*", "spark_partition_id() AS part")
    found = placed.selectExpr(
        "count(*)", "count(DISTINCT id)", "sum(amount)", "count(ref)",
        "count(DISTINCT part)", "min(unix_micros(at))",
    ).collect()[0]  # fmt: skip
    # 10:00 on that day, whatever the zone of the session.
    assert tuple(found) == (1001, 1001, Decimal("500500.000001000"), 1000, 4, 1_704_103_200_000_000)
    nulls = frame.where("id = 0").collect()[0]
    assert tuple(nulls) == (0, None, None, None, None, None)


def test_the_password_is_in_no_plan_option_or_error(
    spark: SparkSession, source: PostgresConnector, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = source.password.get_secret_value()
    assert len(secret) > 8
    frame = datasource.read(spark, source, source.split(2), ["id"])
    frame.explain("extended")
    shown = capsys.readouterr().out
    assert "kalla_" in shown, "the plan was printed"
    assert secret not in shown + repr(frame) + str(frame._plan)
    with source.held_snapshot() as snapshot:
        late = datasource.read(spark, source.at(snapshot), source.split(1), ["id"])
    with pytest.raises(PySparkException) as failed:
        late.count()
    assert "has ended" in str(failed.value)
    assert secret not in str(failed.value) + repr(failed.value)
