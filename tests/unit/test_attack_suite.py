"""What an attack did not break is kept in `make attack`, by a list."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = (ROOT / "tests/attack_suite.txt").read_text("utf-8").split()


@pytest.mark.parametrize("entry", LISTED)
def test_what_the_list_names_is_there(entry: str) -> None:
    file, _, name = entry.partition("::")
    assert f"def {name or 'test_'}" in (ROOT / file).read_text("utf-8")
