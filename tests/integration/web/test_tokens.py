"""Tokens: shown once, kept as a hash, worth nothing once revoked or expired."""

from __future__ import annotations

from typing import cast

import pytest

from kalla.errors import InvalidInput, NotAuthenticated, NotFound
from kalla.web.tokens import tokens
from kalla.web.tokens.tokens import Role
from tests.web_kit import Site


async def test_a_token_is_256_random_bits_and_only_its_hash_is_stored(site: Site) -> None:
    async with site.database.transaction() as connection:
        token = await tokens.create(connection, "ann", "viewer")
    assert token.startswith("kalla_")
    assert len(token) == len("kalla_") + 43
    dump = await site.one("SELECT string_agg(t::text, ' ') AS all FROM kalla.tokens t")
    assert token not in dump["all"]
    assert token.removeprefix("kalla_") not in dump["all"]


async def test_a_token_knows_whose_it_is(site: Site) -> None:
    async with site.database.transaction() as connection:
        token = await tokens.create(connection, "ann", "operator")
        caller = await tokens.authenticate(connection, token)
    assert (caller.name, caller.role) == ("ann", "operator")
    assert caller.may("viewer")
    assert not caller.may("admin")


async def test_a_revoked_token_is_refused_at_once(site: Site) -> None:
    async with site.client("admin") as admin, site.client("viewer") as viewer:
        assert (await viewer.get("/api/jobs")).status_code == 200
        listed = (await admin.get("/api/tokens")).json()
        (token_id,) = [item["token_id"] for item in listed if item["name"] == "viewer"]
        revoked = (await admin.post(f"/api/tokens/{token_id}/revoke")).json()
        assert not revoked["valid"]
        assert (await viewer.get("/api/jobs")).status_code == 401
        again = (await admin.post(f"/api/tokens/{token_id}/revoke")).json()
    assert again["revoked_at"] == revoked["revoked_at"]


async def test_an_expired_token_is_refused(site: Site) -> None:
    async with site.database.transaction() as connection:
        token = await tokens.create(connection, "ann", "viewer", expires_seconds=3600)
        await tokens.authenticate(connection, token)
        await connection.execute(
            "UPDATE kalla.tokens SET expires_at = kalla.clock() WHERE name = 'ann'"
        )
        with pytest.raises(NotAuthenticated):
            await tokens.authenticate(connection, token)


async def test_replacing_revokes_the_earlier_tokens_of_that_name_alone(site: Site) -> None:
    async with site.database.transaction() as connection:
        first = await tokens.create(connection, "kalla up", "admin")
        second = await tokens.create(connection, "kalla up", "admin", replace=True)
        with pytest.raises(NotAuthenticated):
            await tokens.authenticate(connection, first)
        assert (await tokens.authenticate(connection, second)).name == "kalla up"
        assert (await tokens.authenticate(connection, site.tokens["viewer"])).name == "viewer"


async def test_the_last_use_is_written_once_a_minute(site: Site) -> None:
    async with site.client("viewer") as client:
        await client.get("/api/jobs")
        first = await site.one("SELECT last_used_at, xmin FROM kalla.tokens WHERE name = 'viewer'")
        await client.get("/api/jobs")
        second = await site.one("SELECT last_used_at, xmin FROM kalla.tokens WHERE name = 'viewer'")
        assert first["last_used_at"] is not None
        assert first == second
        await site.execute("UPDATE kalla.tokens SET last_used_at = last_used_at - interval '61 s'")
        await client.get("/api/jobs")
        third = await site.one("SELECT last_used_at FROM kalla.tokens WHERE name = 'viewer'")
    assert third["last_used_at"] > first["last_used_at"]


@pytest.mark.parametrize(
    ("name", "role", "expires", "field"),
    [
        ("", "viewer", None, "name"),
        ("x" * 101, "viewer", None, "name"),
        ("a\nb", "viewer", None, "name"),
        ("ann", "root", None, "role"),
        ("ann", "viewer", -1.0, "expires_seconds"),
        ("ann", "viewer", float("nan"), "expires_seconds"),
    ],
)
async def test_a_bad_token_is_refused_by_field(
    site: Site, name: str, role: str, expires: float | None, field: str
) -> None:
    async with site.database.transaction() as connection:
        with pytest.raises(InvalidInput) as caught:
            await tokens.create(connection, name, cast(Role, role), expires_seconds=expires)
    assert [problem.field for problem in caught.value.problems] == [field]


async def test_revoking_what_is_not_there_says_so(site: Site) -> None:
    async with site.database.transaction() as connection:
        with pytest.raises(NotFound, match="there is no token 999"):
            await tokens.revoke(connection, 999)


async def test_no_answer_ever_holds_a_token_or_its_hash(site: Site) -> None:
    async with site.client("admin") as admin:
        answer = await admin.get("/api/tokens")
    assert "hash" not in answer.text
    assert not any(token in answer.text for token in site.tokens.values())
