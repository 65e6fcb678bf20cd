"""The simulation of scaling: as Kubernetes ramps, and what it counts."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from kalla.cli.operate.scaling import app
from kalla.errors import InvalidInput
from kalla.scaling.simulation.controller import Behaviour, HorizontalAutoscaler
from kalla.scaling.simulation.plot import svg
from kalla.scaling.simulation.policies import DEFAULT_POLICY, POLICIES, Machine
from kalla.scaling.simulation.simulate import Result, simulate
from kalla.scaling.simulation.trace import DAY, SHAPES, Trace, load, spikes


def hours(trace: Trace, name: str, first: float, last: float) -> Trace:
    """A part of a trace, all of it measured, that takes no time to simulate."""
    kept = [
        (at - first, seconds)
        for at, seconds in zip(trace.arrivals, trace.seconds, strict=True)
        if first <= at < last
    ]
    arrivals, lengths = zip(*kept, strict=True)
    return Trace(name, arrivals, lengths)


@pytest.fixture(scope="module")
def busy_hours() -> Trace:
    return hours(spikes(), "busy-hours", DAY + 8 * 3600, DAY + 12 * 3600)


@pytest.fixture(scope="module")
def results(busy_hours: Trace) -> dict[str, Result]:
    return {policy: simulate(busy_hours, policy) for policy in POLICIES}


def test_the_ramp_is_the_one_that_was_seen() -> None:
    autoscaler = HorizontalAutoscaler(Behaviour(max_workers=1000))
    current, at, ramp = 1, 0.0, [1]
    while current < 1000:
        current = autoscaler.sync(at, current, 5000.0)
        ramp.append(current)
        at += 15
    assert ramp == [1, 5, 10, 20, 40, 80, 160, 320, 640, 1000]


def test_a_change_within_the_tolerance_is_none() -> None:
    autoscaler = HorizontalAutoscaler(Behaviour())
    assert autoscaler.sync(0.0, 10, 10.9) == 10
    assert autoscaler.sync(15.0, 10, 11.1) == 12


def test_going_down_waits_for_the_window_and_goes_in_steps() -> None:
    autoscaler = HorizontalAutoscaler(
        Behaviour(down_stabilisation_seconds=60, down_pods=2, down_period_seconds=60)
    )
    assert autoscaler.sync(0.0, 10, 10.0) == 10
    assert autoscaler.sync(45.0, 10, 1.0) == 10
    assert autoscaler.sync(75.0, 10, 1.0) == 8
    assert autoscaler.sync(90.0, 8, 1.0) == 8
    assert autoscaler.sync(150.0, 8, 1.0) == 6


def test_the_last_worker_goes_after_the_cooldown_and_the_first_comes_at_once() -> None:
    autoscaler = HorizontalAutoscaler(Behaviour(cooldown_seconds=100))
    assert autoscaler.sync(0.0, 1, 0.5) == 1
    assert autoscaler.sync(90.0, 1, 0.0) == 1
    assert autoscaler.sync(105.0, 1, 0.0) == 0
    assert autoscaler.sync(120.0, 0, 30.0) == 1


def test_a_simulation_is_the_same_each_time(busy_hours: Trace) -> None:
    assert simulate(busy_hours, "demand") == simulate(busy_hours, "demand")


def test_every_job_is_counted_once_whatever_the_policy(
    busy_hours: Trace, results: dict[str, Result]
) -> None:
    for result in results.values():
        assert result.jobs == len(busy_hours.arrivals)
        assert result.unfinished == 0


def test_scaling_by_the_depth_of_the_stream_hits_busy_workers(results: dict[str, Result]) -> None:
    assert results["stream-depth"].busy_hit > 0
    assert results["stream-depth"].wait_p95 > results[DEFAULT_POLICY].wait_p95


def test_the_default_policy_hits_no_busy_worker_and_keeps_waits_short(
    results: dict[str, Result],
) -> None:
    default = results[DEFAULT_POLICY]
    assert default.busy_hit == 0
    assert default.wait_p95 <= 20
    assert default.worker_hours < results["static"].worker_hours
    assert default.worker_hours < results["demand"].worker_hours


def test_the_triggers_on_kubernetes_hit_no_busy_worker() -> None:
    # Eight long jobs fill eight workers, though by their demand three would do.
    arrivals = tuple(float(n) for n in range(40))
    lengths = tuple(3600.0 if n % 5 == 0 else 60.0 for n in range(40))
    trace = Trace("long", arrivals, lengths)
    assert simulate(trace, "demand").busy_hit > 0
    assert simulate(trace, "keda").busy_hit == 0


def test_too_few_workers_leave_jobs_unfinished() -> None:
    flood = Trace("flood", tuple(float(n) for n in range(100)), (600.0,) * 100)
    machine = Machine(concurrency=1, max_workers=2)
    result = simulate(flood, DEFAULT_POLICY, machine)
    # Two places for an hour after the last arrival, ten minutes each.
    assert result.highest == 2
    assert 80 < result.unfinished < 100


def test_a_drain_that_is_too_short_hands_jobs_back_and_they_still_end() -> None:
    # Long jobs among short ones: the depth is zero while they run, so their workers are ended.
    arrivals = tuple(float(n) for n in range(200))
    lengths = tuple(900.0 if n % 10 == 0 else 2.0 for n in range(200))
    result = simulate(Trace("mixed", arrivals, lengths), "stream-depth", Machine(drain_seconds=30))
    assert result.handed_back > 0
    assert simulate(Trace("mixed", arrivals, lengths), DEFAULT_POLICY).handed_back == 0


def test_a_thousand_workers_are_simulated() -> None:
    arrivals = tuple(n / 200 for n in range(60_000))
    result = simulate(Trace("large", arrivals, (30.0,) * 60_000), DEFAULT_POLICY)
    assert result.highest == 1000
    assert result.unfinished == 0


def test_a_plot_is_well_formed(results: dict[str, Result]) -> None:
    drawn = ElementTree.fromstring(svg(results[DEFAULT_POLICY], concurrency=4))  # noqa: S314
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    assert all(len(line.attrib["points"].split()) > 100 for line in lines)


def test_the_first_day_of_a_shape_sets_the_scene_and_another_seed_is_another_trace() -> None:
    for name in ("night-batch", "hourly-batch", "trickle", "long-jobs"):
        trace = SHAPES[name]()
        assert trace.name == name
        assert trace.measure_from == DAY
        assert DAY < trace.end < 2 * DAY
    assert SHAPES["trickle"](1).arrivals != SHAPES["trickle"](2).arrivals


def test_the_default_policy_does_not_pay_for_the_chance_peaks_of_short_jobs() -> None:
    trace = hours(SHAPES["short-jobs"](), "short-jobs", DAY + 12 * 3600, DAY + 14 * 3600)
    default = simulate(trace, DEFAULT_POLICY)
    # What the jobs take if no place is ever empty. To follow every peak took 1.75 times as much.
    least = sum(trace.seconds) / Machine().concurrency / 3600
    assert default.wait_p95 <= 20
    assert default.busy_hit == 0
    assert default.worker_hours <= 1.6 * least


def test_a_trace_is_read_from_a_file_and_simulated_by_the_command(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("at,seconds\n" + "".join(f"{n},5\n" for n in range(60)), "utf-8")
    assert len(load(file).arrivals) == 60
    arguments = ["simulate", "--trace", str(file), "--policy", "demand,static"]
    told = CliRunner().invoke(app, [*arguments, "--plot", str(tmp_path / "plots")])
    assert told.exit_code == 0, told.output
    assert "static" in told.output
    assert "worker-hours" in told.output
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "jobs-demand.svg",
        "jobs-static.svg",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("when,long\n1,2\n", "needs the columns at and seconds"),
        ("at,seconds\n1,soon\n", "is not two numbers"),
        ("at,seconds\n1,-2\n", "must be positive"),
        ("at,seconds\n", "has no jobs"),
    ],
)
def test_a_trace_that_cannot_be_read_is_a_sentence(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(text, "utf-8")
    with pytest.raises(InvalidInput, match=reason):
        load(file)
