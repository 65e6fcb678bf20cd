"""Destinations: callbacks go where an admin said, and nowhere else."""

from __future__ import annotations

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.registry import entries
from kalla.reconcile.registry.entries import Destination
from tests.web_kit import Site

LEDGER = {"name": "ledger", "url": "https://ledger.example/hooks", "secret": "ledger-key"}


async def found(site: Site, url: str) -> Destination:
    async with site.database.transaction() as connection:
        return await entries.destination_for(connection, url)


async def test_a_destination_is_added_listed_replaced_and_removed(site: Site) -> None:
    async with site.client("admin") as client:
        made = await client.post("/api/destinations", json=LEDGER)
        assert made.status_code == 201, made.text
        assert made.json()["created_by"] == "admin"
        assert (await client.post("/api/destinations", json=LEDGER)).status_code == 409
        changed = LEDGER | {"secret": "other", "replace": True}
        assert (await client.post("/api/destinations", json=changed)).json()["secret"] == "other"
    async with site.client("viewer") as client:
        (listed,) = (await client.get("/api/destinations")).json()
    assert {key: listed[key] for key in LEDGER} == LEDGER | {"secret": "other"}
    async with site.client("admin") as client:
        assert (await client.post("/api/destinations/ledger/remove")).json() == listed
        missing = await client.post("/api/destinations/ledger/remove")
    assert missing.status_code == 404
    assert "`kalla destinations add` makes one" in missing.json()["detail"]


async def test_operators_cannot_open_new_destinations(site: Site) -> None:
    async with site.client("admin") as client:
        await client.post("/api/destinations", json=LEDGER)
    async with site.client("operator") as client:
        made = await client.post("/api/destinations", json=LEDGER | {"name": "x"})
        gone = await client.post("/api/destinations/ledger/remove")
    assert (made.status_code, gone.status_code) == (403, 403)


BAD = (
    ({"name": "a b"}, "name", "1 to 100"),
    ({"name": "a\0"}, "name", "1 to 100"),
    ({"url": "http://ledger.example/"}, "url", "must be https"),
    ({"url": "https://u:hunter2@ledger.example/"}, "url", "without a user"),
    ({"url": "https://ledger.example/\0"}, "url", "must be like"),
    ({"url": "https://ledger.example/" + "x" * 2000}, "url", "2000 characters"),
    ({"secret": "secret://x"}, "secret", "letters, digits"),
    ({"secret": ""}, "secret", "letters, digits"),
    ({"sekret": "x"}, "sekret", "there is no such field"),
)


async def test_a_bad_destination_is_refused_by_field(site: Site) -> None:
    async with site.client("admin") as client:
        for change, field, words in BAD:
            answer = await client.post("/api/destinations", json=LEDGER | change)
            assert answer.status_code == 422, change
            errors = {item["field"]: item["message"] for item in answer.json()["errors"]}
            assert words in errors.get(field, ""), (change, errors)
            assert "hunter2" not in answer.text
    assert (await site.one("SELECT count(*) AS n FROM kalla.destinations"))["n"] == 0


async def test_a_callback_finds_the_destination_that_says_most(site: Site) -> None:
    special = {"name": "may", "url": "https://ledger.example/hooks/may/", "secret": "may-key"}
    async with site.client("admin") as client:
        for body in (LEDGER, special):
            assert (await client.post("/api/destinations", json=body)).status_code == 201
    assert (await found(site, "https://ledger.example/hooks/june?run=1")).secret == "ledger-key"
    assert (await found(site, "https://ledger.example/hooks/may/1")).secret == "may-key"
    assert (await found(site, "https://ledger.example/hooks/mayor")).secret == "ledger-key"


ELSEWHERE = (
    ("https://ledger.example/other", "`kalla destinations add NAME URL --secret NAME`"),
    ("https://evil.example/hooks", "is not below a registered destination"),
    ("https://ledger.example/hooks/../other", "must have a plain path"),
    ("http://169.254.169.254/latest", "must be https"),
    ("javascript:alert(1)", "must be like https://host/path"),
)


async def test_a_callback_to_anywhere_else_is_refused_with_what_to_do(site: Site) -> None:
    async with site.client("admin") as client:
        await client.post("/api/destinations", json=LEDGER)
    for url, words in ELSEWHERE:
        with pytest.raises(InvalidInput) as raised:
            await found(site, url)
        (problem,) = raised.value.problems
        assert problem.field == "callback_url"
        assert words in problem.message
