"""Series that tests of Prometheus' HTTP API ask for, and how they ask."""

from __future__ import annotations

import math
from typing import Any

import httpx

from kalla.query.store.catalogue import Metadata
from tests.metrics_kit import named
from tests.web_kit import Site

# Samples every 15 s for 10 minutes; 2023-11-14T22:13:20Z is 1700000000.
START, END, STEP = 1_700_000_000, 1_700_000_600, 15
TIMES = [1000 * second for second in range(START, END + 1, STEP)]
SERIES = {
    named("http_requests_total", job="api", zone=zone, code=code): [
        (time, float(number * pace)) for number, time in enumerate(TIMES)
    ]
    for pace, (zone, code) in enumerate(
        [("north", "200"), ("north", "500"), ("south", "200"), ("south", "500")], 1
    )
} | {
    named("temperature", room="hall"): [(time, 20.5) for time in TIMES],
    named("strange", kind="nan"): [(TIMES[-1], math.nan)],
    named("strange", kind="inf"): [(TIMES[-1], math.inf)],
    named("strange", kind="minus"): [(TIMES[-1], -math.inf)],
    named("strange", kind="large"): [(TIMES[-1], 1e21)],
    named("strange", kind="small"): [(TIMES[-1], 1e-7)],
    named("strange", kind="long"): [(TIMES[-1], 123456789012345680.0)],
    named("strange", **{"a.b": "dotted", "kind": 'quo"te\n'}): [(TIMES[-1], 0.1)],
}
METADATA = {
    "http_requests_total": Metadata("counter", "Requests answered.", ""),
    "temperature": Metadata("gauge", "How warm it is.", "celsius"),
}


async def get(site: Site, path: str, **given: Any) -> httpx.Response:
    async with site.client("viewer") as client:
        return await client.get(f"/api/v1/{path}", params=given)


async def data(site: Site, path: str, **given: Any) -> Any:
    answer = await get(site, path, **given)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["status"] == "success"
    return document["data"]
