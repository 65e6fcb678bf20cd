"""Digests of what a run has read can be made again by anybody."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.reconcile.plan.plan import Input
from kalla.reconcile.sources.scanning import checksums


def test_a_file_is_told_by_its_content_and_a_parquet_file_by_its_footer(tmp_path: Path) -> None:
    text = tmp_path / "left.csv"
    text.write_bytes(b"id,amount\n1,2.00\n" * 100_000)
    columns = tmp_path / "right.parquet"
    pq.write_table(pa.table({"id": range(1_000)}), columns)
    inputs = {
        "left": Input("csv", (str(text),), {}, marks=({"file": str(text), "bytes": 1},)),
        "right": Input("parquet", (str(columns),), {}, marks=({"file": str(columns)},)),
    }
    with checksums.taken(inputs) as marks:  # type: ignore[arg-type]
        pass
    whole = hashlib.sha256(text.read_bytes()).hexdigest()
    assert marks["left"] == ({"file": str(text), "bytes": 1, "sha256": whole},)
    content = columns.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer = hashlib.sha256(content[-8 - length :]).hexdigest()
    assert marks["right"] == ({"file": str(columns), "footer_sha256": footer},)


def test_what_is_no_file_of_this_disk_has_the_mark_it_had() -> None:
    marks = ({"file": "s3://bucket/left.csv"}, {"table": "public.t", "snapshot": "1:1:"})
    inputs = {side: Input("csv", (), {}, marks=marks) for side in ("left", "right")}
    with checksums.taken(inputs) as found:  # type: ignore[arg-type]
        pass
    assert found["left"] == marks


def test_a_file_that_is_cut_off_meanwhile_is_told_by_its_mark_alone(tmp_path: Path) -> None:
    cut = tmp_path / "right.parquet"
    cut.write_bytes(b"PAR1")
    inputs = {"right": Input("parquet", (), {}, marks=({"file": str(cut), "bytes": 900},))}
    with checksums.taken(inputs) as marks:  # type: ignore[arg-type]
        pass
    assert marks["right"] == inputs["right"].marks


def test_a_match_that_fails_says_why_and_not_what_became_of_its_files(tmp_path: Path) -> None:
    gone = Input("csv", (), {}, marks=({"file": str(tmp_path / "gone.csv")},))
    with pytest.raises(ZeroDivisionError), checksums.taken({"left": gone}):
        raise ZeroDivisionError
