"""The DuckDB that a match runs in: both sides loaded once, and the status of each row so far.

Tables: `{side}_rows` (row_id, p0… the primary key, the columns the plan needs; a view of
`{side}_held`), `{side}_open` (those that are not settled, once some are), `{side}_ambiguous`,
`{side}_ordinals` (keys that are not unique). A row_id is a number from zero; nothing that leaves
the kernel depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from decimal import Decimal
from threading import Lock
from typing import TypeVar

import numpy as np

from kalla.reconcile.arrays import column_arrays
from kalla.reconcile.arrays.arrow_numbers import RowIds, as_column, as_decimal, halves, numbers
from kalla.reconcile.arrays.column_arrays import Column, ColumnArrays, StoredColumn
from kalla.reconcile.plan.plan import Plan, RulePlan, SidePlan, room
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session.duckdb_engine import Engine, Resources, streamed
from kalla.reconcile.session.row_status import OPEN, SETTLED, Counted, RowStatus
from kalla.reconcile.session.rule_sql import conjunction, key_part
from kalla.reconcile.sql import column_values
from kalla.reconcile.sql.column_values import Value, held, literal, quote
from kalla.threads import spread

Found = TypeVar("Found")


class MatchSession(Engine):
    def __init__(self, plan: Plan, resources: Resources) -> None:
        super().__init__(resources)
        self.plan = plan
        self._memory = room(resources.memory)
        self.ordinals: dict[Side, bool] = {}
        self.row_status: dict[Side, RowStatus] = {}
        self._column_arrays: dict[Side, ColumnArrays | None] = {}
        self._without_table: dict[Side, ColumnArrays] = {}  # of which there is no table yet
        self._array_locks = {side: Lock() for side in SIDES}
        self._limit_lock = Lock()
        # What a rule looks at, and whether rows of it have left since it was made.
        self._open_rows: dict[Side, str] = dict.fromkeys(SIDES, "")  # all, until some are settled
        self._stale: dict[Side, bool] = dict.fromkeys(SIDES, False)
        # Tables and views that were made, of all forks, and temporary ones of this one.
        self._permanent: dict[str, str] = {}
        self._temporary: dict[str, str] = {}
        self._rule_inputs: dict[str, str] = {}  # by what query, as long as it would find the same
        self._tallied: dict[Side, dict[tuple[str, int], tuple[int, Decimal | None]]] = {}

    def fork(self) -> MatchSession:
        """Opens another connection to the same rows, for parallel work.

        Its temporary tables are its own; it does not settle rows.
        """
        for side in SIDES:
            if self._stale[side]:
                self.open_rows(side)
        found = self._new_fork()
        found._open_rows = dict(self._open_rows)
        found._stale = dict(self._stale)
        return found

    def by_side(self, work: Callable[[MatchSession, Side], Found]) -> dict[Side, Found]:
        """The same for each side, at the same time: work on one side uses a single core.

        Changes of the side are visible here afterwards.
        """
        with ExitStack() as stack:
            forks = {side: self._new_fork() for side in SIDES}
            for own in forks.values():
                stack.callback(own.close)
            self._rule_inputs.clear()  # from what is left by then
            found = spread(
                lambda side: work(forks[side], side), SIDES, min(self.threads, len(SIDES))
            )
            return dict(zip(SIDES, found, strict=True))

    def _new_fork(self) -> MatchSession:
        found = copy(self)
        found.held = ExitStack()  # a fork returns the shared state
        found._temporary, found._rule_inputs = {}, {}
        found.connection = self.connection.cursor()
        return found

    # Reading

    def read(self, side: Side, rows: str) -> None:
        """Load the rows of a side (a query of p0… and its columns), as arrays or as a table."""
        read = self._read_into_arrays(side, rows)
        if read is None:
            self.run(f"CREATE TABLE {side}_held AS {rows}")
            self._show(side, "rowid AS row_id, ")
            (read,) = self.row(f"SELECT count(*) FROM {side}_held")
        for name, extra in (
            (
                "ambiguous",
                "rule INTEGER, reason VARCHAR, candidates VARCHAR[], candidate_count BIGINT",
            ),
            ("ordinals", "ordinal BIGINT"),
        ):
            self.run(f"CREATE TABLE {side}_{name} (row_id BIGINT, {extra})")
        self.row_status[side] = RowStatus(side, read)

    def _show(self, side: Side, row_id: str = "") -> None:
        every = _every_column(self.plan.sides[side])
        self.run(f"CREATE VIEW {side}_rows AS SELECT {row_id}{every} FROM {side}_held")

    def all_rows(self, side: Side) -> str:
        """The view of all rows of a side. Rows that are only in arrays become a table first."""
        with self._array_locks[side]:
            if found := self._without_table.get(side):
                row_ids = np.arange(self.row_status[side].rows)
                self.table(f"{side}_held", found.taken(row_ids), "TABLE")
                self._show(side)
                del self._without_table[side]
        return f"{side}_rows"

    def has_table(self, side: Side) -> bool:
        """Whether its rows are not only in arrays."""
        return side not in self._without_table

    def column_arrays(self, side: Side) -> ColumnArrays | None:
        """The columns of a side that are in arrays, where its rows are many."""
        with self._array_locks[side]:
            if side not in self._column_arrays:
                found = self._load_arrays(side)
                with self._limit_lock:
                    self._column_arrays[side] = found
            return self._column_arrays[side]

    def _load_arrays(self, side: Side) -> ColumnArrays | None:
        rows = self.row_status[side].rows
        if rows < column_arrays.MANY:
            return None
        most = int(self._memory * column_arrays.BESIDE)
        with self.connection.cursor() as reading:
            reading.execute("SET SESSION arrow_large_buffer_size = true")  # texts beyond 2 GiB
            table = reading.sql(f"FROM {side}_held")
            kinds = dict(zip(table.columns, map(str, table.types), strict=True))
            schema = table.limit(0).to_arrow_table().schema
            names = column_arrays.storable_columns(schema, rows, most)
            others = [
                name
                for name, kind in kinds.items()
                if name not in names and column_arrays.is_storable(kind)
            ]
            listed = ", ".join(["rowid", *map(quote, [*names, *others])])
            found = reading.sql(f"SELECT {listed} FROM {side}_held")
            batches = streamed(found.to_arrow_reader(column_arrays.IN_CACHE))
            left = most - column_arrays.size(rows, names)
            columns, stored = column_arrays.read(rows, names, others, batches, left)
        return self._held(side, columns, len(kinds), stored) if columns or stored else None

    def _read_into_arrays(self, side: Side, rows: str) -> int | None:
        """Read a side whose columns can all be arrays; returns how many rows it has."""
        expected = self.plan.sides[side].input.rows or 0
        if expected < column_arrays.MANY:
            return None
        most = int(self._memory * column_arrays.ALONE)
        with self.connection.cursor() as reading:
            reading.execute("SET SESSION arrow_output_version = '1.5'")  # short decimals as words
            found = reading.sql(rows).to_arrow_reader(column_arrays.IN_CACHE)
            names = column_arrays.storable_columns(found.schema, expected, most)
            if len(names) < len(found.schema):
                return None
            read = column_arrays.gather(expected, names, streamed(found), most)
        if read is None:  # more rows came than a database has counted: they become a table
            return None
        count, columns = read
        if len(columns) < len(names) or count < column_arrays.MANY:
            return None
        self._without_table[side] = self._held(side, columns, len(names))
        return count

    def _held(
        self,
        side: Side,
        columns: Mapping[str, Column],
        every: int,
        stored: Mapping[str, StoredColumn] = {},
    ) -> ColumnArrays:
        """Arrays reduce DuckDB's memory limit."""
        has_all = len(columns) + len(stored) == every
        found = ColumnArrays(columns, has_all, key_names(self.plan.sides[side]), stored)
        with self._limit_lock:  # both sides may come at once, and the limit is of both
            self._column_arrays[side] = found
            taken = sum(each.bytes for each in self._column_arrays.values() if each)
            self.run(f"SET memory_limit = '{(self._memory - taken) // 10**6}MB'")
        return found

    def rows_at(self, side: Side, row_ids: RowIds, name: str, kind: str = "TEMP TABLE") -> str:
        """Some rows of a side, with all loaded columns, as a table."""
        found = self.column_arrays(side)
        if found is not None and found.has_all:
            self.connection.register("given", found.taken(row_ids))
            every = _every_column(self.plan.sides[side])
            self._make(kind, name, f"SELECT {every} FROM given")
            self.connection.unregister("given")
        else:
            self.table("chosen_row_ids", as_column(row_ids))
            chosen = "SELECT row_id FROM chosen_row_ids"
            rows = self.all_rows(side)
            self._make(kind, name, f"SELECT * FROM {rows} WHERE row_id IN ({chosen})")
        return name

    # Keys

    def plain_key(self, side: Side, alias: str) -> str:
        """The record key without its ordinal, from p0… of a row or a struct of that name."""
        parts = [
            key_part(value, f"{alias}.p{place}" if alias else f"p{place}")
            for place, value in enumerate(self.plan.sides[side].primary_key)
        ]
        return parts[0] if len(parts) == 1 else f"concat_ws('|', {', '.join(parts)})"

    def keyed(self, side: Side, alias: str, row_id: str) -> tuple[str, str]:
        """The record key, and the join it needs (over rows that have `row_id`)."""
        plain = self.plain_key(side, alias)
        if not self.ordinals[side]:
            return plain, ""
        name = f"{side}_o"
        key = f"({plain} || coalesce('#' || {name}.ordinal, ''))"
        return key, f"LEFT JOIN {side}_ordinals {name} ON {name}.row_id = {row_id}"

    def key_order(self, side: Side, alias: str) -> list[str]:
        """The sort order of keys: their values, null first, then the ordinal. Over the same rows
        as `keyed`, with its join."""
        parts = [f"{alias}.p{place}" for place in range(len(self.plan.sides[side].primary_key))]
        if not self.ordinals[side]:
            return parts
        known = [sql for part in parts for sql in (f"({part} IS NOT NULL)", part)]
        return [*known, f"{side}_o.ordinal"]

    def keys_table(self, side: Side, which: str, name: str) -> None:
        """Make a table of row_id and record key for the rows of `which` (a query of row_ids)."""
        key, join = self.keyed(side, "t", "t.row_id")
        self.run(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT t.row_id, {key} AS key"
            f" FROM {self.all_rows(side)} t {join} WHERE t.row_id IN ({which})"
        )

    # Rules

    def rule_input(
        self,
        rule: RulePlan,
        side: Side,
        *,
        settled: bool = False,
        whole: bool = True,
        among: str = "",
    ) -> str:
        """The rows a rule reads, as v0…, k0…, cur, ord, amount: those left, that its filters
        admit.

        With `settled`, settled rows too, or those of a table that are `among` all; without
        `whole`, rows that lack some value too.
        """
        place = SIDES.index(side)
        name = f"{side}_some" if among else f"{side}_all" if settled else f"{side}_rule"
        found = [check.of(side) for check in rule.checks]
        columns = [f"{value.sql} AS v{number}" for number, value in enumerate(found)]
        columns += [
            f"{check.normalized_key[place].sql} AS k{number}"
            for number, check in enumerate(rule.checks)
            if check.normalized_key
        ]
        columns += [f"p{number}" for number in range(len(self.plan.sides[side].primary_key))]
        # A pair of rows needs every value; in a group, a row that lacks one only fails its check.
        places = range(len(found)) if rule.cardinality == "1:1" else rule.key
        needed = [f"v{number}" for number in places]
        if rule.currency:
            columns.append(f"{rule.currency[place].sql} AS cur")
            needed.append("cur")
        if rule.fifo:
            order = rule.order[place]
            columns.append(f"{order.sql if order else 'NULL'} AS ord")
        if rule.sums:
            columns.append(f"{rule.sums[place].sql} AS amount")
            needed.append("amount")
        admits = rule.filters[place]
        where = [admits] if admits else []
        rows = among or (self.all_rows(side) if settled else self.open_rows(side))
        inner = f"SELECT row_id, {', '.join(columns)} FROM {rows}"
        if where:
            inner += f" WHERE {' AND '.join(where)}"
        outer = conjunction(f"{each} IS NOT NULL" for each in needed) if whole else "true"
        sql = f"SELECT * FROM ({inner}) WHERE {outer}"
        if among or self._rule_inputs.get(name) != sql:  # values may take long to derive
            # All rows are read for single columns; a view derives no others.
            is_view = rule.reads_unchanged(side) or (settled and not among)
            self._make("TEMP VIEW" if is_view else "TEMP TABLE", name, sql)
            self._rule_inputs[name] = sql
        return name

    def open_rows(self, side: Side) -> str:
        """The rows that no rule has settled yet, with all loaded columns."""
        if self._stale[side]:
            self._stale[side] = False
            row_ids = self.row_status[side].open()
            # None of these is temporary: forks see them too. A few rows are copied, so that later
            # passes do not read all rows; most stay in place.
            if len(row_ids) * 2 < self.row_status[side].rows:
                self.rows_at(side, row_ids, f"{side}_open", "TABLE")
            else:
                self.table(f"{side}_row_ids", as_column(row_ids), "TABLE")
                chosen = f"row_id IN (SELECT row_id FROM {side}_row_ids)"
                rows = self.all_rows(side)
                self._make("VIEW", f"{side}_open", f"SELECT * FROM {rows} WHERE {chosen}")
            self._open_rows[side] = f"{side}_open"
            self._rule_inputs.pop(f"{side}_rule", None)
        return self._open_rows[side] or self.all_rows(side)

    def settle(self, side: Side, row_ids: str, status: str, rule: int = 0) -> None:
        """Settles rows (a query of row_ids); later rules do not see them."""
        self.settle_row_ids(side, [self.column(row_ids)], status, rule)

    def settle_row_ids(self, side: Side, parts: Sequence[RowIds], status: str, rule: int) -> None:
        if any(map(len, parts)):
            self.row_status[side].settle(parts, status, rule)
            self._stale[side] = True
            self._tallied.pop(side, None)

    def settled_rows(self, side: Side, row_ids: str) -> str:
        """A table of row_id and status: those of the rows (a query of row_ids) that are settled."""
        asked = self.row_status[side].distinct(self.column(row_ids))
        kind = column_values.enum([*SETTLED, *OPEN])
        self.run(f"CREATE OR REPLACE TEMP TABLE {side}_settled (row_id BIGINT, status {kind})")
        for status in SETTLED:
            found = self.row_status[side].settled(asked, status)
            self.add(f"{side}_settled", found, f"SELECT given, {literal(status)}")
        return f"{side}_settled"

    def mark_ambiguous(self, side: Side, rows: str) -> None:
        """Add rows (row_id, rule, reason, candidates, candidate_count) not yet marked ambiguous."""
        self.run(
            f"INSERT INTO {side}_ambiguous SELECT * FROM ({rows}) d"
            f" WHERE d.row_id NOT IN (SELECT row_id FROM {side}_ambiguous)"
        )

    def tallies(self, side: Side) -> dict[tuple[str, int], tuple[int, Decimal | None]]:
        """Rows and sums of amounts by status and rule, counted again from the rows."""
        if side not in self._tallied:
            amount = self.plan.sides[side].amount
            scale = amount.scale if amount else 0
            self._tallied[side] = {
                place: (count, as_decimal(units, scale) if amount else None)
                for place, (count, units) in self._counted(side, amount, scale).items()
            }
        return self._tallied[side]

    def _counted(self, side: Side, amount: Value | None, scale: int) -> Counted:
        found = self.column_arrays(side)
        column = found.column(amount.sql) if amount and found else None
        if column:
            return self.row_status[side].count_all(column.held)
        exact = amount.sql if amount else "0"
        if not scale:  # whole numbers are not decimals yet
            exact = f"CAST({exact} AS {column_values.amount_type(0)})"
        batches = self.batches(f"SELECT row_id, coalesce({exact}, 0) FROM {self.all_rows(side)}")
        return self.row_status[side].count(
            (numbers(batch.column(0)), *halves(batch.column(1)).T) for batch in batches
        )

    def _make(self, kind: str, name: str, sql: str) -> None:
        """Creates or replaces a table or a view, whichever it was before."""
        made = self._temporary if kind.startswith("TEMP ") else self._permanent
        if before := made.get(name):
            self.run(f"DROP {before.removeprefix('TEMP ')} {name}")
        made[name] = kind
        self.run(f"CREATE {kind} {name} AS {sql}")


def key_names(plan: SidePlan) -> dict[str, str]:
    """The parts of a side's primary key and their internal names: a key that is an unchanged column
    has two names, but is stored once.
    """
    return {value.sql: f"p{place}" for place, value in enumerate(plan.primary_key)}


def _every_column(plan: SidePlan) -> str:
    """All columns of a table of loaded rows."""
    keys = key_names(plan)
    twice = [f"{keys[held(name)]} AS {held(name)}" for name in plan.columns if held(name) in keys]
    return ", ".join(["*", *twice])
