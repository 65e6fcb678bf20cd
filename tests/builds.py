"""Builds Kalla's wheel, also as another version, and lays it out for processes to import."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path, version: str | None = None) -> Path:
    """The wheel of this source tree; with `version`, as if it were that release."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in ("README.md", "LICENSE", "hatch_build.py"):
        shutil.copyfile(ROOT / name, source / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    if version is not None:
        changed = text.replace('version = "0.1.0"', f'version = "{version}"', 1)
        assert changed != text, "pyproject.toml has another version than tests.builds expects"
        text = changed
    (source / "pyproject.toml").write_text(text, "utf-8")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpacked(wheel: Path, folder: Path) -> dict[str, str]:
    """The variables with which a process imports Kalla from this wheel, not from this tree."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KALLA_")}
    return kept | {"PYTHONPATH": str(folder)}
