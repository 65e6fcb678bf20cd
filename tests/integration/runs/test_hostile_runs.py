"""Runs of bad will: files that become links, keys that nothing can store, SQL that takes all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kalla.reconcile.user_sql import match_sql
from tests.runs_kit import RunsSite

pytestmark = [pytest.mark.spark, pytest.mark.attack]


def files(site: RunsSite) -> Path:
    return site.settings.data_dir.parent / "files"


def between(left: Path, right: Path, **fields: Any) -> dict[str, Any]:
    rules = [{"name": "by id", "conditions": [{"left": "id", "op": "eq", "right": "id"}]}]
    sources = {
        side: {"uri": str(place), "primary_key": ["id"]}
        for side, place in (("left", left), ("right", right))
    }
    return {"name": "two files", "sources": sources, "rules": rules} | fields


async def ended(site: RunsSite, run_id: int) -> dict[str, Any]:
    run: dict[str, Any] = await site.until(run_id, "completed", "failed", "cancelled")
    return run


@pytest.mark.parametrize("of", ["the file", "its folder", "a file in the folder"])
async def test_a_link_that_is_put_in_the_way_after_the_submission_is_not_followed(
    site: RunsSite, tmp_path: Path, of: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "rows.jsonl").write_text('{"top_secret": 1')
    inside = files(site) / "in"
    inside.mkdir()
    (inside / "rows.jsonl").write_text('{"id": 1, "name": "a"}\n')
    asked = inside if of == "a file in the folder" else inside / "rows.jsonl"
    body = between(asked, files(site) / "invoices.csv")
    run_id = (await site.post("/api/runs", {"recipe": body}))["run_id"]
    if of == "its folder":
        inside.rename(files(site) / "was")
        inside.symlink_to(outside)
    else:
        (inside / "rows.jsonl").unlink()
        (inside / "rows.jsonl").symlink_to(outside / "rows.jsonl")
    async with site.worker():
        run = await ended(site, run_id)
    assert run["status"] == "failed"
    assert "link" in run["error"]
    assert "top_secret" not in str(run)


async def test_a_source_that_is_registered_by_a_link_is_read(site: RunsSite) -> None:
    """The admin's own link is followed when the run is submitted, and once."""
    (files(site) / "today").symlink_to(files(site) / "invoices.csv")
    today = {"uri": str(files(site) / "today"), "primary_key": ["id"], "format": "csv"}
    await site.post("/api/sources", {"name": "today", "source": today})
    body = between(files(site) / "invoices.csv", files(site) / "invoices.csv")
    body["sources"]["left"] = {"uri": "source://today"}
    run_id = (await site.post("/api/runs", {"recipe": body}))["run_id"]
    async with site.worker():
        run = await ended(site, run_id)
    assert run["status"] == "completed", run["error"]


async def test_keys_with_a_nul_are_matched_and_reported(site: RunsSite) -> None:
    left, right = files(site) / "left.jsonl", files(site) / "right.jsonl"
    left.write_text('{"id": "a\\u0000b", "amount": 1}\n{"id": "c\\u0000d", "amount": 9}\n')
    right.write_text('{"id": "a\\u0000b", "amount": 1}\n{"id": "e", "amount": 5}\n')
    body = between(left, right)
    for side in body["sources"].values():
        side["amount"] = "amount"
    run_id = (await site.post("/api/runs", {"recipe": body}))["run_id"]
    async with site.worker():
        run = await ended(site, run_id)
    assert run["status"] == "completed", run["error"]
    keys = {each["record_key"] for each in run["report"]["largest_exceptions"]}
    assert keys == {"c\ufffdd", "e"}


async def test_an_innocent_run_completes_beside_sql_that_takes_too_long_or_too_much(
    site: RunsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poisonous run fails for itself, in a sentence; the innocent one is not its concern."""
    monkeypatch.setattr(match_sql, "_MOST_PAIRS", 100_000)
    folder = files(site)
    memo = "x" * 20_000
    (folder / "long.csv").write_text("id,memo\n" + "".join(f"{n},{memo}\n" for n in range(200)))
    (folder / "many.csv").write_text("id,memo\n" + "".join(f"{n},k\n" for n in range(2_000)))

    def poison(name: str, condition: str) -> dict[str, Any]:
        sql = (
            "SELECT l.id AS left_id, r.id AS right_id FROM left_src l JOIN right_src r"
            f" ON l.id = r.id WHERE {condition}"
        )
        body = between(folder / name, folder / name, match_sql=sql)
        del body["rules"]
        return body

    searching = poison("long.csv", "regexp_like(l.memo, '.*.*y')")
    too_many = poison("many.csv", "true")
    too_many["match_sql"] = too_many["match_sql"].replace("l.id = r.id", "l.memo = r.memo")
    innocent = poison("many.csv", "true")
    submitted = [
        (await site.post("/api/runs", {"recipe": body}))["run_id"]
        for body in (searching, too_many, innocent)
    ]
    async with site.worker():
        found = await asyncio.gather(*(ended(site, run_id) for run_id in submitted))
    assert [run["status"] for run in found] == ["failed", "failed", "completed"], [
        run["error"] for run in found
    ]
    assert "a text of 20,000 characters" in found[0]["error"]
    assert "makes more than" in found[1]["error"]
