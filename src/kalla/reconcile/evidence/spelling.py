"""The differences of a match as JSON that names each check.

Pairs of rows differ in few ways, so that each way is spelled once, and rows refer to it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from kalla.reconcile.matching import values
from kalla.reconcile.matching.conditions import Check
from kalla.reconcile.matching.values import Value, literal
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.plan import RulePlan

# More ways than this are spelled row by row; so many rows tell whether to count them all.
FEW = 5_000
_SAMPLE = 100_000


def of_pairs(bench: Workbench, rule: RulePlan, pairs: str) -> tuple[str, str]:
    """The differences of pairs `p`, and the join that they need."""
    checks = [(place, rule.checks[place]) for place in rule.pair_checks]
    text = spelled((check.label, _shown(check, f"d{place}")) for place, check in checks)
    deltas = [f"d{place}" for place, check in checks if check.delta]
    if not deltas:
        return text, ""
    listed = ", ".join(deltas)
    ways = f"ways_{rule.number}"
    for rows in (f"(FROM {pairs} LIMIT {_SAMPLE})", pairs):
        bench.run(
            f"CREATE OR REPLACE TEMP TABLE {ways} AS SELECT DISTINCT {listed} FROM {rows}"
            f" LIMIT {FEW + 1}"
        )
        (count,) = bench.row(f"SELECT count(*) FROM {ways}")
        if not 0 < count <= FEW:
            return text, ""
    # As an enum: what is written is a dictionary, which need not be found again row by row.
    bench.run(f"CREATE TYPE spelled_{rule.number} AS ENUM (SELECT DISTINCT {text} FROM {ways})")
    bench.run(
        f"CREATE TEMP TABLE spelled_{rule.number} AS"
        f" SELECT {listed}, ({text})::spelled_{rule.number} AS text FROM {ways}"
    )
    same = " AND ".join(f"s.{each} IS NOT DISTINCT FROM p.{each}" for each in deltas)
    return "s.text", f"JOIN spelled_{rule.number} s ON {same}"


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
    return values.shown(Value("", "number", check.scale), delta) if check.delta else "'0'"
