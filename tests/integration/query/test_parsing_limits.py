"""Expressions are parsed in a query's threads and time: six requests cannot hold the API."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kalla.query.service import query_request
from tests.integration.query import http_requests
from tests.integration.query.http_requests import END
from tests.web_kit import Site

pytestmark = pytest.mark.attack

SERIES = http_requests.SERIES
LARGE = ",".join(f'a=~"(?i:[\\\\pL\\\\pN]{{30}}){{2}}{number}"' for number in range(3000))


@pytest.mark.parametrize("path", ["query", "format_query", "parse_query", "query_exemplars"])
async def test_large_matchers_are_refused_and_the_api_answers_meanwhile(
    site: Site, path: str
) -> None:
    body = {"query": f"m{{{LARGE}}}", "time": str(END)}
    async with site.client("viewer") as client:
        answers = await asyncio.gather(
            *(client.post(f"/api/v1/{path}", data=body) for _ in range(6)),
            *(client.get("/health") for _ in range(6)),
        )
    assert [answer.status_code for answer in answers] == [400] * 6 + [200] * 6
    assert "expression too large" in answers[0].json()["error"]


async def test_selectors_of_one_request_share_their_budget(site: Site) -> None:
    selectors = [f'm{{a=~"\\\\pL{{30}}{number}"}}' for number in range(500)]
    async with site.client("viewer") as client:
        answer = await client.post("/api/v1/series", data={"match[]": selectors})
    assert answer.status_code == 400
    assert "too many large regular expressions" in answer.json()["error"]


async def test_parsing_takes_a_place_and_the_time_of_a_query(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, going = list[str](), threading.Event()
    instant = query_request.instant

    def slow(*arguments: object) -> object:
        names.append(threading.current_thread().name)
        going.wait(0.5)
        return instant(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(query_request, "instant", slow)
    async with site.client("viewer") as client:
        answer = await client.get(
            "/api/v1/query", params={"query": "1", "time": END, "timeout": "100ms"}
        )
    assert names[0].startswith("query")
    assert answer.status_code == 503
    assert "timed out in query parsing" in answer.json()["error"]
