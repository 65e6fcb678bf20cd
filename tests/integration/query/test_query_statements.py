"""No statement about a query's work reaches Postgres: it only lists segments and knows tokens."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from pydantic import SecretStr

from kalla import database
from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.settings import Database
from tests.integration.query.http_requests import END, SERIES, START, STEP
from tests.query_kit import query_site
from tests.servers import UNSAFE_BUT_FAST, started

_STATEMENT = re.compile(
    r"LOG: +(?:statement|execute [^:]*): +(.*?)(?=^\d{4}-\d\d-\d\d |\Z)", re.MULTILINE | re.DOTALL
)
_COMMENT = re.compile(r"--.*$", re.MULTILINE)
# What stands in the log of an API that answers: transactions, segments, shards, tokens, liveness.
_HARMLESS = re.compile(
    r"begin|commit|rollback|set|show|select 1|listen|unlisten"
    r"|(with|select)\b(?!.*\b(insert|update|delete)\b).*\bkalla\.(segments|metric_store)\b"
    r"|with\b.*\bkalla\.tokens\b",
    re.IGNORECASE | re.DOTALL,
)
_EXPRESSION = "sum by (zone) (rate(http_requests_total[1m]))"


async def test_queries_leave_nothing_in_the_statement_log(tmp_path: Path) -> None:
    options = UNSAFE_BUT_FAST | {"log_statement": "all"}
    server = Postgres(tmp_path / "postgres", ports.choose_free(), options=options)
    with started(server):
        url = server.url("postgres")
        await database.migrate(Database(url=SecretStr(url)))
        async with query_site(url, tmp_path / "metrics", SERIES) as site:
            before = server.log.stat().st_size
            async with site.client("viewer") as client:
                given: dict[str, str | int] = {
                    "query": _EXPRESSION,
                    "start": START,
                    "end": END,
                    "step": STEP,
                }
                answers = await asyncio.gather(
                    *(client.get("/api/v1/query_range", params=given, timeout=60) for _ in range(8))
                )
                refused = await client.get("/api/v1/query", params={"query": "m + on () n"})
                listed = (await client.get("/api/queries")).json()
            log = server.log.read_bytes()[before:].decode()
    assert {one.status_code for one in (*answers, refused)} == {200}
    statements = [_COMMENT.sub("", found[1]).strip() for found in _STATEMENT.finditer(log)]
    assert any("kalla.segments" in one for one in statements), "the log has what is looked for"
    strange = [one for one in statements if not _HARMLESS.match(one)]
    assert strange == []
    for query in listed:
        assert query["query_id"] not in log
    assert "http_requests_total" not in log
