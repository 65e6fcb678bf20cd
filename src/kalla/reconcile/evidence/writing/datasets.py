"""Evidence of a match as Parquet: `matched`, `unmatched_left`, `unmatched_right`, `ambiguous`.

Each dataset has a digest that does not depend on the order of rows, so that runs can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from kalla.reconcile.evidence.writing import differences_json, digests, match_ids, parquet_writer
from kalla.reconcile.evidence.writing.match_ids import SEPARATOR
from kalla.reconcile.evidence.writing.matched_pairs import Said
from kalla.reconcile.evidence.writing.matched_pairs import write as write_pairs
from kalla.reconcile.plan.plan import Plan, RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session.duckdb_engine import streamed
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sources.scanning import scan_sql
from kalla.reconcile.sql.column_values import enum, literal
from kalla.reconcile.unmatched import unmatched_sql
from kalla.storage import join

DATASETS = ("matched", "unmatched_left", "unmatched_right", "ambiguous")

# Fewer pairs than this are not worth a file of their own.
_LARGE = 500_000
_ROWS = 122_880  # of a row group
_KEYS = ("record_key", "closest_candidate")  # gain little by compression
_STATUSES = "ENUM ('confirmed', 'suggested')"
_CARDINALITIES = "ENUM ('1:1', '1:N', 'N:1', 'M:N')"
# High-cardinality columns gain nothing by a dictionary, whose building takes long.
_PARQUET = "FORMAT parquet, COMPRESSION snappy, DICTIONARY_SIZE_LIMIT 5000"
_CONFIDENCE = (
    "CASE WHEN status = 'suggested' THEN 0.5 WHEN fifo THEN 0.75 ELSE 1.0 END::DECIMAL(3, 2)"
)


@dataclass(frozen=True)
class Written:
    """One file of a dataset."""

    dataset: str
    url: str
    rows: int
    bytes: int
    digest: int
    left: int  # rows of the left side that it tells of
    right: int

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class Evidence:
    """Writes the datasets of one match, or of one task of it, below a URL.

    `task` is in the names of its files, so that no other task, and no other attempt at the same,
    writes to them. Only those that metadata.json names count.
    """

    def __init__(
        self, session: MatchSession, place: str, matched_at: str, *, task: str = ""
    ) -> None:
        self._session = session
        self._place = place
        self._matched_at = matched_at
        self._task = task
        self.written: list[Written] = []

    def fork(self, session: MatchSession) -> Evidence:
        """Writes to the same place, at the same time."""
        return Evidence(session, self._place, self._matched_at, task=self._task)

    def pairs(self, rule: RulePlan, pairs: pa.Table) -> None:
        """As many files as can be written at once."""
        coded, texts = differences_json.once(self._session, rule, pairs)
        said = Said(rule, datetime.fromisoformat(self._matched_at), texts)
        count = max(1, min(self._session.threads, len(pairs) // _LARGE))
        size = -(-len(pairs) // count)
        names = [
            f"rule-{rule.number}" + (f"-{part + 1}" if count > 1 else "") for part in range(count)
        ]
        with ExitStack() as stack:
            sessions = [self._session.fork() for _ in names]
            for own in sessions:
                stack.callback(own.close)
            pool = stack.enter_context(ThreadPoolExecutor(count))
            written = [
                pool.submit(self._pairs, own, said, coded.slice(part * size, size), name)
                for part, (own, name) in enumerate(zip(sessions, names, strict=True))
            ]
            self.written += [each.result() for each in written]

    def _pairs(self, session: MatchSession, said: Said, pairs: pa.Table, name: str) -> Written:
        url, rows = self._url("matched", name), len(pairs)
        with session.storage.writing(url) as path:
            digest = write_pairs(session, said, pairs, path)
            size = path.stat().st_size
        return Written("matched", url, rows, size, digest, rows, rows)

    def groups(self, rule: RulePlan, groups: str) -> None:
        differences = differences_json.spelled(
            (
                rule.checks[place].label,
                rule.sum_bound.difference("left_amount", "right_amount", rule.sum_scale)
                if place == rule.sum_check and rule.sum_bound
                else rule.checks[place].difference,
            )
            for place in rule.pair_checks
        )
        told = f"SELECT gid, {differences} AS differences FROM {groups}_pairs"
        if rule.sum_check is not None and rule.sum_bound:  # of several rows: what their sums do
            of_sums = rule.sum_bound.difference("left_amount", "right_amount", rule.sum_scale)
            summed = differences_json.spelled([(rule.checks[rule.sum_check].label, of_sums)])
            told += f" UNION ALL SELECT gid, {summed} FROM {groups}_sums WHERE cardinality <> '1:1'"
        for side in SIDES:
            where = f"SELECT row_id FROM {groups} WHERE side = '{side}'"
            self._session.keys_table(side, where, f"{side}_keys")
        keyed = " UNION ALL ".join(
            f"SELECT g.*, k.key FROM {groups} g JOIN {side}_keys k USING (row_id)"
            f" WHERE side = '{side}'"
            for side in SIDES
        )
        self._session.run(
            f"CREATE OR REPLACE TEMP TABLE grouped AS"
            f" SELECT gid, any_value(status) AS status, any_value(cardinality) AS cardinality,"
            " list_sort(list(key) FILTER (side = 'left')) AS lefts,"
            " list_sort(list(key) FILTER (side = 'right')) AS rights,"
            f" coalesce(any_value(d.differences), '{{}}') AS differences FROM ({keyed}) g"
            f" LEFT JOIN ({told}) d USING (gid) GROUP BY gid"
        )
        keys = [f"array_to_string({side}s, {SEPARATOR})" for side in SIDES]
        one_right = "cardinality IN ('1:1', 'N:1')"
        one_left = "cardinality IN ('1:1', '1:N')"
        match_id = match_ids.of_keys(self._session.plan.recipe, rule.name, *keys) + "::UUID"
        rest = "status, cardinality, differences, false AS interchangeable, false AS fifo"
        # The single row of a side stands in every row of its match; in M:N each row names one key.
        shapes = (
            ("unnest(lefts)", "rights[1]", one_right),
            ("lefts[1]", "unnest(rights)", f"{one_left} AND NOT ({one_right})"),
            ("unnest(lefts)", "NULL", "cardinality = 'M:N'"),
            ("NULL", "unnest(rights)", "cardinality = 'M:N'"),
        )
        written = " UNION ALL ".join(
            f"SELECT {match_id} AS match_id, {left} AS left_key, {right} AS right_key, {rest}"
            f" FROM grouped WHERE {which}"
            for left, right, which in shapes
        )
        self._matched(rule, written)

    def ambiguous(self) -> None:
        names = _names(self._session.plan)
        for side in SIDES:
            key, join = self._session.keyed(side, "t", "t.row_id")
            columns = {
                "record_key": key,
                "side": literal(side),
                **unmatched_sql.worth(self._session.plan, side),
                "rule": f"{names}[rule + 1]",
                "candidates": "candidates",
                "candidate_count": "candidate_count",
                "reason": "reason",
            }
            rows = (
                f"{side}_ambiguous a JOIN {self._session.open_rows(side)} t USING (row_id) {join}"
            )
            self._write_whole("ambiguous", side, columns, rows)

    def unmatched(self, side: Side) -> None:
        """From what the search for the nearest candidates has left in tables."""
        reasons = enum(unmatched_sql.REASONS)
        no_attempt, no_candidate, taken, sum_failed, failed, no_pair = (
            f"{literal(each)}::{reasons}" for each in unmatched_sql.REASONS
        )
        # Two rows that are left and fit each other are of a group whose sums do not.
        untaken = "(failing IS NULL AND status = 'unmatched')"
        if self._session.plan.statement is not None:  # nobody has looked for one
            no_candidate = no_pair
        columns = {
            "record_key": "record_key",
            "amount": "amount",
            "currency": "currency",
            "attempted_rules": "attempted_rules",
            "closest_candidate": "candidate",
            "candidate_status": "status",
            "rule": "rule",
            "failing_condition": _failing(self._session.plan.rules, untaken),
            "left_value": "left_value",
            "right_value": "right_value",
            "difference": "difference",
            "rejection_reason": f"CASE WHEN unmet THEN {no_attempt}"
            f" WHEN status IS NULL THEN {no_candidate}"
            f" WHEN {untaken} THEN {sum_failed}"
            f" WHEN failing IS NULL THEN {taken} ELSE {failed} END",
        }
        rows = unmatched_sql.by_sql(self._session, side)
        self._write_whole(f"unmatched_{side}", "rows", columns, f"({rows})")

    def _matched(self, rule: RulePlan, rows: str) -> None:
        # What has few values is written as an enum: its dictionary is there already.
        full = (
            f"SELECT match_id, left_key, right_key,"
            f" {literal(rule.name)}::ENUM ({literal(rule.name)}) AS rule,"
            f" status::{_STATUSES} AS status, cardinality::{_CARDINALITIES} AS cardinality,"
            f" differences, interchangeable, fifo, {_CONFIDENCE} AS confidence,"
            f" TIMESTAMPTZ {literal(self._matched_at)} AS matched_at FROM ({rows})"
        )
        self._write("matched", f"rule-{rule.number}", full)

    def _write_whole(self, dataset: str, name: str, columns: Mapping[str, str], rows: str) -> None:
        """Rows of which every column counts: written and hashed as they come, and never held."""
        listed = ", ".join(f"{sql} AS {each}" for each, sql in columns.items())
        hashed = digests.hash_of_row(columns)
        found = self._session.connection.sql(
            f"SELECT {', '.join(columns)}, {digests.halves('h')}"
            f" FROM (SELECT *, {hashed} AS h FROM (SELECT {listed} FROM {rows}))"
        ).to_arrow_reader(_ROWS)
        schema = pa.schema([found.schema.field(each) for each in columns])
        url = self._url(dataset, name)
        coded = [each.name for each in schema if pa.types.is_dictionary(each.type)]
        coded.append("attempted_rules.list.element")
        count = digest = 0
        with self._session.storage.writing(url) as path:
            with parquet_writer.writer(path, schema, coded=coded, plain=_KEYS, rows=_ROWS) as file:
                for block in streamed(found):
                    digest += digests.sum_of_hashes(block)
                    count += len(block)
                    file.write_batch(block.select(schema.names), _ROWS)
            size = path.stat().st_size
        told = (name, dataset.removeprefix("unmatched_"))
        left, right = (count if side in told else 0 for side in SIDES)
        self.written.append(Written(dataset, url, count, size, digest, left, right))

    def _write(self, dataset: str, name: str, rows: str) -> None:
        url = self._url(dataset, name)
        with self._session.storage.writing(url) as path:
            (count,) = self._session.row(f"COPY ({rows}) TO {literal(str(path))} ({_PARQUET})")
            # Of the file itself: to make its rows twice would take longer.
            digest = digests.of_matches(
                self._session,
                f"(SELECT *, {digests.halves(digests.who_was_matched())}"
                f" FROM {scan_sql.parquet([str(path)])})",
            )
            size = path.stat().st_size
        left, right = self._session.row(
            "SELECT coalesce(sum(len(lefts)), 0)::BIGINT, coalesce(sum(len(rights)), 0)::BIGINT"
            " FROM grouped"
        )
        self.written.append(Written(dataset, url, count, size, digest, left, right))

    def _url(self, dataset: str, name: str) -> str:
        ending = f"-{self._task}" if self._task else ""
        return join(self._place, dataset, f"{name}{ending}.parquet")


def _names(plan: Plan) -> str:
    return "[" + ", ".join(literal(rule.name) for rule in plan.rules) + "]"


def _failing(rules: Sequence[RulePlan], untaken: str) -> str:
    """What fails of a row and its closest one; of what fits but for its group, the sum."""
    sums = " ".join(
        f"WHEN {literal(rule.name)} THEN {literal(f'sum({left.column}, {right.column})')}"
        for rule in rules
        if rule.sums
        for left, right in [rule.sums]
    )
    if not sums:
        return "failing"
    named = f"CASE CAST(rule AS VARCHAR) {sums} END"
    return f"CASE WHEN {untaken} THEN {named} ELSE CAST(failing AS VARCHAR) END"
