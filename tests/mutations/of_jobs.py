"""Flaws of claimed jobs: stale writes, losses that are not counted, time."""

from __future__ import annotations

from tests.mutations.mutant import mutant

SQL = "work/state/jobs.sql"
STORE = "work/state/jobs.py"
TABLES = "migrations/0001_work.sql"
OLD_FENCE = "test_fences.py::test_a_write_under_an_old_fence_changes_nothing"
NOT_CLAIMED = "test_fences.py::test_a_write_about_a_job_that_is_not_claimed_changes_nothing"
BY_FENCE = "ON mine.job_id = jobs.job_id AND mine.fence = jobs.fence"
BY_NAME = "ON mine.job_id = jobs.job_id"
POISON = "test_lost_jobs.py::test_a_poison_job_ends"
MODEL = "test_model.py::test_jobs_and_runs_do_what_the_model_does"

FENCES = (
    mutant(
        "a completion without its fence",
        f"{SQL}#complete",
        BY_FENCE,
        BY_NAME,
        f"{OLD_FENCE}[complete]",
        f"{OLD_FENCE}[complete plainly]",
        trap=2,
    ),
    mutant(
        "a completion of what is not claimed",
        f"{SQL}#complete",
        "WHERE jobs.status = 'claimed'",
        "WHERE true",
        NOT_CLAIMED,
        trap=2,
    ),
    mutant(
        "a lost completion settles all the same",
        STORE,
        "if not await complete_plain(connection, [(job, outcome)]):",
        "if await complete_plain(connection, [(job, outcome)]) is None:",
        "test_fences.py::test_what_settle_wrote_is_gone_when_the_claim_was_lost",
        trap=2,
    ),
    mutant(
        "a failure without its fence",
        f"{SQL}#fail",
        "AND fence = %(fence)s AND status = 'claimed'",
        "AND status = 'claimed'",
        f"{OLD_FENCE}[fail]",
        trap=2,
    ),
    mutant(
        "a failure of what is not claimed",
        f"{SQL}#fail",
        "AND fence = %(fence)s AND status = 'claimed'",
        "AND fence = %(fence)s",
        NOT_CLAIMED,
        trap=2,
    ),
    mutant(
        "a heartbeat without its fence",
        f"{SQL}#heartbeat",
        BY_FENCE,
        BY_NAME,
        f"{OLD_FENCE}[heartbeat]",
        trap=2,
    ),
    mutant(
        "a worker is not told that its fence is old",
        f"{SQL}#lost",
        "AND jobs.fence = mine.fence ",
        "",
        f"{OLD_FENCE}[heartbeat]",
        trap=2,
    ),
    mutant(
        "a heartbeat waits for whoever ends the job",
        f"{SQL}#heartbeat",
        "OF jobs SKIP LOCKED",
        "OF jobs",
        "test_lost_jobs.py::test_a_heartbeat_does_not_wait_for_the_reaper_and_learns_of_it_later",
    ),
    mutant(
        "an exhausted job is ended under an old fence",
        f"{SQL}#end_exhausted",
        "AND fence = %(fence)s AND status",
        "AND status",
        f"{OLD_FENCE}[end as exhausted]",
        trap=2,
    ),
    mutant(
        "a worker takes another's completion for its own",
        f"{SQL}#standing",
        " AND fence = %(fence)s",
        "",
        "test_fences.py::test_a_worker_learns_whether_its_own_completion_arrived",
        trap=2,
    ),
    mutant(
        "a job is handed back without its fence",
        f"{SQL}#hand_back",
        "\n            " + BY_FENCE,
        "\n            " + BY_NAME,
        f"{OLD_FENCE}[hand back]",
        trap=9,
    ),
    mutant(
        "a job is handed back that is not claimed",
        f"{SQL}#hand_back",
        "WHERE jobs.status = 'claimed'",
        "WHERE true",
        NOT_CLAIMED,
        trap=9,
    ),
    mutant(
        "a hand-back without its fence, before the model",
        f"{SQL}#hand_back",
        BY_FENCE,
        BY_NAME,
        MODEL,
        trap=9,
    ),
    mutant(
        "retry by hand begins the fences anew",
        f"{SQL}#retry",
        "SET status = 'pending', failures = 0",
        "SET status = 'pending', fence = 0, failures = 0",
        "test_fences.py::test_retry_by_hand_keeps_counting_fences",
    ),
    mutant(
        "retry by hand begins the fences anew, before the property",
        f"{SQL}#retry",
        "SET status = 'pending', failures = 0",
        "SET status = 'pending', fence = 0, failures = 0",
        "test_fences.py::test_no_fence_is_ever_issued_twice",
    ),
    mutant(
        "retry by hand keeps the failures",
        f"{SQL}#retry",
        "SET status = 'pending', failures = 0,",
        "SET status = 'pending',",
        "test_fences.py::test_retry_by_hand_keeps_counting_fences",
    ),
    mutant(
        "a drain counts as a failure",
        f"{SQL}#hand_back",
        "SET status = 'pending', due",
        "SET status = 'pending', failures = failures + 1, due",
        "test_fences.py::test_a_drain_keeps_counting_fences_and_is_no_failure",
    ),
)

LOSSES = (
    mutant(
        "the reaper wakes nobody",
        STORE,
        'queue."""\n    return Woken(row["queue"] for row in rows)',
        'queue."""\n    return Woken()',
        "test_lost_jobs.py::test_a_silent_job_waits_again_and_its_queue_is_woken",
        "test_fences.py::test_a_drain_keeps_counting_fences_and_is_no_failure",
        trap=6,
    ),
    mutant(
        "a failure that waits again wakes nobody",
        STORE,
        'row["status"] == "pending" and row["due"]',
        "False",
        "test_lost_jobs.py::test_a_failure_that_waits_again_at_once_names_the_queue_to_wake",
        trap=6,
    ),
    mutant(
        "the reaper counts no failure",
        f"{SQL}#reap",
        "failures = failures + 1, due",
        "due",
        f"{POISON}[falls silent]",
        trap=7,
    ),
    mutant(
        "the reaper ignores how many attempts there were",
        f"{SQL}#reap",
        " AND failures + 1 < max_attempts",
        "",
        f"{POISON}[falls silent]",
        trap=7,
    ),
    mutant(
        "a failure counts for nothing",
        f"{SQL}#fail",
        "SET failures = failures + 1, heartbeat_at",
        "SET heartbeat_at",
        f"{POISON}[fails]",
        trap=7,
    ),
    mutant(
        "the last failure does not end the job",
        f"{SQL}#fail",
        "status = CASE WHEN %(permanent)s OR failures + 1 >= max_attempts",
        "status = CASE WHEN %(permanent)s",
        f"{POISON}[fails]",
        trap=7,
    ),
    mutant(
        "a permanent failure is tried again",
        f"{SQL}#fail",
        "status = CASE WHEN %(permanent)s OR failures",
        "status = CASE WHEN failures",
        "test_lost_jobs.py::test_a_permanent_failure_is_not_tried_again",
        trap=7,
    ),
    mutant(
        "a job is ended as exhausted though it came back to life",
        f"{SQL}#end_exhausted",
        "(heartbeat_at < moment.now - make_interval(secs => timeout_seconds)\n",
        "(true\n",
        "test_lost_jobs.py::"
        "test_a_heartbeat_that_comes_while_a_job_is_ended_as_exhausted_wins_if_it_is_first",
        trap=7,
    ),
    mutant(
        "a job that hangs may heartbeat for ever",
        f"{SQL}#reap",
        "OR claimed_at < moment.now - make_interval(secs => max_runtime_seconds))",
        "OR false)",
        "test_lost_jobs.py::test_a_job_that_runs_too_long_is_taken_away_though_it_heartbeats",
        trap=7,
    ),
    mutant(
        "two reapers wait for each other",
        f"{SQL}#reap",
        "FOR NO KEY UPDATE OF jobs SKIP LOCKED",
        "FOR NO KEY UPDATE OF jobs",
        "test_lost_jobs.py::test_two_reapers_at_once_share_the_lost_jobs",
    ),
    mutant(
        "retries do not back off",
        f"{SQL}#fail",
        "backoff_seconds * 2.0 ^ least(failures, 30)",
        "backoff_seconds",
        "test_lost_jobs.py::test_a_failed_attempt_backs_off_with_jitter_up_to_a_limit",
    ),
    mutant(
        "retries come in step",
        f"{SQL}#fail",
        "(0.5 + 0.5 * random())",
        "1.0",
        "test_lost_jobs.py::test_a_failed_attempt_backs_off_with_jitter_up_to_a_limit",
    ),
    mutant(
        "an overrun is noted as a silence",
        f"{SQL}#end_exhausted",
        "CASE WHEN silent THEN 'lost' ELSE 'overran' END",
        "'lost'",
        "test_lost_jobs.py::test_the_last_attempt_of_an_overrunning_job_is_noted_as_such",
    ),
    mutant(
        "a cancel overtakes a completion",
        f"{SQL}#cancel",
        " AND status IN ('pending', 'claimed')",
        "",
        "test_lost_jobs.py::test_a_cancel_that_meets_a_completion_under_way_comes_too_late",
    ),
    mutant(
        "the clock stands still inside a transaction",
        TABLES,
        "AS 'SELECT clock_timestamp()'",
        "AS 'SELECT now()'",
        "test_queues.py::test_the_clock_goes_on_inside_a_transaction",
    ),
    mutant(
        "a sweep takes what has just finished",
        f"{SQL}#sweep",
        "finished_at < kalla.clock() - make_interval(secs => %(seconds)s)",
        "finished_at < kalla.clock()",
        "test_runs.py::test_finished_jobs_are_kept_for_a_time_and_then_removed",
    ),
    mutant(
        "a sweep takes jobs out of a run that goes on",
        f"{SQL}#sweep",
        " AND run_id IS NULL",
        "",
        "test_runs.py::test_a_job_goes_with_its_run_and_not_before",
    ),
)

JOBS = (*FENCES, *LOSSES)
