"""Temporary folders of commands: swept once their owner is gone, never while they are in use."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kalla.storage.scratch import scratch

HOLDS = """
import sys
from kalla.storage.scratch import scratch

with scratch() as folder:
    (folder / "data").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_command_left_is_removed_by_the_next_and_nothing_in_use(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        try:
            with scratch() as mine:
                assert {mine, folder} == set(place.iterdir())
            assert [folder] == list(place.iterdir())
            other.kill()
            other.wait(30)
            assert (folder / "data").is_dir()
            with scratch() as mine:
                assert [mine] == list(place.iterdir())
        finally:
            other.kill()
    assert not list(place.iterdir())


def test_what_has_no_owner_is_left_alone(place: Path) -> None:
    (place / "kalla-elsewhere" / "data").mkdir(parents=True)
    (place / "kalla-link").symlink_to(place / "kalla-elsewhere")
    (place / "kalla-file").touch()
    with scratch():
        pass
    assert {each.name for each in place.iterdir()} == {
        "kalla-elsewhere",
        "kalla-link",
        "kalla-file",
    }
