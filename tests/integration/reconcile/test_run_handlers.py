"""Handlers of runs by themselves, as far as they go without Spark."""

from __future__ import annotations

import gzip
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from kalla.errors import InvalidInput
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import SIDES, Source
from kalla.reconcile.runs import handlers
from kalla.reconcile.runs.handlers import Exec, HandlerDependencies, StagePlan
from kalla.reconcile.sources import source_planning
from kalla.settings import Settings
from kalla.spark.session import SparkSessions
from kalla.storage import LOCAL
from kalla.work.handler import Context, Handler
from kalla.work.job import Job
from tests.servers import PostgresServer


@pytest.mark.parametrize(("read", "kind"), [("staged", StagePlan), ("direct", Exec)])
def test_a_table_that_is_not_there_is_told_by_its_place_and_for_good(
    postgres_server: PostgresServer,
    settings_here: Settings,
    read: str,
    kind: type[StagePlan] | type[Exec],
) -> None:
    at = urlsplit(postgres_server.url("postgres"))
    uri = f"postgresql://{at.username}@{at.hostname}:{at.port}{at.path}"
    side = f"uri: '{uri}', table: paymnts, password: 'secret://bank', primary_key: [id]"
    text = f"""
name: t
sources:
  left: {{{side}, read: {read}}}
  right: {{{side}, read: {read}}}
rules:
  - {{name: r, conditions: [{{left: id, op: eq, right: id}}]}}
"""
    ground = HandlerDependencies(
        settings_here, SparkSessions(settings_here.spark), lambda _: SecretStr(at.password or "")
    )
    (first, *_), _ = handlers.first_jobs(parsing.read(text))
    handler: Handler = kind(ground)
    with pytest.raises(InvalidInput, match=r"sources\.left\.table: there is no table paymnts"):
        handler.run(claimed(first.type, dict(first.payload)), Context())


def test_a_match_of_csv_files_knows_about_how_many_rows_it_has(tmp_path: Path) -> None:
    """Or it has no rate to tell; of a compressed one nobody knows, and half the rows is a lie."""
    text = "id,amount\n" + "".join(f"{number},10.50\n" for number in range(1000, 1600))
    plain, packed = tmp_path / "a.csv", tmp_path / "b.csv.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))

    def expected(left: Path, right: Path) -> int:
        given = {"left": left, "right": right}
        inputs = {
            side: source_planning.inspect_files(
                Source(uri=str(given[side]), primary_key=("id",)), side
            )
            for side in SIDES
        }
        return handlers.rows_expected(inputs, LOCAL)

    assert expected(plain, plain) == pytest.approx(1200, rel=0.05)
    assert expected(plain, packed) == 0


def claimed(kind: str, payload: dict[str, object]) -> Job:
    return Job(
        job_id=1,
        fence=1,
        type=kind,
        queue="stage",
        payload=payload,
        priority=0,
        failures=0,
        max_attempts=3,
        timeout_seconds=20,
        max_runtime_seconds=60,
        run_id=1,
        gate=None,
        opened_by=None,
    )


@pytest.fixture
def settings_here(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("data"))
