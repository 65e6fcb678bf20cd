"""Flaws of runs and gates: counted twice, opened early or twice, siblings forgotten."""

from __future__ import annotations

from tests.mutations.mutant import mutant

SQL = "work/state/runs.sql"
STORE = "work/state/runs.py"
JOBS = "work/state/jobs.py"
FINISH = '    await connection.execute(sql.finish, {"run_id": run_id})\n'
FAN_OUT_LATE = "    woken += await _add(connection, job_types, run_id, follow_ups, 'late')\n"
MODEL = "test_model.py::test_jobs_and_runs_do_what_the_model_does"

GATES = (
    mutant(
        "a chunk delivered twice is counted twice",
        JOBS,
        "if not await complete_plain(connection, [(job, outcome)]):",
        "if await complete_plain(connection, [(job, outcome)]) is None:",
        "test_gates.py::test_a_chunk_that_is_delivered_twice_counts_once",
        trap=3,
    ),
    mutant(
        "a chunk counts double",
        f"{SQL}#arrive",
        "arrived = arrived + 1",
        "arrived = least(arrived + 2, expected)",
        "test_gates.py::test_the_last_of_many_chunks_opens_the_gate_and_no_other",
        trap=3,
    ),
    mutant(
        "a chunk counts double, before the model",
        f"{SQL}#arrive",
        "arrived = arrived + 1",
        "arrived = least(arrived + 2, expected)",
        MODEL,
        trap=3,
    ),
    mutant(
        "chunks are not expected at their gate",
        f"{SQL}#expect_at_gate",
        "expected = expected + %(count)s",
        "expected = greatest(expected, 1)",
        "test_gates.py::test_one_chunk_opens_the_gate",
        trap=4,
    ),
    mutant(
        "a plan arrives before its chunks are expected",
        STORE,
        "    woken = await _add(connection, job_types, run_id, follow_ups)\n",
        "    woken = Woken()\n",
        "test_gates.py::test_a_quick_plan_does_not_open_the_gate_for_a_slow_one",
        trap=4,
        also=((STORE, FINISH, FAN_OUT_LATE + FINISH),),
    ),
    mutant(
        "what an earlier gate will insert is not expected",
        STORE,
        "    await _expect(connection, run_id, [job.gate for job in opening])\n",
        "",
        "test_gates.py::test_a_gate_waits_for_what_an_earlier_gate_will_insert",
        trap=4,
        also=((STORE, "    if opened_by is None:\n", "    if True:\n"),),
    ),
    mutant(
        "a gate opens with the first arrival",
        f"{SQL}#open_gates",
        "AND arrived = expected",
        "AND arrived > 0",
        "test_gates.py::test_one_chunk_opens_the_gate",
        trap=4,
    ),
    mutant(
        "a gate opens again",
        f"{SQL}#open_gates",
        "AND opened_at IS NULL AND expected",
        "AND expected",
        "test_gates.py::test_gates_may_follow_each_other",
        "test_gates.py::test_a_plan_of_another_gate_holds_up_only_its_own",
        trap=3,
    ),
    mutant(
        "counted in one transaction and opened in the next",
        STORE,
        '        await connection.execute(sql.arrive, {"run_id": run_id, "gate": job.gate})\n',
        '        await connection.execute(sql.arrive, {"run_id": run_id, "gate": job.gate})\n'
        '        await connection.execute("COMMIT; BEGIN")\n',
        "test_gates.py::"
        "test_a_crash_before_the_commit_of_the_last_chunk_leaves_it_to_be_done_again",
        trap=5,
    ),
    mutant(
        "a gate opens and inserts nothing",
        STORE,
        'following = [NewJob(**values) for values in row["opens"]]',
        "following: list[NewJob] = []",
        "test_gates.py::test_a_source_of_zero_chunks_opens_the_gate",
        trap=5,
    ),
    mutant(
        "a gate that nothing counts towards is accepted",
        STORE,
        "if idle := gates.keys() - counted:",
        "if idle := gates.keys() - gates.keys():",
        "test_gates.py::test_a_run_whose_gates_could_never_open_is_refused",
        trap=5,
    ),
    mutant(
        "a fan-out to an opened gate is accepted",
        f"{SQL}#expect_at_gate",
        " AND opened_at IS NULL",
        "",
        "test_gates.py::test_a_fan_out_to_an_opened_gate_is_refused_and_nothing_is_half_done",
        trap=4,
    ),
    mutant(
        "a fan-out to an unknown gate is accepted",
        STORE,
        "        if await cursor.fetchone() is None:\n"
        '            raise Conflict(f"run {run_id} has no closed gate named {gate}")\n',
        "        await cursor.fetchone()\n",
        "test_gates.py::test_a_fan_out_to_an_unknown_gate_is_refused_and_nothing_is_half_done",
        trap=4,
    ),
)

ENDINGS = (
    mutant(
        "a failed run leaves its running jobs alone",
        f"{SQL}#cancel_jobs",
        "status IN ('pending', 'claimed')",
        "status IN ('pending')",
        "test_runs.py::test_a_failed_job_ends_its_run_and_the_others",
        trap=8,
    ),
    mutant(
        "a failed run leaves its waiting jobs alone",
        f"{SQL}#cancel_jobs",
        "status IN ('pending', 'claimed')",
        "status IN ('claimed')",
        "test_runs.py::test_a_failed_job_ends_its_run_and_the_others",
        trap=8,
    ),
    mutant(
        "a failed job leaves its run alone",
        JOBS,
        'if row["status"] == "failed" and job.run_id is not None:',
        'if row["status"] == "lost" and job.run_id is not None:',
        "test_runs.py::test_a_failed_job_ends_its_run_and_the_others[permanent]",
        trap=8,
    ),
    mutant(
        "a job that fell silent to the end leaves its run alone",
        JOBS,
        "    if run_id is not None:\n        await runs.end_locked(",
        "    if run_id is None:\n        await runs.end_locked(",
        "test_runs.py::test_a_failed_job_ends_its_run_and_the_others[silent to the end]",
        trap=8,
    ),
    mutant(
        "a completion does not lock its run first",
        JOBS,
        "    if job.run_id is not None:\n"
        "        await runs.lock(connection, job.run_id)\n"
        "    if not await complete_plain",
        "    if not await complete_plain",
        "test_runs.py::test_a_cancel_waits_for_a_completion_under_way_and_they_never_deadlock",
        trap=8,
    ),
    mutant(
        "a cancel believes an old look at its job",
        JOBS,
        "        record = await get(connection, job_id)  # it may have completed",
        "        await get(connection, job_id)  # it may have completed",
        "test_runs.py::test_a_cancel_that_meets_the_completion_of_its_job_leaves_the_run_alone",
    ),
    mutant(
        "locking a run locks nothing",
        f"{SQL}#lock",
        " FOR NO KEY UPDATE",
        "",
        "test_runs.py::test_a_cancel_waits_for_a_completion_under_way_and_they_never_deadlock",
        trap=8,
    ),
    mutant(
        "a run takes its time",
        f"{SQL}#late",
        " AND deadline < kalla.clock()",
        " AND false",
        "test_runs.py::test_a_run_past_its_total_timeout_fails_with_all_its_jobs",
        trap=8,
    ),
    mutant(
        "a revived run is ended by an old look",
        f"{SQL}#is_late",
        " AND deadline < kalla.clock()",
        "",
        "test_runs.py::test_a_run_revived_in_the_meantime_is_not_late",
    ),
    mutant(
        "a run is completed by its first job",
        f"{SQL}#finish",
        " AND completed = jobs",
        "",
        "test_runs.py::test_a_run_completes_when_all_its_jobs_have",
    ),
    mutant(
        "a run that ended ends again",
        f"{SQL}#end",
        " AND status = 'running'",
        "",
        "test_runs.py::test_cancelling_a_run_or_one_of_its_jobs_ends_all_of_it",
    ),
)

RETRIES = (
    mutant(
        "a revived run begins its fences anew",
        f"{SQL}#revive_jobs",
        "SET status = 'pending', failures",
        "SET status = 'pending', fence = 0, failures",
        "test_runs.py::test_retry_by_hand_revives_the_run_and_keeps_what_was_done",
    ),
    mutant(
        "a revived run forgets what was completed",
        f"{SQL}#revive",
        "SET status = 'running', error",
        "SET status = 'running', completed = 0, error",
        "test_runs.py::test_retry_by_hand_revives_the_run_and_keeps_what_was_done",
    ),
    mutant(
        "a revived run does its completed jobs again",
        f"{SQL}#revive_jobs",
        "AND status IN ('failed', 'cancelled')",
        "AND status IN ('failed', 'cancelled', 'completed')",
        "test_runs.py::test_retry_by_hand_revives_the_run_and_keeps_what_was_done",
        trap=3,
    ),
    mutant(
        "a revived run keeps its old deadline",
        f"{SQL}#revive",
        "deadline = kalla.clock() + make_interval(secs => %(total_timeout_seconds)s)",
        "deadline = deadline",
        "test_runs.py::test_retry_by_hand_revives_the_run_and_keeps_what_was_done",
    ),
)

RUNS = (*GATES, *ENDINGS, *RETRIES)
