"""What is asked of a recipe before a run of it begins; no worker is needed for that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kalla.local import ports
from kalla.reconcile.registry import entries, timed_inspection
from kalla.reconcile.registry.timed_inspection import InspectedColumns, SourceInspector
from kalla.work.state import jobs
from tests.web_kit import Site


@pytest.fixture
async def files(site: Site, tmp_path: Path) -> Path:
    """Two registered files, the second with its key."""
    (tmp_path / "invoices.csv").write_text("id,ref,amount\n1,a,2.50\n")
    (tmp_path / "payments.csv").write_text("id,ref,amount\n7,a,2.50\n")
    async with site.client("admin") as client:
        for name, more in (("invoices", {}), ("payments", {"primary_key": ["id"]})):
            source = {"uri": str(tmp_path / f"{name}.csv")} | more
            answer = await client.post("/api/sources", json={"name": name, "source": source})
            assert answer.status_code == 201, answer.text
    return tmp_path


def recipe(left: str = "ref", **fields: Any) -> dict[str, Any]:
    return {
        "name": "bank",
        "sources": {
            "left": {"uri": "source://invoices", "primary_key": ["id"]},
            "right": {"uri": "source://payments"},
        },
        "rules": [{"name": "r", "conditions": [{"left": left, "op": "eq", "right": "ref"}]}],
    } | fields


async def runs(site: Site) -> int:
    return int((await site.one("SELECT count(*) AS n FROM kalla.runs"))["n"])


@pytest.mark.usefixtures("files")
async def test_a_column_that_is_not_there_is_told_before_anything_starts(site: Site) -> None:
    wrong = recipe("reff", time_zone="Paris")
    async with site.client("operator") as client:
        checked = await client.post("/api/recipes/validate", json=wrong)
        submitted = await client.post("/api/runs", json={"recipe": wrong})
        saved = await client.post("/api/recipes", json=wrong)
    found = [(each["path"], each["suggestion"]) for each in checked.json()["problems"]]
    assert ("rules[0].conditions[0].left", "did you mean ref?") in found
    for answer in (submitted, saved):
        assert answer.status_code == 422, answer.text
        told = {each["field"]: each["message"] for each in answer.json()["errors"]}
        assert list(told) == [path for path, _ in found], "every problem is told at once"
        assert "(did you mean ref?)" in told["rules[0].conditions[0].left"]
    assert await runs(site) == 0
    assert (await site.one("SELECT count(*) AS n FROM kalla.recipes"))["n"] == 0


@pytest.mark.usefixtures("files")
async def test_a_run_tells_which_table_of_a_database_it_reads(site: Site) -> None:
    """Or both sides of a run between two tables look the same."""
    uri = f"postgresql://reader@127.0.0.1:{ports.choose_free()}/bank"
    document = recipe()
    document["sources"]["left"] |= {"uri": uri, "table": "public.invoices"}
    async with site.client("admin") as client:
        await client.post("/api/sources", json={"name": "bank", "source": {"uri": uri}})
        run = (await client.post("/api/runs", json={"recipe": document})).json()
        page = (await client.get(f"/runs/{run['run_id']}")).text
    assert run["sources"]["left"] == f"{uri} public.invoices"
    assert f"{uri} public.invoices" in page


async def test_what_cannot_be_looked_at_is_no_refusal(site: Site, files: Path) -> None:
    (files / "invoices.csv").unlink()
    async with site.client("operator") as client:
        saved = await client.post("/api/recipes", json=recipe())
        submitted = await client.post("/api/runs", json={"recipe": recipe()})
    assert (saved.status_code, submitted.status_code) == (201, 201), submitted.text
    (note,) = saved.json()["notes"]
    assert note.startswith("the left source's columns were not checked: ")
    assert "invoices.csv does not exist" in note


@pytest.mark.usefixtures("files")
async def test_a_recipe_that_no_job_carries_is_refused_wherever_it_is_judged(site: Site) -> None:
    long = recipe()
    values = {"column": "ref", "op": "in", "value": ["a"] * 40_000}
    long["sources"]["left"] |= {"filters": [values]}
    async with site.client("operator") as client:
        checked = await client.post("/api/recipes/validate", json=long)
        submitted = await client.post("/api/runs", json={"recipe": long})
        saved = await client.post("/api/recipes", json=long)
    told = [each["message"] for each in checked.json()["problems"]]
    assert len(told) == 1
    assert told[0].startswith("the document ")
    assert "250,000" in told[0]
    for answer in (submitted, saved):
        assert answer.status_code == 422, answer.text
        assert [each["field"] for each in answer.json()["errors"]] == [""]
        assert told[0] in answer.json()["detail"]


@pytest.mark.usefixtures("files")
async def test_while_others_are_looked_at_a_recipe_is_saved_and_run_without(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_inspection, "_MOST_PATIENT", 0)
    async with site.client("operator") as client:
        saved = await client.post("/api/recipes", json=recipe())
        submitted = await client.post("/api/runs", json={"recipe": recipe()})
    assert (saved.status_code, submitted.status_code) == (201, 201), submitted.text
    assert saved.json()["notes"] == [
        "the columns were not checked: too many recipes are being checked: try again in a moment"
    ]


@pytest.mark.usefixtures("files")
async def test_a_run_names_the_version_it_used_whatever_is_saved_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = SourceInspector.columns_for

    async def slow(self: SourceInspector, *asked: Any) -> InspectedColumns:
        seen = await look(self, *asked)
        async with site.database.transaction() as connection:
            text = json.dumps(recipe(description="two"))
            assert (await entries.save_recipe(connection, text, "ann")).version == 2
        return seen

    async with site.client("operator") as client:
        await client.post("/api/recipes", json=recipe(description="one"))
        monkeypatch.setattr(SourceInspector, "columns_for", slow)
        run = (await client.post("/api/runs", json={"recipe_id": "bank"})).json()
    assert run["recipe_version"] == 1
    assert "description: one" in run["recipe"]


@pytest.mark.usefixtures("files")
async def test_a_parameter_may_name_the_source(site: Site) -> None:
    document = recipe(parameters={"bank": {"type": "text"}})
    document["sources"]["right"]["uri"] = "source://${bank}"
    async with site.client("operator") as client:
        saved = await client.post("/api/recipes", json=document)
        checked = (await client.post("/api/recipes/validate", json=document)).json()
        wrong, run, none = [
            await client.post("/api/runs", json={"recipe_id": "bank", "parameters": given})
            for given in ({"bank": "paymnts"}, {"bank": "payments"}, {})
        ]
        given = {"recipe": document, "parameters": {"bank": "paymnts"}}
        judged = (await client.post("/api/recipes/validate", json=given)).json()
    assert saved.status_code == 201, saved.text
    assert checked == {"valid": True, "problems": [], "notes": [], "needs": ["bank"]}
    assert run.status_code == 201, run.text
    assert run.json()["sources"]["right"].endswith("payments.csv")
    assert "there is no registered source 'paymnts'" in wrong.text
    assert "did you mean payments?" in wrong.text
    assert "needs the parameter `bank`" in none.text
    assert (wrong.status_code, none.status_code) == (422, 422)
    assert judged["problems"][0]["path"] == "sources.right.uri"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("uri", [None, "source://gone", "", 5], ids=repr)
async def test_another_source_takes_the_place_of_the_recipes(site: Site, uri: object) -> None:
    """As in `kalla reconcile --left`: whatever the recipe says there, or nothing."""
    document = recipe()
    document["sources"]["left"]["uri"] = uri
    if uri is None:
        del document["sources"]["left"]["uri"]
    asked = {"recipe": document, "left": "source://invoices"}
    async with site.client("operator") as client:
        run = await client.post("/api/runs", json=asked)
        again = await client.post("/api/runs", json={"recipe_id": "bank"} | {"left": asked["left"]})
        without = await client.post("/api/runs", json={"recipe_id": "bank"})
    assert run.status_code == 201, run.text
    assert run.json()["sources"]["left"].endswith("invoices.csv")
    assert again.status_code == 201, again.text
    assert without.status_code == 422
    assert [each["field"] for each in without.json()["errors"]] == ["sources.left.uri"]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
async def test_a_body_that_is_not_utf_8_is_refused(site: Site, encoding: str) -> None:
    body = json.dumps({"recipe": recipe(description="é")}, ensure_ascii=False).encode(encoding)
    async with site.client("operator") as client:
        answer = await client.post(
            "/api/runs", content=body, headers={"Content-Type": "application/json"}
        )
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]
    assert await runs(site) == 0


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (json.dumps({"recipe": recipe()})[:-2] + ', "name": "other"}}', "recipe.name"),
        (json.dumps({"recipe": recipe(), "parameters": {"a": True}}), "parameters.a"),
    ],
    ids=["a name given twice", "true for a text"],
)
async def test_a_body_is_refused_alike_where_it_is_checked_and_where_it_is_run(
    site: Site, body: str, field: str
) -> None:
    headers = {"Content-Type": "application/json"}
    async with site.client("operator") as client:
        checked = await client.post("/api/recipes/validate", content=body, headers=headers)
        answer = await client.post("/api/runs", content=body, headers=headers)
    (told,) = checked.json()["problems"]
    assert told["path"] == field
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"] == [
        {"field": field, "message": f"{told['message']} ({told['suggestion']})"}
    ]
    assert await runs(site) == 0


@pytest.mark.usefixtures("files")
async def test_a_run_whose_job_is_put_off_tells_the_reason(site: Site) -> None:
    async with site.client("operator") as client:
        run = (await client.post("/api/runs", json={"recipe": recipe()})).json()
        assert run["progress"]["put_off"] is None
        async with site.app.state.kalla.database.transaction() as connection:
            (job,) = await jobs.claim(connection, "exec", ["exec"], "w", 1)
            await jobs.put_off(connection, job, "Spark at sc://x does not answer", "", 300)
        shown = (await client.get(f"/api/runs/{run['run_id']}")).json()["progress"]
        page = await client.get(f"/runs/{run['run_id']}", headers={"Accept": "text/html"})
    assert shown["stage"] == "waiting"
    assert shown["put_off"]["reason"] == "Spark at sc://x does not answer"
    assert 0 <= shown["put_off"]["next_try_seconds"] <= jobs.LONGEST_PAUSE
    assert "Spark at sc://x does not answer; tried again in" in page.text
