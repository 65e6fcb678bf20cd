"""What a source looks like before there is a recipe for it: files, Delta and Postgres."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pydantic import SecretStr
from typer.testing import CliRunner

from kalla.cli.reconcile.recipe import app
from kalla.errors import InvalidInput, NotFound
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.sources import inspection
from kalla.reconcile.sources.inspection import Column
from kalla.reconcile.sources.source_columns import SAMPLE_ROWS
from kalla.storage import join
from tests.servers import PostgresServer, S3Server


def draft(uri: Path | str, **fields: Any) -> Source:
    """A source of which nobody has said yet what identifies its rows."""
    return Source.model_validate({"uri": str(uri), "primary_key": ["?"]} | fields)


def csv(folder: Path, *lines: str) -> Source:
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return draft(folder / "rows.csv")


def test_of_unique_columns_the_one_named_like_a_key_is_guessed(tmp_path: Path) -> None:
    found = inspection.inspect(csv(tmp_path, "note,invoice_no,amount", "x,1,5", "y,2,5"))
    assert found.primary_key == ("invoice_no",)
    assert found.primary_key_note == "a guess: unique and never null in all 2 rows"
    assert found.columns == tuple(
        Column(name, "text", "VARCHAR") for name in ("note", "invoice_no", "amount")
    )
    assert (found.rows, found.exact) == (2, False)


def test_columns_that_are_unique_together_are_a_key(tmp_path: Path) -> None:
    lines = [f"{n // 10},{n % 10},same,{n % 7}" for n in range(100)]
    found = inspection.inspect(csv(tmp_path, "batch,line,kind,week", *lines))
    assert found.primary_key == ("batch", "line")
    assert "together unique" in found.primary_key_note


def test_a_column_with_a_null_or_a_repeat_is_no_key(tmp_path: Path) -> None:
    found = inspection.inspect(csv(tmp_path, "id,ref", "1,a", ",b", "2,b", "2,b"))
    assert found.primary_key == ()
    assert "no column" in found.primary_key_note
    assert inspection.inspect(csv(tmp_path, "id,ref")).primary_key_note.startswith("there are no")


def test_a_long_file_is_guessed_by_its_beginning(tmp_path: Path) -> None:
    rows = SAMPLE_ROWS + 10
    pq.write_table(pa.table({"id": [*range(rows - 1), 0]}), tmp_path / "rows.parquet")
    found = inspection.inspect(draft(tmp_path / "rows.parquet"))
    assert (found.primary_key, found.rows, found.exact) == (("id",), rows, True)
    assert "the first 100,000 rows" in found.primary_key_note


def test_the_rows_of_a_csv_are_estimated(tmp_path: Path) -> None:
    lines = [f"{n:07},some text" for n in range(100_000)]
    rows = inspection.inspect(csv(tmp_path, "id,text", *lines)).rows
    assert rows is not None
    assert abs(rows - 100_000) < 100
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"id\n1\n"))
    assert inspection.inspect(draft(tmp_path / "rows.csv.gz")).rows is None


def test_a_preview_is_the_first_rows_as_json(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array(range(60), pa.int64()),
            "amount": pa.array([Decimal("1.50")] * 60, pa.decimal128(38, 2)),
            "day": pa.array([date(2026, 1, 31)] * 60),
            "wide": pa.array([2**60] * 60),
            "float": pa.array([float("nan")] * 60),
            "raw": pa.array([b"\x00\xff"] * 60),
            "list": pa.array([[Decimal("1.1"), None]] * 60),
            "none": pa.array([None] * 60, pa.string()),
            "long": pa.array(["x" * 5000] * 60),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    found = inspection.preview(draft(tmp_path / "rows.parquet"))
    assert found.columns == tuple(table.column_names)
    assert [row[0] for row in found.rows] == list(range(50))
    wide = str(2**60)
    assert found.rows[0][1:-1] == ("1.50", "2026-01-31", wide, "nan", "00ff", ["1.1", None], None)
    assert len(found.rows[0][-1]) == 1001
    json.dumps(found.rows, allow_nan=False)
    assert len(inspection.preview(draft(tmp_path / "rows.parquet"), 3).rows) == 3


def test_of_long_json_lines_only_the_beginning_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "SAMPLE_ROWS", 3)
    lines = ['{"id": 1, "ref": "a"}'] * 3 + ['{"late": 1}']
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    found = inspection.inspect(draft(tmp_path / "rows.jsonl"))
    assert [column.name for column in found.columns] == ["id", "ref"]
    assert found.notes == ("the columns are those of the first 3 lines",)


def test_a_delta_table_is_inspected_and_previewed(tmp_path: Path) -> None:
    write_deltalake(
        tmp_path / "t", pa.table({"id": [1, 2], "day": ["a", "b"]}), partition_by=["day"]
    )
    found = inspection.inspect(draft(tmp_path / "t"))
    assert (found.format, found.rows, found.primary_key) == ("delta", 2, ("id",))
    assert sorted(inspection.preview(draft(tmp_path / "t")).rows) == [(1, "a"), (2, "b")]


def test_files_on_s3_are_inspected(s3_server: S3Server, bucket: str) -> None:
    s3_server.storage.write_text(join(bucket, "rows.csv"), "id,ref\n1,a\n2,b\n")
    given = draft(join(bucket, "*.csv"))
    assert inspection.inspect(given, storage=s3_server.storage).primary_key == ("id",)
    assert inspection.preview(given, storage=s3_server.storage).rows == (("1", "a"), ("2", "b"))
    assert inspection.reach(given, storage=s3_server.storage).reachable
    assert not inspection.reach(given).reachable


def test_a_line_that_a_run_cannot_read_is_reported_with_what_to_set(tmp_path: Path) -> None:
    file = tmp_path / "bank.csv"
    for content, options, message in (
        ("a;b\n1;2,5\n", {}, "separated by ';': set csv.delimiter to \";\" (1;2,5)"),
        ('a,b\n1,"2\n', {}, 'a quote in line 2 is not closed (1,"2)'),
        (
            "IBAN: 1;\n\nId;Name;Amount\n1;A;2,5\n",
            {"delimiter": ";", "encoding": "windows-1252"},
            "has 2 (Id;Name;Amount); the header seems to be in line 3: set csv.skip to 2",
        ),
        ("x\ny\na,b\n1,2\n3\n", {"skip": 2}, f"{file} cannot be read: line 5 has 1 value"),
    ):
        file.write_text(content)
        given = draft(file, csv=options)
        with pytest.raises(InvalidInput) as raised:
            inspection.preview(given)
        assert message in str(raised.value)
        assert message in inspection.reach(given).message


def test_a_copy_in_the_wrong_encoding_is_reported_as_the_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "bank.csv"
    file.write_bytes("x\na,b\n1,ä\n".encode("cp1252"))
    reach = inspection.reach(draft(file, csv={"skip": 1}))
    wrong = f"uri: {file} is not UTF-8; it looks like Windows-1252: set csv.encoding"
    assert reach.message == wrong


def test_a_relative_file_that_is_missing_is_told_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=f"{tmp_path}/none.csv does not exist"):
        inspection.preview(draft("none.csv"))


def test_what_cannot_be_reached_says_why(tmp_path: Path) -> None:
    for given, why in (
        (draft(tmp_path / "none.csv"), "does not exist"),
        (draft("gs://bucket/rows.csv"), "not a place for files"),
        (draft("postgresql://reader@127.0.0.1:9/bank", table="payments"), "broke off"),
        (draft("postgresql://reader@127.0.0.1:9/bank"), "table: is missing"),
    ):
        told = inspection.reach(given)
        assert not told.reachable
        assert why in told.message


@pytest.fixture(scope="module")
def bank(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create()
    url = postgres_server.url(name)
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE payments (bank text, no bigint, amount numeric(12, 2), area point,"
            " paid_on date, PRIMARY KEY (bank, no))"
        )
        connection.execute(
            "INSERT INTO payments SELECT 'b', n, n * 0.5, point(0, 0), '2026-01-31'"
            " FROM generate_series(1, 20000) AS n"
        )
        connection.execute("CREATE TABLE loose (n int)")
    yield url
    postgres_server.drop(name)


def table(url: str, name: str) -> tuple[Source, SecretStr]:
    parts = urlsplit(url)
    uri = f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
    return draft(uri, table=name, password="secret://bank"), SecretStr(parts.password or "")


def test_a_table_is_inspected_by_its_catalogue(bank: str) -> None:
    given, password = table(bank, "payments")
    found = inspection.inspect(given, resolve=lambda _: password)
    assert (found.primary_key, found.primary_key_note) == (("bank", "no"), "declared by the table")
    assert found.columns == (
        Column("bank", "text", "text", False),
        Column("no", "integer", "bigint", False),
        Column("amount", "decimal", "numeric(12,2)"),
        Column("area", "other", "point"),
        Column("paid_on", "date", "date"),
    )
    assert found.rows == 20_000
    assert any("area" in note for note in found.notes)
    loose, _ = table(bank, "loose")
    assert inspection.inspect(loose, resolve=lambda _: password).primary_key == ()


def test_the_columns_of_a_table_are_checked_by_the_command_too(
    bank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, password = table(bank, "payments")
    side = given.model_dump(mode="json", exclude_unset=True) | {"primary_key": ["bank", "no"]}
    rule = {"name": "r", "conditions": [{"left": "no", "op": "eq", "right": "number"}]}
    recipe = {
        "name": "test",
        "sources": {"left": side, "right": {"uri": "source://bank", "primary_key": ["no"]}},
        "rules": [rule | {"left_order": "payed_on"}],
    }
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    monkeypatch.setenv("KALLA_SECRET_BANK", password.get_secret_value())
    told = CliRunner().invoke(app, ["check", str(tmp_path / "recipe.json")])
    assert told.exit_code == 2
    assert "rules[0].left_order = payed_on: is not a column of the left source" in told.output
    assert "did you mean paid_on?" in told.output
    assert "Note: the right source's columns were not checked: source://bank" in told.output


def test_a_table_is_previewed_without_what_cannot_be_read(bank: str) -> None:
    given, password = table(bank, "payments")
    found = inspection.preview(given, resolve=lambda _: password)
    assert found.columns == ("bank", "no", "amount", "paid_on")
    assert len(found.rows) == 50
    assert found.rows[0] == ("b", 1, "0.50", "2026-01-31")
    empty, _ = table(bank, "loose")
    assert inspection.preview(empty, resolve=lambda _: password).rows == ()
    assert inspection.reach(given, resolve=lambda _: password).reachable


def test_a_secret_that_is_not_there_is_a_problem_of_the_password(bank: str) -> None:
    given, _ = table(bank, "payments")

    def none(name: str) -> SecretStr:
        raise NotFound(f"there is no secret {name}")

    with pytest.raises(InvalidInput, match="password: there is no secret bank"):
        inspection.inspect(given, resolve=none)
