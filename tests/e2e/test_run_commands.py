"""A reconciliation by commands: register sources, store a secret, submit, export, compare."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.commands_kit import Place, a_place
from tests.servers import PostgresServer, SparkServer

pytestmark = pytest.mark.spark

RECIPE = """
name: bank
parameters:
  slack: {type: number, default: 0}
sources:
  left: {uri: "source://invoices/", primary_key: [id], amount: amount}
  right: {uri: "source://payments", amount: amount}
rules:
  - name: by reference
    conditions:
      - {left: ref, op: eq, right: ref}
      - {left: amount, op: tolerance, right: amount, absolute: "${slack}"}
"""


@pytest.fixture(scope="module")
def place(
    postgres_server: PostgresServer,
    migrated_template: str,
    spark_server: SparkServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    name, bank = postgres_server.create(migrated_template), postgres_server.create()
    folder = tmp_path_factory.mktemp("runs")
    lines = [f"{n},INV-{n},{n}.00" for n in range(1, 101)]
    (folder / "invoices.csv").write_text("\n".join(["id,ref,amount", *lines]) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE)
    with psycopg.connect(postgres_server.url(bank)) as connection:
        connection.execute(
            "CREATE TABLE payments AS SELECT n AS id, 'INV-' || n AS ref,"
            " (n + CASE WHEN n % 10 = 0 THEN 5 ELSE 0 END)::numeric(12, 2) AS amount"
            " FROM generate_series(1, 100) n"
        )
        connection.execute("ALTER TABLE payments ADD PRIMARY KEY (id)")
    made = a_place(
        folder,
        postgres_server.url(name),
        "admin",
        KALLA_SPARK_REMOTE=spark_server.remote,
        KALLA_SPARK_TOKEN=spark_server.token,
        KALLA_SECRETS_KEY="AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    )
    parts = urlsplit(postgres_server.url(bank))
    try:
        made.ok("secret", "set", "bank", given=(parts.password or "unused").encode())
        with made.served():
            made.ok("sources", "add", "invoices", "invoices.csv")
            uri = f"postgresql://{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
            more = ("--table", "public.payments", "--password", "secret://bank", "--key", "id")
            made.ok("sources", "add", "payments", uri, *more)
            yield made
    finally:
        postgres_server.drop(name)
        postgres_server.drop(bank)


def test_a_recipe_is_run_by_the_workers_and_compared_with_another_run(
    place: Place, tmp_path: Path
) -> None:
    done = place.run("runs", "submit", "recipe.yaml", "--wait")
    assert done.returncode == 1, done.stderr
    assert "90.00 % of all rows matched" in done.stdout
    assert "The largest exceptions:" in done.stdout
    done = place.run("runs", "submit", "bank", "--set", "slack=5", "--wait", "--format", "json")
    assert done.returncode == 0, done.stderr
    second = json.loads(done.stdout)
    assert (second["recipe_id"], second["recipe_version"]) == ("bank", 1)
    listed = json.loads(place.ok("runs", "list", "--format", "json"))
    ids = [run["run_id"] for run in listed["runs"]]
    assert ids == [second["run_id"], second["run_id"] - 1]
    watched = place.run("runs", "watch", str(ids[1]))
    assert watched.returncode == 1, watched.stderr
    assert f"Run {ids[1]} of bank, version 1 is completed." in watched.stdout
    assert "90.00 % of all rows matched" in watched.stdout
    watched = place.run("runs", "watch", str(ids[0]), "--format", "json")
    assert (watched.returncode, json.loads(watched.stdout)["status"]) == (0, "completed")
    assert place.run("runs", "watch", "999").returncode == 2
    shown = place.ok("runs", "show", str(ids[1]))
    assert "by reference" in shown
    target = tmp_path / "left.csv"
    place.ok("runs", "export", str(ids[1]), "unmatched_left", "--output", str(target))
    with target.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert {row["record_key"] for row in rows} == {str(n) for n in range(10, 101, 10)}
    difference = json.loads(place.ok("runs", "diff", str(ids[1]), str(ids[0]), "--format", "json"))
    assert "newly_matched" in json.dumps(difference)
    assert place.run("runs", "cancel", str(ids[0])).returncode == 2


def test_a_recipe_with_problems_starts_nothing_and_tells_them_all(
    place: Place, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(RECIPE.replace("op: eq", "op: equals").replace("[id]", "[]"))
    done = place.run("runs", "submit", str(broken))
    assert done.returncode == 2
    assert "rules[0].conditions[0].op" in done.stderr
    assert "sources.left.primary_key" in done.stderr
    unregistered = tmp_path / "unregistered.yaml"
    unregistered.write_text(RECIPE.replace("source://invoices/", "/etc/passwd"))
    done = place.run("runs", "submit", str(unregistered))
    assert "is not a registered source" in done.stderr
