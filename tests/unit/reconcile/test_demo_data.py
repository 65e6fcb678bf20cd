"""The demo's recipe, wherever somebody tries it."""

from __future__ import annotations

import pytest

from kalla.reconcile import demo_data
from kalla.reconcile.recipe import parsing


@pytest.mark.parametrize(
    "folder", ["/home/a", "/home/a #b", "/home/a: b", "/home/{a}", "/home/${a}", "/höme/\"a'\\"]
)
def test_the_demo_reads_the_file_it_made_in_any_folder(folder: str) -> None:
    place = "postgresql://postgres@127.0.0.1:1/postgres"
    recipe = parsing.read(demo_data.recipe(f"{folder}/invoices.csv", place))
    assert recipe.sources.left.uri == f"{folder}/invoices.csv"
    assert recipe.sources.right.uri == place
