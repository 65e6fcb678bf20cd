"""The differences of a match as JSON that names each check.

Pairs of rows differ in few ways, so that each way is spelled once, and rows refer to it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.session import compiled_loops
from kalla.reconcile.session.column_arrays import Held, typed
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.row_status import as_column, numbers
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Value, literal
from kalla.reconcile.sql.conditions import Check

# More ways than this are spelled row by row; so many rows tell whether to count them all.
FEW = 5_000
_SAMPLE = 100_000
_COUNTED = 1 << 20  # possible ways: with more of them, those that occur are not counted by place


def of_pairs(rule: RulePlan) -> str:
    """The differences of pairs, from their deltas."""
    checks = [(place, rule.checks[place]) for place in rule.pair_checks]
    return spelled((check.label, _shown(check, f"d{place}")) for place, check in checks)


def once(
    session: MatchSession, rule: RulePlan, pairs: pa.Table
) -> tuple[pa.Table, list[str] | None]:
    """Pairs with the number of the way in which they differ, and the texts of all ways; without
    them where the ways are many."""
    if not len(pairs):  # Arrow cannot join no chunks of a dictionary
        return pairs.append_column("way", pa.array([], pa.int32())), []
    deltas = [f"d{place}" for place in rule.pair_checks if rule.checks[place].delta]
    columns = []
    for name in deltas:
        coded = _coded(pairs.column(name))
        if coded is None:
            return pairs, None
        columns.append(coded)
    parts = [column.chunk(0).dictionary for column in columns]
    count = math.prod(map(len, parts))
    if not 0 < count < 2**63:
        return pairs, None
    codes: Held = np.zeros(len(pairs), np.int64)
    if count <= _COUNTED:
        codes = np.zeros(len(pairs), np.int32)
    for part, column in zip(parts, columns, strict=True):
        codes *= len(part)
        _add(codes, column)
    found = _numbered(codes, count)
    if found is None:
        return pairs, None
    numbers_of_ways, which = found
    ways: dict[str, pa.Array] = {"way": pa.array(range(len(which)))}
    for name, differences in zip(reversed(deltas), reversed(parts), strict=True):
        which, here = np.divmod(which, len(differences))
        ways[name] = differences.take(pa.array(here))
    session.connection.register("ways", pa.table(ways))
    texts = session.rows(f"SELECT {of_pairs(rule)} FROM ways ORDER BY way")
    session.connection.unregister("ways")
    return pairs.append_column("way", numbers_of_ways), [text for (text,) in texts]


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


def spelled(differences: Iterable[tuple[str, str]]) -> str:
    """An expression of the JSON that names each check and its difference, a number as text."""
    seen: Counter[str] = Counter()
    parts = []
    for label, sql in differences:
        seen[label] += 1
        name = label if seen[label] == 1 else f"{label} #{seen[label]}"
        parts.append(f'{json.dumps(name, ensure_ascii=False)}: "\0{sql}\0"')
    pieces = ("{" + ", ".join(parts) + "}").split("\0")
    return f"concat({', '.join(literal(p) if n % 2 == 0 else p for n, p in enumerate(pieces))})"


def _shown(check: Check, delta: str) -> str:
    return column_values.shown(Value("", check.apart, check.scale), delta) if check.delta else "'0'"
