"""A place for evidence belongs to one run at a time, and to nobody if none came of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.evidence.writing.output_lock import claimed
from kalla.storage import LOCAL

NO_FILES = '{"datasets": {}}'

KILLED = """
import os, signal, sys
from pathlib import Path
from kalla.reconcile.evidence.writing.output_lock import claimed
from kalla.storage import LOCAL
with claimed(sys.argv[1], LOCAL) as folder:
    for name in ("matched", ".work-1"):
        (Path(folder) / name).mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_two_runs_never_have_the_same_folder(folder: Path, tmp_path: Path) -> None:
    with (
        claimed(str(folder), LOCAL) as mine,
        pytest.raises(InvalidInput, match="another run is writing its evidence to"),
        claimed(folder.as_uri(), LOCAL),
    ):
        assert mine == str(folder)
    assert not folder.exists()


def test_evidence_is_never_written_over(folder: Path, tmp_path: Path) -> None:
    with claimed(str(folder), LOCAL) as mine:
        (Path(mine) / "metadata.json").write_text(NO_FILES)
    for _ in range(2):
        with (
            pytest.raises(InvalidInput, match="evidence is never written over"),
            claimed(str(folder), LOCAL),
        ):
            pass
    assert [each.name for each in folder.iterdir()] == ["metadata.json"]


@pytest.mark.parametrize("reason", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("there_before", [True, False])
def test_a_run_that_ends_early_leaves_the_place_as_it_was(
    folder: Path, tmp_path: Path, reason: type[BaseException], there_before: bool
) -> None:
    if there_before:
        folder.mkdir()

    def end_early() -> None:
        with claimed(str(folder), LOCAL) as mine:
            (Path(mine) / "matched").mkdir()
            (Path(mine) / "matched" / "rule-0.parquet").touch()
            (Path(mine) / ".work-1").mkdir()
            raise reason

    with pytest.raises(reason):
        end_early()
    assert folder.exists() == there_before
    assert not there_before or not list(folder.iterdir())
    with claimed(str(folder), LOCAL):
        pass


def test_a_run_that_was_killed_holds_nothing(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert done.returncode < 0
    assert list(folder.iterdir())
    with claimed(str(folder), LOCAL) as mine:
        (Path(mine) / "metadata.json").write_text(NO_FILES)
    assert [each.name for each in folder.iterdir()] == ["metadata.json"]


def test_a_file_is_no_place_for_evidence(folder: Path, tmp_path: Path) -> None:
    folder.touch()
    with (
        pytest.raises(InvalidInput, match="out cannot be written to: File exists"),
        claimed(str(folder), LOCAL),
    ):
        pass


@pytest.mark.timeout(20)
def test_where_no_folder_can_be_made_is_no_place_for_evidence(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidInput, match=r"nowhere cannot be written to: No such file"),
        claimed("/proc/nowhere", LOCAL),
    ):
        pass
