"""Flaws of claims: taken twice, in the wrong order, from where nothing is to be taken; keys."""

from __future__ import annotations

from tests.mutations.mutant import mutant

SQL = "work/state/jobs.sql"
STORE = "work/state/jobs.py"
TABLES = "migrations/0001_work.sql"

WAITING = (
    mutant(
        "a claim takes what is claimed already",
        f"{SQL}#claim",
        "status = 'pending' AND due AND type",
        "due AND type",
        "test_claims.py::test_a_claimed_job_is_not_claimed_again",
        trap=1,
        also=((f"{SQL}#claim", "chosen.job_id AND jobs.status = 'pending'", "chosen.job_id"),),
    ),
    mutant(
        "a claim looks at claimed jobs before it drops them",
        f"{SQL}#claim",
        "status = 'pending' AND due AND type",
        "due AND type",
        "test_claims.py::test_a_claimed_job_does_not_hide_the_waiting_ones",
        trap=1,
    ),
    mutant(
        "a claim locks nothing while it chooses",
        f"{SQL}#claim",
        "    FOR NO KEY UPDATE SKIP LOCKED\n",
        "",
        "test_claims.py::test_two_claims_at_once_share_the_jobs_without_waiting",
        trap=1,
    ),
    mutant(
        "a claim does not raise the fence",
        f"{SQL}#claim",
        "fence = fence + 1, worker",
        "worker",
        "test_fences.py::test_retry_by_hand_keeps_counting_fences",
        trap=2,
    ),
    mutant(
        "a claim takes delayed jobs",
        f"{SQL}#claim",
        "status = 'pending' AND due AND type",
        "status = 'pending' AND type",
        "test_claims.py::test_a_delayed_job_waits_for_its_time",
    ),
    mutant(
        "a delayed job comes due at once",
        f"{SQL}#promote",
        " AND run_after <= moment.now",
        "",
        "test_claims.py::test_a_delayed_job_waits_for_its_time",
    ),
    mutant(
        "a claim takes from a paused queue",
        f"{SQL}#claim",
        "queues.paused_at IS NOT NULL",
        "false",
        "test_claims.py::test_a_paused_queue_gives_nothing_and_its_running_jobs_go_on",
    ),
    mutant(
        "a claim takes types its worker does not know",
        f"{SQL}#claim",
        " AND type = ANY(%(types)s)",
        "",
        "test_claims.py::test_a_worker_takes_only_types_it_knows_and_queues_it_serves",
    ),
    mutant(
        "a claim takes the newest first",
        f"{SQL}#claim",
        "ORDER BY priority DESC, job_id\n    LIMIT",
        "ORDER BY priority DESC, job_id DESC\n    LIMIT",
        "test_claims.py::test_higher_priority_goes_first_and_then_the_older",
    ),
)

KEYS = (
    mutant(
        "a dedupe key is kept by a running job",
        TABLES,
        "WHERE status = 'pending' AND dedupe_key IS NOT NULL;",
        "WHERE dedupe_key IS NOT NULL;",
        "test_claims.py::test_a_dedupe_key_is_free_again_once_its_job_is_claimed",
        also=(
            (f"{SQL}#insert", "WHERE status = 'pending' AND dedupe_key IS NOT NULL AND", "WHERE"),
        ),
    ),
    mutant(
        "a repeated job may start before its second asker commits",
        f"{SQL}#insert",
        "    FOR SHARE\n",
        "",
        "test_claims.py::test_a_repeated_job_starts_only_after_the_transaction_that_asked_for_it",
    ),
    mutant(
        "a repeated job wakes nobody",
        STORE,
        'for row in ordered if row["due"]}',
        'for row in ordered if row["due"] and row["inserted"]}',
        "test_claims.py::test_a_repeated_job_starts_only_after_the_transaction_that_asked_for_it",
        trap=6,
    ),
    mutant(
        "a failed job insists on its dedupe key",
        f"{SQL}#fail",
        "dedupe_key = CASE WHEN NOT EXISTS (",
        "dedupe_key = CASE WHEN true OR NOT EXISTS (",
        "test_claims.py::test_a_job_that_comes_back_while_its_key_waits_gives_the_key_up[fail]",
    ),
    mutant(
        "two jobs that come back keep one dedupe key",
        f"{SQL}#reap",
        "row_number() OVER (PARTITION BY jobs.dedupe_key ORDER BY jobs.job_id) = 1",
        "true",
        "test_claims.py::test_two_jobs_of_one_key_that_come_back_together_keep_it_once[reap]",
    ),
    mutant(
        "running keys are not unique",
        TABLES,
        "CREATE UNIQUE INDEX jobs_running",
        "CREATE INDEX jobs_running",
        "test_claims.py::test_keys_are_unique_in_the_table_itself",
    ),
    mutant(
        "running keys may race",
        TABLES,
        "CREATE UNIQUE INDEX jobs_running",
        "CREATE INDEX jobs_running",
        "test_claims.py::test_claims_that_race_for_a_running_key_are_tried_again",
    ),
    mutant(
        "a claim does not look at running keys",
        f"{SQL}#claim",
        "WHERE other.running_key = jobs.running_key AND other.status = 'claimed'",
        "WHERE false",
        "test_claims.py::test_of_jobs_with_one_running_key_one_runs_at_a_time",
    ),
    mutant(
        "one claim takes two jobs of one running key",
        f"{SQL}#claim",
        "DISTINCT ON (running_key) job_id",
        "job_id",
        "test_claims.py::test_of_jobs_with_one_running_key_one_runs_at_a_time",
    ),
)

CLAIMS = (*WAITING, *KEYS)
