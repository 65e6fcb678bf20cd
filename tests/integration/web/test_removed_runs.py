"""Runs whose jobs were removed are remembered: what is said of them is true."""

from __future__ import annotations

import pytest

from kalla.cli.reconcile.runs import beginning
from tests.web_kit import Site


async def remember(site: Site, error: str) -> None:
    await site.execute(
        "INSERT INTO kalla.reconciliations (run_id, name, recipe_id, recipe_hash, recipe, sources,"
        " submitted_by, status, error, finished_at)"
        f" VALUES (7, 'n', 'n', 'h', '', '{{}}', 'ann', 'failed', '{error}', now())"
    )


async def test_a_run_without_jobs_is_not_said_to_be_none(site: Site) -> None:
    await remember(site, "it broke")
    async with site.client("admin") as client:
        shown = await client.get("/api/runs/7")
        answer = await client.post("/api/runs/7/retry")
    assert shown.status_code == 200
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith("run 7 has no jobs any more")


@pytest.mark.parametrize(("length", "shown"), [(500, "x" * 500), (501, "x" * 500 + " …")])
async def test_an_error_that_is_cut_says_so(site: Site, length: int, shown: str) -> None:
    await remember(site, "x" * length)
    async with site.client("admin") as client:
        assert (await client.get("/api/runs/7")).json()["error"] == shown
        (run,) = (await client.get("/api/runs")).json()["runs"]
    assert run["error"] == shown


def test_a_line_of_an_error_that_is_cut_says_so() -> None:
    assert beginning("x" * 80) == "x" * 80
    assert beginning("x" * 81) == "x" * 80 + " …"
    assert beginning("one\ntwo") == "one …"
