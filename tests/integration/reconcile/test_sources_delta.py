"""Delta tables as sources, on disk and on S3."""

from __future__ import annotations

import base64
import json
import string
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from kalla.errors import InvalidInput
from kalla.reconcile.plan.plan import Input
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.sources import source_columns, source_planning
from kalla.reconcile.sources.scanning.duckdb_files import opened
from kalla.reconcile.sources.scanning.scan_sql import scan
from kalla.storage import LOCAL, Storage, join
from tests.servers import S3Server

Place = tuple[str, Storage]


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
    seen = source_planning.inspect_files(source(uri), "left", storage=storage)
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
    assert source_columns.columns_of(source(uri), storage=storage)["amount"] == "decimal"
    with pytest.raises(InvalidInput, match="set format: delta"):
        source_planning.inspect_files(source(uri, format="parquet"), "left", storage=storage)


def test_a_delta_table_without_partitions_is_its_files(place: Place) -> None:
    uri, storage = place
    write(place, FIRST)
    seen = source_planning.inspect_files(source(uri, format="delta"), "left", storage=storage)
    assert seen.relation is None
    assert [row[0] for row in read(seen, storage)] == [1, 2, 3]


def test_a_delta_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    DeltaTable.create(uri, pa.schema({"id": pa.int64(), "amount": AMOUNT}))
    seen = source_planning.inspect_files(source(uri), "left")
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
        source_planning.inspect_files(source(str(folder)), "left")


def test_a_folder_without_a_log_is_no_delta_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(InvalidInput, match="holds no Delta table"):
        source_planning.inspect_files(source(str(tmp_path), format="delta"), "left")


STRANGE = "a b [c] q?x#y ü"


def stale(place: Place) -> Place:
    """A table that has deleted what one of its files holds, in a folder with signs in its name."""
    uri, storage = place
    write(place, FIRST)
    write(place, rows((9, JAN, "z", "9.50")), mode="overwrite")
    moved = join(uri.rpartition("/")[0], STRANGE, "table")
    if storage.s3 is None:
        Path(moved).parent.mkdir()
        Path(uri).rename(moved)
        return moved, storage
    filesystem, path = storage.filesystem(uri)
    for each in filesystem.get_file_info(fs.FileSelector(path, recursive=True)):
        if each.is_file:
            filesystem.move(each.path, storage.filesystem(moved)[1] + each.path[len(path) :])
    return moved, storage


def test_a_delta_table_is_one_whatever_signs_are_in_its_name(place: Place) -> None:
    uri, storage = stale(place)
    asked = [uri] if storage.s3 else [uri, Path(uri).as_uri()]
    for each in asked:
        seen = source_planning.inspect_files(source(each), "left", storage=storage)
        assert (seen.format, seen.rows) == ("delta", 1)
        assert [row[0] for row in read(seen, storage)] == [9]
    with pytest.raises(InvalidInput, match="set format: delta"):
        source_planning.inspect_files(source(uri, format="parquet"), "left", storage=storage)


@pytest.mark.parametrize("below", ["", "/*.parquet", "/**"])
def test_files_are_not_taken_from_below_a_delta_table(place: Place, below: str) -> None:
    uri, storage = stale(place)
    folder = uri.rpartition("/")[0].replace("[", "[[]") + "/*" if below else uri.rpartition("/")[0]
    with pytest.raises(InvalidInput, match=r"uri: .*/table is a Delta table: name its folder"):
        source_planning.inspect_files(source(folder + below), "left", storage=storage)


def test_a_folder_of_a_delta_table_is_no_source_but_a_file_of_it_is(place: Place) -> None:
    uri, storage = place
    write(place, FIRST, partition_by=["id"])
    with pytest.raises(InvalidInput, match=r"a table is a Delta table: name its folder"):
        source_planning.inspect_files(source(join(uri, "id=1")), "left", storage=storage)
    (file,) = storage.files(join(uri, "id=1"))
    assert source_planning.inspect_files(source(file.url), "left", storage=storage).rows == 1


def test_an_escape_in_the_name_of_a_delta_table_leads_to_no_other(place: Place) -> None:
    uri, storage = place
    write(place, FIRST)
    other = uri.replace("a table", "a%20table")
    if storage.s3 is None:
        write_deltalake(str(Path(uri).with_name("made")), rows((9, JAN, "z", "9.50")))
        Path(uri).with_name("made").rename(other)
        assert [
            row[0] for row in read(source_planning.inspect_files(source(other), "left"), storage)
        ] == [9]
        return
    storage.write_text(join(other, "_delta_log", "0.json"), "{}")
    with pytest.raises(InvalidInput, match=r"a%20table cannot be read: its name holds an escape"):
        source_planning.inspect_files(source(other), "left", storage=storage)


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
            source_planning.inspect_files(source(uri), "left")


def test_deletion_vectors_that_may_be_but_are_not_are_no_obstacle(tmp_path: Path) -> None:
    def allowed(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = feature("deletionVectors")

    uri = relogged(tmp_path / "table", allowed)
    assert source_planning.inspect_files(source(uri), "left").rows == 3


@pytest.mark.parametrize("path", ["../secrets.parquet", "a/../../x.parquet", "/etc/x.parquet"])
def test_a_delta_log_does_not_lead_out_of_its_table(tmp_path: Path, path: str) -> None:
    def elsewhere(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["path"] = path

    uri = relogged(tmp_path / "table", elsewhere)
    with pytest.raises(InvalidInput, match="names a file outside of it"):
        source_planning.inspect_files(source(uri), "left")
