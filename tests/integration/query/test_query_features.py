"""What Prometheus has behind flags is refused until `metrics.features` names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalla.query.labels.label_sets import labels_of
from tests.query_kit import query_site
from tests.servers import PostgresServer

SERIES = {labels_of({"__name__": "m"}): [(0, 1.0), (60_000, 3.0)]}
BEHIND_FLAGS = {"query": "increase(m[1m] smoothed)", "time": "60"}


@pytest.mark.parametrize(("features", "status"), [((), 400), (("extended_ranges",), 200)])
async def test_a_feature_is_answered_only_where_it_is_switched_on(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path: Path,
    features: tuple[str, ...],
    status: int,
) -> None:
    name = postgres_server.create(migrated_template)
    try:
        url = postgres_server.url(name)
        async with (
            query_site(url, tmp_path, SERIES, features=features) as site,
            site.client("viewer") as client,
        ):
            answer = await client.get("/api/v1/query", params=BEHIND_FLAGS)
            laid_out = await client.get("/api/v1/format_query", params=BEHIND_FLAGS)
    finally:
        postgres_server.drop(name)

    assert (answer.status_code, laid_out.status_code) == (status, status), answer.text
