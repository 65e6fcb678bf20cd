"""A whole run on a real Spark: a Postgres table staged in slices against a file, to evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import SecretStr

from kalla.errors import Permanent
from kalla.reconcile.recipe.model import Recipe
from kalla.reconcile.runs.execute import Run, execute_recipe
from kalla.reconcile.sources.source_planning import Limits
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect
from tests.servers import PostgresServer, SparkServer

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = pytest.mark.spark

ROWS = 2_000


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    found = connect(SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token)))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def bank(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create()
    url = postgres_server.url(name)
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE payments (id bigint PRIMARY KEY, ref text, amount numeric(12, 2))"
        )
        connection.execute(
            "INSERT INTO payments SELECT n, 'INV-' || n, n + CASE WHEN n % 10 = 0 THEN 5 ELSE 0 END"
            f" FROM generate_series(1, {ROWS}) AS n".encode()
        )
    yield url
    postgres_server.drop(name)


def recipe(left: dict[str, Any], right: dict[str, Any]) -> Recipe:
    side = {"primary_key": ["id"], "amount": "amount"}
    return Recipe.model_validate(
        {
            "name": "test",
            "sources": {"left": side | left, "right": side | right},
            "rules": [
                {
                    "name": "r",
                    "conditions": [
                        {"left": "ref", "op": "eq", "right": "ref"},
                        {"left": "amount", "op": "tolerance", "right": "amount", "absolute": "1"},
                    ],
                }
            ],
        }
    )


def table(url: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> dict[str, Any]:
    parts = urlsplit(url)
    source = {
        "uri": f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}",
        "table": "public.payments",
    }
    if parts.password:
        monkeypatch.setenv("KALLA_SECRET_BANK", parts.password)
        source["password"] = "secret://bank"
    return source | more


def invoices(folder: Path) -> dict[str, Any]:
    lines = [f"{n},INV-{n},{n}.00" for n in range(1, ROWS + 1)]
    (folder / "invoices.csv").write_text("\n".join(["id,ref,amount", *lines]) + "\n")
    return {"uri": str(folder / "invoices.csv")}


def run(
    session: SparkSession, wanted: Recipe, folder: Path
) -> tuple[Run, dict[str, Any], list[Any]]:
    told: list[Any] = []
    done = execute_recipe(
        session,
        wanted,
        folder,
        Limits(memory="500MB", threads=1),
        lambda *facts: told.append(facts),
    )
    return done, json.loads((folder / "metadata.json").read_text()), told


def test_a_table_is_staged_in_slices_and_every_row_has_evidence(
    session: SparkSession, bank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = table(bank, monkeypatch, chunk_threshold_rows=300, consistency="snapshot")
    (tmp_path / "out").mkdir()
    done, metadata, told = run(session, recipe(invoices(tmp_path), right), tmp_path / "out")
    assert ("stage", 7, 7) in told
    assert told[-1] == ("match", 100, 100)
    assert done.facts.sides["right"].states["matched"].rows == ROWS * 9 // 10
    assert done.facts.sides["left"].states["unmatched"].rows == ROWS // 10
    assert metadata["datasets"]["unmatched_right"]["rows"] == ROWS // 10
    password = urlsplit(bank).password
    assert not password or password not in (tmp_path / "out" / "metadata.json").read_text()
    assert not list((tmp_path / "out").glob(".work*"))


def test_the_number_of_slices_does_not_change_the_digests(
    session: SparkSession, bank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for slices in (1, 5):
        folder = tmp_path / str(slices)
        folder.mkdir()
        right = table(bank, monkeypatch, chunk_threshold_rows=ROWS // slices)
        _, metadata, told = run(session, recipe(invoices(tmp_path), right), folder)
        assert ("stage", slices, slices) in told
        digests.append({name: part["digest"] for name, part in metadata["datasets"].items()})
    assert digests[0] == digests[1]


@pytest.mark.parametrize("buckets", [1, 2])
def test_a_work_folder_that_an_executor_does_not_see_fails_the_run(
    session: SparkSession, tmp_path: Path, buckets: int
) -> None:
    """Its mark is gone when the tasks look for it, as it is on a machine with a disk of its own."""
    folder = tmp_path / "out"
    folder.mkdir()

    def hide(stage: str, _done: int, _of: int) -> None:
        if stage == "match":
            next(folder.glob(".work-*/seen")).unlink()

    source = invoices(tmp_path)
    with pytest.raises(Permanent, match=r"let storage.evidence be on S3, or a folder"):
        execute_recipe(
            session, recipe(source, source), folder, Limits("500MB", 1, buckets=buckets), hide
        )
    assert not (folder / "metadata.json").exists()
