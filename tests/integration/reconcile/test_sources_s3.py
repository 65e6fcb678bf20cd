"""Native sources on S3, read as on disk; and Delta tables on both."""

from __future__ import annotations

import base64
import gzip
import json
import string
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pydantic import SecretStr
from typer.testing import CliRunner

from kalla.cli.main import application
from kalla.errors import InvalidInput, Unavailable
from kalla.reconcile.complaints import of_reading
from kalla.reconcile.model import Recipe, Source
from kalla.reconcile.plan import Input
from kalla.reconcile.recipes import checking
from kalla.reconcile.run import carry_out
from kalla.reconcile.sources import origins
from kalla.reconcile.sources.files import opened
from kalla.reconcile.sources.origins import Limits
from kalla.reconcile.sources.scans import scan
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from kalla.storage import LOCAL, Storage, join
from tests.servers import S3Server, SparkServer

Place = tuple[str, Storage]


@pytest.fixture
def storage(s3_server: S3Server) -> Storage:
    return s3_server.storage


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder of the test's own on disk, and one on S3."""
    if request.param == "disk":
        return str(tmp_path / "a table"), LOCAL
    server: S3Server = request.getfixturevalue("s3_server")
    return f"s3://{server.create()}/a table", server.storage


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
        seen = origins.look(source(join(bucket, pattern)), "left", storage=storage)
        assert read(seen, storage) == wanted, pattern
        assert all(file.startswith(bucket) for file in seen.files)
        assert [mark["file"] for mark in seen.marks] == list(seen.files)
        given = source(join(bucket, pattern))
        assert checking.columns_of(given, storage=storage) == {"id": "text", "ref": "text"}
    with pytest.raises(
        InvalidInput, match=r"sources\.left\.uri: there is no bucket nowhere-at-all"
    ):
        origins.look(source("s3://nowhere-at-all/a.csv"), "left", storage=storage)


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
    write((join(bucket, "right"), storage), table, partition_by=["day"])
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
        done = carry_out(session, recipe, tmp_path, limits, lambda *_: None)
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
    seen = origins.look(source(url), "left", storage=storage)
    with opened(storage) as connection:
        assert connection.execute(f"SELECT count(*) FROM {scan(seen)}").fetchall() == [(1,)]
        storage.write_text(url, "id\n1\n2\n")
        with pytest.raises(duckdb.Error) as raised:
            connection.execute(f"SELECT count(*) FROM {scan(seen)}").fetchall()
    told = of_reading(raised.value, "the left source", seen.files)
    assert isinstance(told, Unavailable)
    assert "has changed while it was read" in str(told)


AMOUNT = pa.decimal128(12, 2)


def rows(*given: tuple[int, date | None, str | None, str]) -> pa.Table:
    ids, days, places, amounts = zip(*given, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array(days, pa.date32()),
            "place": pa.array(places, pa.string()),
            "amount": pa.array([Decimal(each) for each in amounts], AMOUNT),
        }
    )


JAN = date(2026, 1, 1)
FIRST = rows((1, JAN, "a b/c", "1.50"), (2, None, "x%20y=?#é", "2.50"), (3, JAN, None, "3.50"))


def write(place: Place, table: pa.Table, **options: Any) -> None:
    uri, storage = place
    more = storage.delta_options(uri) | (
        {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"} if storage.s3 else {}
    )
    write_deltalake(uri, table, storage_options=more, **options)


def test_a_delta_table_is_its_current_version_with_its_partition_columns(place: Place) -> None:
    uri, storage = place
    write(place, FIRST, partition_by=["day", "place"])
    write(place, rows((4, JAN, "a b/c", "4.50")), mode="append")
    write(place, FIRST, mode="overwrite", partition_by=["day", "place"])
    more = FIRST.append_column("note", pa.array(["n"] * 3)).slice(0, 1)
    write(place, more, mode="append", schema_mode="merge")
    seen = origins.look(source(uri), "left", storage=storage)
    assert seen.format == "delta"
    assert seen.rows == 4
    assert seen.types == {
        "id": "BIGINT", "amount": "DECIMAL(12,2)", "day": "DATE", "place": "VARCHAR",
        "note": "VARCHAR",
    }  # fmt: skip
    assert read(seen, storage) == [
        (1, Decimal("1.50"), JAN, "a b/c", "n"),
        (1, Decimal("1.50"), JAN, "a b/c", None),
        (2, Decimal("2.50"), None, "x%20y=?#é", None),
        (3, Decimal("3.50"), JAN, None, None),
    ]
    assert seen.notes == ("version 3 of the Delta table",)
    assert seen.marks[0] == {"table": uri, "version": 3}
    assert checking.columns_of(source(uri), storage=storage)["amount"] == "decimal"
    with pytest.raises(InvalidInput, match="say format: delta"):
        origins.look(source(uri, format="parquet"), "left", storage=storage)


def test_a_delta_table_without_partitions_is_its_files(place: Place) -> None:
    uri, storage = place
    write(place, FIRST)
    seen = origins.look(source(uri, format="delta"), "left", storage=storage)
    assert seen.relation is None
    assert [row[0] for row in read(seen, storage)] == [1, 2, 3]


def test_a_delta_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    DeltaTable.create(uri, pa.schema({"id": pa.int64(), "amount": AMOUNT}))
    seen = origins.look(source(uri), "left")
    assert (seen.rows, seen.types) == (0, {"id": "BIGINT", "amount": "DECIMAL(12,2)"})
    assert read(seen, LOCAL) == []


@pytest.mark.parametrize("statistics", [True, False])
def test_a_delta_table_that_lost_a_file_names_it(tmp_path: Path, statistics: bool) -> None:
    folder = tmp_path / "t"
    write_deltalake(str(folder), FIRST)
    if not statistics:
        log = folder / "_delta_log" / "00000000000000000000.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        log.write_text("\n".join(map(json.dumps, actions)))
    (lost,) = folder.glob("*.parquet")
    lost.unlink()
    with pytest.raises(InvalidInput, match=rf"sources\.left\.uri: .*{lost.name}.*cannot be read"):
        origins.look(source(str(folder)), "left")


def test_a_folder_without_a_log_is_no_delta_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(InvalidInput, match="holds no Delta table"):
        origins.look(source(str(tmp_path), format="delta"), "left")


def relogged(folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """A table whose first log entry says something more."""
    write_deltalake(str(folder), FIRST)
    log = folder / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        change(action)
    log.write_text("\n".join(json.dumps(action) for action in actions) + "\n")
    return str(folder)


def feature(name: str) -> dict[str, Any]:
    return {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": [name], "writerFeatures": [name],
    }  # fmt: skip


def _z85(content: bytes) -> str:
    signs = string.digits + string.ascii_uppercase + string.ascii_lowercase
    theirs = string.digits + string.ascii_lowercase + string.ascii_uppercase
    table = str.maketrans(signs + "!#$%&()*+-;<=>?@^_`{|}~", theirs + ".-:+=^!/*?&<>()[]{}@%$#")
    return base64.b85encode(content).decode().translate(table)


# A roaring bitmap of 0 and 1, written into the log itself, as Delta's protocol describes it.
_BITMAP = struct.pack("<IIHHIHH", 12346, 1, 0, 1, 16, 0, 1)
_BITMAPS = struct.pack("<IQI", 1681511377, 1, 0) + _BITMAP
FIRST_TWO_ROWS = {
    "storageType": "i",
    "pathOrInlineDv": _z85(_BITMAPS),
    "sizeInBytes": len(_BITMAPS),
    "cardinality": 2,
}


def test_what_the_files_of_a_delta_table_do_not_show_is_refused(tmp_path: Path) -> None:
    def deleted(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = feature("deletionVectors")
        if "add" in action:
            action["add"]["deletionVector"] = FIRST_TWO_ROWS

    def mapped(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            action["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
            schema = json.loads(action["metaData"]["schemaString"])
            for number, column in enumerate(schema["fields"], 1):
                column["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": f"col-{number}",
                }
            action["metaData"]["schemaString"] = json.dumps(schema)

    def strange(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = feature("somethingNew")

    for change, why in (
        (deleted, "deletion vectors"),
        (mapped, "column mapping"),
        (strange, "somethingNew"),
    ):
        uri = relogged(tmp_path / change.__name__, change)
        with pytest.raises(InvalidInput, match=rf"sources\.left\.uri: the Delta table .*{why}"):
            origins.look(source(uri), "left")


def test_deletion_vectors_that_may_be_but_are_not_are_no_obstacle(tmp_path: Path) -> None:
    def allowed(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = feature("deletionVectors")

    uri = relogged(tmp_path / "table", allowed)
    assert origins.look(source(uri), "left").rows == 3


@pytest.mark.parametrize("path", ["../secrets.parquet", "a/../../x.parquet", "/etc/x.parquet"])
def test_a_delta_log_does_not_lead_out_of_its_table(tmp_path: Path, path: str) -> None:
    def elsewhere(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["path"] = path

    uri = relogged(tmp_path / "table", elsewhere)
    with pytest.raises(InvalidInput, match="names a file outside of it"):
        origins.look(source(uri), "left")
