"""Flaws of the worker: waking, draining, losing a claim or a lease, keeping secrets to itself."""

from __future__ import annotations

from tests.mutations.mutant import mutant

KEEPER = "work/lease_keeper.py"
CUT_OFF = "test_lease_keeper.py::test_a_holder_cut_off_from_postgres_stops_before_its_lease_ends"
UNCHARGED = "test_uncharged_attempts.py::"
FOUND = "tests/chaos/test_found_by_chaos.py::"

WORKER = (
    mutant(
        "the reaper's service wakes nobody",
        "work/services/reaper.py",
        "            await self._wake.nudge(job_store.waiting_in(reclaimed))\n",
        "",
        "test_worker.py::test_a_reclaimed_job_wakes_an_idle_worker",
        trap=6,
    ),
    mutant(
        "the scheduler wakes nobody",
        "work/services/delayed_jobs.py",
        "        await self._wake.nudge(woken)\n",
        "",
        "test_worker.py::test_a_delayed_job_wakes_an_idle_worker_when_it_comes_due",
        trap=6,
    ),
    mutant(
        "follow-ups wake nobody",
        "work/services/settling.py",
        "            self._completed(held, outcome)\n            await self._wake.nudge(woken)\n",
        "            self._completed(held, outcome)\n",
        "test_worker.py::test_a_follow_up_wakes_an_idle_worker",
        trap=6,
    ),
    mutant(
        "a chunk wakes nobody for the next of its lane",
        "work/state/jobs.py",
        "    return woken + await next_of_keys(connection, [job.running_key])\n",
        "    return woken\n",
        "test_freed_keys.py::test_a_chunk_of_a_run_wakes_the_next_of_its_lane",
        trap=6,
    ),
    mutant(
        "completions that share a transaction wake nobody for their keys",
        "work/services/settling.py",
        "            self._slots.drop(held)\n        await self._wake.nudge(woken)\n",
        "            self._slots.drop(held)\n",
        "test_freed_keys.py::test_jobs_of_one_key_follow_each_other[postgres-plain]",
        trap=6,
    ),
    mutant(
        "a key that others hold wakes somebody",
        "work/state/jobs.sql#next_of_keys",
        "other.status = 'claimed'",
        "false",
        "test_freed_keys.py::test_of_each_key_that_comes_free_one_waiting_job_is_woken",
    ),
    mutant(
        "a scale-down gives nothing up",
        KEEPER,
        "            if lease.slot >= replicas:\n",
        "            if lease.slot > replicas:\n",
        "test_lease_keeper.py::test_a_scale_down_stops_and_frees_the_upper_slots",
        trap=11,
    ),
    mutant(
        "the deadline of a lease is never looked at",
        KEEPER,
        "                if seat.deadline <= now:\n",
        "                if seat.deadline <= 0:\n",
        CUT_OFF,
        trap=12,
    ),
    mutant(
        "the margin before the end of a lease is forgotten",
        KEEPER,
        "        return sent + self._settings.ttl_seconds - self._settings.margin_seconds\n",
        "        return sent + self._settings.ttl_seconds\n",
        CUT_OFF,
        trap=12,
    ),
    mutant(
        "the deadline of a lease counts from the answer",
        KEEPER,
        "            self._seats[lease] = _Seat(stop, self._deadline(sent))\n",
        "            self._seats[lease] = _Seat(stop, self._deadline(self._clock()))\n",
        "test_lease_keeper.py::test_the_deadline_counts_from_the_request_and_not_from_its_answer",
        trap=12,
    ),
    mutant(
        "a claim whose answer was lost is left to the reaper",
        "work/services/claims.py",
        "        await self._claims.hand_back_strays()\n",
        "        return\n",
        f"{UNCHARGED}test_a_claim_whose_answer_is_lost_costs_no_attempt",
    ),
    mutant(
        "a claim in hand is taken for one whose answer was lost",
        "work/state/jobs.sql#strays",
        "mine.job_id = jobs.job_id AND mine.fence = jobs.fence",
        "false",
        f"{UNCHARGED}test_claims_that_their_worker_does_not_hold_wait_again_and_no_failure_counts",
    ),
    mutant(
        "the reaper trusts a clock that stepped ahead",
        "work/services/reaper.py",
        "max(now - self._heard, database_time - self._database_time)",
        "now - self._heard",
        f"{UNCHARGED}test_a_step_of_the_databases_clock_costs_no_attempt",
    ),
    mutant(
        "a reaper that was silent itself judges at once",
        "work/services/reaper.py",
        "max(now - self._heard, database_time - self._database_time)",
        "database_time - self._database_time - (now - self._heard)",
        f"{FOUND}test_a_reaper_that_was_silent_for_long_lets_live_workers_be_heard_first",
    ),
    mutant(
        "a reaper takes the end of a frozen step for news",
        "work/services/reaper.py",
        "        if not self._was_silent():\n            now = self._clock()\n",
        "        if True:\n            now = self._clock()\n",
        f"{FOUND}test_a_reaper_frozen_within_a_step_takes_no_other_and_lets_workers_be_heard_first",
    ),
    mutant(
        "the time of a freeze makes heartbeats old",
        "work/services/reaper.py",
        "min(self._clock() - self._heard, self._tolerance_seconds)",
        "self._clock() - self._heard",
        f"{FOUND}test_a_freeze_between_a_check_and_its_statement_makes_nobody_look_dead",
    ),
    mutant(
        "a drain leaves a claim whose answer was lost to the reaper",
        "work/worker.py",
        "                await self._claims.hand_back_strays()\n",
        "",
        f"{UNCHARGED}test_a_claim_whose_answer_is_lost_before_a_drain_costs_no_attempt",
    ),
    mutant(
        "a drain hands back once, whatever the answer",
        "work/worker.py",
        "                if time.monotonic() > deadline:\n",
        "                if True:\n",
        f"{UNCHARGED}test_a_drain_hands_back_though_a_connection_breaks",
    ),
    mutant(
        "a log line may hold a password",
        "logs.py",
        "    return cast(EventDict, scrub_value(event))\n",
        "    return event\n",
        "test_worker.py::test_a_password_in_an_error_reaches_neither_the_row_nor_the_log",
        trap=17,
    ),
)
