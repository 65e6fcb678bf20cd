"""Registered sources: who may register what, and what a recipe may read because of them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import Recipe
from kalla.reconcile.registry import admission, entries
from tests.web_kit import Site

JSON = {"Content-Type": "application/json"}
BANK = {
    "uri": "postgresql://reader@db.internal/bank",
    "table": "public.payments",
    "password": "secret://bank",
    "primary_key": ["payment_id"],
    "partition_key": "payment_id",
    "read": "direct",
}


def recipe(left: str, right: str) -> str:
    """Two sources, each the inside of a YAML mapping."""
    return f"""
name: May
sources:
  left: {{{left}}}
  right: {{{right}}}
rules:
  - name: paid
    conditions: [{{left: id, op: eq, right: id}}]
"""


async def register(site: Site, name: str, source: dict[str, Any]) -> None:
    async with site.client("admin") as client:
        answer = await client.post("/api/sources", json={"name": name, "source": source})
    assert answer.status_code == 201, answer.text


async def admitted(site: Site, text: str) -> Recipe:
    async with site.database.transaction() as connection:
        known = await entries.known_sources(connection)
    return await entries.prepare(text, known, {}, {})


async def test_a_source_is_registered_shown_replaced_and_removed(site: Site) -> None:
    async with site.client("admin") as client:
        made = await client.post("/api/sources", json={"name": "bank", "source": BANK})
        assert made.status_code == 201, made.text
        assert made.headers["Location"] == "/api/sources/bank"
        again = await client.post("/api/sources", json={"name": "bank", "source": BANK})
        assert again.status_code == 409
        other = BANK | {"table": "public.refunds"}
        replaced = await client.post(
            "/api/sources", json={"name": "bank", "source": other, "replace": True}
        )
        assert replaced.json()["source"] == other
        assert replaced.json()["created_at"] == made.json()["created_at"]
    async with site.client("viewer") as client:
        shown = (await client.get("/api/sources/bank")).json()
        assert (await client.get("/api/sources")).json() == [shown]
    assert shown["source"] == other
    assert shown["created_by"] == shown["changed_by"] == "admin"
    async with site.client("admin") as client:
        removed = await client.post("/api/sources/bank/remove")
        assert removed.json() == shown
        assert (await client.post("/api/sources/bank/remove")).status_code == 404
        assert (await client.get("/api/sources")).json() == []


async def test_a_registration_is_carried_out_once_per_key(site: Site) -> None:
    body, headers = {"name": "bank", "source": BANK}, {"Idempotency-Key": "k"}
    async with site.client("admin") as client:
        first = await client.post("/api/sources", json=body, headers=headers)
        second = await client.post("/api/sources", json=body, headers=headers)
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.headers["Idempotency-Replayed"] == "true"


async def test_operators_cannot_open_new_places(site: Site) -> None:
    await register(site, "bank", BANK)
    async with site.client("operator") as client:
        made = await client.post("/api/sources", json={"name": "x", "source": BANK})
        gone = await client.post("/api/sources/bank/remove")
    assert (made.status_code, gone.status_code) == (403, 403)


async def test_an_unknown_source_names_the_nearest(site: Site) -> None:
    await register(site, "bank", BANK)
    async with site.client("viewer") as client:
        answer = await client.get("/api/sources/bnak")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "there is no source 'bnak'; did you mean bank?"


LONG = [{"column": "a", "op": "in", "value": ["x" * 1000] * 70}]
BAD: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("", {"uri": "/data"}, "name", "1 to 100"),
    ("a/b", {"uri": "/data"}, "name", "1 to 100"),
    ("..", {"uri": "/data"}, "name", "1 to 100"),
    ("a\0", {"uri": "/data"}, "name", "1 to 100"),
    ("\ud800", {"uri": "/data"}, "name", "unicode"),
    ("x" * 101, {"uri": "/data"}, "name", "100 characters"),
    ("x", {}, "source.uri", "is required"),
    ("x", {"uri": "/data", "pasword": "x"}, "source.pasword", "there is no such field"),
    ("x", {"uri": "/data", "password": "hunter2"}, "source.password", "secret://"),
    ("x", {"uri": "postgresql://r:hunter2@db/b", "table": "t"}, "source.uri", "a password"),
    ("x", {"uri": "postgresql://db/b?password=hunter2", "table": "t"}, "source.uri", "a password"),
    ("x", {"uri": "s3://key:hunter2@books/in"}, "source.uri", "a password"),
    ("x", {"uri": "gopher://x"}, "source.uri", "not a kind of source"),
    ("x", {"uri": "source://y"}, "source.uri", "names another source"),
    ("x", {"uri": "rows.csv"}, "source.uri", "relative path"),
    ("x", {"uri": "file://rows.csv"}, "source.uri", "relative path"),
    ("x", {"uri": "/data/../etc"}, "source.uri", "must not hold `..`"),
    ("x", {"uri": "/data\0"}, "source.uri", "NUL"),
    ("x", {"uri": "/data/\ud800"}, "source.uri", "unicode"),
    ("x", {"uri": "/data", "primary_key": ["a", "a"]}, "source.primary_key[1]", "twice"),
    ("x", {"uri": "/data", "filters": [{"column": "a", "op": "x"}]}, "source.filters.0.op", "must"),
    ("x", {"uri": "/" + "x" * 2000}, "source.uri", "2000 characters"),
    ("x", {"uri": "/data", "filters": LONG}, "source", "more than 65,536 bytes"),
)


async def test_a_bad_source_is_refused_by_field(site: Site) -> None:
    async with site.client("admin") as client:
        for name, source, field, words in BAD:
            body = json.dumps({"name": name, "source": source})
            answer = await client.post("/api/sources", content=body, headers=JSON)
            assert answer.status_code == 422, (name, source)
            found = {item["field"]: item["message"] for item in answer.json()["errors"]}
            assert words in found.get(field, ""), (name, source, found)
            assert "hunter2" not in answer.text
    assert (await site.one("SELECT count(*) AS n FROM kalla.sources"))["n"] == 0


async def test_a_name_that_cannot_be_is_refused_in_the_address(site: Site) -> None:
    async with site.client("admin") as client:
        for name in ("a%00b", "%2e%2e", "a%20b", "x" * 101, "%ff"):
            answers = [
                await client.get(f"/api/sources/{name}"),
                await client.post(f"/api/sources/{name}/remove"),
                await client.post(f"/api/destinations/{name}/remove"),
                await client.get(f"/api/recipes/{name}"),
            ]
            assert [answer.status_code for answer in answers] == [422] * 4, name


async def test_a_filter_keeps_the_type_of_its_value(site: Site) -> None:
    filters = [
        {"column": "a", "op": "gt", "value": 0.10},
        {"column": "b", "op": "eq", "value": "007"},
        {"column": "c", "op": "eq", "value": "2026-01-01"},
        {"column": "d", "op": "in", "value": ["1", "${x}"]},
    ]
    await register(site, "files", {"uri": "/data/in", "filters": filters})
    async with site.database.transaction() as connection:
        found = (await entries.source(connection, "files")).source.filters
    assert [each.value for each in found] == [Decimal("0.1"), "007", "2026-01-01", ("1", "${x}")]


async def test_a_recipe_takes_a_registered_source_by_its_name(site: Site) -> None:
    """Its own fields win, but never the place, the table or the secret."""
    await register(site, "bank", BANK)
    await register(site, "files", {"uri": "/data/in", "csv": {"delimiter": ";", "null": "${x}"}})
    found = await admitted(
        site,
        recipe(
            "uri: 'source://files', primary_key: [id]",
            "uri: 'source://bank', read: staged, table: hr.salaries, password: 'secret://hr'",
        ),
    )
    left, right = found.sources.left, found.sources.right
    assert (left.uri, left.csv.delimiter, left.csv.null) == ("/data/in", ";", "${x}")
    assert (right.uri, right.table, right.password) == (
        BANK["uri"],
        "public.payments",
        "secret://bank",
    )
    assert (right.primary_key, right.read, right.partition_key) == (
        ("payment_id",),
        "staged",
        "payment_id",
    )


async def test_a_recipe_that_was_read_before_is_admitted_alike(site: Site) -> None:
    await register(site, "bank", BANK)
    text = recipe(*["uri: 'source://bank', primary_key: [id], table: hr.salaries"] * 2)
    async with site.database.transaction() as connection:
        known = await entries.known_sources(connection)
    found = admission.admit(parsing.read(text), known)
    assert found.sources.left.primary_key == ("id",)
    assert found.sources.right.table == "public.payments"


async def test_an_older_recipe_may_name_a_registered_source(site: Site) -> None:
    await register(site, "bank", BANK)
    text = """{"version": "1.0", "recipe_id": "old", "sources": {
        "left": {"alias": "a", "uri": "source://bank", "primary_key": ["id"]},
        "right": {"alias": "b", "uri": "source://bank", "primary_key": ["id"]}},
        "match_rules": [{"name": "r", "pattern": "1:1", "priority": 1,
        "conditions": [{"left": "id", "op": "eq", "right": "id"}]}]}"""
    assert (await admitted(site, text)).sources.left.uri == BANK["uri"]


async def test_another_source_for_a_run_is_held_against_the_register_too(site: Site) -> None:
    await register(site, "bank", BANK)
    text = recipe(*["uri: /data/x.csv, primary_key: [id]"] * 2)
    async with site.database.transaction() as connection:
        known = await entries.known_sources(connection)
    uris = {"left": "source://bank", "right": "source://bank"}
    found = await entries.prepare(text, known, {}, uris)
    assert found.sources.left.table == "public.payments"
    with pytest.raises(InvalidInput, match=r"sources\.right\.uri: /etc/passwd is not"):
        await entries.prepare(text, known, {}, uris | {"right": "/etc/passwd"})


async def test_a_uri_that_a_registered_source_covers_is_admitted(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    await register(site, "files", {"uri": str(tmp_path / "in")})
    await register(site, "bank", {name: BANK[name] for name in ("uri", "password")})
    found = await admitted(
        site,
        recipe(
            f"uri: {tmp_path}/link/may.csv, primary_key: [id]",
            "uri: 'postgres://db.internal:5432/bank', table: other, primary_key: [id]",
        ),
    )
    assert found.sources.left.uri == str(tmp_path / "in/may.csv")
    right = found.sources.right
    assert (right.uri, right.table, right.password) == (BANK["uri"], "other", "secret://bank")


async def test_every_side_that_is_not_registered_is_named_with_what_to_do(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to("/etc")
    await register(site, "files", {"uri": str(tmp_path / "in")})
    await register(site, "bank", BANK)
    database = "uri: 'postgresql://reader@evil.example/bank', table: t, primary_key: [id]"
    other = "table: public.payments, password: 'secret://hr'"
    for left, field, words in (
        ("uri: /etc/passwd, primary_key: [id]", "uri", "`kalla sources add NAME /etc/passwd`"),
        (f"uri: {tmp_path}/in/../x.csv, primary_key: [id]", "uri", "is not a registered source"),
        (f"uri: {tmp_path}/in/link/passwd, primary_key: [id]", "uri", "is not a registered"),
        (f"uri: {tmp_path}/in, primary_key: [id]", "uri", "is a link that leads out"),
        ("uri: in/x.csv, primary_key: [id]", "uri", "write its absolute path"),
        ("uri: 'source://fils', primary_key: [id]", "uri", "did you mean files?"),
        ("uri: 'source://', primary_key: [id]", "uri", "source"),
        (
            f"uri: '{BANK['uri']}', {other}, primary_key: [id]",
            "password",
            "is another secret than the registered source's",
        ),
    ):
        with pytest.raises(InvalidInput) as raised:
            await admitted(site, recipe(left, database))
        found = {each.field: str(each) for each in raised.value.problems}
        assert all(each.value for each in raised.value.problems if "password" not in each.field)
        assert words in found[f"sources.left.{field}"], left
        if "source://" not in left:
            assert "`kalla sources add NAME postgresql://" in found["sources.right.uri"]


async def test_a_source_with_a_table_admits_that_table_alone(site: Site) -> None:
    await register(site, "bank", BANK)
    await register(site, "refunds", BANK | {"table": "public.refunds"})
    spelled = f"uri: '{BANK['uri']}', primary_key: [id], table: "
    found = await admitted(site, recipe(spelled + "public.payments", spelled + "public.refunds"))
    assert found.sources.left.password == "secret://bank"
    with pytest.raises(
        InvalidInput, match=r"sources\.left\.table: is not public\.(payments|refunds)"
    ):
        await admitted(site, recipe(spelled + "hr.salaries", spelled + "public.refunds"))


async def test_a_database_without_a_table_leaves_it_to_the_recipe(site: Site) -> None:
    await register(site, "bank", {name: BANK[name] for name in ("uri", "password")})
    side = "uri: 'source://bank', primary_key: [id]"
    found = await admitted(site, recipe(f"{side}, table: a.b", f"{side}, table: c"))
    assert (found.sources.left.table, found.sources.right.table) == ("a.b", "c")
    with pytest.raises(InvalidInput, match=r"sources\.left\.table: is missing"):
        await admitted(site, recipe(side, side))


@pytest.mark.parametrize(
    "table", ["kalla.secrets", '"kalla"."secrets"', "Kalla.runs", "pg_catalog.pg_authid",
              "information_schema.tables", "pg_toast.x"],
)  # fmt: skip
async def test_schemas_of_kalla_and_of_the_database_are_no_sources(site: Site, table: str) -> None:
    await register(site, "bank", {name: BANK[name] for name in ("uri", "password")})
    for uri in ("source://bank", str(BANK["uri"])):
        side = f"uri: '{uri}', primary_key: [id], table: '{table}'"
        with pytest.raises(InvalidInput, match=r"sources\.left\.table: is in the schema"):
            await admitted(site, recipe(side, side))
    async with site.client("admin") as client:
        body = {"name": "own", "source": BANK | {"table": table}}
        assert (await client.post("/api/sources", json=body)).status_code == 422


async def test_a_link_out_of_a_source_that_is_named_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/june.csv").symlink_to("/etc/passwd")
    await register(site, "files", {"uri": str(tmp_path / "in")})
    side = "uri: 'source://files', primary_key: [id]"
    async with site.database.transaction() as connection:
        known = await entries.known_sources(connection)
    with pytest.raises(InvalidInput, match=r"sources\.left\.uri: .* is a link that leads out"):
        admission.admit(parsing.read(recipe(side, side)), known)


async def test_a_parameter_cannot_lead_to_another_place(site: Site) -> None:
    await register(site, "files", {"uri": "/data/in"})
    text = "parameters: {file: {type: text}}\n" + recipe(
        *["uri: '/data/in/${file}', primary_key: [id]"] * 2
    )
    async with site.database.transaction() as connection:
        known = await entries.known_sources(connection)
    found = await entries.prepare(text, known, {"file": "may.csv"}, {})
    assert found.sources.left.uri == "/data/in/may.csv"
    for value in ("../../etc/passwd", "x/../../../etc/passwd", "\0"):
        with pytest.raises(InvalidInput):
            await entries.prepare(text, known, {"file": value}, {})
