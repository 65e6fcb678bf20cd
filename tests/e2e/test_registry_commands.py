"""`kalla sources`, `recipe` and `destinations` as a person types them, against a running API."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.commands_kit import Place, a_place
from tests.servers import PostgresServer

RECIPE = """# The books of May.
name: Books of May
sources:
  left: {uri: 'source://books'}
  right: {uri: 'source://bank', primary_key: [id]}
rules:
  - name: paid
    conditions: [{left: id, op: eq, right: id}]
"""


@pytest.fixture(scope="module")
def place(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    name = postgres_server.create(migrated_template)
    made = a_place(tmp_path_factory.mktemp("place"), postgres_server.url(name), "admin")
    try:
        with made.api():
            yield made
    finally:
        postgres_server.drop(name)


def test_sources_are_registered_and_a_recipe_that_uses_them_is_kept(place: Place) -> None:
    (place.folder / "books.csv").write_text("id,amount\n1,2.50\n2,3.00\n")
    (place.folder / "bank.yaml").write_text(
        "uri: postgresql://reader@127.0.0.1:1/bank\ntable: payments\n"
        "filters: [{column: amount, op: gt, value: 12345678901.55},\n"
        "          {column: paid, op: gt, value: 2026-01-01}]"
    )
    said = place.ok("sources", "add", "books", "books.csv", "--key", "id")
    assert said == f"Recipes may read {place.folder}/books.csv as source://books.\n"
    again = place.run("sources", "add", "books", "books.csv")
    assert again.returncode == 2
    assert "there is a source 'books' already" in again.stderr.lower()
    place.ok("sources", "add", "books", "books.csv", "--key", "id", "--replace")
    place.ok("sources", "add", "bank", "--file", "bank.yaml", "--password", "secret://bank")
    shown = place.ok("sources", "show", "bank")
    assert "password: secret://bank" in shown
    assert "12345678901.55" in shown
    listed = json.loads(place.ok("sources", "list", "--format", "json"))
    assert {"bank", "books"} <= {each["name"] for each in listed}
    assert "payments" in place.ok("sources", "list")

    (place.folder / "recipe.yaml").write_text(RECIPE)
    first, note = place.ok("recipe", "save", "recipe.yaml").splitlines()
    assert first == "books-of-may is saved as version 1."
    assert note.startswith(
        "Note: the right source's columns were not checked: there is no secret 'bank'"
    )
    again_saved = place.ok("recipe", "save", "recipe.yaml")
    assert again_saved.startswith("books-of-may has not changed: it is version 1.\n")
    (place.folder / "recipe.yaml").write_text(RECIPE.replace("paid", "paid in full"))
    assert json.loads(place.ok("recipe", "save", "recipe.yaml", "--format", "json"))["version"] == 2
    assert "Books of May" in place.ok("recipe", "list")
    assert place.ok("recipe", "show", "books-of-may", "--version", "1") == RECIPE
    assert "paid in full" in place.ok("recipe", "show", "books-of-may")
    assert place.run("recipe", "show", "books-of-june").returncode == 2

    assert place.ok("sources", "remove", "bank") == "No recipe can read bank any more.\n"
    refused = place.run("recipe", "save", "recipe.yaml")
    assert refused.returncode == 2
    assert "sources.right.uri: there is no registered source 'bank'" in refused.stderr


def test_a_source_is_tested_and_looked_into(place: Place) -> None:
    (place.folder / "rows.csv").write_text("id,amount,note\n1,2.50,\n2,3.00,late\n")
    place.ok("sources", "add", "rows", "rows.csv")
    assert "can be read: one file" in place.ok("sources", "test", "rows")
    columns = place.ok("sources", "columns", "rows")
    assert "primary key: id (a guess" in columns
    assert "csv, about 2 rows" in columns
    preview = place.ok("sources", "preview", "rows", "--rows", "2")
    assert [line.split() for line in preview.splitlines()] == [
        ["id", "amount", "note"],
        ["1", "2.50"],
        ["2", "3.00", "late"],
    ]
    (place.folder / "rows.csv").unlink()
    gone = place.run("sources", "test", "rows")
    assert gone.returncode == 1
    assert "rows.csv does not exist" in gone.stdout


def test_destinations_are_added_listed_and_removed(place: Place) -> None:
    url = "https://ledger.example/hooks"
    assert url in place.ok("destinations", "add", "ledger", url, "--secret", "ledger-key")
    assert "ledger-key" in place.ok("destinations", "list")
    assert json.loads(place.ok("destinations", "list", "--format", "json"))[0]["url"] == url
    wrong = place.run("destinations", "add", "x", "http://ledger.example", "--secret", "k")
    assert (wrong.returncode, wrong.stderr.split(":")[0]) == (2, "url")
    place.ok("destinations", "remove", "ledger")
    assert "No destinations yet" in place.ok("destinations", "list")
