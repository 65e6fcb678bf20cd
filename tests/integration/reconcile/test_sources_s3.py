"""Native sources on S3, read as on disk."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pydantic import SecretStr
from typer.testing import CliRunner

from kalla.cli.main import application
from kalla.errors import InvalidInput, Unavailable
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Recipe, Source
from kalla.reconcile.runs.execute import execute_recipe
from kalla.reconcile.sources import source_columns, source_planning
from kalla.reconcile.sources.native_files import demand_unchanged
from kalla.reconcile.sources.scanning.duckdb_files import opened
from kalla.reconcile.sources.scanning.scan_sql import scan
from kalla.reconcile.sources.source_planning import Limits
from kalla.reconcile.sql.duckdb_errors import of_reading
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from kalla.storage import Storage, join
from tests.s3_versions import keep_versions
from tests.servers import S3Server, SparkServer


@pytest.fixture
def storage(s3_server: S3Server) -> Storage:
    return s3_server.storage


def source(uri: str, **fields: Any) -> Source:
    return Source.model_validate({"uri": uri, "primary_key": ["id"]} | fields)


def read(seen: Input, storage: Storage) -> list[tuple[Any, ...]]:
    columns = ", ".join(f'"{name}"' for name in seen.types)
    with opened(storage) as connection:
        found = connection.execute(f"SELECT {columns} FROM {scan(seen)}").fetchall()
    return sorted(found, key=str)


def test_files_folders_and_patterns_are_read(storage: Storage, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.csv").write_text("id,ref\n1,a\n")
    (tmp_path / "deep" / "b.csv.gz").write_bytes(gzip.compress(b"id,ref\n2,b\n"))
    (tmp_path / "lines.jsonl").write_text('{"id": 3, "ref": "c"}\n')
    pq.write_table(pa.table({"id": ["4"], "ref": ["d"]}), tmp_path / "what [1]?.parquet")
    storage.put(tmp_path, bucket)
    for pattern, wanted in (
        ("a.csv", [("1", "a")]),
        ("*.csv", [("1", "a")]),
        ("**/*.csv*", [("1", "a"), ("2", "b")]),
        ("deep", [("2", "b")]),
        ("lines.jsonl", [("3", "c")]),
        ("what [1]?.parquet", [("4", "d")]),
        ("*.parquet", [("4", "d")]),
    ):
        seen = source_planning.inspect_files(source(join(bucket, pattern)), "left", storage=storage)
        assert read(seen, storage) == wanted, pattern
        assert all(file.startswith(bucket) for file in seen.files)
        assert [mark["file"] for mark in seen.marks] == list(seen.files)
        given = source(join(bucket, pattern))
        assert source_columns.columns_of(given, storage=storage) == {"id": "text", "ref": "text"}
    with pytest.raises(
        InvalidInput, match=r"sources\.left\.uri: there is no bucket nowhere-at-all"
    ):
        source_planning.inspect_files(source("s3://nowhere-at-all/a.csv"), "left", storage=storage)


def test_the_command_line_reads_s3_by_its_settings(
    s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = s3_server.settings
    monkeypatch.setenv("KALLA_STORAGE_S3_ENDPOINT", given.s3_endpoint)
    monkeypatch.setenv("KALLA_STORAGE_S3_ACCESS_KEY", given.s3_access_key.get_secret_value())
    monkeypatch.setenv("KALLA_STORAGE_S3_SECRET_KEY", given.s3_secret_key.get_secret_value())
    s3_server.storage.write_text(join(bucket, "rows.csv"), "number,amount\n1,10.00\n")
    side = {"uri": join(bucket, "rows.csv"), "primary_key": ["number"]}
    same = {"left": "number", "op": "eq", "right": "numbr"}
    recipe = {
        "name": "test",
        "sources": {"left": side, "right": side},
        "rules": [{"name": "r", "conditions": [same]}],
    }
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    check = ["recipe", "check", str(tmp_path / "recipe.json")]
    checked = CliRunner().invoke(application(check), check)
    assert checked.exit_code == 2
    assert "did you mean number" in checked.output
    same["right"] = "number"
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    plan = ["reconcile", str(tmp_path / "recipe.json"), "--dry-run"]
    planned = CliRunner().invoke(application(plan), plan)
    assert planned.exit_code == 0, planned.output
    assert "columns: number, amount" in planned.output


@pytest.mark.spark
def test_a_run_reads_both_sides_from_s3_and_tells_no_key(
    s3_server: S3Server, spark_server: SparkServer, bucket: str, tmp_path: Path
) -> None:
    storage = s3_server.storage
    storage.write_text(join(bucket, "left.csv"), "id,amount\n1,10.00\n2,20.00\n")
    table = pa.table({"id": ["1", "3"], "day": ["a", "b"]})
    url = join(bucket, "right")
    options = storage.delta_options(url) | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    write_deltalake(url, table, storage_options=options, partition_by=["day"])
    recipe = Recipe.model_validate(
        {
            "name": "test",
            "sources": {
                "left": {"uri": join(bucket, "*.csv"), "primary_key": ["id"]},
                "right": {"uri": join(bucket, "right"), "primary_key": ["id"]},
            },
            "rules": [{"name": "r", "conditions": [{"left": "id", "op": "eq", "right": "id"}]}],
        }
    )
    limits = Limits(memory="500MB", threads=1, storage=storage)
    given = SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token))
    session = connect(given)
    try:
        done = execute_recipe(session, recipe, tmp_path, limits, lambda *_: None)
    finally:
        session.stop()
    assert done.facts.sides["left"].states["matched"].rows == 1
    assert done.facts.sides["right"].states["unmatched"].rows == 1
    told = json.loads((tmp_path / "metadata.json").read_text())["sources"]
    assert [each["file"] for each in told["left"]["marks"]] == [join(bucket, "left.csv")]
    assert told["right"]["marks"][0] == {"table": join(bucket, "right"), "version": 0}
    secret = s3_server.settings.s3_secret_key.get_secret_value()
    assert secret not in (tmp_path / "metadata.json").read_text()


def test_a_file_that_changes_while_it_is_read_is_an_error_that_may_pass(
    storage: Storage, bucket: str
) -> None:
    url = join(bucket, "rows.csv")
    storage.write_text(url, "id\n1\n")
    seen = source_planning.inspect_files(source(url), "left", storage=storage)
    with opened(storage) as connection:
        assert connection.execute(f"SELECT count(*) FROM {scan(seen)}").fetchall() == [(1,)]
        storage.write_text(url, "id\n1\n2\n")
        with pytest.raises(duckdb.Error) as raised:
            connection.execute(f"SELECT count(*) FROM {scan(seen)}").fetchall()
    told = of_reading(raised.value, "the left source", seen.files)
    assert isinstance(told, Unavailable)
    assert "has changed while it was read" in str(told)


def test_of_a_bucket_that_keeps_versions_a_mark_tells_which_was_read(
    s3_server: S3Server, bucket: str
) -> None:
    """Also where all else is the same: written again with the same content, in the same second."""
    keep_versions(bucket, s3_server.settings)
    url, storage = join(bucket, "rows.csv"), s3_server.storage
    storage.write_text(url, "id\n1\n")
    first = source_planning.inspect_files(source(bucket), "left", storage=storage)
    demand_unchanged(first, storage)
    storage.write_text(url, "id\n1\n")
    second = source_planning.inspect_files(source(bucket), "left", storage=storage)
    ((one,), (other,)) = first.marks, second.marks
    assert one["etag"] == other["etag"]
    assert None not in {one["version"], other["version"]}
    assert one["version"] != other["version"]
    with pytest.raises(Unavailable, match="has changed"):
        demand_unchanged(first, storage)
    storage.remove(url)
    with pytest.raises(InvalidInput, match="holds no file"):
        source_planning.inspect_files(source(bucket), "left", storage=storage)
