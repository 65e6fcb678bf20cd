"""Evaluates a key: whether the amounts of rows with equal keys agree, and in which groups.

Rows are grouped by the key on both sides; of large tables the groups are those whose key's hash
falls into one of few buckets, so that a group is in the sample as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from kalla.reconcile.propose.column_roles import ColumnFacts
from kalla.reconcile.propose.key_candidates import Form, with_derived
from kalla.reconcile.propose.side_tables import SideTable
from kalla.reconcile.recipe.model import SIDES

SAMPLED_ROWS = 300_000
MOST_AMOUNTS = 8
UNIQUE = 0.95  # of the groups: the key tells rows apart
NEAR = "0.1"  # of an amount: what could still be the same one, less a fee
_FULL = 0.995  # of the groups in which another amount agrees
_SECOND = 0.1  # of the groups: fewer are no pattern
_LEAST_GROUPS = 3
_ALONE = "left_rows = 1 OR right_rows = 1"


@dataclass(frozen=True)
class KeyPart:
    """A column of each side, compared for equality."""

    left: Form
    right: Form


@dataclass(frozen=True)
class AmountPair:
    """Amounts that agree under a key, or nearly do."""

    left: str
    right: str
    is_opposite: bool  # one side has the other sign
    groups: int  # that have both amounts
    equal: int
    near: int

    @property
    def agreeing(self) -> float:
        """The groups that agree. Near ones count half: they may be another amount of about the same
        size."""
        return self.equal + 0.5 * (self.near - self.equal)


@dataclass(frozen=True)
class KeyEvaluation:
    """A key of one or more parts, and its groups in the sample."""

    parts: tuple[KeyPart, ...]
    groups: int
    left_rows: int  # in groups that both sides have
    right_rows: int
    sampled_left: int  # rows with a key, and rows without
    sampled_right: int
    pairable: float  # rows of the shorter side that could each have one of the other
    uniqueness: float
    amounts: tuple[AmountPair, ...]  # the best, and one that agrees where it does not
    agreement: float  # of the amounts, by all of them
    has_amounts: bool  # columns that could be compared, besides the key

    @property
    def left_share(self) -> float:
        return self.left_rows / self.sampled_left if self.sampled_left else 0.0

    @property
    def right_share(self) -> float:
        return self.right_rows / self.sampled_right if self.sampled_right else 0.0

    @property
    def score(self) -> float:
        """The score of the key: joined rows, weighted by the agreement of their amounts."""
        agreement = self.agreement if self.amounts else 0.4 * (not self.has_amounts)
        return self.pairable * self.uniqueness * (0.2 + 0.8 * agreement)


class Sample:
    """The rows of both tables with keys, amounts and dates as comparable values."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        tables: tuple[SideTable, SideTable],
        facts: tuple[list[ColumnFacts], list[ColumnFacts]],
    ) -> None:
        self.connection, self.tables, self.facts = connection, tables, facts
        self.amounts = tuple(_amounts(own) for own in facts)
        self.dates = tuple([each.name for each in own if each.role == "date"] for own in facts)
        self.share = max(1, max(table.rows for table in tables) // SAMPLED_ROWS)
        self._grouped: KeyEvaluation | None = None

    def evaluate(self, parts: Sequence[KeyPart]) -> KeyEvaluation:
        """Group both sides by the key; leaves the rows in left_keyed and right_keyed, and the
        groups in key_groups."""
        if self._grouped is None or self._grouped.parts != tuple(parts):
            self._grouped = self._evaluated(parts)
        return self._grouped

    def _evaluated(self, parts: Sequence[KeyPart]) -> KeyEvaluation:
        for side, table in enumerate(self.tables):
            self._keyed(side, table, [(part.left, part.right)[side] for part in parts])
        sums = [
            f"sum(n{number}) AS n{number}"
            for number in range(max(len(own) for own in self.amounts) or 1)
        ]
        self.connection.execute(
            f"""
            CREATE OR REPLACE TEMP TABLE key_groups AS
            SELECT l.k, l.rows AS left_rows, r.rows AS right_rows,
                   l.* EXCLUDE (k, rows) RENAME ({_renamed("l", len(self.amounts[0]))}),
                   r.* EXCLUDE (k, rows) RENAME ({_renamed("r", len(self.amounts[1]))})
            FROM (SELECT k, count(*) AS rows, {", ".join(sums[: len(self.amounts[0]) or 1])}
                  FROM left_keyed GROUP BY k) l
            JOIN (SELECT k, count(*) AS rows, {", ".join(sums[: len(self.amounts[1]) or 1])}
                  FROM right_keyed GROUP BY k) r ON l.k = r.k
            """
        )
        groups, left, right, least = self._row(
            "SELECT count(*), coalesce(sum(left_rows), 0), coalesce(sum(right_rows), 0),"
            " coalesce(sum(least(left_rows, right_rows)), 0) FROM key_groups"
        )
        sizes = [max(1, table.rows // self.share) for table in self.tables]
        pairs, agreement = self._amount_pairs(parts)
        return KeyEvaluation(
            tuple(parts),
            groups,
            min(int(left), sizes[0]),
            min(int(right), sizes[1]),
            sizes[0],
            sizes[1],
            min(1.0, int(least) / min(sizes)),
            groups / int(least) if least else 0.0,
            pairs,
            agreement,
            bool(self._amount_columns(parts)),
        )

    def _keyed(self, side: int, table: SideTable, forms: Sequence[Form]) -> None:
        rows, values = with_derived(table.name, table, forms)
        key = " || chr(31) || ".join(values)  # null if one part is
        amounts = [
            f"TRY_CAST({table.number(name)} AS DECIMAL(30, 6)) AS n{number}"
            for number, name in enumerate(self.amounts[side])
        ] or ["NULL::DECIMAL(30, 6) AS n0"]
        days = [f"{table.day(name)} AS d{number}" for number, name in enumerate(self.dates[side])]
        bucket = f" AND hash(k) % {self.share} = 0" if self.share > 1 else ""
        # In two steps: a filter over the keys would compute each of them several times.
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE keys AS SELECT rid, {key} AS k FROM {rows}"
        )
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {SIDES[side]}_keyed AS"
            f" SELECT rid, k, {', '.join([*amounts, *days])}"
            f" FROM (FROM keys WHERE k IS NOT NULL{bucket}) JOIN {table.name} USING (rid)"
        )

    def _amount_columns(self, parts: Sequence[KeyPart]) -> list[tuple[int, int]]:
        """Pairs of columns that may be amounts and are no part of the key, by their places."""
        return [
            (left, right)
            for left, own in enumerate(self.amounts[0])
            for right, other in enumerate(self.amounts[1])
            if own not in {part.left.column for part in parts}
            and other not in {part.right.column for part in parts}
        ]

    def values(self, pair: AmountPair) -> tuple[str, str]:
        """The amounts of a group, the right one with the sign of the left one."""
        left = f"l{self.amounts[0].index(pair.left)}"
        right = f"r{self.amounts[1].index(pair.right)}"
        return left, f"(-{right})" if pair.is_opposite else right

    def is_near(self, pair: AmountPair) -> str:
        """Whether the amounts of a group could be the same, less a fee."""
        left, right = self.values(pair)
        return f"coalesce(abs({left} - {right}) <= abs({left}) * {NEAR}, false)"

    def _amount_pairs(self, parts: Sequence[KeyPart]) -> tuple[tuple[AmountPair, ...], float]:
        """The amounts that agree best, and those that agree in the other groups: one side may hold
        debits and credits in two columns, or without a sign."""
        columns = self._amount_columns(parts)
        first = self._best_pair(columns, "true")
        if first is None:
            return (), 0.0
        pairs, groups = [first], first.groups
        if second := self._complement(first, columns):
            values = [" + ".join(self.values(pair)) for pair in (first, second)]
            (groups,) = self._row(
                f"SELECT count(coalesce({values[0]}, {values[1]})) FROM key_groups WHERE {_ALONE}"
            )
            if second.equal >= max(_LEAST_GROUPS, _SECOND * groups):
                pairs.append(second)
            else:
                groups = first.groups
        if not groups or sum(pair.near for pair in pairs) * 2 < groups:
            return (), 0.0
        return tuple(pairs), sum(pair.agreeing for pair in pairs) / groups

    def _complement(
        self, first: AmountPair, columns: Sequence[tuple[int, int]]
    ) -> AmountPair | None:
        """The amounts that agree in most groups where the first do not: the same columns with the
        other sign, or another column of one side where its first one is empty or zero."""
        left, right = self.amounts[0].index(first.left), self.amounts[1].index(first.right)
        rest = f"NOT {self.is_near(first)}"
        found = [
            self._best_pair([(left, right)], rest),
            self._best_pair(
                [each for each in columns if each[0] == left and each[1] != right],
                f"{rest} AND coalesce(r{right}, 0) = 0",
            ),
            self._best_pair(
                [each for each in columns if each[0] != left and each[1] == right],
                f"{rest} AND coalesce(l{left}, 0) = 0",
            ),
        ]
        fitting = [each for each in found if each and each.near * 2 >= each.groups]
        return max(fitting, key=lambda each: each.equal, default=None)

    def _best_pair(self, pairs: Sequence[tuple[int, int]], where: str) -> AmountPair | None:
        """The amounts that agree best in groups that have one row on one side."""
        if not pairs:
            return None
        asked = []
        for left, right in pairs:
            own, other = f"l{left}", f"r{right}"
            asked += [
                f"count({own} + {other})",
                f"count(*) FILTER ({own} = {other})",
                f"count(*) FILTER ({own} = -{other})",
                f"count(*) FILTER (abs({own} - {other}) <= abs({own}) * {NEAR})",
                f"count(*) FILTER (abs({own} + {other}) <= abs({own}) * {NEAR})",
            ]
        found = self._row(f"SELECT {', '.join(asked)} FROM key_groups WHERE ({_ALONE}) AND {where}")
        best: AmountPair | None = None
        for place, (left, right) in enumerate(pairs):
            groups, same, opposite, near, nearly_opposite = found[5 * place : 5 * place + 5]
            turned = opposite > same or (opposite == same and nearly_opposite > near)
            pair = AmountPair(
                self.amounts[0][left],
                self.amounts[1][right],
                turned,
                groups,
                opposite if turned else same,
                nearly_opposite if turned else near,
            )
            if best is None or pair.agreeing * _FULL > best.agreeing:
                best = pair
        return best if best and best.groups else None

    def _row(self, sql: str) -> tuple[Any, ...]:
        return self.connection.execute(sql).fetchone() or ()


def _amounts(facts: Sequence[ColumnFacts]) -> list[str]:
    """Columns that may be amounts: those with cents first, then whole numbers."""
    with_cents = [each.name for each in facts if each.role == "amount"]
    whole = [each.name for each in facts if each.role == "integer" and not each.may_be_unique]
    unique = [each.name for each in facts if each.role == "integer" and each.may_be_unique]
    return [*with_cents, *whole, *unique][:MOST_AMOUNTS]


def _renamed(side: str, count: int) -> str:
    return ", ".join(f"n{number} AS {side}{number}" for number in range(count or 1))
