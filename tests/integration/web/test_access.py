"""Who may call what: every route against every role, taken from the app itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from kalla.web.access import GuardedRoute
from kalla.web.tokens.tokens import ROLES, Role
from tests.web_kit import Site

OPEN = {("GET", "/health"), ("GET", "/login"), ("POST", "/login"), ("POST", "/logout")}
VALUES = {"job_id": "999", "queue": "exec", "token_id": "999", "run_id": "999"} | {
    "segment_id": "999", "decision_id": "999", "schedule_id": "999",
    "name": "bank", "recipe_id": "may", "version": "1", "part": "matched", "other": "998",
    "upload_id": "0011223344556677", "partition": "0", "offset": "0", "query_id": "999",
    "tab": "run",
}  # fmt: skip


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    for route in iter_route_contexts(app.routes):
        for method in route.methods or {"GET"}:
            yield method, str(route.path)


MAY: dict[Role, set[Role]] = {
    "metrics-writer": {"metrics-writer", "operator", "admin"},
    "viewer": {"viewer", "operator", "admin"},
    "operator": {"operator", "admin"},
    "admin": {"admin"},
}


def needed(method: str, path: str) -> Role | None:
    if (method, path) in OPEN or path == "/static":
        return None
    for_admins = ("/api/runs/import", "/api/login-links", "/settings")
    if path.startswith("/api/tokens") or path in for_admins:
        return "admin"
    if path == "/api/metrics/segments/{segment_id}/drop":
        return "admin"
    if path in ("/api/recipes/validate", "/api/sources/{name}/load-scoped"):
        return "viewer"
    if path.startswith("/api/v1/") and not path.endswith(("/write", "/import")):
        return "viewer"  # a query may be asked by POST
    if path in ("/api/v1/write", "/api/v1/metrics/import"):
        return "metrics-writer"
    if path in ("/api/pipelines", "/api/pipelines/{name}") and method in ("POST", "DELETE"):
        return "admin"
    if path.startswith("/api/pipelines/") and path.endswith(("/kafka", "/clickhouse")):
        return "viewer" if method == "GET" else "admin"
    if path in ("/api/pipelines/sample", "/api/pipelines/infer"):
        return "admin"  # they name a server
    if path == "/api/pipelines/{name}/sample":
        return "operator"  # whole messages
    if path.startswith(("/api/sources", "/api/destinations")) and method != "GET":
        return "operator" if path.endswith("/test") else "admin"
    return "viewer" if method == "GET" else "operator"


def filled(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda match: VALUES[match.group(1)], path)


async def breaches(site: Site) -> list[str]:
    """Where an answer does not fit the caller's role."""
    found = []
    for method, path in routes(site.app):
        role = needed(method, path)
        for given in (None, *ROLES):
            async with site.client(given) as client:
                status = (await client.request(method, filled(path))).status_code
            if role is None or (given and given in MAY[role]):
                right = status not in (401, 403)
                right = right or (method, path) in {("POST", "/login"), ("POST", "/logout")}
            else:
                right = status == (403 if given else 401)
            if not right:
                found.append(f"{method} {path} as {given}: {status}")
    return found


async def test_every_route_asks_for_its_role(site: Site) -> None:
    assert len(list(routes(site.app))) > 15
    assert await breaches(site) == []


async def test_every_route_is_guarded_by_construction(site: Site) -> None:
    for route in iter_route_contexts(site.app.routes):
        if isinstance(route.original_route, Mount):
            assert route.path == "/static"
        else:
            assert isinstance(route.original_route, GuardedRoute), route.path


async def test_a_route_that_asks_for_nothing_would_be_found(site: Site) -> None:
    site.app.router.routes.append(Route("/sneaky", lambda _: PlainTextResponse("hello")))
    assert "GET /sneaky as None: 200" in await breaches(site)


async def test_a_route_nobody_marked_is_closed(site: Site) -> None:
    @site.app.get("/new")
    async def new() -> str:
        return "hello"

    async with site.client() as client:
        assert (await client.get("/new")).status_code == 401
    async with site.client("viewer") as client:
        assert (await client.get("/new")).json() == "hello"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer kalla_x", "Basic a2FsbGE6eA==", "Bearer kalla_" + "x" * 5000],
)
async def test_a_header_without_a_valid_token_is_refused(site: Site, header: str) -> None:
    async with site.client() as client:
        answer = await client.get("/api/jobs", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert "xxxx" not in answer.text


async def test_who_asks_is_settled_before_the_body_is_read(site: Site) -> None:
    async with site.client() as client:
        answer = await client.post("/api/jobs", content=b"{broken" + b"x" * 10_000_000)
    assert answer.status_code == 401


async def test_a_role_that_does_not_suffice_is_named(site: Site) -> None:
    async with site.client("viewer") as client:
        answer = await client.post("/api/queues/exec/pause")
    assert answer.status_code == 403
    assert answer.json()["detail"] == "this needs the role operator, and viewer is viewer"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://kalla.test"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://kalla.test"}, 200),
        ({"Origin": "http://kalla.test.evil.example"}, 403),
        ({"Origin": "http://kalla.test:8080"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 403),
    ],
)
async def test_a_cookie_changes_something_only_from_our_own_pages(
    site: Site, headers: dict[str, str], status: int
) -> None:
    async with site.client() as client:
        client.cookies.set("kalla", site.tokens["operator"])
        answer = await client.post("/api/queues/exec/pause", headers=headers)
    assert answer.status_code == status


async def test_every_answer_forbids_foreign_scripts_and_frames(site: Site) -> None:
    async with site.client("viewer") as client:
        for path in ("/", "/api/jobs", "/nowhere", "/static/kalla.js", "/login"):
            headers = (await client.get(path)).headers
            policy = headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"


async def test_pages_name_no_other_host_and_hold_no_inline_script(site: Site) -> None:
    async with site.client("admin") as client:
        for path in ("/work", "/runs", "/docs", "/login", "/static/kalla.css", "/static/kalla.js"):
            text = (await client.get(path)).text
            assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text), path
            assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", text), path


async def test_a_token_may_come_as_the_password_of_basic_auth(site: Site) -> None:
    async with site.client() as client:
        right = await client.get("/api/jobs", auth=("prometheus", site.tokens["viewer"]))
        wrong = await client.get("/api/jobs", auth=("prometheus", "kalla_x"))
        broken = await client.get("/api/jobs", headers={"Authorization": "Basic kalla"})
    assert [each.status_code for each in (right, wrong, broken)] == [200, 401, 401]


async def test_who_writes_metrics_may_do_nothing_else(site: Site) -> None:
    async with site.client("metrics-writer") as client:
        written = await client.post("/api/v1/write", content=b"")
        read = await client.get("/api/jobs")
        submitted = await client.post("/api/jobs", json={"type": "probe"})
    assert written.status_code not in (401, 403)
    assert (read.status_code, submitted.status_code) == (403, 403)
    async with site.client("viewer") as client:
        assert (await client.post("/api/v1/write", content=b"")).status_code == 403


@pytest.mark.attack
@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "]", "http://a b", "\x00"])
async def test_an_origin_that_is_no_address_is_refused_and_no_error(
    site: Site, origin: str
) -> None:
    async with site.client("operator") as client:
        for path in ("/logout", "/login"):
            answer = await client.post(path, headers={"Origin": origin})
            assert answer.status_code == 403, path
