"""What Prometheus' HTTP API refuses: each kind, in its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.query import http_requests
from tests.integration.query.http_requests import END, START, data, get
from tests.query_kit import query_site
from tests.web_kit import Site, unready_site

SERIES, METADATA = http_requests.SERIES, http_requests.METADATA

RANGE = {"query": "temperature", "start": START, "end": END, "step": 60}


@pytest.mark.parametrize(
    ("path", "given", "status", "kind", "message"),
    [
        ("query", {"query": "sum(", "time": 1}, 400, "bad_data",
         'invalid parameter "query": 1:5: parse error: unclosed left parenthesis'),
        ("query", {}, 400, "bad_data",
         'invalid parameter "query": 1:1: parse error: no expression'),
        ("query", {"query": "1", "time": "soon"}, 400, "bad_data",
         "invalid parameter \"time\": invalid time value for 'time': cannot parse \"soon\" to a"),
        ("query", {"query": "1", "time": "1e400"}, 400, "bad_data", "to a valid timestamp"),
        ("query", {"query": "1", "time": "1e17"}, 400, "bad_data", "the time asked for is out of"),
        ("query", {"query": "1", "timeout": "long"}, 400, "bad_data",
         'invalid parameter "timeout": cannot parse "long" to a valid duration'),
        ("query", {"query": "1", "timeout": "1e30"}, 400, "bad_data", "It overflows int64"),
        ("query", {"query": "1", "lookback_delta": "x"}, 400, "bad_data",
         'error parsing lookback delta duration: cannot parse "x" to a valid duration'),
        ("query", {"query": "1", "limit": "-1"}, 400, "bad_data",
         'invalid parameter "limit": limit must be non-negative'),
        ("query", {"query": "1", "limit": "few"}, 400, "bad_data",
         'invalid parameter "limit": strconv.Atoi: parsing "few": invalid syntax'),
        ("query", {"query": "temperature[1s - 2s]", "time": END}, 400, "bad_data",
         'invalid parameter "query": '),
        ("query_range", {"query": "1"}, 400, "bad_data",
         'invalid parameter "start": cannot parse "" to a valid timestamp'),
        ("query_range", RANGE | {"end": START - 1}, 400, "bad_data",
         'invalid parameter "end": end timestamp must not be before start time'),
        ("query_range", RANGE | {"step": 0}, 400, "bad_data",
         'invalid parameter "step": zero or negative query resolution step widths are not'),
        ("query_range", RANGE | {"step": "-15s"}, 400, "bad_data", 'invalid parameter "step": '),
        ("query_range", RANGE | {"step": 0.01}, 400, "bad_data",
         "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing"),
        ("query_range", RANGE | {"query": "temperature[5m]"}, 400, "bad_data",
         'invalid parameter "query": invalid expression type "range vector" for range query'),
        ("query", {"query": "temperature + on () http_requests_total", "time": END}, 422,
         "execution", "many-to-many matching not allowed"),
        ("query", {"query": "histogram_avg(temperature)"}, 422, "execution",
         "native histograms are not supported"),
        ("query", {"query": "temperature", "timeout": "0"}, 503, "timeout", "query timed out in"),
        ("series", {}, 400, "bad_data", "no match[] parameter provided"),
        ("series", {"match[]": "{"}, 400, "bad_data", 'invalid parameter "match[]": 1:2: parse'),
        ("series", {"match[]": '{a=~".*"}'}, 400, "bad_data",
         'invalid parameter "match[]": match[] must contain at least one non-empty matcher'),
        ("series", {"match[]": "rate(x[5m])"}, 400, "bad_data", "a series selector is expected"),
        ("series", {"match[]": "x offset 5m"}, 400, "bad_data", "a series selector is expected"),
        ("series", {"match[]": "x", "start": "x"}, 400, "bad_data", 'invalid parameter "start"'),
        ("labels", {"end": "x"}, 400, "bad_data", 'invalid parameter "end"'),
        ("labels", {"match[]": 'a{__name__="b"}'}, 400, "bad_data",
         "1:1: parse error: metric name must not be set twice"),
        ("label/a/values", {"limit": "1" * 30}, 400, "bad_data", 'invalid parameter "limit"'),
        ("metadata", {"limit": "x"}, 400, "bad_data", "limit must be a number"),
        ("metadata", {"limit_per_metric": "x"}, 400, "bad_data", "limit_per_metric must be a"),
        ("format_query", {"query": "("}, 400, "bad_data", 'invalid parameter "query": 1:2'),
        ("status/flags", {}, 404, "not_found", "this address does not exist"),
    ],
)  # fmt: skip
async def test_a_refusal_has_the_shape_of_prometheus(
    site: Site, path: str, given: dict[str, Any], status: int, kind: str, message: str
) -> None:
    answer = await get(site, path, **given)
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert set(document) == {"status", "errorType", "error"}
    assert (document["status"], document["errorType"]) == ("error", kind)
    assert message in document["error"]


async def test_who_has_no_token_is_refused_in_the_same_shape(site: Site) -> None:
    async with site.client() as client:
        nobody = await client.get("/api/v1/query", params={"query": "1"})
        wrong = await client.post(
            "/api/v1/query", data={"query": "1"}, headers={"Authorization": "Bearer kalla_wrong"}
        )
    assert nobody.status_code == wrong.status_code == 401
    assert nobody.json()["errorType"] == wrong.json()["errorType"] == "unauthorized"
    assert "Authorization: Bearer" in nobody.json()["error"]
    assert nobody.headers["www-authenticate"].startswith("Bearer")


async def test_a_method_that_is_not_there_is_refused_in_the_same_shape(site: Site) -> None:
    async with site.client("viewer") as client:
        answer = await client.delete("/api/v1/query")
        elsewhere = await client.get("/api/elsewhere")
    assert answer.status_code == 405
    assert (answer.json()["status"], answer.json()["errorType"]) == ("error", "bad_data")
    assert elsewhere.headers["content-type"] == "application/problem+json"


async def test_limits_come_from_the_settings(database_url: str, tmp_path: Path) -> None:
    async with query_site(
        database_url, tmp_path, SERIES, query_samples=50, query_series=3
    ) as small:
        samples = await get(small, "query", query="http_requests_total[5m]", time=END)
        series = await get(small, "query", query="http_requests_total", time=END)
        fine = await data(small, "query", query="sum(http_requests_total)", time=END)
    assert samples.status_code == series.status_code == 422
    assert "query processing would load too many samples into memory" in samples.json()["error"]
    assert "more than the limit of 3 series per query" in series.json()["error"]
    assert fine["result"][0]["value"] == [END, "400"]


async def test_a_database_that_is_away_is_unavailable() -> None:
    async with unready_site("postgresql://127.0.0.1:1/none") as away, away.client() as client:
        headers = {"Authorization": "Bearer kalla_whatever"}
        answer = await client.get("/api/v1/query", params={"query": "1"}, headers=headers)
    assert answer.status_code == 503
    assert answer.json()["errorType"] == "unavailable"
    assert answer.headers["retry-after"] == "2"
