"""Flaws that an attack would use: texts that hold the API, links, rows that stop the others."""

from __future__ import annotations

from tests.mutations.mutant import mutant

TABLES = "tests/integration/web/test_hostile_tables.py::"
CONNECTIONS = "tests/integration/web/test_connections.py::"
EVIDENCE = "tests/integration/web/test_hostile_evidence.py::"

ATTACKS = (
    mutant(
        "the SQL of a table is read without an end",
        "spark/sandbox/grammar.py",
        "        self._steps -= 1\n",
        "",
        "tests/unit/tables/test_definitions.py::test_a_short_query_cannot_hold_its_parser",
    ),
    mutant(
        "each open bracket of a pattern is searched for its end",
        "pattern_size.py",
        "break  # RE2",
        "continue  # RE2",
        "tests/unit/test_pattern_size.py::test_what_is_opened_again_and_again_is_looked_at_once",
    ),
    mutant(
        "texts of any length are compared",
        "text_diff.py",
        "_MOST_PAIRS: Final = 250_000",
        "_MOST_PAIRS: Final = 10**12",
        "tests/unit/test_text_diff.py"
        "::test_long_texts_that_agree_in_every_second_line_are_counted_alone",
    ),
    mutant(
        "an operator names the folder of a source",
        "tables/http/routes.py",
        'if not command.caller.may("admin"):',
        'if command.caller.may("nothing"):  # type: ignore[arg-type]',
        f"{TABLES}test_an_operator_learns_nothing_about_a_folder_that_no_admin_named",
    ),
    mutant(
        "a link out of the folder of a source is followed",
        "tables/sources/snapshots.py",
        "            _demand_file(name, path, folder)\n",
        "",
        f"{TABLES}test_a_source_does_not_follow_a_link_out_of_its_folder_nor_wait_for_a_pipe[link]",
    ),
    mutant(
        "commands may take all connections",
        "app/api.py",
        "max(1, settings.database.pool_size - 3)",
        "1000",
        "tests/integration/web/test_idempotency.py"
        "::test_commands_that_wait_for_another_server_leave_connections_for_the_rest",
    ),
    mutant(
        "the code of a login link is kept in the clear",
        "web/commands.py",
        'is_kept = response.headers.get("cache-control") != NOT_KEPT',
        "is_kept = True",
        "tests/integration/web/test_idempotency.py"
        "::test_the_code_of_a_login_link_is_not_kept_with_its_key",
    ),
    mutant(
        "each byte of a body gives it another minute",
        "app/connection_limits.py",
        "self._body_until += len(data) / _LEAST_RATE",
        "self._body_until = now + self._limits.body_seconds",
        f"{CONNECTIONS}test_a_body_that_drips_is_closed_in_time[still read]",
    ),
    mutant(
        "nobody waits with an end for a client to read",
        "app/connection_limits.py",
        "self.loop.call_later(self._limits.read_seconds,",
        "self.loop.call_later(3600,",
        f"{CONNECTIONS}test_who_asks_for_much_and_does_not_read_is_closed_in_time",
    ),
    mutant(
        "imported evidence counts unreadable rows without a bound",
        "reconcile/evidence/reading/source_warnings.py",
        "filtered_unread: Rows =",
        "filtered_unread: int =",
        f"{EVIDENCE}test_what_no_run_writes_is_refused[fewer unreadable rows than none]",
    ),
    mutant(
        "a row that always collides stops the rows after it",
        "work/service.py",
        "if self._collided[row] < _MOST_COLLISIONS:",
        "if self._collided[row] < 1000:",
        "test_bad_rows.py"
        "::test_a_row_is_set_aside_for_a_while_and_a_server_that_is_away_is_not_its_fault",
    ),
    mutant(
        "a sentence about bearers is a secret",
        "redaction.py",
        "_KALLA_TOKEN, _SENT_BEARER,",
        "_KALLA_TOKEN, _BEARER,",
        "tests/unit/test_redaction.py"
        "::test_a_sentence_about_bearers_holds_no_secret_and_a_header_does",
    ),
    mutant(
        "what looks ahead is not tried where a repetition gives back",
        "spark/sandbox/regex/tries.py",
        'signs, after = (after, 0) if node.kind == "ahead" else (0, after)',
        'if node.kind == "ahead":\n        return after or EVERY\n    signs = 0',
        "tests/unit/test_sandbox_patterns.py::test_a_pattern_that_may_run_for_years_is_refused",
    ),
    mutant(
        "only the SQL's own signs of LIKE are counted",
        "spark/sandbox/searches.py",
        "pattern.find(exp.Column, exp.Query) is not None",
        "False",
        "tests/unit/test_sandbox_patterns.py"
        "::test_the_signs_of_a_pattern_that_a_row_brings_are_counted_in_each_row",
    ),
    mutant(
        "a line of a file that is copied may have any length",
        "reconcile/sources/formats/converted_files.py",
        "text.readline(LONGEST_LINE + 1)",
        "text.readline()[:LONGEST_LINE]",
        "tests/integration/reconcile/test_csv_row_counts.py"
        "::test_a_long_line_of_a_file_that_is_copied_is_not_held_in_memory",
    ),
)
