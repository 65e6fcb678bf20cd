"""Every script passes: ours on any checkout, Prometheus' own where they lie beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.promqltest.runner import run

OURS = sorted((Path(__file__).parent / "scripts").glob("*.test"))
SHARED = Path(__file__).parents[3] / "shared" / "promqltest"


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_scripts_hold_however_they_are_asked(path: Path) -> None:
    outcome = run([path], shards=3, thorough=True)

    assert [str(failure) for failure in outcome.failures] == []
    assert outcome.passed > 0
    assert not outcome.skipped


@pytest.mark.skipif(not SHARED.is_dir(), reason="Prometheus' scripts are not beside this checkout")
def test_every_float_evaluation_of_prometheus_scripts_passes() -> None:
    outcome = run(sorted(SHARED.glob("*.test")))

    assert [str(failure) for failure in outcome.failures] == []
    assert outcome.passed > 600
    assert set(outcome.skipped) <= {"native histogram"}


def test_a_wrong_expectation_fails_with_file_line_and_both_values(tmp_path: Path) -> None:
    script = tmp_path / "wrong.test"
    script.write_text("load 1m\n  m 1\n\neval instant at 0 m + 1\n  {} 3\n")

    outcome = run([script])

    assert str(outcome) == "0 passed, 1 failed, 0 skipped"
    assert str(outcome.failures[0]) == (
        f"{script}:4: m + 1: expected [{{}} 3.0@0], got [{{}} 2.0@0]"
    )


def test_a_block_that_cannot_be_read_fails_and_the_rest_is_run(tmp_path: Path) -> None:
    script = tmp_path / "broken.test"
    script.write_text("load 1m\n  m 1x\n\nevil\n\neval instant at 0 1\n  1\n")

    outcome = run([script])

    assert str(outcome) == "1 passed, 2 failed, 0 skipped"
    assert "not a value: 1x" in str(outcome.failures[0])


def test_what_meets_a_native_histogram_is_skipped_by_that_rule(tmp_path: Path) -> None:
    script = tmp_path / "native.test"
    script.write_text(
        "load 1m\n  h {{schema:0 sum:1 count:1}}\n\neval instant at 0 h\n\n"
        "eval instant at 0 vector(1)\n  {} {{schema:0}}\n"
    )

    assert run([script]).skipped == {"native histogram": 2}


def test_an_evaluation_that_crashes_fails_and_the_rest_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr("kalla.query.operators.label_functions.LabelReplace.compute", crash)
    script = tmp_path / "crash.test"
    query = 'label_replace(vector(1), "a", "b", "", "")'
    script.write_text(f"eval instant at 0 {query}\n  {{}} 1\n\neval instant at 0 1\n  1\n")

    outcome = run([script])

    assert str(outcome) == "1 passed, 1 failed, 0 skipped"
    assert str(outcome.failures[0]) == (
        f"{script}:1: {query}: expected no crash, got ZeroDivisionError: by chance"
    )


def test_a_script_that_cannot_be_opened_fails_and_the_others_are_run(tmp_path: Path) -> None:
    script = tmp_path / "there.test"
    script.write_text("eval instant at 0 1\n  1\n")

    assert str(run([tmp_path / "missing.test", script])) == "1 passed, 1 failed, 0 skipped"
