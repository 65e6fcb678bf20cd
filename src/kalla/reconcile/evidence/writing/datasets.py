"""Evidence of a match as Parquet: `matched`, `unmatched_left`, `unmatched_right`, `ambiguous`.

Each dataset has a digest that does not depend on the order of rows, so that runs can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from kalla.reconcile.evidence.writing import (
    differences,
    digests,
    match_ids,
    parquet_writer,
)
from kalla.reconcile.evidence.writing.match_ids import SEPARATOR
from kalla.reconcile.evidence.writing.matched_pairs import PairContext, columns_of
from kalla.reconcile.evidence.writing.matched_pairs import write as write_pairs
from kalla.reconcile.plan import shown_columns
from kalla.reconcile.plan.plan import Plan, RulePlan
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.session.duckdb_engine import streamed
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sources.scanning import scan_sql
from kalla.reconcile.sql.column_values import enum, literal, quote
from kalla.reconcile.unmatched import unmatched_sql
from kalla.storage import join
from kalla.threads import spread

DATASETS = ("matched", "unmatched_left", "unmatched_right", "ambiguous")

# Fewer pairs than this are not worth a file of their own.
_LARGE = 500_000
_ROWS = 122_880  # of a row group
_KEYS = ("record_key", "closest_candidate")  # compress badly
_STATUSES = "ENUM ('confirmed', 'suggested')"
_CARDINALITIES = "ENUM ('1:1', '1:N', 'N:1', 'M:N')"
# High-cardinality columns gain nothing by a dictionary, whose building takes long.
_PARQUET = "FORMAT parquet, COMPRESSION snappy, DICTIONARY_SIZE_LIMIT 5000"


@dataclass(frozen=True)
class Written:
    """One file of a dataset."""

    dataset: str
    url: str
    rows: int
    bytes: int
    digest: int
    left: int  # rows of the left side in it
    right: int
    sha256: str

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
        coded, ways = differences.once(self._session, rule, pairs)
        context = PairContext(rule, datetime.fromisoformat(self._matched_at), ways)
        count = max(1, min(self._session.threads, len(pairs) // _LARGE))
        size = -(-len(pairs) // count)
        names = [
            f"rule-{rule.number}" + (f"-{part + 1}" if count > 1 else "") for part in range(count)
        ]
        with ExitStack() as stack:
            sessions = [self._session.fork() for _ in names]
            for own in sessions:
                stack.callback(own.close)

            def write(part: int) -> Written:
                rows = coded.slice(part * size, size)
                return self._pairs(sessions[part], context, rows, names[part])

            self.written += spread(write, range(count), count)

    def _pairs(
        self, session: MatchSession, context: PairContext, pairs: pa.Table, name: str
    ) -> Written:
        url, rows = self._url("matched", name), len(pairs)
        with session.storage.writing(url) as path:
            digest = write_pairs(session, context, pairs, path)
            file = _File.of(path)
        return Written("matched", url, rows, file.bytes, digest, rows, rows, file.sha256)

    def groups(self, rule: RulePlan, groups: str) -> None:
        """Matches of a rule that may have several rows: the single row of a side is repeated in
        every row of its match; in M:N each row has one key.
        """
        for side in SIDES:
            self._members(side, groups)
        self._grouped(rule, groups)
        sides = {side: shown_columns.of_row(self._session.plan.sides[side], f"{side}_")
                 for side in SIDES}  # fmt: skip
        names = {side: [f"{side}_key", *columns] for side, columns in sides.items()}
        both = shown_columns.named([*names["left"], *names["right"]])
        written = (
            f"SELECT g.*, {both} FROM grouped g JOIN left_members USING (gid)"
            " JOIN right_members USING (gid) WHERE cardinality <> 'M:N'"
        )
        for side in SIDES:
            other = opposite(side)
            # Of the types that they have there.
            none = ", ".join(
                f"(SELECT {quote(name)} FROM {other}_members LIMIT 0) AS {quote(name)}"
                for name in names[other]
            )
            written += (
                f" UNION ALL BY NAME SELECT g.*, {shown_columns.named(names[side])}, {none}"
                f" FROM grouped g JOIN {side}_members USING (gid) WHERE cardinality = 'M:N'"
            )
        columns = dict.fromkeys(columns_of(self._session.plan))
        casts = {
            # What has few values is written as an enum: its dictionary is there already.
            "rule": f"{literal(rule.name)}::ENUM ({literal(rule.name)})",
            "status": f"status::{_STATUSES}",
            "cardinality": f"cardinality::{_CARDINALITIES}",
            "part": "row_number() OVER (PARTITION BY gid"
            " ORDER BY left_key NULLS LAST, right_key)::INTEGER",
            "parts": "parts::INTEGER",
            "interchangeable": "false",
            "fifo": "false",
            "confidence": "CASE WHEN status = 'suggested' THEN 0.5 ELSE 1.0 END::DECIMAL(3, 2)",
            "matched_at": f"TIMESTAMPTZ {literal(self._matched_at)}",
        }
        listed = {name: casts.get(name, quote(name)) for name in columns}
        self._write(
            "matched",
            f"rule-{rule.number}",
            f"SELECT {shown_columns.listed(listed)} FROM ({written})",
        )

    def _members(self, side: Side, groups: str) -> None:
        """`{side}_members`: the rows of a side that are in groups, with their display columns."""
        key, join = self._session.keyed(side, "t", "t.row_id")
        shown = shown_columns.of_row(self._session.plan.sides[side], f"{side}_")
        self._session.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_members AS"
            f" SELECT g.gid, {key} AS {side}_key, {shown_columns.listed(shown)}"
            f" FROM (SELECT gid, row_id AS member FROM {groups} WHERE side = '{side}') g"
            f" JOIN {self._session.all_rows(side)} t ON t.row_id = g.member {join}"
        )

    def _grouped(self, rule: RulePlan, groups: str) -> None:
        """`grouped`: each match, its id, the sums of its sides and their differences."""
        rules = self._session.plan.rules
        keys = [f"array_to_string({side}s, {SEPARATOR})" for side in SIDES]
        match_id = match_ids.of_keys(self._session.plan.recipe, rule.name, *keys) + "::UUID"
        apart = _differences(rules, rule, groups)
        named = "".join(f", a.{quote(each.name)}" for each in differences.columns(rules))
        sums = {
            side: f"SELECT gid, list_sort(list({side}_key)) AS {side}s,"
            f" CASE WHEN count(DISTINCT {side}_currency) <= 1"
            f" THEN sum({side}_amount) END::{shown_columns.sum_type(plan)} AS total"
            f" FROM {side}_members GROUP BY gid"
            for side, plan in self._session.plan.sides.items()
        }
        self._session.run(
            f"""
            CREATE OR REPLACE TEMP TABLE grouped AS
            WITH matches AS (
                SELECT gid, any_value(status) AS status, any_value(cardinality) AS cardinality
                FROM {groups} GROUP BY gid),
            lefts AS ({sums["left"]}),
            rights AS ({sums["right"]}),
            apart AS ({apart})
            SELECT m.*, {match_id} AS match_id, len(lefts) AS left_rows, len(rights) AS right_rows,
                   CASE WHEN cardinality <> '1:1' THEN l.total END AS left_sum,
                   CASE WHEN cardinality <> '1:1' THEN r.total END AS right_sum,
                   CASE WHEN cardinality = 'M:N' THEN len(lefts) + len(rights)
                        ELSE len(lefts) * len(rights) END AS parts{named}
            FROM matches m JOIN lefts l USING (gid) JOIN rights r USING (gid)
            LEFT JOIN apart a ON a.gid = m.gid
            """
        )

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
            shown = {"date": shown_columns.of_row(self._session.plan.sides[side], "")["date"]}
            for each in SIDES:
                plan = self._session.plan.sides[each]
                for name, sql in plan.shown.items():
                    # A row of the other side has nothing there, of the same type.
                    none = f"(SELECT {sql} FROM {self._session.open_rows(each)} LIMIT 0)"
                    column = shown_columns.source_column(each, name)
                    shown[column] = sql if each == side else none
            rows = (
                f"{side}_ambiguous a JOIN {self._session.open_rows(side)} t USING (row_id) {join}"
            )
            self._write_whole("ambiguous", side, columns, shown, rows)

    def unmatched(self, side: Side) -> None:
        """Writes unmatched rows, from the tables of the search for nearest candidates."""
        reasons = enum(unmatched_sql.REASONS)
        no_attempt, no_candidate, taken, sum_failed, failed, no_pair = (
            f"{literal(each)}::{reasons}" for each in unmatched_sql.REASONS
        )
        # Two unmatched rows that fit each other belong to a group whose sums do not.
        untaken = "(failing IS NULL AND status = 'unmatched')"
        if self._session.plan.statement is not None:  # no search was done
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
        shown = {name: quote(name) for name in unmatched_sql.shown(self._session.plan, side)}
        rows = unmatched_sql.by_sql(self._session, side)
        self._write_whole(f"unmatched_{side}", "rows", columns, shown, f"({rows})")

    def _write_whole(
        self,
        dataset: str,
        name: str,
        columns: Mapping[str, str],
        shown: Mapping[str, str],
        rows: str,
    ) -> None:
        """Writes and hashes rows as a stream: `columns` hold the decision, which a row's hash
        covers, and `shown` the display columns.
        """
        every = {**columns, **shown}
        hashed = digests.hash_of_row(columns)
        found = self._session.connection.sql(
            f"SELECT {shown_columns.named(every)}, {digests.halves('h')} FROM"
            f" (SELECT *, {hashed} AS h FROM (SELECT {shown_columns.listed(every)} FROM {rows}))"
        ).to_arrow_reader(_ROWS)
        schema = pa.schema([found.schema.field(each) for each in every])
        url = self._url(dataset, name)
        coded = [each.name for each in schema if pa.types.is_dictionary(each.type)]
        coded.append("attempted_rules.list.element")
        count = digest = 0
        with self._session.storage.writing(url) as path:
            with parquet_writer.writer(
                path, schema, coded=coded, plain=_KEYS, rows=_ROWS
            ) as written:
                for block in streamed(found):
                    digest += digests.sum_of_hashes(block)
                    count += len(block)
                    written.write_batch(block.select(schema.names), _ROWS)
            file = _File.of(path)
        sides = (name, dataset.removeprefix("unmatched_"))
        left, right = (count if side in sides else 0 for side in SIDES)
        self.written.append(
            Written(dataset, url, count, file.bytes, digest, left, right, file.sha256)
        )

    def _write(self, dataset: str, name: str, rows: str) -> None:
        url = self._url(dataset, name)
        with self._session.storage.writing(url) as path:
            (count,) = self._session.row(f"COPY ({rows}) TO {literal(str(path))} ({_PARQUET})")
            # From the file itself: computing its rows twice would take longer.
            digest = digests.of_matches(
                self._session,
                f"(SELECT *, {digests.halves(digests.who_was_matched())}"
                f" FROM {scan_sql.parquet([str(path)])})",
                {each.name: each.text for each in differences.columns(self._session.plan.rules)},
            )
            file = _File.of(path)
        left, right = self._session.row(
            "SELECT coalesce(sum(left_rows), 0)::BIGINT, coalesce(sum(right_rows), 0)::BIGINT"
            " FROM grouped"
        )
        self.written.append(
            Written(dataset, url, count, file.bytes, digest, left, right, file.sha256)
        )

    def _url(self, dataset: str, name: str) -> str:
        ending = f"-{self._task}" if self._task else ""
        return join(self._place, dataset, f"{name}{ending}.parquet")


@dataclass(frozen=True)
class _File:
    """A file as it was written, before it is sent to its place."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> _File:
        return cls(path.stat().st_size, digests.of_file(path))


def _differences(rules: Sequence[RulePlan], rule: RulePlan, groups: str) -> str:
    """A query of gid and all differences: of a group that is a pair, and of what several sum up
    to."""
    sums, deltas = {}, {}
    if rule.sum_check is not None and rule.sum_bound:
        signed = rule.sum_bound.signed("left_amount", "right_amount")
        sums = {rule.sum_check: rule.sum_bound.apart(*signed)}
    for place in differences.of_rule(rule).values():
        delta = rule.checks[place].delta
        if delta is not None:
            deltas[place] = delta
    of_pairs = differences.of_deltas(rules, rule, deltas | sums)
    found = f"SELECT {shown_columns.listed({'gid': 'gid'} | of_pairs)} FROM {groups}_pairs"
    if sums:
        summed = shown_columns.listed({"gid": "gid"} | differences.of_deltas(rules, rule, sums))
        found += f" UNION ALL SELECT {summed} FROM {groups}_sums WHERE cardinality <> '1:1'"
    return found


def _names(plan: Plan) -> str:
    return "[" + ", ".join(literal(rule.name) for rule in plan.rules) + "]"


def _failing(rules: Sequence[RulePlan], untaken: str) -> str:
    """The failing condition of a row and its nearest candidate; the sum, where only the group's sum
    fails.
    """
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
