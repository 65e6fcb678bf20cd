"""1:1 rules. Pairs whose rows have no other partner come from one join; the rest is a crowd."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile import loops
from kalla.reconcile.matching import addressed, crowds
from kalla.reconcile.matching.fates import Rids, as_column, numbers
from kalla.reconcile.matching.phrases import conjunction, hashable, key_columns, same_key
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import RulePlan

Rows = list[list[Rids]]
Found = TypeVar("Found")

# Keys are counted by their hashes, of at most so many bits; those of a bucket that makes more pairs
# than this are not joined row by row.
_MOST_BITS = 22
_BUCKET_PAIRS = 10_000
# More pairs than so many times the rows are not joined row by row either, however they are spread.
_PAIRS_A_ROW = 4


def match(bench: Workbench, rule: RulePlan) -> pa.Table:
    """Carry a 1:1 rule out. Returns its pairs, whose rows have left: lrid, rrid, both primary keys
    (lp0…, rp0…), by how much checks were missed (d…), interchangeable, fifo."""
    hot, pairs = "", _by_address(bench, rule)
    if pairs is None:
        hot = _find_hot(bench, rule)
        pairs = _join(bench, rule, hot)
    doubtful = _doubtful(bench, pairs)
    if hot or doubtful.any():
        rids = [np.concatenate([np.empty(0, np.int64), *each]) for each in _rids(pairs)]
        _set_aside(bench, rule, [each[doubtful] for each in rids], hot)
        solved = crowds.solve(bench, rule, _said(bench, rule))
        alone = pairs.filter(pa.array(~doubtful))
        alone = alone.select(solved.column_names).cast(solved.schema)
        pairs = pa.concat_tables([alone, solved])

    def settle(side: Side, rids: list[Rids]) -> None:
        bench.settle_rids(side, rids, "matched", rule.number)

    _by_side(bench, settle, _rids(pairs))
    return pairs


def _by_side(
    bench: Workbench, work: Callable[[Side, list[Rids]], Found], rids: Rows
) -> list[Found]:
    """The same for each side, at the same time: what goes through all rows of one uses one core."""
    with ThreadPoolExecutor(min(bench.threads, len(SIDES))) as pool:
        return list(pool.map(work, SIDES, rids))


def _find_hot(bench: Workbench, rule: RulePlan) -> str:
    """A condition over a row: whether its key may have too many pairs for a join; none is empty."""
    if not key_columns(rule):
        return "true"
    if any(_is_primary(bench, rule, side) for side in SIDES):
        return ""
    rows_in = sum(bench.fates[side].rows for side in SIDES)
    bits = min(_MOST_BITS, 1 + rows_in.bit_length())
    bucket = f"(hash({', '.join(_hashable_key(rule))}) >> {64 - bits})"
    counts = []
    for rows in (bench.admit(rule, side) for side in SIDES):
        count = np.zeros(1 << bits, np.int64)
        for batch in bench.batches(f"SELECT CAST({bucket} AS UINTEGER) FROM {rows}", len(count)):
            count += np.bincount(numbers(batch.column(0)), minlength=len(count))
        counts.append(count)
    pairs = counts[0] * counts[1]
    most = _BUCKET_PAIRS
    if pairs[pairs <= most].sum() > _PAIRS_A_ROW * (counts[0].sum() + counts[1].sum()):
        most = 1
    hot = np.flatnonzero(pairs > most)
    if not len(hot):
        return ""
    bench.table("hot_buckets", pa.table({"bucket": hot}))
    return f"{bucket} IN (SELECT bucket FROM hot_buckets)"


def _hashable_key(rule: RulePlan) -> list[str]:
    """The key's columns, so that what is equal has one hash: they are of one kind on both sides."""
    parts = {
        f"v{place}": hashable(
            *(replace(rule.checks[place].of(side), sql=f"v{place}") for side in SIDES)
        )[0]
        for place in rule.key
    }
    return [parts.get(name, name) for name in key_columns(rule)]


def _is_primary(bench: Workbench, rule: RulePlan, side: Side) -> bool:
    """Whether a rule's key holds the primary key of a side, of which no two rows are alike."""
    compared = {check.of(side).sql for check in rule.checks if check.is_key}
    primary = {value.sql for value in bench.plan.sides[side].primary_key}
    return primary <= compared and bench.ordinals.get(side) is False


def _by_address(bench: Workbench, rule: RulePlan) -> pa.Table | None:
    for side in SIDES:
        if _is_primary(bench, rule, side):
            found = addressed.join(bench, rule, side)
            if found is not None:
                return found
    return None


def _join(bench: Workbench, rule: RulePlan, hot: str) -> pa.Table:
    """All pairs of rows that satisfy key and checks, but for hot keys."""
    left, right = (bench.admit(rule, side) for side in SIDES)
    checks = [rule.checks[place].holds for place in rule.pair_checks]
    condition = conjunction([*same_key(rule), *checks]) if key_columns(rule) else "false"
    cool = f"(SELECT * FROM {left} WHERE NOT ({hot}))" if hot else left
    return bench.arrow(
        f"SELECT l.rid AS lrid, r.rid AS rrid, {_said(bench, rule)},"
        f" false AS interchangeable, false AS fifo"
        f" FROM {cool} l JOIN {right} r ON {condition}"
    )


def _said(bench: Workbench, rule: RulePlan) -> str:
    """What evidence needs of a pair: both primary keys, and by how much its checks were missed."""
    keys = [
        f"{letter}.p{place} AS {letter}p{place}"
        for side, letter in zip(SIDES, "lr", strict=True)
        for place in range(len(bench.plan.sides[side].primary_key))
    ]
    deltas = [(place, rule.checks[place].delta) for place in rule.pair_checks]
    return ", ".join([*keys, *(f"{sql} AS d{place}" for place, sql in deltas if sql)])


def _rids(pairs: pa.Table) -> Rows:
    """Of each side, where they lie."""
    return [[numbers(each) for each in pairs.column(name).chunks] for name in ("lrid", "rrid")]


def _doubtful(bench: Workbench, pairs: pa.Table) -> npt.NDArray[np.bool_]:
    """Which pairs have a row that is in another pair too: the others are a component each."""

    def of_side(side: Side, parts: list[Rids]) -> npt.NDArray[np.bool_] | None:
        rows = bench.fates[side].rows
        seen = loops.marks(rows)
        if sum(loops.mark(rids, len(rids), 0, seen) for rids in parts) == len(pairs):
            return None
        together = np.concatenate(parts)
        return np.asarray(np.bincount(together, minlength=rows)[together] > 1)

    doubtful = np.zeros(len(pairs), np.bool_)
    for found in _by_side(bench, of_side, _rids(pairs)):
        if found is not None:
            doubtful |= found
    return doubtful


def _set_aside(bench: Workbench, rule: RulePlan, doubtful: list[Rids], hot: str) -> None:
    """`{side}_crowd`: the rows of doubtful pairs, and of hot keys."""
    for side, rids in zip(SIDES, doubtful, strict=True):
        given = bench.admit(rule, side)
        chosen = np.zeros(bench.fates[side].rows, np.bool_)
        chosen[rids] = True
        bench.table("doubtful", as_column(np.flatnonzero(chosen)))
        which = [f"({hot})"] if hot else []
        which += ["rid IN (SELECT rid FROM doubtful)"] if len(rids) else []
        bench.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_crowd AS SELECT * FROM {given}"
            f" WHERE {' OR '.join(which)}"
        )
