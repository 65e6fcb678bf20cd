"""Flaws of scaling: ending busy workers, forgetting a need, recording what cannot be replayed."""

from __future__ import annotations

from tests.mutations.mutant import mutant

POLICY = "scaling/policy.py"
OF_POLICY = "tests/unit/test_scaling_policy.py::"
OF_AUTOSCALER = "tests/integration/scaling/test_autoscaler.py::"
OF_ROUTES = "tests/integration/scaling/test_scaling_routes.py::"

SCALING = (
    mutant(
        "running work is no demand",
        POLICY,
        "else self.waiting + self.running",
        "else self.waiting",
        OF_POLICY + "test_demand_is_waiting_and_running_work",
    ),
    mutant(
        "a busy worker may be removed",
        POLICY,
        '            (inputs.busy, "busy"),\n',
        "",
        OF_POLICY + "test_a_busy_worker_is_not_removed",
    ),
    mutant(
        "workers go as soon as the need falls",
        POLICY,
        '            (min(recent, inputs.current), "stabilisation"),\n',
        "",
        OF_POLICY + "test_scaling_down_waits_until_the_highest_recent_need_has_passed",
    ),
    mutant(
        "all surplus workers go at once",
        POLICY,
        '            (inputs.current - policy.scale_down_step, "step"),\n',
        "",
        OF_POLICY + "test_scaling_down_goes_in_steps",
    ),
    mutant(
        "what waits in a paused queue asks for workers",
        POLICY,
        "    if inputs.paused:\n        return -(-inputs.running // inputs.concurrency)\n",
        "",
        OF_POLICY + "test_a_paused_queue_asks_for_no_worker_for_what_waits",
        also=((POLICY, "self.running if self.paused else ", ""),),
    ),
    mutant(
        "a worker with a job is drained as idle",
        "local/autoscaler.py",
        "for member in members if not member.jobs}",
        "for member in members}",
        OF_AUTOSCALER + "test_a_worker_that_has_just_claimed_a_job_is_not_drained_as_idle",
    ),
    mutant(
        "a worker goes before the one that replaces it has started",
        "local/autoscaler.py",
        "surplus = len(self._started_at)",
        "surplus = len(self._workers)",
        OF_AUTOSCALER + "test_a_worker_stays_until_the_one_that_is_still_starting_has_started",
    ),
    mutant(
        "workers of a machine are wanted for jobs that run on another",
        "scaling/store.py",
        "running=sum(member.jobs for member in members)",
        "running=sum(record.running for record in depths)",
        OF_AUTOSCALER + "test_jobs_that_run_on_another_machine_need_no_worker_here",
    ),
    mutant(
        "a decision is recorded without the need that held it",
        "scaling/store.py",
        '"recent_need": decision.recent_need',
        '"recent_need": decision.needed',
        OF_ROUTES + "test_decisions_are_recorded_once_and_replay_to_the_same_decision",
    ),
    mutant(
        "gauges keep an old decision",
        "scaling/decision_service.py",
        "self._decisions if fresh else []",
        "self._decisions",
        OF_ROUTES + "test_gauges_say_what_the_endpoint_says_until_the_decision_is_old",
    ),
    mutant(
        "a pod that becomes busy waits to say so",
        "app/deletion_cost.py",
        "(active > 0) != ((self._cost or 0) > 0)",
        "False",
        "tests/unit/test_deletion_cost.py::"
        "test_the_cost_is_sent_at_once_when_busy_or_idle_changes_and_seldom_otherwise",
    ),
    mutant(
        "the simulated HPA goes down without its window",
        "scaling/simulation/controller.py",
        "return min(highest, current) if number < current else number",
        "return number",
        "tests/unit/test_scaling_simulation.py::"
        "test_going_down_waits_for_the_window_and_goes_in_steps",
    ),
)
