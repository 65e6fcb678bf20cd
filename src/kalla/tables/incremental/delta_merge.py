"""Adds the signed changes of DELTA to the table's rows."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal

import duckdb
import pyarrow as pa

from kalla.tables.delta.workspace import FILE, Relation, Workspace, quoted, same
from kalla.tables.incremental.delta import HIDDEN, ROWS, DeltaShape, Measure
from kalla.tables.incremental.structure import NotIncremental

_EXACT = Context(prec=80)


@dataclass(frozen=True)
class Merged:
    old: Relation  # rows of the changed keys before, with their places
    new: Relation  # and after, without those of `recompute`
    recompute: Relation  # keys whose smallest or largest value was removed
    may_repeat: bool  # whether a new row may equal an old one


def merge(
    workspace: Workspace, shape: DeltaShape, rows: Relation, delta: Relation, schema: pa.Schema
) -> Merged:
    """`rows` are those of the whole table, in this schema."""
    try:
        if shape.grouped:
            return _grouped(workspace, shape, rows, delta, schema)
        return _copies(workspace, shape, rows, delta)
    except duckdb.OutOfRangeException as error:
        raise NotIncremental(f"a sum is too large for its type: {str(error)[:120]}") from None


def _grouped(
    workspace: Workspace, shape: DeltaShape, rows: Relation, delta: Relation, schema: pa.Schema
) -> Merged:
    keys_are_same = same(shape.keys, "o", "d")
    extremes = [each for each in shape.measures if each.kind in ("min", "max")]
    gone = " OR ".join(_is_gone(each) for each in extremes) or "false"
    columns = [f"{_after(each)} AS {quoted(each.name)}" for each in shape.measures]
    kept = {ROWS: f"coalesce(o.{ROWS}, 0) + d.{ROWS}"}
    for each in shape.measures:
        if each.count_column:
            kept[each.count_column] = _total(each.count_column)
        if each.sum_column:
            kept[each.sum_column] = _total(each.sum_column)
    columns += [f"{sql} AS {quoted(name)}" for name, sql in kept.items()]
    old = workspace.table(
        "old_rows",
        f"SELECT o.* FROM {rows.name} o SEMI JOIN {delta.name} d ON {keys_are_same}",
    )
    found = workspace.table(
        "merged_rows",
        f"""
        SELECT {", ".join(columns)}, coalesce({gone}, false) AS __kalla_gone, o.{FILE}
        FROM {delta.name} d LEFT JOIN {old.name} o ON {keys_are_same}
        """,
    )
    if workspace.count(found, f"{ROWS} < 0"):
        raise NotIncremental("the changes remove more rows than the table counted")
    new = workspace.table(
        "new_rows",
        f"SELECT * EXCLUDE (__kalla_gone) FROM {found.name} WHERE {ROWS} > 0 AND NOT __kalla_gone",
    )
    keys = ", ".join(quoted(name) for name in shape.keys)
    recompute = workspace.table(
        "recomputed_keys",
        f"SELECT {keys} FROM {found.name} WHERE {ROWS} > 0 AND __kalla_gone",
    )
    averages = [each for each in shape.measures if each.kind == "avg"]
    if averages:
        values = workspace.read(f"SELECT * FROM {new.name}")
        for each in averages:
            values = _averaged(values, each, schema.field(each.name).type)
        new = workspace.arrow("averaged_rows", values)
    # Without extremes, Spark leaves out the groups that stay the same.
    return Merged(old, Relation(new.name, rows.columns), recompute, may_repeat=bool(extremes))


def _total(name: str) -> str:
    return f"coalesce(o.{quoted(name)}, 0) + coalesce(d.{quoted(name)}, 0)"


def _after(measure: Measure) -> str:
    name = quoted(measure.name)
    match measure.kind:
        case "key":
            return f"d.{name}"
        case "count":
            return _total(measure.name)
        case "sum":
            count, total = _total(measure.count_column), _total(measure.name)
            return f"CASE WHEN {count} = 0 THEN NULL ELSE {total} END"
        case "min":
            return f"least(o.{name}, d.{name})"
        case "max":
            return f"greatest(o.{name}, d.{name})"
    return "NULL"  # an average: from its sum and count, below


def _is_gone(measure: Measure) -> str:
    """Whether the smallest old or new value may have been removed."""
    name, gone = quoted(measure.name), quoted(f"{HIDDEN}gone_{measure.name}")
    sign, call = ("<=", "least") if measure.kind == "min" else (">=", "greatest")
    return f"(d.{gone} IS NOT NULL AND d.{gone} {sign} {call}(o.{name}, d.{name}))"


def _averaged(rows: pa.Table, measure: Measure, type_: pa.DataType) -> pa.Table:
    sums = rows.column(measure.sum_column).to_pylist()
    counts = rows.column(measure.count_column).to_pylist()
    if pa.types.is_decimal(type_):
        values: list[Decimal | float | None] = [
            None if not count else _half_up(Decimal(total), count, type_.scale)
            for total, count in zip(sums, counts, strict=True)
        ]
    else:
        # As Spark does it: both as doubles, which hold sums of integers exactly up to 2^53.
        if any(abs(total) >= 2**53 for total in sums if total is not None):
            raise NotIncremental(f"a sum of {measure.name} is too large for an exact average")
        values = [
            None if not count else float(total) / float(count)
            for total, count in zip(sums, counts, strict=True)
        ]
    place = rows.column_names.index(measure.name)
    return rows.set_column(place, measure.name, pa.array(values, type_))


def _half_up(total: Decimal, count: int, scale: int) -> Decimal:
    """Rounded once: a quotient that is rounded twice may end one unit off."""
    digits = max(0, -int(total.as_tuple().exponent))
    numerator = int(total.scaleb(digits, _EXACT)) * 10**scale
    magnitude, rest = divmod(abs(numerator), count * 10**digits)
    if 2 * rest >= count * 10**digits:
        magnitude += 1
    return Decimal(magnitude if numerator >= 0 else -magnitude).scaleb(-scale, _EXACT)


def _copies(workspace: Workspace, shape: DeltaShape, rows: Relation, delta: Relation) -> Merged:
    """Without groups, a row is its own key, and its copies are counted."""
    columns = ", ".join(quoted(name) for name in shape.keys)
    given = ", ".join(f"d.{quoted(name)}" for name in shape.keys)
    old = workspace.table(
        "old_rows",
        f"SELECT o.* FROM {rows.name} o SEMI JOIN {delta.name} d ON {same(shape.keys, 'o', 'd')}",
    )
    after = workspace.table(
        "merged_rows",
        f"""
        WITH counted AS (
            SELECT {columns}, count(*) AS copies, min({FILE}) AS {FILE} FROM {old.name}
            GROUP BY {columns}
        )
        SELECT {given}, (coalesce(o.copies, 0) + d.{ROWS})::BIGINT AS __kalla_copies,
               o.{FILE}
        FROM {delta.name} d LEFT JOIN counted o ON {same(shape.keys, "o", "d")}
        """,
    )
    if workspace.count(after, "__kalla_copies < 0"):
        raise NotIncremental("the changes remove more rows than the table has")
    new = workspace.table(
        "new_rows", f"SELECT {columns}, {FILE} FROM {after.name}, range(__kalla_copies)"
    )
    recompute = workspace.table("recomputed_keys", f"SELECT {columns} FROM {new.name} WHERE false")
    return Merged(old, new, recompute, may_repeat=True)
