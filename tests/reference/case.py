"""A case: a sentence of the definition of a match, the smallest data that shows it, and the
evidence expected, worked out by hand. With the words to write one in a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from kalla.reconcile.recipe.model import (
    AnyCondition,
    Bounds,
    Cardinality,
    Comparison,
    Csv,
    DateWindow,
    Equal,
    Fuzzy,
    Recipe,
    Rule,
    Side,
    Source,
    Sources,
    Text,
    Tolerance,
)
from tests.reference.evidence import (
    CANDIDATES_LISTED,
    Ambiguous,
    Fate,
    Matched,
    Reason,
    Result,
    Status,
    Table,
    Type,
    Unmatched,
    Value,
)

# The type a column has unless its header says otherwise ("amount:text"), by its name.
TYPES: dict[str, Type] = {
    "id": "text",
    "no": "integer",
    "ref": "text",
    "note": "text",
    "cur": "text",
    "amount": "decimal",
    "qty": "integer",
    "day": "date",
    "at": "timestamp",
}


@dataclass(frozen=True)
class Case:
    name: str
    sentence: str
    recipe: Recipe
    left_rows: Table
    right_rows: Table
    expected: Result


def left(header: str, *rows: Sequence[object]) -> Table:
    return _table("", header, rows)


def right(header: str, *rows: Sequence[object]) -> Table:
    """The right side's columns are called as the left's, with an r before."""
    return _table("r", header, rows)


def _table(prefix: str, header: str, rows: Sequence[Sequence[object]]) -> Table:
    columns: dict[str, Type] = {}
    for word in header.split():
        name, _, given = word.partition(":")
        columns[prefix + name] = given or TYPES[name]  # type: ignore[assignment]
    return Table(
        columns,
        [
            {name: _value(each, columns[name]) for name, each in zip(columns, row, strict=True)}
            for row in rows
        ],
    )


def _value(written: object, column: Type) -> Value:
    if written is None:
        return None
    match column:
        case "text":
            return str(written)
        case "integer":
            return int(str(written))
        case "decimal":
            return Decimal(str(written))
        case "date":
            return date.fromisoformat(str(written))
        case "timestamp":
            return datetime.fromisoformat(str(written))


def recipe(
    *rules: Rule,
    keys: str = "id",
    currency: str | None = None,
    amount: str | None = None,
    time_zone: str = "UTC",
    bounds: Bounds | None = None,
    csv: Csv | None = None,
) -> Recipe:
    return Recipe(
        name="a case",
        time_zone=time_zone,
        sources=Sources(
            left=Source(
                uri="left.csv",
                primary_key=tuple(keys.split()),
                amount=amount,
                currency=currency,
                csv=csv or Csv(),
            ),
            right=Source(
                uri="right.csv",
                primary_key=tuple(f"r{each}" for each in keys.split()),
                amount=f"r{amount}" if amount else None,
                currency=f"r{currency}" if currency else None,
                csv=csv or Csv(),
            ),
        ),
        rules=rules,
        bounds=bounds or Bounds(),
    )


def rule(
    *conditions: AnyCondition, name: str = "r", cardinality: Cardinality = "1:1", **more: object
) -> Rule:
    return Rule.model_validate(
        {"name": name, "cardinality": cardinality, "conditions": conditions, **more}
    )


def _columns(left_column: str, right_column: str | None) -> dict[str, object]:
    return {"left": left_column, "right": right_column or f"r{left_column}"}


def eq(column: str = "ref", other: str | None = None, **more: object) -> Equal:
    return Equal.model_validate(_columns(column, other) | more)


def tolerance(column: str = "amount", other: str | None = None, **more: object) -> Tolerance:
    return Tolerance.model_validate(_columns(column, other) | more)


def window(column: str = "day", other: str | None = None, **more: object) -> DateWindow:
    return DateWindow.model_validate(_columns(column, other) | more)


def text(op: str, column: str = "note", other: str | None = None, **more: object) -> Text:
    return Text.model_validate(_columns(column, other) | {"op": op} | more)


def fuzzy(threshold: str, column: str = "note", **more: object) -> Fuzzy:
    return Fuzzy.model_validate(_columns(column, None) | {"threshold": threshold} | more)


def compare(op: str, column: str, other: str | None = None) -> Comparison:
    return Comparison.model_validate(_columns(column, other) | {"op": op})


Evidence = Matched | Ambiguous | Unmatched


def expect(*evidence: Evidence | Sequence[Evidence]) -> Result:
    flat: list[Evidence] = []
    for each in evidence:
        flat.extend(each if isinstance(each, Sequence) else [each])
    return Result.of(*flat)


def pair(
    left_key: str,
    right_key: str,
    *differences: str,
    rule: str = "r",
    status: Status = "confirmed",
    interchangeable: bool = False,
    fifo: bool = False,
) -> Matched:
    return Matched(
        left_key,
        right_key,
        frozenset({("left", left_key), ("right", right_key)}),
        rule,
        status,
        "1:1",
        differences,
        interchangeable,
        fifo,
    )


def group(
    lefts: str,
    rights: str,
    cardinality: Cardinality,
    *differences: str,
    rule: str = "r",
    status: Status = "confirmed",
) -> list[Matched]:
    """The rows of evidence of one match of several rows, and what their sums differ by."""
    left_keys, right_keys = lefts.split(), rights.split()
    sides: list[tuple[Side, str]] = [("left", each) for each in left_keys]
    sides += [("right", each) for each in right_keys]
    pairs: list[tuple[str | None, str | None]] = (
        [(each, None) for each in left_keys] + [(None, each) for each in right_keys]
        if cardinality == "M:N"
        else [(a, b) for a in left_keys for b in right_keys]
    )
    return [
        Matched(a, b, frozenset(sides), rule, status, cardinality, differences) for a, b in pairs
    ]


def unsure(
    side: Side, keys: str, candidates: str, reason: Reason, rule: str = "r"
) -> list[Ambiguous]:
    """The same of each of the keys."""
    listed = candidates.split()
    return [
        Ambiguous(key, side, rule, tuple(listed[:CANDIDATES_LISTED]), len(listed), reason)
        for key in keys.split()
    ]


def alone(side: Side, keys: str, tried: str = "r") -> list[Unmatched]:
    """Nothing came close."""
    return [
        Unmatched(
            key,
            side,
            tuple(tried.split()),
            rejection_reason="no_candidate" if tried else "not_attempted",
        )
        for key in keys.split()
    ]


def taken(
    side: Side,
    key: str,
    candidate: str,
    became: Fate = "matched",
    tried: str = "r",
    rule: str = "r",
) -> Unmatched:
    """The closest candidate satisfies everything."""
    return Unmatched(
        key, side, tuple(tried.split()), candidate, became, rule, rejection_reason="taken"
    )


def out_of_sum(
    side: Side,
    key: str,
    candidate: str,
    columns: str,
    sums: tuple[str | None, str | None],
    difference: str | None,
    tried: str = "r",
) -> Unmatched:
    """The closest candidate satisfies everything, but their groups do not."""
    return Unmatched(
        key, side, tuple(tried.split()), candidate, "unmatched", "r", f"sum({columns})", *sums,
        difference, "sum_failed",
    )  # fmt: skip


def missed(
    side: Side,
    key: str,
    candidate: str,
    became: Fate,
    condition: str,
    values: tuple[str | None, str | None],
    difference: str | None,
    tried: str = "r",
    rule: str = "r",
) -> Unmatched:
    """The closest candidate fails a condition."""
    return Unmatched(
        key,
        side,
        tuple(tried.split()),
        candidate,
        became,
        rule,
        condition,
        *values,
        difference,
        "condition_failed",
    )
