"""Saved recipes: every version is kept, and nothing is saved that could not be run."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kalla.errors import NotFound
from kalla.reconcile.recipe import yaml_values
from kalla.reconcile.registry import entries
from tests.web_kit import Site

RECIPE = """# The books of May.
name: Invoices & payments
sources:
  left: {uri: /data/invoices.csv, primary_key: [id]}
  right: {uri: /data/payments.csv, primary_key: [id]}
rules:
  - name: paid
    conditions:
      - {left: id, op: eq, right: id}
      - {left: amount, op: tolerance, right: amount, absolute: 0.01}
"""
ID = "invoices-payments"


async def test_every_version_is_kept_and_the_same_text_makes_none(site: Site) -> None:
    changed = RECIPE.replace("0.01", "0.02")
    async with site.client("operator") as client:
        first = await client.post("/api/recipes", content=RECIPE)
        again = await client.post("/api/recipes", content=RECIPE.replace("\n", "\r\n"))
        second = await client.post("/api/recipes", content=changed)
        back = await client.post("/api/recipes", content=RECIPE)
    assert [answer.status_code for answer in (first, again, second, back)] == [201, 200, 201, 201]
    assert first.headers["Location"] == f"/api/recipes/{ID}/versions/1"
    versions = [answer.json()["version"] for answer in (first, again, second, back)]
    assert versions == [1, 1, 2, 3]
    assert first.json()["created_by"] == "operator"
    async with site.client("viewer") as client:
        listed = (await client.get("/api/recipes")).json()
        latest = (await client.get(f"/api/recipes/{ID}")).json()
        older = (await client.get(f"/api/recipes/{ID}/versions/2")).json()
    assert [(each["recipe_id"], each["version"]) for each in listed] == [(ID, 3)]
    assert (latest["version"], latest["text"]) == (3, RECIPE)
    assert [each["version"] for each in latest["versions"]] == [3, 2, 1]
    assert older["text"] == changed
    assert older["hash"] != latest["hash"] == first.json()["hash"]


@pytest.mark.parametrize("wrapped", [RECIPE, {"name": "May", "recipe_id": "m1"}])
async def test_a_recipe_may_come_in_json(site: Site, wrapped: Any) -> None:
    if isinstance(wrapped, dict):
        side = {"uri": "/data/x.csv", "primary_key": ["id"]}
        wrapped |= {"sources": {"left": side, "right": side}}
        wrapped |= {
            "rules": [{"name": "r", "conditions": [{"left": "a", "op": "eq", "right": "a"}]}]
        }
    async with site.client("operator") as client:
        answer = await client.post("/api/recipes", json={"recipe": wrapped})
        checked = await client.post("/api/recipes/validate", json={"recipe": wrapped})
    assert answer.status_code == 201, answer.text
    assert answer.json()["recipe_id"] == ("m1" if isinstance(wrapped, dict) else ID)
    assert checked.json()["valid"] is True, checked.text


async def test_savings_at_once_make_one_version_each(site: Site) -> None:
    texts = [RECIPE.replace("0.01", f"0.0{digit}") for digit in range(1, 7)]
    async with site.client("operator") as client:
        answers = await asyncio.gather(
            *(client.post("/api/recipes", content=text) for text in texts)
        )
    assert sorted(answer.json()["version"] for answer in answers) == [1, 2, 3, 4, 5, 6]


async def test_another_name_that_makes_the_same_id_must_say_which_recipe_it_is(site: Site) -> None:
    other = RECIPE.replace("Invoices & payments", "Invoices (payments)")
    async with site.client("operator") as client:
        await client.post("/api/recipes", content=RECIPE)
        refused = await client.post("/api/recipes", content=other)
        renamed = await client.post("/api/recipes", content=f"recipe_id: {ID}\n{other}")
        apart = await client.post("/api/recipes", content=f"recipe_id: second\n{other}")
    assert refused.status_code == 422, refused.text
    ((field, message),) = [each.values() for each in refused.json()["errors"]]
    assert field == "recipe_id"
    assert "is the id of 'Invoices & payments'" in message
    assert f"write recipe_id: {ID} for a new version" in message
    assert (renamed.json()["version"], apart.json()["version"]) == (2, 1)


async def test_viewers_save_nothing_but_may_check(site: Site) -> None:
    key = {"Idempotency-Key": "k"}
    async with site.client("viewer") as client:
        saved = await client.post("/api/recipes", content=RECIPE)
        checked = await client.post("/api/recipes/validate", content=RECIPE, headers=key)
    assert (saved.status_code, checked.status_code) == (403, 200)
    assert (await site.one("SELECT count(*) AS n FROM kalla.idempotency"))["n"] == 0


async def test_a_recipe_with_parameters_is_saved_without_their_values(site: Site) -> None:
    text = "parameters: {slack: {type: number}}\n" + RECIPE.replace("0.01", '"${slack}"')
    async with site.client("operator") as client:
        saved = await client.post("/api/recipes", content=text)
        checked = (await client.post("/api/recipes/validate", content=text)).json()
        given = {"recipe": text, "parameters": {"slack": "much"}}
        wrong = (await client.post("/api/recipes/validate", json=given)).json()
    assert saved.status_code == 201, saved.text
    assert (checked["valid"], checked["needs"]) == (True, ["slack"])
    assert (wrong["valid"], wrong["problems"][0]["path"]) == (False, "parameters.slack")


async def test_every_problem_is_told_at_once_with_its_place_and_a_suggestion(site: Site) -> None:
    broken = RECIPE.replace("tolerance", "tolerence").replace("rules", "rulez")
    broken += "time_zone: Europe/Pari\n"
    async with site.client("viewer") as client:
        answer = await client.post("/api/recipes/validate", content=broken)
        sound = await client.post("/api/recipes/validate", content=RECIPE + "time_zone: Paris\n")
        hostile = (
            RECIPE.partition("rules:")[0] + "match_sql: SELECT reflect('a', 'b') FROM left_src"
        )
        refused = await client.post("/api/recipes/validate", content=hostile)
    assert answer.status_code == 200
    verdict = answer.json()
    assert verdict["valid"] is False
    assert [each["path"] for each in verdict["problems"]] == ["rulez", "time_zone"]
    assert verdict["problems"][0]["suggestion"] == "did you mean rules?"
    (problem,) = sound.json()["problems"]
    assert problem["path"] == "time_zone"
    assert problem["value"] == "Paris"
    assert "Europe/Paris" in problem["suggestion"]
    (problem,) = refused.json()["problems"]
    assert (problem["path"], "reflect" in problem["message"]) == ("match_sql", True)
    assert problem["value"] == "reflect"
    assert problem["suggestion"] == "use the functions of Spark SQL"


async def test_an_unknown_source_and_other_problems_are_told_together(site: Site) -> None:
    text = RECIPE.replace("uri: /data/invoices.csv, ", "uri: 'source://books', ")
    text = text.replace("op: eq", "op: equals")
    async with site.client("operator") as client:
        verdict = (await client.post("/api/recipes/validate", content=text)).json()
        refused = await client.post("/api/recipes", content=text)
    paths = [each["path"] for each in verdict["problems"]]
    assert paths == ["sources.left.uri", "rules[0].conditions[0].op"]
    assert refused.status_code == 422
    assert [each["field"] for each in refused.json()["errors"]] == paths
    assert "(known: eq, tolerance" in refused.json()["errors"][1]["message"]


async def test_the_key_of_a_registered_source_need_not_be_repeated(site: Site) -> None:
    source = {"uri": "/data/invoices.csv", "primary_key": ["id"]}
    async with site.client("admin") as client:
        await client.post("/api/sources", json={"name": "books", "source": source})
        text = RECIPE.replace(
            "{uri: /data/invoices.csv, primary_key: [id]}", "{uri: 'source://books'}"
        )
        saved = await client.post("/api/recipes", content=text)
    assert saved.status_code == 201, saved.text
    assert saved.json()["text"] == text, "the text is kept as it was written"


def in_json(name: object, recipe_id: object = None, uri: str = "/x.csv") -> bytes:
    side = {"uri": uri, "table": "t", "primary_key": ["a"]}
    rule = {"name": "r", "conditions": [{"left": "a", "op": "eq", "right": "a"}]}
    fields = {"name": name, "recipe_id": recipe_id, "sources": {"left": side, "right": side}}
    return json.dumps(fields | {"rules": [rule]}).encode()


BOMB = b"a: &a [x, x]\n" + b"".join(
    b"%c: &%c [*%c, *%c]\n" % (letter, letter, letter - 1, letter - 1)
    for letter in b"bcdefghijklmnopqrstuvw"
)
NO_RECIPES = (
    (b"", "", "the document is empty"),
    (b"- a\n- b\n", "", "must be fields and their values"),
    (b"\xff\xfe\x00", "", "not UTF-8"),
    (b"name: a\0b", "", "U+0000"),
    (b"name: 'x\n", "", "not valid YAML"),
    (b'{"name": ', "", "not valid"),
    (b'{"recipe": ', "", "not valid"),
    (b"{" * 50_000, "", "has a name that is not text"),
    (b"[" * 50_000, "[0][0][0][0]", "is nested more than 32 levels deep"),
    (b"a:\n" + b" - - - - -\n" * 2000, "a", "is not a field of a recipe"),
    (BOMB, "b[0]", "is an alias"),
    (b"name: !!python/object/apply:os.system [id]\n", "name", "has a tag"),
    (b'{"name": "\\ud800"}', "name", "half of a character"),
    (b'{"recipe": {"name": "\\ud800"}}', "recipe.name", "half of a character"),
    (b'{"recipe": {"\\ud800": 1}}', "", "not Unicode text"),
    (b'{"recipe": 3}', "", "must be fields and their values"),
    (b'{"recipe": null}', "", "is empty"),
    (in_json("a\0b"), "name", "NUL"),
    (in_json("x", uri="/a\0b.csv"), "sources.left.uri", "NUL"),
    (in_json("x", "a/b"), "recipe_id", "1 to 100"),
    (in_json("x", "schema"), "recipe_id", "an address of its own"),
    (in_json("Schema"), "recipe_id", "an address of its own"),
    (in_json([]), "name", "must be text"),
    (in_json("x", uri="postgresql://u:hunter2@db/x"), "sources.left.uri", "holds a password"),
    (f"# postgresql://u:hunter2@db/x\n{RECIPE}".encode(), "", "a secret in the clear"),
    (f"description: 'Bearer hunter2hunter2'\n{RECIPE}".encode(), "", "a secret in the clear"),
)


async def test_what_is_no_recipe_is_refused_by_field(site: Site) -> None:
    async with site.client("operator") as client:
        for body, field, words in NO_RECIPES:
            answer = await client.post("/api/recipes", content=body)
            checked = await client.post("/api/recipes/validate", content=body)
            assert answer.status_code == 422, body[:100]
            found = {item["field"]: item["message"] for item in answer.json()["errors"]}
            assert words in found.get(field, ""), (body[:100], found)
            assert checked.status_code == 200, body[:100]
            same = [each["path"] for each in checked.json()["problems"]]
            assert same == [item["field"] for item in answer.json()["errors"]], body[:100]
            assert "hunter2" not in answer.text + checked.text
            assert len(answer.content) + len(checked.content) < 200_000
    assert (await site.one("SELECT count(*) AS n FROM kalla.recipes"))["n"] == 0


async def test_a_recipe_too_large_is_not_read(site: Site) -> None:
    async with site.client("operator") as client:
        for path in ("/api/recipes", "/api/recipes/validate"):
            answer = await client.post(path, content=b"#" * 1_000_000)
            assert answer.status_code == 413


async def test_half_a_character_in_a_value_is_told_in_whole_ones(site: Site) -> None:
    body = b'{"name": "x", "rules": [{"conditions": ["\\ud800"]}], "\\u00e9": {"a": "\\udfff"}}'
    async with site.client("viewer") as client:
        answer = await client.post("/api/recipes/validate", content=body)
    assert answer.status_code == 200
    assert answer.json()["valid"] is False


async def test_the_schema_is_the_one_in_the_documents(site: Site) -> None:
    async with site.client("viewer") as client:
        answer = await client.get("/api/recipes/schema")
    published = Path(__file__).parents[3] / "docs/recipe.schema.json"
    assert answer.json() == json.loads(published.read_text("utf-8"))


async def test_what_is_not_there_says_what_is(site: Site) -> None:
    async with site.client("operator") as client:
        nothing = await client.get("/api/recipes/x")
        await client.post("/api/recipes", content=RECIPE)
        near = await client.get("/api/recipes/invoice-payments")
        late = await client.get(f"/api/recipes/{ID}/versions/7")
        huge = await client.get(f"/api/recipes/{ID}/versions/99999999999")
    assert "`kalla recipe save` makes one" in nothing.json()["detail"]
    assert near.json()["detail"].endswith(f"did you mean {ID}?")
    assert late.json()["detail"] == f"the recipe '{ID}' has no version 7; the latest is 1"
    statuses = [answer.status_code for answer in (nothing, near, late, huge)]
    assert statuses == [404, 404, 404, 422]


async def test_recipes_are_listed_page_by_page(site: Site) -> None:
    async with site.client("operator") as client:
        for name in "abc":
            await client.post("/api/recipes", content=f"recipe_id: {name}\n{RECIPE}")
        first = (await client.get("/api/recipes?limit=2")).json()
        rest = (await client.get("/api/recipes?limit=2&after=b")).json()
        wrong = await client.get("/api/recipes?after=a%00")
    assert [each["recipe_id"] for each in first + rest] == ["a", "b", "c"]
    assert wrong.status_code == 422


async def test_a_run_finds_the_version_it_names(site: Site) -> None:
    async with site.database.transaction() as connection:
        for slack in ("0.01", "0.02"):
            await entries.save_recipe(connection, RECIPE.replace("0.01", slack), by="ann")
        latest = await entries.recipe_version(connection, ID)
        first = await entries.recipe_version(connection, ID, 1)
        with pytest.raises(NotFound):
            await entries.recipe_version(connection, ID, 3)
    assert (latest.version, first.version) == (2, 1)
    assert (first.text, first.created_by) == (RECIPE, "ann")


async def test_the_transaction_that_saves_a_recipe_outlasts_its_reading(site: Site) -> None:
    """The longest takes longer to read than a transaction may be idle otherwise."""
    name = "idle_in_transaction_session_timeout"
    async with site.database.transaction() as connection:
        await entries.save_recipe(connection, RECIPE, by="ann")
        row = await (await connection.execute(f"SHOW {name}")).fetchone()
    assert row == {name: "1min"}


async def test_recipes_are_never_read_on_the_event_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long one takes seconds, for which nobody else would be answered."""
    read_by: set[int] = set()
    parse, write = yaml_values.parse, yaml_values.write

    def watched_parse(text: str, *largest: int) -> yaml_values.Parsed:
        read_by.add(threading.get_ident())
        return parse(text, *largest)

    def watched_write(value: Any) -> str:
        read_by.add(threading.get_ident())
        return write(value)

    monkeypatch.setattr(yaml_values, "parse", watched_parse)
    monkeypatch.setattr(yaml_values, "write", watched_write)
    async with site.client("admin") as client:
        new = {"name": "books", "source": {"uri": "/data/books"}}
        assert (await client.post("/api/sources", json=new)).status_code == 201
        text = RECIPE.replace("uri: /data/invoices.csv", "uri: 'source://books'")
        body = {"recipe": text, "parameters": {}}
        for path in ("/api/recipes/validate", "/api/recipes"):
            answer = await client.post(path, json=body)
            assert answer.status_code in (200, 201), answer.text
        assert (await client.get("/api/sources/books")).status_code == 200
    assert read_by
    assert threading.get_ident() not in read_by
