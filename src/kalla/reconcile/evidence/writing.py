"""Evidence of a match as Parquet: `matched`, `unmatched_left`, `unmatched_right`, `ambiguous`.

Each dataset has a digest that does not depend on the order of rows, so that runs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from kalla.reconcile.evidence import identity, leftovers, leftovers_in_hand, parquet, spelling
from kalla.reconcile.evidence.identity import SEPARATOR, WORD, Words
from kalla.reconcile.evidence.leftovers_in_hand import Leftovers
from kalla.reconcile.evidence.pairs import Said
from kalla.reconcile.evidence.pairs import write as write_pairs
from kalla.reconcile.matching.engine import streamed
from kalla.reconcile.matching.fates import numbers
from kalla.reconcile.matching.values import enum, literal
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import Plan, RulePlan
from kalla.reconcile.sources import scans

DATASETS = ("matched", "unmatched_left", "unmatched_right", "ambiguous")

# Fewer pairs than this are not worth a file of their own.
_LARGE = 500_000
_ROWS = 122_880  # of a row group
_KEYS = ("record_key", "closest_candidate")  # gain little by compression
_HALF, _BITS = np.uint64(2**32 - 1), np.uint64(32)
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
    path: str
    rows: int
    bytes: int
    digest: int
    left: int  # rows of the left side that it tells of
    right: int


class Evidence:
    """Writes the datasets of one match into a folder."""

    def __init__(self, bench: Workbench, folder: Path, matched_at: str) -> None:
        self._bench = bench
        self._folder = folder
        self._matched_at = matched_at
        self.written: list[Written] = []

    def beside(self, bench: Workbench) -> Evidence:
        """Writes into the same folder, at the same time."""
        return Evidence(bench, self._folder, self._matched_at)

    def pairs(self, rule: RulePlan, pairs: pa.Table) -> None:
        """As many files as can be written at once."""
        coded, texts = spelling.once(self._bench, rule, pairs)
        said = Said(rule, datetime.fromisoformat(self._matched_at), texts)
        count = max(1, min(self._bench.threads, len(pairs) // _LARGE))
        size = -(-len(pairs) // count)
        names = [
            f"rule-{rule.number}" + (f"-{part + 1}" if count > 1 else "") for part in range(count)
        ]
        with ExitStack() as stack:
            benches = [self._bench.beside() for _ in names]
            for own in benches:
                stack.callback(own.close)
            pool = stack.enter_context(ThreadPoolExecutor(count))
            written = [
                pool.submit(self._pairs, own, said, coded.slice(part * size, size), name)
                for part, (own, name) in enumerate(zip(benches, names, strict=True))
            ]
            self.written += [each.result() for each in written]

    def _pairs(self, bench: Workbench, said: Said, pairs: pa.Table, name: str) -> Written:
        path = self._path("matched", name)
        digest = write_pairs(bench, said, pairs, path)
        if digest is None:
            digest = _digest_of_matches(bench, path, pairs_alone=True)
        rows = len(pairs)
        return Written("matched", str(path), rows, path.stat().st_size, digest, rows, rows)

    def groups(self, rule: RulePlan, groups: str) -> None:
        differences = spelling.spelled(
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
            summed = spelling.spelled([(rule.checks[rule.sum_check].label, of_sums)])
            told += f" UNION ALL SELECT gid, {summed} FROM {groups}_sums WHERE cardinality <> '1:1'"
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
            f" coalesce(any_value(d.differences), '{{}}') AS differences FROM ({keyed}) g"
            f" LEFT JOIN ({told}) d USING (gid) GROUP BY gid"
        )
        keys = (
            f"array_to_string(lefts, {SEPARATOR}), {SEPARATOR}, {SEPARATOR},"
            f" array_to_string(rights, {SEPARATOR})"
        )
        one_right = "cardinality IN ('1:1', 'N:1')"
        one_left = "cardinality IN ('1:1', '1:N')"
        match_id = identity.of_keys(self._bench.plan.recipe, rule.name, keys) + "::UUID"
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
        names = _names(self._bench.plan)
        for side in SIDES:
            key, join = self._bench.keyed(side, "t", "t.rid")
            columns = {
                "record_key": key,
                "side": literal(side),
                **leftovers.worth(self._bench.plan, side),
                "rule": f"{names}[rule + 1]",
                "candidates": "candidates",
                "candidate_count": "candidate_count",
                "reason": "reason",
            }
            rows = f"{side}_ambiguous a JOIN {self._bench.left_over(side)} t USING (rid) {join}"
            self._write_whole("ambiguous", side, columns, rows)

    def unmatched(self, side: Side, told: Sequence[Leftovers] | None = None) -> None:
        """From what is told of them, or else from what the search for the closest has left."""
        if told is not None:
            self._write_told(side, told)
            return
        reasons = enum(leftovers.REASONS)
        no_attempt, no_candidate, taken, sum_failed, failed, no_pair = (
            f"{literal(each)}::{reasons}" for each in leftovers.REASONS
        )
        # Two rows that are left and fit each other are of a group whose sums do not.
        untaken = "(failing IS NULL AND status = 'unmatched')"
        if self._bench.plan.statement is not None:  # nobody has looked for one
            no_candidate = no_pair
        columns = {
            "record_key": "record_key",
            "amount": "amount",
            "currency": "currency",
            "attempted_rules": "attempted_rules",
            "closest_candidate": "candidate",
            "candidate_status": "status",
            "rule": "rule",
            "failing_condition": _failing(self._bench.plan.rules, untaken),
            "left_value": "left_value",
            "right_value": "right_value",
            "difference": "difference",
            "rejection_reason": f"CASE WHEN unmet THEN {no_attempt}"
            f" WHEN status IS NULL THEN {no_candidate}"
            f" WHEN {untaken} THEN {sum_failed}"
            f" WHEN failing IS NULL THEN {taken} ELSE {failed} END",
        }
        rows = leftovers.by_sql(self._bench, side)
        self._write_whole(f"unmatched_{side}", "rows", columns, f"({rows})")

    def _write_told(self, side: Side, told: Sequence[Leftovers]) -> None:
        schema = leftovers_in_hand.schema(self._bench, side)
        blocks = (block for each in told for block in each.blocks(schema, _ROWS))
        self._write_blocks(f"unmatched_{side}", "rows", schema, blocks)

    def _matched(self, rule: RulePlan, rows: str) -> None:
        # What has few values is written as an enum: its dictionary is there already.
        full = (
            f"SELECT match_id, left_key, right_key,"
            f" {literal(rule.name)}::ENUM ({literal(rule.name)}) AS rule,"
            f" status::{_STATUSES} AS status, cardinality::{_CARDINALITIES} AS cardinality,"
            f" differences, interchangeable, fifo, {_CONFIDENCE} AS confidence,"
            f" TIMESTAMPTZ {literal(self._matched_at)} AS matched_at FROM ({rows})"
        )
        self._write(
            "matched",
            f"rule-{rule.number}",
            full,
            lambda path: _digest_of_matches(self._bench, path),
        )

    def _write_whole(self, dataset: str, name: str, columns: Mapping[str, str], rows: str) -> None:
        """Rows of which every column counts: written and hashed as they come, and never held."""
        listed = ", ".join(f"{sql} AS {each}" for each, sql in columns.items())
        said = f", {SEPARATOR}, ".join(
            f"coalesce(CAST({each} AS VARCHAR), '∅')" for each in columns
        )
        found = self._bench.connection.sql(
            f"SELECT {', '.join(columns)}, {_halves('h')}"
            f" FROM (SELECT *, md5_number(concat({said})) AS h FROM (SELECT {listed} FROM {rows}))"
        ).to_arrow_reader(_ROWS)
        schema = pa.schema([found.schema.field(each) for each in columns])
        self._write_blocks(dataset, name, schema, map(_hashed, streamed(found)))

    def _write_blocks(
        self,
        dataset: str,
        name: str,
        schema: pa.Schema,
        blocks: Iterable[tuple[pa.RecordBatch, int]],
    ) -> None:
        """Blocks of rows, each with the sum of their hashes."""
        path = self._path(dataset, name)
        coded = [each.name for each in schema if pa.types.is_dictionary(each.type)]
        coded.append("attempted_rules.list.element")
        count = digest = 0
        with parquet.writer(path, schema, coded=coded, plain=_KEYS, rows=_ROWS) as file:
            for block, hashes in blocks:
                digest += hashes
                count += len(block)
                file.write_batch(block.select(schema.names), _ROWS)
        told = (name, dataset.removeprefix("unmatched_"))
        left, right = (count if side in told else 0 for side in SIDES)
        size = path.stat().st_size
        self.written.append(Written(dataset, str(path), count, size, digest, left, right))

    def _write(self, dataset: str, name: str, rows: str, digest: Callable[[Path], int]) -> None:
        path = self._path(dataset, name)
        (count,) = self._bench.row(f"COPY ({rows}) TO {literal(str(path))} ({_PARQUET})")
        found = digest(path) if count else 0
        left, right = self._bench.row(
            "SELECT coalesce(sum(len(lefts)), 0)::BIGINT, coalesce(sum(len(rights)), 0)::BIGINT"
            " FROM grouped"
        )
        size = path.stat().st_size
        self.written.append(Written(dataset, str(path), count, size, found, left, right))

    def _path(self, dataset: str, name: str) -> Path:
        folder = self._folder / dataset
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.parquet"


def combined(digests: Sequence[int]) -> str:
    return f"{sum(digests) % 2**128:032x}"


def _digest_of_matches(bench: Workbench, path: Path, *, pairs_alone: bool = False) -> int:
    """The sum of every row's hash, which `docs/reconcile.md` defines, from the file itself.

    A row's hash is a product: of who was matched, and of how. Of the latter there are few, so what
    is hashed row by row is hashed already: the match_id.
    """
    who = (
        "CAST(match_id AS UHUGEINT)"
        if pairs_alone
        else "CASE WHEN cardinality = '1:1' THEN CAST(match_id AS UHUGEINT)"
        f" ELSE md5_number(concat_ws({SEPARATOR}, CAST(match_id AS VARCHAR),"
        " coalesce(left_key, '∅'), coalesce(right_key, '∅'))) END"
    )
    how = (
        f"concat_ws({SEPARATOR}, rule, status, cardinality, differences)"
        " || CASE WHEN interchangeable THEN 'i' WHEN fifo THEN 'f' ELSE '' END"
    )
    summed = (
        f"SELECT md5_number({how}) AS how, sum(high) AS high, sum(low) AS low FROM"
        f" (SELECT rule, status, cardinality, differences, interchangeable, fifo, {_halves('who')}"
        f" FROM (SELECT *, {who} AS who FROM {scans.parquet([str(path)])}))"
        " GROUP BY rule, status, cardinality, differences, interchangeable, fifo"
    )
    batches = bench.batches(
        f"SELECT ((high + (low >> 64)) & {WORD})::UBIGINT, (low & {WORD})::UBIGINT,"
        f" (how >> 64)::UBIGINT, (how & {WORD})::UBIGINT | 1 FROM ({summed})"
    )
    return sum(sum_of_products(*map(numbers, batch.columns)) for batch in batches)


def _hashed(block: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Rows, and the sum of their hashes, which they have in two words."""
    high, low = (_exact(numbers(block.column(each))) for each in ("high", "low"))
    return block, (high << 64) + low


def _halves(number: str) -> str:
    """Two words, for a sum of the whole would overflow."""
    return f"({number} >> 64)::UBIGINT AS high, ({number} & {WORD}::UHUGEINT)::UBIGINT AS low"


def sum_of_products(high: Words, low: Words, by_high: Words, by_low: Words) -> int:
    """Of numbers of two words each with numbers of two words each, modulo 2^128."""
    upper = int((high * by_low + low * by_high).sum())  # overflows as it should
    return (upper << 64) + sum(
        _exact(first * second) << places
        for first, places_of_first in ((low & _HALF, 0), (low >> _BITS, 32))
        for second, places in (
            (by_low & _HALF, places_of_first),
            (by_low >> _BITS, places_of_first + 32),
        )
    )


def _exact(words: Words) -> int:
    return int((words & _HALF).sum()) + (int((words >> _BITS).sum()) << 32)


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
