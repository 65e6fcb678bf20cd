"""The data folder: one at a time, with room, and a sentence when it cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kalla.errors import StartFailed
from kalla.local import folder


def test_a_folder_is_for_one_at_a_time(tmp_path: Path) -> None:
    with (
        folder.held(tmp_path),
        pytest.raises(StartFailed, match=rf"already running on .* \(pid {os.getpid()}\)"),
        folder.held(tmp_path),
    ):
        pass
    with folder.held(tmp_path):
        pass


def test_a_folder_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartFailed, match=r"The data folder .* cannot be used \(.*data_dir"):
        folder.make(tmp_path / "file" / "below")


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"free, .* are wanted: .*up.min_free_bytes"):
        folder.require_space(tmp_path, 1 << 60)


def test_a_secret_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "password"
    first = folder.secret(path)
    assert len(first) >= 32
    assert folder.secret(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
