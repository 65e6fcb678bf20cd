"""Flaws at the border: input that is not refused, secrets that are kept."""

from __future__ import annotations

from tests.mutations.mutant import mutant

JOB_TYPES = "work/job_type.py"
DOCUMENT = "work/document.py"
FIELD = "test_bad_input.py::test_a_job_that_makes_no_sense_names_the_field"
REPORT = "test_bad_input.py::test_a_report_that_cannot_be_kept_fails_in_the_handler_that_made_it"

INPUT = (
    mutant(
        "a secret in a payload is kept",
        JOB_TYPES,
        'for path in secrets_in(job.payload, "payload"):',
        'for path in secrets_in({}, "payload"):',
        "test_bad_input.py::test_a_secret_in_the_clear_is_refused_and_not_repeated",
        trap=17,
    ),
    mutant(
        "a secret in a key is kept",
        JOB_TYPES,
        "for _ in secrets_in(key, name):",
        'for _ in secrets_in("", name):',
        "test_bad_input.py::test_a_key_that_holds_a_secret_is_refused",
        trap=17,
    ),
    mutant(
        "a secret in an error is kept",
        "work/state/jobs.py",
        '"error": _clip(scrub(error)),',
        '"error": _clip(error),',
        "test_lost_jobs.py::test_an_error_is_kept_with_its_traceback_and_without_its_secrets",
        trap=17,
    ),
    mutant(
        "a secret in a traceback is kept",
        "work/state/jobs.py",
        "_storable(scrub(traceback)[-_LONGEST_ERROR:])",
        "_storable(traceback[-_LONGEST_ERROR:])",
        "test_lost_jobs.py::test_an_error_is_kept_with_its_traceback_and_without_its_secrets",
        trap=17,
    ),
    mutant(
        "a payload of any size is kept",
        JOB_TYPES,
        "if size > limit:",
        "if size > limit * 1000:",
        FIELD,
    ),
    mutant(
        "a negative timeout is accepted",
        JOB_TYPES,
        "not (0 < value <= _LONGEST_SECONDS and math.isfinite(value))",
        "not (value <= _LONGEST_SECONDS and math.isfinite(value))",
        FIELD,
    ),
    mutant(
        "no suggestion is made",
        JOB_TYPES,
        "if near else f\"known: {', '.join(self.types)}\"",
        "if not self else f\"known: {', '.join(self.types)}\"",
        FIELD,
    ),
    mutant(
        "not-a-number reaches the database",
        DOCUMENT,
        "allow_nan=False",
        "allow_nan=True",
        REPORT,
    ),
    mutant(
        "a NUL reaches the database",
        DOCUMENT,
        "if _NUL.search(text):",
        "if not text:",
        REPORT,
    ),
    mutant(
        "a result is not looked at before it is kept",
        "work/job.py",
        "if self.result is not None:",
        "if self.rows < 0:",
        REPORT,
    ),
    mutant(
        "a bad job is left out of its batch",
        JOB_TYPES,
        "        if problems:\n            raise InvalidInput(*problems)\n",
        "",
        "test_bad_input.py::test_one_bad_job_keeps_its_whole_batch_out",
    ),
    mutant(
        "an error text that cannot be kept",
        "work/state/jobs.py",
        '.encode("utf-8", "replace").decode()',
        "",
        "test_lost_jobs.py::test_any_error_text_can_be_kept",
    ),
    mutant(
        "a last line of a CSV that is too long is left out",
        "reconcile/sources/formats/csv_quotes.py",
        "> LONGEST_LINE:\n",
        "> 1 << 60:\n",
        "tests/integration/reconcile/test_csv_row_counts.py"
        "::test_a_long_last_line_is_refused_and_not_left_out",
    ),
    mutant(
        "a group that repeats may take an emoji",
        "spark/sandbox/regex/tries.py",
        "    if any(map(_recurs, _repeats(pattern))):\n",
        "    if False:\n",
        "tests/unit/test_sandbox_patterns.py::test_a_pattern_that_may_run_for_years_is_refused",
    ),
)
