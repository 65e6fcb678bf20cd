"""Evidence of a match as Parquet: `matched`, `unmatched_left`, `unmatched_right`, `ambiguous`.

Each dataset has a digest that does not depend on the order of rows, so that runs can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import Plan, RulePlan
from kalla.reconcile.values import literal
from kalla.reconcile.workbench import Workbench

DATASETS = ("matched", "unmatched_left", "unmatched_right", "ambiguous")

_SEPARATOR = "chr(31)"
_CONFIDENCE = (
    "CASE WHEN status = 'suggested' THEN 0.5 WHEN fifo THEN 0.75 ELSE 1.0 END::DECIMAL(3, 2)"
)


@dataclass(frozen=True)
class Written:
    """One file of a dataset."""

    dataset: str
    path: str
    rows: int
    bytes: int
    digest: int


class Evidence:
    """Writes the datasets of one match into a folder."""

    def __init__(self, bench: Workbench, folder: Path, matched_at: str) -> None:
        self._bench = bench
        self._folder = folder
        self._matched_at = matched_at
        self.written: list[Written] = []

    def pairs(self, rule: RulePlan, pairs: str) -> None:
        left, left_join = self._bench.keyed("left", "l", "lrid")
        right, right_join = self._bench.keyed("right", "r", "rrid")
        differences = [rule.checks[place].difference for place in rule.pair_checks]
        rows = (
            f"SELECT {left} AS left_key, {right} AS right_key, {literal(rule.name)} AS rule,"
            " 'confirmed' AS status, '1:1' AS cardinality,"
            f" {_list(differences)} AS differences, interchangeable, fifo"
            f" FROM {pairs} {left_join} {right_join}"
        )
        keys = f"left_key, {_SEPARATOR}, right_key"
        self._matched(rule, f"SELECT {self._match_id(rule, keys)} AS match_id, * FROM ({rows})")

    def groups(self, rule: RulePlan, groups: str) -> None:
        differences = [
            rule.sum_bound.difference("left_amount", "right_amount", rule.sum_scale)
            if place == rule.sum_check and rule.sum_bound
            else rule.checks[place].difference
            for place in rule.pair_checks
        ]
        for side in SIDES:
            where = f"SELECT rid FROM {groups} WHERE side = '{side}'"
            self._bench.keys_table(side, where, f"{side}_keys")
        keyed = " UNION ALL ".join(
            f"SELECT g.*, k.key FROM {groups} g JOIN {side}_keys k USING (rid)"
            f" WHERE side = '{side}'"
            for side in SIDES
        )
        self._bench.run(
            f"CREATE OR REPLACE TEMP TABLE grouped AS"
            f" SELECT gid, any_value(status) AS status, any_value(cardinality) AS cardinality,"
            " list_sort(list(key) FILTER (side = 'left')) AS lefts,"
            " list_sort(list(key) FILTER (side = 'right')) AS rights,"
            f" coalesce(any_value(d.differences), []) AS differences FROM ({keyed}) g"
            f" LEFT JOIN (SELECT gid, {_list(differences)} AS differences FROM {groups}_pairs) d"
            " USING (gid) GROUP BY gid"
        )
        keys = (
            f"array_to_string(lefts, {_SEPARATOR}), {_SEPARATOR}, {_SEPARATOR},"
            f" array_to_string(rights, {_SEPARATOR})"
        )
        one_right = "cardinality IN ('1:1', 'N:1')"
        one_left = "cardinality IN ('1:1', '1:N')"
        match_id = self._match_id(rule, keys)
        rest = (
            f"{literal(rule.name)} AS rule, status, cardinality, differences,"
            " false AS interchangeable, false AS fifo"
        )
        # The single row of a side stands in every row of its match; in M:N each row names one key.
        shapes = (
            ("unnest(lefts)", "rights[1]", one_right),
            ("lefts[1]", "unnest(rights)", f"{one_left} AND NOT ({one_right})"),
            ("unnest(lefts)", "NULL", "cardinality = 'M:N'"),
            ("NULL", "unnest(rights)", "cardinality = 'M:N'"),
        )
        rows = " UNION ALL ".join(
            f"SELECT {match_id} AS match_id, {left} AS left_key, {right} AS right_key, {rest}"
            f" FROM grouped WHERE {which}"
            for left, right, which in shapes
        )
        self._matched(rule, rows)

    def ambiguous(self) -> None:
        names = _names(self._bench.plan)
        for side in SIDES:
            key, join = self._bench.keyed(side, "t", "t.rid")
            rows = (
                f"SELECT {key} AS record_key, '{side}' AS side, {names}[rule + 1] AS rule,"
                " candidates, candidate_count, reason"
                f" FROM {side}_ambiguous a JOIN {side}_rows t USING (rid) {join}"
                f" WHERE rid NOT IN (SELECT rid FROM {side}_gone)"
            )
            self._write("ambiguous", side, rows)

    def unmatched(self, side: Side) -> None:
        bench, other = self._bench, "right" if side == "left" else "left"
        names = _names(bench.plan)
        key, join = bench.keyed(side, "t", "t.rid")
        near = (
            f"SELECT * FROM {side}_near"
            " QUALIFY row_number() OVER (PARTITION BY rid ORDER BY satisfied DESC, rule) = 1"
        )
        tried = (
            f"SELECT rid, list_transform(list_sort(list(rule)), lambda n: {names}[n + 1]) AS rules"
            f" FROM {side}_tried GROUP BY rid"
        )
        status = (
            "CASE WHEN g.status IS NOT NULL THEN g.status WHEN a.rid IS NOT NULL THEN 'ambiguous'"
            " WHEN n.other IS NOT NULL THEN 'unmatched' END"
        )
        reason = (
            "CASE WHEN tried.rules IS NULL THEN 'not_attempted'"
            " WHEN n.rid IS NULL THEN 'no_candidate'"
            " WHEN n.failing IS NULL THEN 'taken' ELSE 'condition_failed' END"
        )
        amount = bench.plan.sides[side].amount
        shown_amount = amount.sql if amount else "NULL"
        self._write(
            f"unmatched_{side}",
            "rows",
            f"SELECT {key} AS record_key, {shown_amount} AS amount,"
            " coalesce(tried.rules, []) AS attempted_rules, n.candidate AS closest_candidate,"
            f" {status} AS candidate_status, {names}[n.rule + 1] AS rule,"
            " n.failing AS failing_condition, n.left_value, n.right_value, n.difference,"
            f" {reason} AS rejection_reason"
            f" FROM {side}_unmatched u JOIN {side}_rows t USING (rid) {join}"
            f" LEFT JOIN ({near}) n ON n.rid = u.rid"
            f" LEFT JOIN ({tried}) tried ON tried.rid = u.rid"
            f" LEFT JOIN {other}_gone g ON g.rid = n.other"
            f" LEFT JOIN {other}_ambiguous a ON a.rid = n.other",
        )

    def _match_id(self, rule: RulePlan, keys: str) -> str:
        """The same on every run: made of the recipe, the rule and the keys."""
        head = literal(f"{self._bench.plan.recipe}\x1f{rule.name}\x1f")
        return f"md5_number(concat({head}, {keys}))::UUID"

    def _matched(self, rule: RulePlan, rows: str) -> None:
        full = (
            f"SELECT match_id, left_key, right_key, rule, status, cardinality, differences,"
            f" interchangeable, fifo, {_CONFIDENCE} AS confidence FROM ({rows})"
        )
        extra = f"TIMESTAMPTZ {literal(self._matched_at)} AS matched_at"
        self._write("matched", f"rule-{rule.number}", full, extra)

    def _write(self, dataset: str, name: str, rows: str, unhashed: str | None = None) -> None:
        """Write a file, and hash each row in a text form: what the digest is the sum of."""
        folder = self._folder / dataset
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.parquet"
        columns = [
            str(column) for column, *_ in self._bench.rows(f"DESCRIBE SELECT * FROM ({rows})")
        ]
        picked = "*" if unhashed is None else f"*, {unhashed}"
        (count,) = self._bench.row(
            f"COPY (SELECT {picked} FROM ({rows})) TO {literal(str(path))}"
            " (FORMAT parquet, COMPRESSION zstd)"
        )
        digest = _digest(self._bench, rows, columns) if count else 0
        self.written.append(Written(dataset, str(path), count, path.stat().st_size, digest))


def combined(digests: Sequence[int]) -> str:
    return f"{sum(digests) % 2**128:032x}"


def _digest(bench: Workbench, rows: str, columns: Sequence[str]) -> int:
    text = f", {_SEPARATOR}, ".join(
        f"coalesce(CAST({column} AS VARCHAR), '∅')" for column in columns
    )
    high, low = bench.row(
        "SELECT sum((h >> 64)::UBIGINT), sum((h & 18446744073709551615::UHUGEINT)::UBIGINT)"
        f" FROM (SELECT md5_number(concat({text})) AS h FROM ({rows}))"
    )
    return (int(high) << 64) + int(low)


def _names(plan: Plan) -> str:
    return "[" + ", ".join(literal(rule.name) for rule in plan.rules) + "]"


def _list(texts: Sequence[str]) -> str:
    return "[" + ", ".join(texts) + "]" if texts else "CAST([] AS VARCHAR[])"
