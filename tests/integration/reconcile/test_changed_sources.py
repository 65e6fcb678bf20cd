"""A file that changes during a run: the evidence would tell of other rows than its marks."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kalla.errors import Unavailable
from kalla.reconcile import kernel
from kalla.reconcile.kernel import Facts
from kalla.reconcile.partitioned.partitioned_match import Places
from kalla.reconcile.plan.plan import Input, Plan
from kalla.reconcile.recipe.model import SIDES, Recipe, Source
from kalla.reconcile.runs import execute
from kalla.reconcile.session.duckdb_engine import Resources
from kalla.reconcile.sources import native_files, source_planning
from kalla.reconcile.sources.source_planning import Limits
from kalla.reconcile.sql.duckdb_limits import Bounds
from kalla.storage import LOCAL, Storage, join
from tests.servers import S3Server

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Storage]:
    if request.param == "disk":
        return str(tmp_path), LOCAL
    server: S3Server = request.getfixturevalue("s3_server")
    return f"s3://{server.create()}", server.storage


def look(uri: str, storage: Storage) -> Input:
    source = Source.model_validate({"uri": uri, "primary_key": ["id"]})
    return source_planning.inspect_files(source, "left", storage=storage)


def test_a_file_that_has_changed_since_it_was_looked_at_is_told(place: tuple[str, Storage]) -> None:
    folder, storage = place
    for name in ("a.csv", "b.csv"):
        storage.write_text(join(folder, "rows", name), "id\n1\n2\n")
    seen = look(join(folder, "rows"), storage)
    native_files.demand_unchanged(seen, storage)
    storage.write_text(join(folder, "rows", "b.csv"), "id\n1\n2\n3\n")
    with pytest.raises(Unavailable, match=r"b\.csv has changed while it was read: start again"):
        native_files.demand_unchanged(seen, storage)
    storage.remove(join(folder, "rows", "b.csv"))
    with pytest.raises(Unavailable, match=r"b\.csv has changed"):
        native_files.demand_unchanged(seen, storage)


def test_a_file_of_the_same_size_has_changed_if_it_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id\n1\n")
    seen = look(str(file), LOCAL)
    LOCAL.write_text(str(file), "id\n2\n")
    with pytest.raises(Unavailable, match=r"rows\.csv has changed"):
        native_files.demand_unchanged(seen)


def test_an_object_of_the_same_size_and_second_has_changed_too(s3_server: S3Server) -> None:
    storage, url = s3_server.storage, f"s3://{s3_server.create()}/rows.csv"
    storage.write_text(url, "id\n1\n")
    seen = look(url, storage)
    (mark,) = seen.marks
    content = hashlib.md5(b"id\n1\n", usedforsecurity=False)
    assert mark["etag"] == content.hexdigest(), "as S3 has it of a small object"
    native_files.demand_unchanged(seen, storage)
    storage.write_text(url, "id\n2\n")
    modified = storage.info(url).mark["modified"]
    with pytest.raises(Unavailable, match=r"rows\.csv has changed"):
        native_files.demand_unchanged(
            replace(seen, marks=({**mark, "modified": modified},)), storage
        )


def test_a_look_within_bounds_asks_no_object_by_itself(s3_server: S3Server) -> None:
    storage, url = s3_server.storage, f"s3://{s3_server.create()}/rows.csv"
    storage.write_text(url, "id\n1\n")
    source = Source.model_validate({"uri": url, "primary_key": ["id"]})
    (mark,) = native_files.inspect_files(source, storage=storage, bounds=Bounds()).marks
    assert set(mark) == {"file", "bytes", "modified"}


@pytest.mark.parametrize("replaced", [True, False], ids=["another file", "written over"])
def test_a_file_of_the_same_size_and_time_has_changed_too(tmp_path: Path, replaced: bool) -> None:
    file, other = tmp_path / "rows.csv", tmp_path / "other.csv"
    file.write_text("id\n1\n")
    seen = look(str(file), LOCAL)
    before = file.stat()
    (other if replaced else file).write_text("id\n2\n")
    if replaced:
        other.rename(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Unavailable, match=r"rows\.csv has changed"):
        native_files.demand_unchanged(seen)


def test_a_delta_table_that_has_a_new_version_still_has_the_one_that_was_looked_at(
    tmp_path: Path,
) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"id": [1, 2]}))
    seen = look(table, LOCAL)
    write_deltalake(table, pa.table({"id": [3]}), mode="overwrite")
    native_files.demand_unchanged(seen)
    Path(seen.files[0]).unlink()
    with pytest.raises(Unavailable, match="has changed"):
        native_files.demand_unchanged(seen)


@pytest.mark.parametrize("changes", [True, False])
def test_a_run_whose_file_changes_meanwhile_fails_and_leaves_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id\n1\n")
    side = {"uri": str(file), "primary_key": ["id"]}
    condition = {"left": "id", "op": "eq", "right": "id"}
    document = {
        "name": "test",
        "sources": {"left": side, "right": side},
        "rules": [{"name": "r", "conditions": [condition]}],
    }
    recipe = Recipe.model_validate(document)
    inputs = {side: source_planning.inspect_files(recipe.sources[side], side) for side in SIDES}

    def match(_: object, __: object, made: Plan, places: Places, *___: object) -> Facts:
        resources = Resources("200MB", 1, tmp_path / "spilled")
        found = kernel.match(made, places.evidence, resources, str(WHEN))
        if changes:
            file.touch()
        return found

    monkeypatch.setattr(execute, "_match", match)
    folder = tmp_path / "out"

    def execute_recipe() -> None:
        nobody = cast(Any, None)
        execute.match(nobody, recipe, inputs, folder, Limits(), lambda *_: None, WHEN)

    if not changes:
        execute_recipe()
        assert (folder / "metadata.json").exists()
        return
    with pytest.raises(Unavailable, match=r"rows\.csv has changed while it was read"):
        execute_recipe()
    assert not [each for each in folder.rglob("*") if each.is_file()]
