"""Adds the signed changes of DELTA to the rows that the table has. Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

import duckdb
import pyarrow as pa

from kalla.tables.incremental.delta import HIDDEN, ROWS, DeltaShape, Measure
from kalla.tables.incremental.structure import NotIncremental

_EXACT = Context(prec=80)


@dataclass(frozen=True)
class Merged:
    old: pa.Table  # rows of the changed keys before
    new: pa.Table  # and after, without those of `recompute`
    recompute: pa.Table  # keys whose smallest or largest value is gone


def merge(shape: DeltaShape, rows: pa.Table, delta: pa.Table) -> Merged:
    """`rows` are those of the whole table."""
    try:
        return _grouped(shape, rows, delta) if shape.grouped else _copies(shape, rows, delta)
    except duckdb.OutOfRangeException as error:
        raise NotIncremental(f"a sum is too large for its type: {str(error)[:120]}") from None


def _grouped(shape: DeltaShape, rows: pa.Table, delta: pa.Table) -> Merged:
    same = _same(shape.keys, "o", "d")
    extremes = [each for each in shape.measures if each.kind in ("min", "max")]
    gone = " OR ".join(_is_gone(each) for each in extremes) or "false"
    columns = [f"{_after(each)} AS {_quoted(each.name)}" for each in shape.measures]
    kept = {ROWS: f"coalesce(o.{ROWS}, 0) + d.{ROWS}"}
    for each in shape.measures:
        if each.count_column:
            kept[each.count_column] = _total(each.count_column)
        if each.sum_column:
            kept[each.sum_column] = _total(each.sum_column)
    columns += [f"{sql} AS {_quoted(name)}" for name, sql in kept.items()]
    with duckdb.connect() as connection:
        connection.register("delta_rows", delta)
        connection.register("table_rows", rows)
        old = _arrow(
            connection.sql(f"SELECT o.* FROM table_rows o SEMI JOIN delta_rows d ON {same}")
        )
        found = _arrow(
            connection.sql(
                f"""
            SELECT {", ".join(columns)}, ({gone}) AS __kalla_gone
            FROM delta_rows d LEFT JOIN table_rows o ON {same}
            """
            )
        )
        connection.register("found_rows", found)
        if connection.execute(f"SELECT count(*) FROM found_rows WHERE {ROWS} < 0").fetchall() != [
            (0,)
        ]:
            raise NotIncremental("the changes remove more rows than the table counted")
        new = _arrow(
            connection.sql(
                f"SELECT * EXCLUDE (__kalla_gone) FROM found_rows WHERE {ROWS} > 0"
                " AND NOT coalesce(__kalla_gone, false)"
            )
        )
        keys = ", ".join(_quoted(name) for name in shape.keys)
        recompute = _arrow(
            connection.sql(
                f"SELECT {keys} FROM found_rows WHERE {ROWS} > 0 AND coalesce(__kalla_gone, false)"
            )
        )
    for each in shape.measures:
        if each.kind == "avg":
            new = _averaged(new, each, rows.schema.field(each.name).type)
    return Merged(
        old.select(rows.column_names).cast(rows.schema),
        new.select(rows.column_names).cast(rows.schema),
        recompute,
    )


def _total(name: str) -> str:
    return f"coalesce(o.{_quoted(name)}, 0) + coalesce(d.{_quoted(name)}, 0)"


def _after(measure: Measure) -> str:
    name = _quoted(measure.name)
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
    """Whether the smallest value of before or among the new rows may be one that is gone."""
    name, gone = _quoted(measure.name), _quoted(f"{HIDDEN}gone_{measure.name}")
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


def _copies(shape: DeltaShape, rows: pa.Table, delta: pa.Table) -> Merged:
    """Without groups, a row is its own key, and its copies are counted."""
    columns = ", ".join(f"d.{_quoted(name)}" for name in shape.keys)
    grouped = ", ".join(_quoted(name) for name in shape.keys)
    same = _same(shape.keys, "o", "d")
    with duckdb.connect() as connection:
        connection.register("delta_rows", delta)
        connection.register("table_rows", rows)
        old = _arrow(
            connection.sql(f"SELECT o.* FROM table_rows o SEMI JOIN delta_rows d ON {same}")
        )
        connection.register("old_rows", old)
        after = _arrow(
            connection.sql(
                f"""
            WITH counted AS (SELECT {grouped}, count(*) AS copies FROM old_rows GROUP BY {grouped})
            SELECT {columns}, (coalesce(o.copies, 0) + d.{ROWS})::BIGINT AS copies
            FROM delta_rows d LEFT JOIN counted o ON {same}
            """
            )
        )
    copies = after.column("copies").to_pylist()
    if any(number < 0 for number in copies):
        raise NotIncremental("the changes remove more rows than the table has")
    places = [place for place, number in enumerate(copies) for _ in range(number)]
    new = after.take(pa.array(places, pa.int64()))
    return Merged(
        old.select(rows.column_names).cast(rows.schema),
        new.select(rows.column_names).cast(rows.schema),
        after.select(shape.keys).slice(0, 0),
    )


def _same(names: Sequence[str], one: str, other: str) -> str:
    return " AND ".join(
        f"{one}.{_quoted(name)} IS NOT DISTINCT FROM {other}.{_quoted(name)}" for name in names
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _arrow(result: duckdb.DuckDBPyRelation) -> pa.Table:
    return pa.table(result.to_arrow_table())
