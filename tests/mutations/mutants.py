"""The flaws that are put back, one at a time, and the tests that must notice each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file` (below src/kalla); with `new` instead, `tests` go red."""

    name: str
    trap: int | None
    file: str
    old: str
    new: str
    tests: str  # FILE, or FILE::TEST, below tests/integration

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


JOBS, RUNS, LEASES = "work/jobs.sql", "work/runs.sql", "work/leases.sql"
CLAIMS, FENCES = "work/test_claims.py", "work/test_fences.py"
GATES, LOST, ENDED = "work/test_gates.py", "work/test_lost_jobs.py", "work/test_runs.py"
SLOTS, KEEPER, WORKER = "work/test_leases.py", "work/test_keeper.py", "work/test_worker.py"
INPUT = "work/test_bad_input.py"

MUTANTS = [
    # Trap 1: claiming without status = 'pending'
    Mutant(
        "claim looks at any due job",
        1,
        JOBS,
        "WHERE queue = %(queue)s AND status = 'pending' AND due AND type = ANY(%(types)s)",
        "WHERE queue = %(queue)s AND due AND type = ANY(%(types)s)",
        f"{CLAIMS}::test_a_claimed_job_does_not_hide_the_waiting_ones",
    ),
    Mutant(
        "claim waits for other claims",
        1,
        JOBS,
        "    LIMIT %(limit)s\n    FOR NO KEY UPDATE SKIP LOCKED\n),\nchosen",
        "    LIMIT %(limit)s\n    FOR NO KEY UPDATE\n),\nchosen",
        f"{CLAIMS}::test_two_claims_at_once_share_the_jobs_without_waiting",
    ),
    Mutant(
        "claim does not raise the fence",
        1,
        JOBS,
        "SET status = 'claimed', fence = fence + 1,",
        "SET status = 'claimed', fence = fence + (fence = 0)::int,",
        f"{FENCES}::test_no_fence_is_ever_issued_twice",
    ),
    Mutant(
        "claim ignores a pause",
        None,
        JOBS,
        "AND queues.paused_at IS NOT NULL)",
        "AND queues.paused_at IS NULL)",
        f"{CLAIMS}::test_a_paused_queue_gives_nothing_and_its_running_jobs_go_on",
    ),
    # Trap 2: completing without the fence
    Mutant(
        "complete without the fence",
        2,
        JOBS,
        "        AS mine (job_id, fence, result) ON mine.job_id = jobs.job_id"
        " AND mine.fence = jobs.fence",
        "        AS mine (job_id, fence, result) ON mine.job_id = jobs.job_id",
        f"{FENCES}::test_a_write_under_an_old_fence_changes_nothing",
    ),
    Mutant(
        "fail without the fence",
        2,
        JOBS,
        "    WHERE job_id = %(job_id)s AND fence = %(fence)s AND status = 'claimed'\n"
        "    RETURNING job_id, fence, worker, claimed_at, status, queue, due",
        "    WHERE job_id = %(job_id)s AND status = 'claimed'\n"
        "    RETURNING job_id, fence, worker, claimed_at, status, queue, due",
        f"{FENCES}::test_a_write_under_an_old_fence_changes_nothing",
    ),
    Mutant(
        "heartbeat without the fence",
        2,
        JOBS,
        "        AS mine (job_id, fence, progress) ON mine.job_id = jobs.job_id"
        " AND mine.fence = jobs.fence",
        "        AS mine (job_id, fence, progress) ON mine.job_id = jobs.job_id",
        f"{FENCES}::test_a_write_under_an_old_fence_changes_nothing",
    ),
    Mutant(
        "a lost claim is not told",
        2,
        JOBS,
        "ON jobs.job_id = mine.job_id AND jobs.fence = mine.fence AND jobs.status = 'claimed'\n"
        "WHERE jobs.job_id IS NULL",
        "ON jobs.job_id = mine.job_id\nWHERE jobs.job_id IS NULL",
        FENCES,
    ),
    # Trap 3: a chunk counted twice
    Mutant(
        "a completion that changed nothing still counts",
        3,
        "work/jobs.py",
        "    if not await complete_plain(connection, [(job, outcome)]):\n",
        "    if not await complete_plain(connection, [(job, outcome)]) and job.run_id is None:\n",
        f"{GATES}::test_a_chunk_that_is_delivered_twice_counts_once",
    ),
    Mutant(
        "arrivals are counted twice",
        3,
        RUNS,
        "SET arrived = arrived + 1",
        "SET arrived = least(arrived + 2, expected)",
        GATES,
    ),
    # Trap 4: the gate opens while a plan still fans out
    Mutant(
        "a fan-out is not expected at the gate",
        4,
        RUNS,
        "UPDATE kalla.gates SET expected = expected + %(count)s",
        "UPDATE kalla.gates SET expected = greatest(expected, 1)",
        GATES,
    ),
    Mutant(
        "the gate opens at the first arrival",
        4,
        RUNS,
        "AND expected > 0 AND arrived = expected",
        "AND expected > 0 AND arrived > 0",
        f"{GATES}::test_a_quick_plan_does_not_open_the_gate_for_a_slow_one",
    ),
    Mutant(
        "an open gate opens again",
        4,
        RUNS,
        "WHERE run_id = %(run_id)s AND opened_at IS NULL AND expected > 0",
        "WHERE run_id = %(run_id)s AND expected > 0",
        GATES,
    ),
    Mutant(
        "an open gate takes more jobs",
        4,
        RUNS,
        "WHERE run_id = %(run_id)s AND gate = %(gate)s AND opened_at IS NULL\nRETURNING gate",
        "WHERE run_id = %(run_id)s AND gate = %(gate)s\nRETURNING gate",
        f"{GATES}::test_a_fan_out_to_an_opened_gate_is_refused_and_nothing_is_half_done",
    ),
    # Trap 5: counted, but the next job not inserted
    Mutant(
        "the run is not locked first",
        5,
        "work/jobs.py",
        "    if job.run_id is not None:\n        await runs.lock(connection, job.run_id)\n"
        "    if not await complete_plain",
        "    if not await complete_plain",
        f"{ENDED} work/test_gates.py",
    ),
    Mutant(
        "the opened gate inserts nothing",
        5,
        "work/runs.py",
        "        for row in opened:\n",
        "        for row in opened[:0]:\n",
        f"{GATES}::test_a_source_of_zero_chunks_opens_the_gate",
    ),
    # Trap 6: reclaimed, and nobody is woken
    Mutant(
        "the reaper wakes nobody",
        6,
        "work/duties/reaper.py",
        "            await self._wake.nudge(job_store.waiting_in(reclaimed))\n",
        "",
        f"{WORKER}::test_a_reclaimed_job_wakes_an_idle_worker",
    ),
    Mutant(
        "the scheduler wakes nobody",
        6,
        "work/duties/scheduler.py",
        "        await self._wake.nudge(woken)\n",
        "",
        f"{WORKER}::test_a_delayed_job_wakes_an_idle_worker_when_it_comes_due",
    ),
    Mutant(
        "follow-ups wake nobody",
        6,
        "work/duties/settling.py",
        "            self._completed(held, outcome)\n            await self._wake.nudge(woken)\n",
        "            self._completed(held, outcome)\n",
        f"{WORKER}::test_a_follow_up_wakes_an_idle_worker",
    ),
    # Trap 7: a poison job retried for ever
    Mutant(
        "a failure is not counted",
        7,
        JOBS,
        "    SET failures = failures + 1, heartbeat_at = NULL, error = %(error)s,"
        " traceback = %(traceback)s,",
        "    SET heartbeat_at = NULL, error = %(error)s, traceback = %(traceback)s,",
        f"{LOST}::test_a_poison_job_ends",
    ),
    Mutant(
        "a loss is not counted",
        7,
        JOBS,
        "    SET status = 'pending', failures = failures + 1, due = true, run_after = moment.now,",
        "    SET status = 'pending', due = true, run_after = moment.now,",
        f"{LOST}::test_a_poison_job_ends",
    ),
    Mutant(
        "the reaper has endless attempts to give",
        7,
        JOBS,
        "        WHERE status = 'claimed' AND failures + 1 < max_attempts\n",
        "        WHERE status = 'claimed'\n",
        f"{LOST}::test_a_poison_job_ends",
    ),
    # Trap 8: a failed run whose other jobs go on
    Mutant(
        "a failed run leaves its running jobs",
        8,
        RUNS,
        "    WHERE run_id = %(run_id)s AND status IN ('pending', 'claimed')\n    ORDER BY job_id",
        "    WHERE run_id = %(run_id)s AND status IN ('pending')\n    ORDER BY job_id",
        f"{ENDED}::test_a_failed_job_ends_its_run_and_the_others",
    ),
    Mutant(
        "a failed job leaves its run",
        8,
        "work/jobs.py",
        '    if row["status"] == "failed" and job.run_id is not None:\n',
        '    if row["status"] == "never" and job.run_id is not None:\n',
        f"{ENDED}::test_a_failed_job_ends_its_run_and_the_others",
    ),
    Mutant(
        "a lost job leaves its run",
        8,
        "work/jobs.py",
        "    if row is not None and run_id is not None:\n",
        "    if row is None and run_id is not None:\n",
        f"{ENDED}::test_a_failed_job_ends_its_run_and_the_others",
    ),
    # Trap 9: releasing what one no longer holds
    Mutant(
        "hand back without the fence",
        9,
        JOBS,
        "            ON mine.job_id = jobs.job_id AND mine.fence = jobs.fence\n"
        "        WHERE jobs.status = 'claimed'\n        ORDER BY jobs.job_id\n"
        "        FOR NO KEY UPDATE OF jobs\n",
        "            ON mine.job_id = jobs.job_id\n"
        "        WHERE jobs.status = 'claimed'\n        ORDER BY jobs.job_id\n"
        "        FOR NO KEY UPDATE OF jobs\n",
        f"{FENCES}::test_a_write_under_an_old_fence_changes_nothing",
    ),
    Mutant(
        "release without the epoch",
        9,
        LEASES,
        "UPDATE kalla.leases SET holder = NULL, until = NULL\n"
        "WHERE resource = %(resource)s AND slot = %(slot)s AND holder = %(holder)s"
        " AND epoch = %(epoch)s",
        "UPDATE kalla.leases SET holder = NULL, until = NULL\n"
        "WHERE resource = %(resource)s AND slot = %(slot)s",
        f"{SLOTS}::test_a_release_of_what_one_no_longer_holds_changes_nothing",
    ),
    Mutant(
        "release forgets the epoch",
        9,
        LEASES,
        "UPDATE kalla.leases SET holder = NULL, until = NULL\n",
        "UPDATE kalla.leases SET holder = NULL, until = NULL, epoch = 0\n",
        f"{SLOTS}::test_an_epoch_survives_release_and_expiry",
    ),
    # Trap 11: scale-down leaves the upper slots held
    Mutant(
        "acquire looks above replicas",
        11,
        LEASES,
        "    WHERE resource = %(resource)s AND slot < %(replicas)s\n",
        "    WHERE resource = %(resource)s\n",
        f"{SLOTS}::test_slots_above_a_lowered_number_of_replicas_are_not_taken_again",
    ),
    Mutant(
        "a scale-down gives nothing up",
        11,
        "work/keeper.py",
        "            if lease.slot >= replicas:\n",
        "            if lease.slot > replicas:\n",
        f"{KEEPER}::test_a_scale_down_stops_and_frees_the_upper_slots",
    ),
    # Trap 12: a holder cut off goes on past its lease
    Mutant(
        "the deadline is never looked at",
        12,
        "work/keeper.py",
        "                if seat.deadline <= now:\n",
        "                if seat.deadline <= 0:\n",
        f"{KEEPER}::test_a_holder_cut_off_from_postgres_stops_before_its_lease_ends",
    ),
    Mutant(
        "the margin is forgotten",
        12,
        "work/keeper.py",
        "        return sent + self._settings.ttl_seconds - self._settings.margin_seconds\n",
        "        return sent + self._settings.ttl_seconds\n",
        f"{KEEPER}::test_a_holder_cut_off_from_postgres_stops_before_its_lease_ends",
    ),
    Mutant(
        "the deadline counts from the answer",
        12,
        "work/keeper.py",
        "            self._seats[lease] = _Seat(stop, self._deadline(sent))\n",
        "            self._seats[lease] = _Seat(stop, self._deadline(self._clock()))\n",
        f"{KEEPER}::test_the_deadline_counts_from_the_request_and_not_from_its_answer",
    ),
    Mutant(
        "an expired lease is renewed",
        12,
        LEASES,
        "    WHERE leases.holder = %(holder)s AND leases.until > moment.now\n",
        "    WHERE leases.holder = %(holder)s\n",
        f"{SLOTS}::test_a_lease_that_ended_is_not_renewed_though_nobody_took_it",
    ),
    # Trap 17: a password in a plan, a log, a payload or a page
    Mutant(
        "a payload may hold a password",
        17,
        "work/kinds.py",
        '        for path in secrets_in(job.payload, "payload"):\n',
        "        for path in []:\n",
        f"{INPUT}::test_a_secret_in_the_clear_is_refused_and_not_repeated",
    ),
    Mutant(
        "a log line may hold a password",
        17,
        "logs.py",
        "    return cast(EventDict, scrub_value(event))\n",
        "    return event\n",
        f"{WORKER}::test_a_password_in_an_error_reaches_neither_the_row_nor_the_log",
    ),
    Mutant(
        "an error may hold a password",
        17,
        "work/jobs.py",
        "    error = _clip(scrub(error))\n",
        "    error = _clip(error)\n",
        f"{LOST}::test_an_error_is_kept_with_its_traceback_and_without_its_secrets",
    ),
    # Further promises
    Mutant(
        "retry resets the fence",
        None,
        JOBS,
        "SET status = 'pending', failures = 0, due = true, run_after = kalla.clock(),"
        " finished_at = NULL,\n    stopped_at = NULL, error = NULL, traceback = NULL,"
        " progress = NULL,\n    dedupe_key",
        "SET status = 'pending', failures = 0, fence = 0, due = true, run_after = kalla.clock(),"
        " finished_at = NULL,\n    stopped_at = NULL, error = NULL, traceback = NULL,"
        " progress = NULL,\n    dedupe_key",
        f"{FENCES}::test_retry_by_hand_keeps_counting_fences",
    ),
    Mutant(
        "a drain counts as a failure",
        None,
        JOBS,
        "    SET status = 'pending', due = true, run_after = moment.now, heartbeat_at = NULL,\n",
        "    SET status = 'pending', failures = failures + 1, due = true, run_after = moment.now,"
        " heartbeat_at = NULL,\n",
        f"{FENCES}::test_a_drain_keeps_counting_fences_and_is_no_failure",
    ),
    Mutant(
        "two jobs of one running key side by side",
        None,
        "migrations/0001_work.sql",
        "    WHERE status = 'claimed' AND running_key IS NOT NULL;",
        "    WHERE status = 'nothing' AND running_key IS NOT NULL;",
        f"{CLAIMS}::test_keys_are_unique_in_the_table_itself",
    ),
    Mutant(
        "the total timeout ends nothing",
        None,
        RUNS,
        "SELECT run_id FROM kalla.runs WHERE status = 'running' AND deadline < kalla.clock()\n"
        "ORDER BY",
        "SELECT run_id FROM kalla.runs WHERE status = 'nothing' AND deadline < kalla.clock()\n"
        "ORDER BY",
        f"{ENDED}::test_a_run_past_its_total_timeout_fails_with_all_its_jobs",
    ),
    Mutant(
        "the cap per worker is not kept",
        None,
        "work/leases.py",
        "    if cap is not None:\n        await connection.execute(sql.lock_holder, facts)\n",
        "",
        f"{SLOTS}::test_a_cap_holds_though_its_worker_acquires_twice_at_once",
    ),
    Mutant(
        "a lost commit answer drops a completed job",
        None,
        JOBS,
        "SELECT status FROM kalla.jobs WHERE job_id = %(job_id)s AND fence = %(fence)s;",
        "SELECT status FROM kalla.jobs WHERE job_id = %(job_id)s AND fence < %(fence)s;",
        f"{FENCES}::test_a_worker_learns_whether_its_own_completion_arrived",
    ),
]
