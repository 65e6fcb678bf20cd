"""Compressed sources are whole, or refused: on disk and on S3."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.recipe.model import Source
from kalla.reconcile.sources import inspection, source_planning
from kalla.storage import LOCAL, Storage, join
from tests.servers import S3Server

LINES = b"".join(b"%d,100.00\n" % number for number in range(20_000))
OBJECTS = b"".join(b'{"id": "%d", "amount": "100.00"}\n' % number for number in range(20_000))


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


def flipped(content: bytes) -> bytes:
    """A gzip with one amount changed after its sum was taken."""
    packed = bytearray(gzip.compress(content, 0))
    packed[packed.rindex(b"100.00")] = ord("9")
    return bytes(packed)


def look(uri: Path | str, storage: Storage = LOCAL, **fields: Any) -> None:
    given = Source.model_validate({"uri": str(uri), "primary_key": ["id"]} | fields)
    source_planning.inspect_files(given, "left", storage=storage)


CSV = b"id,amount\n" + LINES
WHOLE = {
    "rows.csv.zst": zstd(CSV), "rows.jsonl.zst": zstd(OBJECTS),
    "rows.csv.gz": gzip.compress(CSV), "rows.jsonl.gz": gzip.compress(OBJECTS),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("lost", [1, 3, 0.5])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, name: str, lost: float) -> None:
    whole = WHOLE[name]
    kept = len(whole) - (lost if isinstance(lost, int) else int(len(whole) * lost))
    (tmp_path / name).write_bytes(whole[:kept])
    with pytest.raises(InvalidInput, match=rf"sources\.left\.uri.*{name}.*Truncated"):
        look(tmp_path / name)


@pytest.mark.parametrize("name", WHOLE)
def test_one_that_is_cut_off_in_a_later_part_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WHOLE[name] + WHOLE[name][:-5])
    with pytest.raises(InvalidInput, match=rf"{name}.*Truncated"):
        look(tmp_path / name)


@pytest.mark.parametrize(("name", "content"), [("rows.csv.gz", CSV), ("rows.jsonl.gz", OBJECTS)])
def test_one_whose_sum_is_wrong_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(flipped(content))
    with pytest.raises(InvalidInput, match=rf"{name}.*incorrect data check"):
        look(tmp_path / name)


@pytest.mark.parametrize("name", WHOLE)
def test_one_of_several_whole_parts_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WHOLE[name] * 2)
    look(tmp_path / name)


def test_on_s3_too(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv.zst").write_bytes(WHOLE["rows.csv.zst"][:-1])
    s3_server.storage.put(tmp_path, bucket)
    with pytest.raises(InvalidInput, match=r"rows\.csv\.zst.*Truncated"):
        look(join(bucket, "rows.csv.zst"), s3_server.storage)


def test_a_check_finds_that_a_file_is_cut_off_where_it_reads(tmp_path: Path) -> None:
    (tmp_path / "rows.csv.gz").write_bytes(WHOLE["rows.csv.gz"][:-1])
    given = Source(uri=str(tmp_path / "rows.csv.gz"), primary_key=("id",))
    with pytest.raises(InvalidInput, match="Truncated compressed stream"):
        inspection.columns(given)
