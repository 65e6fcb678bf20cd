"""The differences of a match: a column per check, with the amount of the difference.

Pairs differ in few distinct ways, so each way is stored once, and rows refer to it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.arrays import compiled_loops
from kalla.reconcile.arrays.arrow_numbers import as_column, numbers
from kalla.reconcile.arrays.column_arrays import Held, typed
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Value, quote

# More ways than this are computed row by row; a sample of this many rows decides.
FEW = 5_000
_SAMPLE = 100_000
_COUNTED = 1 << 20  # possible ways: with more of them, those that occur are not counted by place
_SHORT = 18  # digits of a decimal that is written as a whole number
_MOST_DIGITS = 38


@dataclass(frozen=True)
class DifferenceColumn:
    """Amounts are decimals; days and similarities whole numbers; durations are texts."""

    name: str
    type: str
    scale: int = 0
    digits: int = 0  # of an amount

    @property
    def text(self) -> str:
        """Its value as digests have it: a number without zeros at its end, nothing as `∅`."""
        shown = column_values.shown(Value("", "number", self.scale), quote(self.name))
        return f"coalesce({shown if self.digits else f'CAST({quote(self.name)} AS VARCHAR)'}, '∅')"


@dataclass(frozen=True)
class Ways:
    """The ways in which pairs differ, by number: each difference as a column; and `way` with each
    difference as digests have it."""

    columns: pa.Table
    texts: pa.Table


def columns(rules: Sequence[RulePlan]) -> tuple[DifferenceColumn, ...]:
    """Of all rules, in the order of their checks. Rules that compare alike share a column."""
    found: dict[str, DifferenceColumn] = {}
    for rule in rules:
        for name, place in of_rule(rule).items():
            mine = _column(rule, name, place)
            found[name] = _together(found.get(name, mine), mine)
    return tuple(found.values())


def of_rule(rule: RulePlan) -> dict[str, int]:
    """The place of the check that each column is of."""
    seen: Counter[str] = Counter()
    found = {}
    for place in rule.pair_checks:
        check = rule.checks[place]
        if check.delta is None:  # it holds or it does not
            continue
        seen[check.label] += 1
        more = "" if seen[check.label] == 1 else f" #{seen[check.label]}"
        # One rule may compare days where another compares points in time.
        found[f"difference.{check.label}{'' if check.apart == 'number' else ' time'}{more}"] = place
    return found


def _column(rule: RulePlan, name: str, place: int) -> DifferenceColumn:
    check = rule.checks[place]
    if check.bound is None:
        return DifferenceColumn(name, "BIGINT" if check.apart == "number" else "VARCHAR")
    is_summed = place == rule.sum_check
    scale = max(check.scale, rule.sum_scale) if is_summed else check.scale
    digits = max(check.left.whole, check.right.whole) + 1 + scale
    return _amount(name, scale, _SHORT if digits <= _SHORT and not is_summed else _MOST_DIGITS)


def _amount(name: str, scale: int, digits: int) -> DifferenceColumn:
    return DifferenceColumn(name, f"DECIMAL({digits}, {scale})", scale, digits)


def _together(one: DifferenceColumn, other: DifferenceColumn) -> DifferenceColumn:
    if not one.digits:
        return one
    return _amount(one.name, max(one.scale, other.scale), max(one.digits, other.digits))


def of_pairs(rules: Sequence[RulePlan], rule: RulePlan) -> dict[str, str]:
    """All columns of pairs of one rule, as SQL over their deltas."""
    return of_deltas(rules, rule, {place: f"d{place}" for place in of_rule(rule).values()})


def of_deltas(
    rules: Sequence[RulePlan], rule: RulePlan, deltas: Mapping[int, str]
) -> dict[str, str]:
    """All columns of matches of one rule, as SQL, from what checks differ by; others are null."""
    places = of_rule(rule)
    found = {}
    for each in columns(rules):
        place = places.get(each.name)
        if place is None or place not in deltas:
            found[each.name] = f"CAST(NULL AS {each.type})"
        elif each.type == "VARCHAR":
            kind = rule.checks[place].apart
            found[each.name] = column_values.shown(Value("", kind), deltas[place])
        else:
            found[each.name] = f"CAST({deltas[place]} AS {each.type})"
    return found


def once(session: MatchSession, rule: RulePlan, pairs: pa.Table) -> tuple[pa.Table, Ways | None]:
    """Pairs with the number of the way in which they differ, and all ways; without them where the
    ways are many."""
    deltas = [f"d{place}" for place in of_rule(rule).values()]
    if not len(pairs):  # Arrow cannot join no chunks of a dictionary
        none = pairs.select(deltas).append_column("way", pa.array([], pa.int32()))
        return pairs.append_column("way", pa.array([], pa.int32())), _ways(session, rule, none)
    coded_columns = []
    for name in deltas:
        coded = _coded(pairs.column(name))
        if coded is None:
            return pairs, None
        coded_columns.append(coded)
    parts = [column.chunk(0).dictionary for column in coded_columns]
    count = math.prod(map(len, parts))
    if not 0 < count < 2**63:
        return pairs, None
    codes: Held = np.zeros(len(pairs), np.int64)
    if count <= _COUNTED:
        codes = np.zeros(len(pairs), np.int32)
    for part, column in zip(parts, coded_columns, strict=True):
        codes *= len(part)
        _add(codes, column)
    found = _numbered(codes, count)
    if found is None:
        return pairs, None
    numbers_of_ways, which = found
    ways: dict[str, pa.Array] = {"way": pa.array(range(len(which)))}
    for name, values in zip(reversed(deltas), reversed(parts), strict=True):
        which, here = np.divmod(which, len(values))
        ways[name] = values.take(pa.array(here))
    return pairs.append_column("way", numbers_of_ways), _ways(session, rule, pa.table(ways))


def _ways(session: MatchSession, rule: RulePlan, ways: pa.Table) -> Ways:
    session.connection.register("ways", ways)
    made = of_pairs(session.plan.rules, rule)
    listed = ", ".join(f"{sql} AS {quote(name)}" for name, sql in made.items())
    texts = ", ".join(f"{each.text} AS {quote(each.name)}" for each in columns(session.plan.rules))
    own = session.arrow(f"SELECT {', '.join(filter(None, ['way', listed]))} FROM ways ORDER BY way")
    session.connection.register("ways", own)
    named = ", ".join(filter(None, ["way", texts]))
    found = session.arrow(f"SELECT {named} FROM ways ORDER BY way")
    session.connection.unregister("ways")
    return Ways(own.drop(["way"]).combine_chunks(), found)


def _add(codes: Held, column: pa.ChunkedArray) -> None:
    """To each code, which of the distinct values of a column its row has."""
    first = 0
    for chunk in column.chunks:
        codes[first : first + len(chunk)] += numbers(chunk.indices)
        first += len(chunk)


def _numbered(codes: Held, count: int) -> tuple[pa.Array, npt.NDArray[np.int64]] | None:
    """Each code's number among those that occur, and these codes; none if they are many."""
    if count <= _COUNTED:
        marks = compiled_loops.marks(count)
        if compiled_loops.mark(codes, len(codes), 0, marks) > FEW:
            return None
        seen = np.unpackbits(marks.view(np.uint8), count=count, bitorder="little")
        order = np.cumsum(seen, dtype=np.int32) - np.int32(1)
        compiled_loops.look_up(
            codes, len(codes), order, codes
        )  # where they lie: there are as many as rows
        return typed(codes, pa.int32()), np.flatnonzero(seen)
    found = _coded(as_column(codes).column(0))
    if found is None:
        return None
    whole = found.combine_chunks()
    return whole.indices, numbers(whole.dictionary)


def _coded(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Which of its distinct values each is, the same in all chunks; none if they are many."""
    if pa.types.is_dictionary(column.type):
        found = column.unify_dictionaries()
        return found if len(found.chunk(0).dictionary) <= FEW else None
    for rows in (column.slice(0, _SAMPLE), column):
        found = rows.dictionary_encode().unify_dictionaries()
        if len(found.chunk(0).dictionary) > FEW:
            return None
    return found
