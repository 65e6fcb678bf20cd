"""How many workers a role should have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalla.scaling.policy import Inputs, Need, Policy, decide, desired, lasting_need

POLICY = Policy(
    min_workers=1, max_workers=10, utilisation=0.8, scale_down_after_seconds=60, scale_down_step=2
)
QUIET = Inputs("exec", 1000.0, 0, 0, 0.0, current=1, busy=0, concurrency=5)


def inputs(**changes: object) -> Inputs:
    return replace(QUIET, **changes)  # type: ignore[arg-type]


def test_demand_is_waiting_and_running_work() -> None:
    busy = inputs(waiting=0, running=40, current=4, busy=4)
    decision = desired(busy, POLICY)
    assert decision.needed == 10
    assert decision.desired == 10


def test_eight_busy_workers_of_eight_are_not_ended_though_nothing_waits() -> None:
    assert desired(inputs(running=32, current=8, busy=8), POLICY).desired == 8


def test_workers_are_added_at_once_up_to_the_most() -> None:
    decision = desired(inputs(waiting=1000), POLICY)
    assert (decision.desired, decision.limit) == (10, "maximum")
    assert decision.reason.endswith("; max_workers is 10")
    small = replace(POLICY, max_reason="3.0 GB of memory is free")
    reason = desired(inputs(waiting=1000), small).reason
    assert reason.endswith("; this machine has room for 10 workers: 3.0 GB of memory is free")


def test_an_empty_queue_keeps_the_least() -> None:
    decision = desired(inputs(current=0), POLICY)
    assert (decision.desired, decision.limit) == (1, "minimum")


def test_scaling_down_waits_until_the_highest_recent_need_has_passed() -> None:
    fallen = inputs(current=6)
    held = desired(fallen, POLICY, [Need(950.0, 6)])
    assert (held.desired, held.limit) == (6, "stabilisation")
    assert held.reason == (
        "0 waiting and 0 running need 0 workers; "
        "not scaled because 6 workers were needed within the last 60 s"
    )
    assert desired(fallen, POLICY, [Need(939.0, 6)]).desired < 6


def test_a_peak_of_a_moment_keeps_no_worker() -> None:
    looks = [Need(950.0 + 5 * number, 4) for number in range(10)]
    peaks = [*looks[:3], Need(965.0, 9), Need(970.0, 9), *looks[5:]]
    fallen = inputs(current=9)
    assert lasting_need(peaks, 1000.0, POLICY) == 4
    assert desired(fallen, POLICY, peaks).recent_need == 4
    # Five seconds more, and it is no chance any longer.
    assert lasting_need([*peaks[:5], Need(975.0, 9), *peaks[6:]], 1000.0, POLICY) == 9


def test_a_need_lasts_until_the_next_look_whatever_the_time_between_looks() -> None:
    assert lasting_need([Need(980.0, 6), Need(994.0, 1)], 1000.0, POLICY) == 1
    assert lasting_need([Need(980.0, 6), Need(995.0, 1)], 1000.0, POLICY) == 6
    assert lasting_need([], 1000.0, POLICY) == 0


def test_a_small_rise_waits_until_a_job_has_waited() -> None:
    rise = inputs(waiting=1, running=40, current=10, busy=10, oldest_wait_seconds=0.5)
    held = desired(rise, replace(POLICY, max_workers=20))
    assert (held.needed, held.desired, held.limit) == (11, 10, "brief")
    assert held.reason.endswith("not scaled because no job has waited for 1 s")
    late = desired(replace(rise, oldest_wait_seconds=1.0), replace(POLICY, max_workers=20))
    assert (late.desired, late.limit) == (11, None)


def test_a_large_rise_and_the_first_worker_and_slots_of_sinks_are_followed_at_once() -> None:
    wide = replace(POLICY, max_workers=20)
    assert desired(inputs(waiting=20, running=40, current=10, busy=10), wide).desired == 15
    assert desired(inputs(waiting=1, current=0), wide).desired == 1
    # A slot has no job that could wait, and ends only when its pipeline is stopped.
    slots = inputs(waiting=1, running=40, current=10, busy=10, free_slots=1)
    assert desired(slots, wide).desired == 11


def test_scaling_down_goes_in_steps() -> None:
    decision = desired(inputs(current=9), POLICY)
    assert (decision.desired, decision.limit) == (7, "step")


def test_a_busy_worker_is_not_removed() -> None:
    decision = desired(inputs(running=3, current=4, busy=3), replace(POLICY, scale_down_step=9))
    assert (decision.desired, decision.limit) == (3, "busy")


def test_work_that_waits_too_long_asks_for_one_more_worker() -> None:
    late = inputs(waiting=3, running=1, current=2, busy=1, oldest_wait_seconds=21.0)
    assert desired(late, POLICY).desired == 3


def test_a_paused_queue_asks_for_no_worker_for_what_waits() -> None:
    decision = desired(inputs(waiting=1000, current=1, paused=True), POLICY)
    assert decision.desired == 1


def test_whole_quotients_are_not_rounded_up() -> None:
    # 0.8 * 5 = 4 places; 4 / 4.000000000000001 and the like must stay one worker.
    for workers in range(1, 11):
        assert desired(inputs(waiting=4 * workers, current=0), POLICY).needed == workers


@pytest.mark.parametrize("field", ["waiting", "running"])
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 12))
def test_more_demand_never_asks_for_fewer_workers(
    field: str, first: int, second: int, current: int
) -> None:
    less, more = sorted((first, second))
    few = desired(inputs(**{field: less}, current=current), POLICY)
    many = desired(inputs(**{field: more}, current=current), POLICY)
    assert few.desired <= many.desired


@given(
    st.integers(0, 500),
    st.integers(0, 500),
    st.integers(0, 40),
    st.integers(0, 40),
    st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 20)), max_size=5),
)
def test_a_decision_stays_within_the_bounds_and_above_the_busy_workers(
    waiting: int, running: int, current: int, busy: int, history: list[tuple[float, int]]
) -> None:
    busy = min(busy, current, POLICY.max_workers)
    seen = inputs(waiting=waiting, running=running, current=current, busy=busy)
    decision = desired(seen, POLICY, [Need(*each) for each in history])
    assert POLICY.min_workers <= decision.desired <= POLICY.max_workers
    assert decision.desired >= min(busy, current)
    assert decision.desired >= current - POLICY.scale_down_step or current > POLICY.max_workers
    # The highest recent need is all of the history that a decision depends on.
    assert decide(seen, POLICY, decision.recent_need) == decision
