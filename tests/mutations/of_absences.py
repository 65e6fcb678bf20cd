"""Flaws of waiting for what is away: counted, stale, or for ever."""

from __future__ import annotations

from tests.mutations.mutant import mutant
from tests.mutations.of_jobs import MODEL, NOT_CLAIMED, OLD_FENCE, SQL

FILE = "test_absences.py::"
LASTING = f"{FILE}test_an_absence_that_lasts_counts_as_a_failure_and_the_attempts_end_it"
PAUSES = f"{FILE}test_pauses_grow_with_the_absence_up_to_half_a_minute_and_with_jitter"
ANEW = f"{FILE}test_an_absence_begins_anew_after"
WITHIN = "moment.now < away_since + make_interval(secs => %(patience)s)"

ABSENCES = (
    mutant(
        "a job is put off without its fence",
        f"{SQL}#put_off",
        "AND fence = %(fence)s AND status = 'claimed'",
        "AND status = 'claimed'",
        f"{OLD_FENCE}[put off]",
        trap=9,
    ),
    mutant(
        "a job is put off that is not claimed",
        f"{SQL}#put_off",
        "AND fence = %(fence)s AND status = 'claimed'",
        "AND fence = %(fence)s",
        NOT_CLAIMED,
        trap=9,
    ),
    mutant(
        "a job waits for ever for what is away",
        f"{SQL}#put_off",
        WITHIN,
        "true",
        LASTING,
        trap=7,
    ),
    mutant(
        "a job waits for ever for what is away, before the model",
        f"{SQL}#put_off",
        WITHIN,
        "true",
        MODEL,
        trap=7,
    ),
    mutant(
        "a job that kills what it needs is put off like others",
        f"{SQL}#put_off",
        "OR NOT %(broke_off)s AND moment",
        "OR moment",
        f"{FILE}test_what_breaks_off_under_a_job_again_and_again_counts_every_second_time",
        trap=7,
    ),
    mutant(
        "what broke off once counts as a failure",
        f"{SQL}#put_off",
        "(away_since IS NULL\n           OR NOT %(broke_off)s AND",
        "NOT %(broke_off)s AND (away_since IS NULL OR",
        f"{FILE}test_what_does_not_come_back_between_is_one_absence",
    ),
    mutant(
        "every answer begins the absence anew",
        f"{SQL}#put_off",
        "coalesce(away_since, moment.now)",
        "moment.now",
        LASTING,
        trap=7,
    ),
    mutant(
        "a drain begins the absence anew",
        f"{SQL}#hand_back",
        "SET status = 'pending', due",
        "SET status = 'pending', away_since = NULL, due",
        f"{FILE}test_a_drain_does_not_prolong_an_absence",
        trap=7,
    ),
    mutant(
        "what is away counts as a failure",
        f"{SQL}#put_off",
        "SET status = 'pending', due",
        "SET status = 'pending', failures = failures + 1, due",
        f"{FILE}test_a_job_that_is_put_off_counts_no_failure_and_keeps_counting_fences",
    ),
    mutant(
        "no worker waits for what is away",
        "work/services/settling.py",
        "            if patience:\n",
        "            if patience < 0:\n",
        f"{FILE}test_a_worker_tries_again_until_what_was_away_is_back",
    ),
    mutant(
        "a failure leaves the absence behind it as it was",
        f"{SQL}#fail",
        "        away_since = NULL,\n",
        "",
        LASTING,
    ),
    mutant(
        "a loss leaves the absence before it as it was",
        f"{SQL}#reap",
        "away_since = NULL, ",
        "",
        f"{ANEW}[a loss]",
    ),
    mutant(
        "a retry by hand leaves the absence before it as it was",
        f"{SQL}#retry",
        "away_since = NULL, ",
        "",
        f"{ANEW}[a retry by hand]",
    ),
    mutant(
        "a retry of a run leaves the absences before it as they were",
        "work/state/runs.sql#revive_jobs",
        "away_since = NULL, ",
        "",
        f"{ANEW}[a retry of its run]",
    ),
    mutant(
        "pauses do not grow with an absence",
        f"{SQL}#put_off",
        "backoff_seconds, extract(epoch FROM moment.now - away_since)::double precision",
        "backoff_seconds",
        PAUSES,
    ),
    mutant(
        "pauses of an absence grow without end",
        f"{SQL}#put_off",
        "%(longest)s, ",
        "",
        PAUSES,
    ),
    mutant(
        "who waits for the same comes back in step",
        f"{SQL}#put_off",
        "(0.5 + 0.5 * random())",
        "1.0",
        PAUSES,
    ),
    mutant(
        "two jobs wait under one key, for one was put off",
        f"{SQL}#put_off",
        "AND other.status = 'pending') THEN dedupe_key END",
        "AND other.status = 'none') THEN dedupe_key END",
        f"{FILE}test_a_job_that_is_put_off_while_its_like_waits_gives_its_key_up",
    ),
)
