"""A mirror of a PostgreSQL table: each look makes it equal to the table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pydantic import SecretStr

from kalla.errors import InvalidInput, Unavailable
from kalla.tables.sources.mirrors import Mirrored, MirrorPayload, MirrorTable, mirror


@pytest.fixture
def shop(database_url: str) -> Iterator[Any]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE public.shop (id int PRIMARY KEY, day text, amount numeric(12,2),"
            " changed int NOT NULL)"
        )
        yield connection


class Mirror:
    def __init__(self, url: str, folder: Path, watermark: str | None) -> None:
        parts = urlsplit(url)
        self.password = SecretStr(parts.password or "")
        self.looks = 0
        self.asked = MirrorPayload(
            name="orders",
            uri=f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}",
            table="public.shop",
            password="secret://erp",
            key=("id",),
            watermark=watermark,
            location=str(folder / "mirror"),
            asked_at=datetime.now(UTC),
        )

    def look(self) -> Mirrored:
        self.looks += 1
        return mirror(self.asked, lambda _: self.password, self.looks, f"{self.looks}.1")

    def rows(self) -> list[tuple[Any, ...]]:
        table = pa.table(DeltaTable(self.asked.location).to_pyarrow_table())
        return sorted(tuple(row.values()) for row in table.select(["id", "day"]).to_pylist())


@pytest.mark.parametrize("watermark", [None, "changed"])
def test_each_look_brings_the_mirror_to_the_rows_of_the_table(
    shop: Any, database_url: str, tmp_path: Path, watermark: str | None
) -> None:
    given = Mirror(database_url, tmp_path, watermark)
    assert given.look() == Mirrored(0, 0, 0)
    shop.execute("INSERT INTO shop VALUES (1, 'mon', 5.00, 1), (2, NULL, 7.50, 2)")
    assert given.look() == Mirrored(2, 0, 2)
    version = DeltaTable(given.asked.location).version()
    assert given.look() == Mirrored(2, 0, 0)
    assert DeltaTable(given.asked.location).version() == version + 2
    shop.execute("UPDATE shop SET day = 'wed', changed = 3 WHERE id = 1")
    shop.execute("INSERT INTO shop VALUES (3, 'thu', NULL, 4)")
    assert given.look() == Mirrored(3, 1, 2)
    assert given.rows() == [(1, "wed"), (2, None), (3, "thu")]
    shop.execute("DELETE FROM shop WHERE id = 2")
    # A watermark does not see rows that are gone.
    assert given.look().rows == (2 if watermark is None else 3)
    shop.execute("ALTER TABLE shop ADD COLUMN note text")
    assert given.look().rows == 2
    assert "note" in DeltaTable(given.asked.location).to_pyarrow_table().column_names


def test_a_key_that_two_rows_share_is_refused(shop: Any, database_url: str, tmp_path: Path) -> None:
    shop.execute("ALTER TABLE shop DROP CONSTRAINT shop_pkey")
    shop.execute("INSERT INTO shop VALUES (1, 'mon', 5.00, 1), (1, 'tue', 7.50, 2)")
    with pytest.raises(InvalidInput, match="id is not a key"):
        Mirror(database_url, tmp_path, None).look()


def test_a_row_of_an_older_time_that_was_committed_later_is_read(
    shop: Any, database_url: str, tmp_path: Path
) -> None:
    shop.execute("ALTER TABLE shop ALTER changed TYPE timestamptz USING now()")
    given = Mirror(database_url, tmp_path, "changed")
    shop.execute("INSERT INTO shop VALUES (1, 'mon', 5.00, now())")
    given.look()
    shop.execute("INSERT INTO shop VALUES (2, 'tue', 7.50, now() - interval '1 minute')")
    assert given.look() == Mirrored(2, 0, 1)


def test_a_mirror_that_another_database_wrote_is_made_anew(
    shop: Any, database_url: str, tmp_path: Path
) -> None:
    given = Mirror(database_url, tmp_path, None)
    shop.execute("INSERT INTO shop VALUES (1, 'mon', 5.00, 1)")
    handler = MirrorTable(lambda _: given.password)
    context: Any = SimpleNamespace(check=lambda: None)

    def run(job_id: int, fence: int) -> int | None:
        asked = given.asked.model_dump(mode="json")
        job: Any = SimpleNamespace(job_id=job_id, fence=fence, payload=asked)
        return handler.run(job, context).rows

    assert run(900, 1) == 1
    with pytest.raises(Unavailable):
        run(5, 1)
    assert run(5, 2) == 1
