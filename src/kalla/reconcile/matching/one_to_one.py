"""1:1 rules. Pairs whose rows have no other partner come from one join; others are contested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.arrays import array_path, compiled_loops
from kalla.reconcile.arrays.arrow_numbers import RowIds, as_column, numbers
from kalla.reconcile.matching import contested_keys
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import conjunction, hashable, key_columns, same_key
from kalla.threads import spread

Rows = list[list[RowIds]]
Found = TypeVar("Found")

# Keys are counted by their hashes, of at most so many bits; those of a bucket that makes more pairs
# than this are not joined row by row.
_MOST_BITS = 22
_BUCKET_PAIRS = 10_000
# More pairs than so many times the rows are not joined row by row either, however they are spread.
_PAIRS_A_ROW = 4


def match(session: MatchSession, rule: RulePlan) -> pa.Table:
    """Match by a 1:1 rule, and settle the rows of its pairs.

    Returns the pairs: left_row_id, right_row_id, both primary keys (lp0…, rp0…), the differences
    of its checks (d…), interchangeable, fifo.
    """
    hot, pairs = "", array_path.pairs(session, rule)
    if pairs is None:
        hot = _find_hot(session, rule)
        pairs = _join(session, rule, hot)
    contested = _contested(session, pairs)
    if hot or contested.any():
        row_ids = [np.concatenate([np.empty(0, np.int64), *each]) for each in _row_ids(pairs)]
        _set_aside(session, rule, [each[contested] for each in row_ids], hot)
        solved = contested_keys.solve(session, rule, _pair_columns(session, rule))
        alone = pairs.filter(pa.array(~contested))
        alone = alone.select(solved.column_names).cast(solved.schema)
        pairs = pa.concat_tables([alone, solved])

    def settle(side: Side, row_ids: list[RowIds]) -> None:
        session.settle_row_ids(side, row_ids, "matched", rule.number)

    _by_side(session, settle, _row_ids(pairs))
    return pairs


def _by_side(
    session: MatchSession, work: Callable[[Side, list[RowIds]], Found], row_ids: Rows
) -> list[Found]:
    """The same for each side, at the same time: what goes through all rows of one uses one core."""
    sides = zip(SIDES, row_ids, strict=True)
    return list(spread(lambda given: work(*given), sides, min(session.threads, len(SIDES))))


def _find_hot(session: MatchSession, rule: RulePlan) -> str:
    """A condition over a row: whether its key may have too many pairs for a join; none is empty."""
    if not key_columns(rule):
        return "true"
    if any(
        rule.holds_key_of(session.plan.sides[side]) and session.ordinals.get(side) is False
        for side in SIDES
    ):
        return ""  # no two rows of that side have one key
    rows_in = sum(int(session.row_status[side].are_open().sum()) for side in SIDES)
    bits = min(_MOST_BITS, 1 + rows_in.bit_length())
    bucket = f"(hash({', '.join(_hashable_key(rule))}) >> {64 - bits})"
    counts = []
    for rows in (session.rule_input(rule, side) for side in SIDES):
        count = np.zeros(1 << bits, np.int32)
        for batch in session.batches(f"SELECT CAST({bucket} AS UINTEGER) FROM {rows}"):
            compiled_loops.count_each(numbers(batch.column(0)), len(batch), count)
        counts.append(count)
    pairs = np.multiply(*counts, dtype=np.int64)
    most = _BUCKET_PAIRS
    if pairs.sum(where=pairs <= most) > _PAIRS_A_ROW * sum(int(count.sum()) for count in counts):
        most = 1
    hot = np.flatnonzero(pairs > most)
    if not len(hot):
        return ""
    session.table("hot_buckets", pa.table({"bucket": hot}))
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


def _join(session: MatchSession, rule: RulePlan, hot: str) -> pa.Table:
    """All pairs of rows that satisfy key and checks, except in hot keys."""
    left, right = (session.rule_input(rule, side) for side in SIDES)
    checks = [rule.checks[place].holds for place in rule.pair_checks]
    condition = conjunction([*same_key(rule), *checks]) if key_columns(rule) else "false"
    cool = f"(SELECT * FROM {left} WHERE NOT ({hot}))" if hot else left
    return session.arrow(
        f"SELECT l.row_id AS left_row_id, r.row_id AS right_row_id, {_pair_columns(session, rule)},"
        f" false AS interchangeable, false AS fifo"
        f" FROM {cool} l JOIN {right} r ON {condition}"
    )


def _pair_columns(session: MatchSession, rule: RulePlan) -> str:
    """The columns that evidence needs of a pair: both primary keys, and the differences of its
    checks.
    """
    keys = [
        f"{letter}.p{place} AS {letter}p{place}"
        for side, letter in zip(SIDES, "lr", strict=True)
        for place in range(len(session.plan.sides[side].primary_key))
    ]
    deltas = [(place, rule.checks[place].delta) for place in rule.pair_checks]
    return ", ".join([*keys, *(f"{sql} AS d{place}" for place, sql in deltas if sql)])


def _row_ids(pairs: pa.Table) -> Rows:
    """Of each side, where they lie."""
    return [
        [numbers(each) for each in pairs.column(name).chunks]
        for name in ("left_row_id", "right_row_id")
    ]


def _contested(session: MatchSession, pairs: pa.Table) -> npt.NDArray[np.bool_]:
    """Pairs with a row that is also in another pair; each other pair is a component of its own."""

    def of_side(side: Side, parts: list[RowIds]) -> npt.NDArray[np.bool_] | None:
        rows = session.row_status[side].rows
        seen = compiled_loops.marks(rows)
        if sum(compiled_loops.mark(row_ids, len(row_ids), 0, seen) for row_ids in parts) == len(
            pairs
        ):
            return None
        together = np.concatenate(parts)
        return np.asarray(np.bincount(together, minlength=rows)[together] > 1)

    contested = np.zeros(len(pairs), np.bool_)
    for found in _by_side(session, of_side, _row_ids(pairs)):
        if found is not None:
            contested |= found
    return contested


def _set_aside(session: MatchSession, rule: RulePlan, contested: list[RowIds], hot: str) -> None:
    """`{side}_contested`: the rows of contested pairs, and of hot keys."""
    for side, row_ids in zip(SIDES, contested, strict=True):
        given = session.rule_input(rule, side)
        chosen = np.zeros(session.row_status[side].rows, np.bool_)
        chosen[row_ids] = True
        session.table("contested_rows", as_column(np.flatnonzero(chosen)))
        which = [f"({hot})"] if hot else []
        which += ["row_id IN (SELECT row_id FROM contested_rows)"] if len(row_ids) else []
        session.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_contested AS SELECT * FROM {given}"
            f" WHERE {' OR '.join(which)}"
        )
