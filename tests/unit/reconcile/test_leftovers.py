"""What a run leaves beside its evidence goes; what metadata.json names stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kalla.errors import Unavailable
from kalla.reconcile.evidence.writing.leftovers import (
    METADATA,
    left_to_the_sweeper,
    none_if_it_fails,
    sweep,
    work_place,
)
from kalla.storage import LOCAL


def files_in(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_files_that_no_metadata_name_are_swept(tmp_path: Path) -> None:
    named = {"matched": {"files": ["rule-0-a.parquet"]}, "ambiguous": {"files": []}}
    (tmp_path / METADATA).write_text(json.dumps({"datasets": named}))
    write(tmp_path, "matched/rule-0-a.parquet", "notes.txt")
    kept = files_in(tmp_path)
    write(tmp_path, "matched/rule-0-b.parquet", "ambiguous/left-a.parquet", ".work-1/keys/k.npy")
    sweep(str(tmp_path), LOCAL)
    assert files_in(tmp_path) == kept


def test_without_metadata_no_file_of_a_dataset_counts(tmp_path: Path) -> None:
    write(tmp_path, "matched/rule-0-a.parquet", "notes.txt")
    sweep(str(tmp_path), LOCAL)
    assert files_in(tmp_path) == {"notes.txt"}


def test_an_attempt_that_fails_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    attempt = tmp_path / "run-1" / "2-3-a"

    def fail() -> None:
        with none_if_it_fails(str(attempt), LOCAL), work_place(str(attempt), LOCAL) as work:
            write(attempt, "matched/rule-0-a.parquet")
            write(Path(work), "reached")
            raise RuntimeError("the reason")

    with pytest.raises(RuntimeError, match="the reason"):
        fail()
    assert not attempt.exists()


def test_what_cannot_be_removed_now_fails_no_run() -> None:
    with left_to_the_sweeper("s3://bucket/evidence"):
        raise Unavailable("S3 does not answer")
