"""How far a run is, as its page says it."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from kalla.cli.reconcile.runs import progress_line
from kalla.reconcile.kernel import STATES
from kalla.reconcile.recipe.model import SIDES
from kalla.reconcile.runs import store
from kalla.reconcile.runs.store import Progress, PutOff, RunDetail, SideProgress
from kalla.web.layout import Layout

NOW = datetime(2026, 5, 31, 12, 0, 9, tzinfo=UTC)


def shown(progress: Progress) -> str:
    """The text of the page without its tags."""
    run = RunDetail(
        run_id=7,
        name="invoices and payments",
        recipe_id="invoices",
        recipe_version=3,
        recipe_hash="hash",
        sources={"left": "a.csv", "right": "b.csv"},
        submitted_by="ann",
        created_at=NOW.replace(second=0),
        status="running",
        error=None,
        finished_at=None,
        match_rate=None,
        exceptions=None,
        progress=progress,
    )
    html = Layout(["kalla.reconcile"], ()).fragment(
        "run_report.html",
        now=NOW,
        view=SimpleNamespace(may_change=True),
        run=run,
        sources=run.sources,
        names={"left": "ledger", "right": "bank"},
        sides=SIDES,
        states=STATES,
    )
    bar = re.search(r'<progress max="1" value="([\d.]+)"', html)
    assert bar
    assert float(bar[1]) == progress.share
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_staging_tells_chunks_rows_rate_and_time_left() -> None:
    sides = (
        SideProgress("left", True, 8, 3, 750_000, 2_000_000),
        SideProgress("right", False, 2, 0, 0, None),
    )
    text = shown(Progress("staging", sides, None, None, 310_500.4, 95.0, 0.25))
    assert "Stage staging" in text
    assert "ledger 3 of 8 chunks, 750,000 of about 2,000,000 rows" in text
    assert "bank 0 of 2 or more chunks, 0 rows" in text
    assert "Rate 310,500 rows/s" in text
    assert "Time left 1 min 35 s" in text
    assert "Running for 9.0 s" in text


def test_matching_tells_spark_tasks() -> None:
    text = shown(Progress("matching", (), 16, 4, None, None, 0.5))
    assert "Spark tasks 4 of 16" in text
    assert "Rate" not in text


def matching(**told: Any) -> Progress:
    job = {"type": "exec", "side": None, "status": "claimed", "progress": told, "now": NOW}
    # The rate is that of the match, however long Spark took to start.
    times = {"claimed_at": NOW - timedelta(minutes=1), "heartbeat_at": NOW - timedelta(seconds=1)}
    return store._progress([job | times])


def test_a_match_tells_rate_and_time_left() -> None:
    progress = matching(
        parts=20, parts_done=5, tasks=4, tasks_done=1, rows=10_000_000, seconds=10.0, since=3.0
    )
    assert progress == Progress("matching", (), 4, 1, 250_000.0, 26.0, 0.25)
    assert "Time left 26 s" in shown(progress)
    assert progress_line(asdict(progress)).endswith("Spark tasks, 250,000 rows/s, 26 s left")


def test_a_match_that_has_made_no_headway_has_no_rate() -> None:
    progress = matching(parts=100, parts_done=0, rows=10_000_000, seconds=3.0, since=1.0)
    assert progress == Progress("matching", (), None, None, None, None, 0.0)


def test_a_match_that_is_over_its_time_says_nothing_of_what_is_left() -> None:
    progress = matching(parts=100, parts_done=50, rows=1_000, seconds=10.0, since=80.0)
    assert progress == Progress("matching", (), None, None, 50.0, None, 0.5)


def staging_job(kind: str, status: str, seconds_ago: float, **facts: Any) -> dict[str, Any]:
    """A job of the right side that became due and was claimed, and perhaps ended, so long ago."""
    at = NOW - timedelta(seconds=seconds_ago)
    times = {"run_after": at, "claimed_at": at, "finished_at": at, "heartbeat_at": NOW, "now": NOW}
    job = {"type": kind, "side": "right", "status": status, "progress": None, "result": None}
    return job | times | {"away_since": None, "error": None} | facts


def test_under_a_snapshot_the_job_that_holds_it_tells_the_rate() -> None:
    told = {"rows_expected": 10_000_000, "chunks": 10, "chunks_done": 4, "rows": 4_000_000}
    progress = store._progress([staging_job("stage_plan", "claimed", 40, progress=told)])
    side = SideProgress("right", False, 10, 4, 4_000_000, 10_000_000)
    assert progress == Progress("staging", (side,), None, None, 100_000.0, 60.0, 0.2)


def test_what_was_staged_before_a_retry_is_not_part_of_the_rate() -> None:
    day = 86_400
    expected = {"rows_expected": 7_000_000, "chunks": 7}
    jobs = [
        staging_job("stage_plan", "completed", day, result=expected),
        *(staging_job("stage_chunk", "completed", day, result={"rows": 1_000_000}) for _ in "1234"),
        staging_job("stage_chunk", "claimed", 5),
        staging_job("stage_chunk", "pending", 5, claimed_at=NOW - timedelta(days=1)),
    ]
    before = store._progress([*jobs, staging_job("stage_chunk", "claimed", 5)])
    assert (before.stage, before.rows_per_second, before.seconds_left) == ("staging", None, None)
    done = staging_job("stage_chunk", "completed", 5, result={"rows": 1_000_000})
    after = store._progress([*jobs, done])
    assert (after.rows_per_second, after.seconds_left) == (200_000.0, 10.0)
    assert after.staging[0].rows == 5_000_000, "what was staged before is there nevertheless"


def test_the_rate_counts_what_the_other_side_staged_though_its_chunks_are_older() -> None:
    """The left side's plan took a second longer: all that is still open is of that side."""
    expected, ended = {"rows_expected": 2_000_000, "chunks": 2}, NOW - timedelta(seconds=1)
    done = {"result": {"rows": 1_000_000}, "finished_at": ended}
    jobs = [
        *(staging_job("stage_plan", "completed", 21, side=side, result=expected) for side in SIDES),
        *(staging_job("stage_chunk", "completed", 20, **done) for _ in "12"),
        staging_job("stage_chunk", "completed", 19, side="left", **done),
        staging_job("stage_chunk", "claimed", 19, side="left"),
    ]
    progress = store._progress(jobs)
    assert (progress.rows_per_second, progress.seconds_left) == (150_000.0, 1_000_000 / 150_000)


def test_the_time_left_is_told_by_the_chunks_that_are_done_not_by_rows_a_filter_leaves_out() -> (
    None
):
    """Of a hundred rows the source's filter leaves one: the estimate is that of the table."""
    expected = {"rows_expected": 10_000_000, "chunks": 10}
    done = {"result": {"rows": 10_000}, "finished_at": NOW}
    jobs = [
        staging_job("stage_plan", "completed", 11, result=expected),
        *(staging_job("stage_chunk", "completed", 10, **done) for _ in "12345"),
        *(staging_job("stage_chunk", "claimed", 10) for _ in "12345"),
    ]
    assert store._progress(jobs).seconds_left == 10.0


def test_a_job_that_waits_for_its_next_attempt_tells_nothing_of_its_last() -> None:
    told = {"stage": "match", "parts": 100, "parts_done": 35, "rows": 10_000_000, "seconds": 5}
    match = staging_job("exec", "pending", 60, side=None, progress=told | {"since": 0})
    assert store._progress([match]) == Progress("waiting", share=0.0)
    plan = staging_job("stage_plan", "pending", 60, progress={"chunks": 4, "chunks_done": 2})
    side = SideProgress("right", False, 0, 0, 0, None)
    assert store._progress([plan]) == Progress("waiting", (side,), share=0.0)


def test_a_run_that_waits_says_so() -> None:
    assert "Stage waiting" in shown(Progress("waiting", share=0.0))


def test_a_run_whose_job_is_put_off_says_why_and_until_when() -> None:
    away = {"away_since": NOW - timedelta(seconds=90), "error": "Spark at sc://[db]:1 is away"}
    first, later = (
        staging_job("stage_chunk", "pending", -seconds, error=error, away_since=away["away_since"])
        for seconds, error in ((12, away["error"]), (20, "the other"))
    )
    plan = staging_job("stage_plan", "completed", 60, result={})
    progress = store._progress([plan, later, first])
    assert progress.put_off == PutOff("Spark at sc://[db]:1 is away", 90.0, 12.0)
    assert "Put off Spark at sc://[db]:1 is away; tried again in 12 s" in shown(progress)
    line = "waiting (put off: Spark at sc://[db]:1 is away; tried again in 12 s)"
    assert progress_line(asdict(progress)) == line


def test_a_run_whose_job_failed_and_is_tried_again_says_why() -> None:
    job = staging_job("exec", "pending", -7, side=None, error="the disk is slow")
    assert store._progress([job]).put_off == PutOff("the disk is slow", None, 7.0)


def test_no_part_of_a_secret_is_told_wherever_a_long_error_is_cut() -> None:
    """Of an address that is cut before its @, nobody would know the password."""
    for begins in range(450, 510):
        error = f"{'-' * begins} postgresql://reader:QQQQQQQQ@db/bank refuses the reader"
        put_off = store._progress([staging_job("exec", "pending", -7, error=error)]).put_off
        assert put_off
        assert put_off.reason.endswith(" …")
        assert "Q" not in put_off.reason


def test_a_job_that_is_tried_again_is_put_off_no_more() -> None:
    away = {"away_since": NOW - timedelta(seconds=90), "error": "Spark is away"}
    job = staging_job("exec", "claimed", 1, side=None, **away)
    assert store._progress([job]).put_off is None
