"""A pytest plugin: a run against a copy of the source ends at once if it imports anything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kalla


def pytest_configure() -> None:
    copy = Path(os.environ["KALLA_MUTANT_SOURCE"])
    if not Path(kalla.__file__).is_relative_to(copy):
        pytest.exit(f"kalla came from {kalla.__file__}, not from the copy", returncode=3)
