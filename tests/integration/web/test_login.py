"""Logging in: the token leaves the address at once, and the cookie is strict."""

from __future__ import annotations

import pytest

from kalla.settings import Settings
from kalla.web.tokens import login_links
from tests.web_kit import PAGE, Site

OWN = {"Sec-Fetch-Site": "same-origin"}


async def test_a_login_link_sets_a_strict_cookie_and_the_token_leaves_the_address(
    site: Site,
) -> None:
    token = site.tokens["operator"]
    async with site.client() as client:
        answer = await client.get(f"/login?token={token}", headers=PAGE)
        assert answer.status_code == 303
        assert answer.headers["Location"] == "/"
        cookie = answer.headers["Set-Cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie
        page = await client.get("/work", headers=PAGE)
    assert page.status_code == 200
    assert "operator" in page.text
    assert token not in page.text


async def test_over_https_the_cookie_is_secure(site: Site) -> None:
    async with site.client(base="https://kalla.test") as client:
        answer = await client.get(f"/login?token={site.tokens['viewer']}")
    assert "secure" in answer.headers["Set-Cookie"].lower()


async def test_two_kallas_on_one_machine_have_cookies_of_their_own(site: Site) -> None:
    names = set()
    for port in (3001, 3002):
        async with site.client(base=f"http://127.0.0.1:{port}") as client:
            answer = await client.get(f"/login?token={site.tokens['viewer']}")
            names.add(answer.headers["Set-Cookie"].partition("=")[0])
    assert len(names) == 2


async def test_a_token_that_is_refused_leaves_no_cookie(site: Site) -> None:
    async with site.client() as client:
        for token in ("", "kalla_wrong", "<script>alert(1)</script>", "a\0b"):
            by_link = await client.get("/login", params={"token": token}, headers=PAGE)
            by_form = await client.post("/login", data={"token": token}, headers=PAGE | OWN)
            for answer in (by_link, by_form):
                assert answer.status_code == 401
                assert "Set-Cookie" not in answer.headers
                assert "<script>alert" not in answer.text
                assert "That did not work" in answer.text


async def test_the_form_logs_in_and_goes_back_to_where_one_was(site: Site) -> None:
    async with site.client() as client:
        sent = await client.get("/jobs/5?x=1", headers=PAGE)
        assert sent.status_code == 303
        assert sent.headers["Location"] == "/login?next=/jobs/5%3Fx%3D1"
        form = await client.get(sent.headers["Location"], headers=PAGE)
        assert 'value="/jobs/5?x=1"' in form.text
        data = {"token": site.tokens["viewer"], "next": "/jobs/5?x=1"}
        answer = await client.post("/login", data=data, headers=PAGE | OWN)
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/jobs/5?x=1"


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "",
        "/a\nb",
    ],
)
async def test_a_login_link_sends_nobody_elsewhere(site: Site, target: str) -> None:
    async with site.client() as client:
        params = {"token": site.tokens["viewer"], "next": target}
        answer = await client.get("/login", params=params)
    assert answer.headers["Location"] == "/"


async def test_a_link_from_another_site_works_although_the_cookie_is_strict(site: Site) -> None:
    """The browser holds the cookie back on the first request and sends it on the second."""
    async with site.client() as client:
        first = await client.get("/jobs/5?x=1", headers=PAGE | {"Sec-Fetch-Site": "cross-site"})
        assert 'http-equiv="refresh" content="0;url=/jobs/5?x=1"' in first.text
        assert "Location" not in first.headers
        second = await client.get("/jobs/5?x=1", headers=PAGE | OWN)
    assert second.headers["Location"].startswith("/login")


async def test_logging_in_from_another_site_is_refused(site: Site) -> None:
    async with site.client() as client:
        data = {"token": site.tokens["admin"]}
        answer = await client.post("/login", data=data, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403


async def test_logging_out_removes_the_cookie(site: Site) -> None:
    async with site.client() as client:
        await client.get(f"/login?token={site.tokens['viewer']}")
        assert (await client.get("/work", headers=PAGE)).status_code == 200
        answer = await client.post("/logout", headers=OWN)
        assert answer.status_code == 303
        assert (await client.get("/", headers=PAGE)).status_code == 303


@pytest.mark.attack
async def test_logging_out_ends_a_session_and_no_token_of_a_person(site: Site) -> None:
    async with site.client("admin") as client:
        code = (await client.post("/api/login-links")).json()["code"]
    for address, status in (
        (f"/login?code={code}", 401),
        (f"/login?token={site.tokens['viewer']}", 200),
    ):
        async with site.client() as browser, site.client() as thief:
            await browser.get(address, headers=PAGE)
            (token,) = browser.cookies.values()
            await browser.post("/logout", headers=OWN)
            bearer = {"Authorization": f"Bearer {token}"}
            assert (await thief.get("/api/runs", headers=bearer)).status_code == status


async def test_scripts_get_a_problem_and_people_the_form(site: Site) -> None:
    async with site.client() as client:
        assert (await client.get("/")).status_code == 401
        assert (await client.get("/api/jobs", headers=PAGE)).status_code == 401
        assert (await client.get("/", headers=PAGE)).headers["Location"] == "/login?next=/"


@pytest.mark.attack
async def test_a_link_logs_in_once_for_a_session_that_expires(site: Site) -> None:
    async with site.client("admin") as client:
        code = (await client.post("/api/login-links")).json()["code"]
    async with site.client() as first, site.client() as second:
        logged_in = await first.get(f"/login?code={code}", headers=PAGE)
        again = await second.get(f"/login?code={code}", headers=PAGE)
        assert (logged_in.status_code, again.status_code) == (303, 401)
        assert "was used before" in again.text
        assert "Set-Cookie" not in again.headers
        # In the browser that is logged in, the link still leads to the page.
        assert (await first.get(f"/login?code={code}", headers=PAGE)).status_code == 303
        assert (await first.get("/runs", headers=PAGE)).status_code == 200
        await site.execute("UPDATE kalla.tokens SET expires_at = kalla.clock() WHERE is_session")
        assert (await first.get("/runs", headers=PAGE)).status_code == 303, "to the login"


@pytest.mark.attack
async def test_the_code_of_a_link_is_no_token_and_ends_by_itself(site: Site) -> None:
    async with site.client("admin") as client:
        code = (await client.post("/api/login-links")).json()["code"]
    bearer = {"Authorization": f"Bearer {code}"}
    async with site.client() as client:
        assert (await client.get("/api/jobs", headers=bearer)).status_code == 401
        await site.execute("UPDATE kalla.login_links SET expires_at = kalla.clock()")
        assert (await client.get(f"/login?code={code}", headers=PAGE)).status_code == 401


async def test_links_and_sessions_that_expired_long_ago_are_removed(site: Site) -> None:
    async with site.client("admin") as client:
        for _ in range(2):
            code = (await client.post("/api/login-links")).json()["code"]
        await client.get(f"/login?code={code}", headers=PAGE)
    old = "expires_at = kalla.clock() - interval '99 days'"
    await site.execute(f"UPDATE kalla.login_links SET {old}")
    await site.execute(f"UPDATE kalla.tokens SET {old} WHERE is_session")
    tokens_before = (await site.one("SELECT count(*) AS n FROM kalla.tokens"))["n"]
    async with site.database.transaction() as connection:
        await login_links.sweep(connection, Settings().retention)
    assert (await site.one("SELECT count(*) AS n FROM kalla.login_links"))["n"] == 0
    assert (await site.one("SELECT count(*) AS n FROM kalla.tokens"))["n"] == tokens_before - 1
