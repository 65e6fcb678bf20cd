"""The plan that `kalla reconcile --dry-run` prints of tables."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from typer.testing import CliRunner

from kalla.cli.main import application
from tests.servers import PostgresServer


def test_the_plan_tells_tables_by_what_they_are_and_how_they_are_read(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.url("postgres")
    at = urlsplit(url)
    monkeypatch.setenv("KALLA_SECRET_BANK", at.password or "unused")
    side = (
        f"uri: 'postgresql://{at.username}@{at.hostname}:{at.port}{at.path}',"
        " table: public.planned, password: 'secret://bank', primary_key: [id]"
    )
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"""
name: t
sources: {{left: {{{side}, read: staged}}, right: {{{side}, read: direct}}}}
rules: [{{name: r, conditions: [{{left: id, op: eq, right: id}}]}}]
""")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE planned AS SELECT g AS id FROM generate_series(1, 9) g")
        try:
            command = ["reconcile", str(recipe), "--dry-run"]
            done = CliRunner().invoke(application(command), command)
        finally:
            connection.execute("DROP TABLE planned")
    assert done.exit_code == 0, done.output
    assert f"{at.path} public.planned\n         staged postgres, about 9 rows" in done.output
    assert f"{at.path} public.planned\n         direct postgres, about 9 rows" in done.output
    assert "matched by SQL: the left side has fewer than 100,000 rows" in done.output
