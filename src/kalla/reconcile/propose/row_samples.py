"""The first rows of a source under filters, by the same SQL that a run applies them with."""

from __future__ import annotations

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.propose import side_tables
from kalla.reconcile.recipe.model import Filter, Source
from kalla.reconcile.recipe.validation import check_source
from kalla.reconcile.sources.inspection import Preview, plain_value
from kalla.reconcile.sources.source_planning import Resolve
from kalla.reconcile.sql import row_filters
from kalla.reconcile.sql.column_values import held
from kalla.storage import Storage


def scoped(
    source: Source, filters: tuple[Filter, ...], limit: int, *, storage: Storage, resolve: Resolve
) -> Preview:
    """Rows that pass the source's own filters and these."""
    if problems := check_source(source.model_copy(update={"filters": filters})):
        raise InvalidInput(*problems)
    with side_tables.opened(storage, side_tables.PROFILED) as connection:
        table = side_tables.load(connection, "rows", source, storage=storage, resolve=resolve)
        if unknown := [each.column for each in filters if each.column not in table.columns.types]:
            there = ", ".join(table.names)
            raise InvalidInput(
                *(
                    Problem("filters", f"there is no column {name!r}; there are {there}")
                    for name in unknown
                )
            )
        where = row_filters.conjunction((*source.filters, *filters), table.columns)
        columns = ", ".join(held(name) for name in table.names)
        found = connection.execute(
            f"SELECT {columns} FROM {table.name}{f' WHERE {where}' if where else ''}"
            f" ORDER BY rid LIMIT {limit}"
        ).fetchall()
    return Preview(tuple(table.names), tuple(tuple(map(plain_value, row)) for row in found))
