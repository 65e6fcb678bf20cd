"""The SQL of AFFECTED_KEYS and DELTA, run by DuckDB over random changes: the updated rows equal the
query run fresh. Spark runs the same SQL in tests/integration/tables/test_incremental_property.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

from kalla.tables.delta.workspace import FILE, ROW, Relation, Workspace, quoted
from kalla.tables.incremental.changes import (
    NO_BOUNDS,
    Bounds,
    Versions,
    affected_keys,
    placed,
    recompute,
)
from kalla.tables.incremental.delta import ROWS, DeltaShape, delta_shape
from kalla.tables.incremental.delta_merge import merge
from kalla.tables.incremental.structure import (
    NotIncremental,
    Select,
    Structure,
    Union,
    structure,
    tables_of,
)

DATASETS = 3
TYPES = {
    "o": {"id": "int", "cust": "text", "day": "text", "amt": "int"},
    "c": {"cust": "text", "region": "text", "lvl": "int"},
    "l": {"oid": "int", "part": "text", "qty": "int"},
    "p": {"part": "text", "region": "text", "lim": "int"},
}
# Few values, so that rows meet, repeat and move between keys.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "id": (1, 2, 3, 4, None), "oid": (1, 2, 3, 4, None), "cust": ("a", "b", "d", None),
    "day": ("m", "t", "w", None), "region": ("m", "t", "w", None), "part": ("x", "y", None),
    "amt": (1, 2, 3, None), "lvl": (0, 1, 2, None), "qty": (0, 1, 2, None), "lim": (0, 1, 2, None),
}  # fmt: skip
COLUMNS = {name: list(types) for name, types in TYPES.items()}

QUERIES = [
    line.strip()
    for line in """
    SELECT id FROM o WHERE NOT EXISTS (SELECT 1 FROM l WHERE l.oid = o.id AND l.qty > 1)
    SELECT o.id, c.region FROM o LEFT JOIN c ON o.cust = c.cust AND c.lvl > 1
    SELECT o.id, c.region, p.lim FROM o LEFT JOIN c ON o.cust = c.cust LEFT JOIN p ON c.region = p.region
    SELECT o.day, count(c.region) AS n, sum(l.qty) AS s FROM o LEFT JOIN c ON o.cust = c.cust JOIN l ON l.oid = o.id GROUP BY o.day
    SELECT c.region, count(*) AS n FROM o LEFT JOIN c ON o.cust = c.cust GROUP BY c.region
    SELECT c.region, count(*) AS n FROM o LEFT JOIN c ON o.cust = c.cust WHERE c.region IS NULL GROUP BY c.region
    SELECT a.day, count(*) AS n FROM o a JOIN o b ON a.cust = b.cust GROUP BY a.day
    SELECT a.day, b.day AS d2 FROM o a LEFT JOIN o b ON a.id = b.id AND a.cust = b.cust
    SELECT x.region, count(*) AS n FROM (SELECT cust, max(region) AS region FROM c GROUP BY cust) x JOIN o ON o.cust = x.cust GROUP BY x.region
    SELECT x.region, count(*) AS n FROM o LEFT JOIN (SELECT cust, max(region) AS region FROM c GROUP BY cust) x ON o.cust = x.cust GROUP BY x.region
    SELECT day, id, row_number() OVER (PARTITION BY day ORDER BY id, cust, amt) AS rn FROM o
    SELECT id, rn FROM (SELECT day, id, row_number() OVER (PARTITION BY day ORDER BY id, cust, amt) AS rn FROM o) w WHERE rn = 1
    SELECT rn, count(*) AS n FROM (SELECT id, row_number() OVER (PARTITION BY day ORDER BY id, cust, amt) AS rn FROM o) w GROUP BY rn
    SELECT cust FROM o UNION SELECT cust FROM c
    SELECT cust AS k, count(*) AS n FROM o GROUP BY cust UNION ALL SELECT region, 1 FROM c
    SELECT k, count(*) AS n FROM (SELECT cust AS k FROM o UNION SELECT region FROM c) u GROUP BY k
    SELECT k, sum(n) AS n FROM (SELECT cust AS k, id AS n FROM o UNION ALL SELECT region, lvl FROM c) u GROUP BY k
    SELECT id FROM o WHERE cust IN (SELECT cust FROM c WHERE lvl > 0 AND c.region = o.day)
    SELECT id FROM o WHERE day IN (SELECT region FROM c GROUP BY region HAVING count(*) > 1)
    SELECT id FROM o WHERE day IN (SELECT region FROM c GROUP BY region, lvl HAVING count(*) > 1)
    SELECT day, count(*) AS n FROM o WHERE cust IN (SELECT cust FROM c WHERE region IN (SELECT region FROM p WHERE lim > 1)) GROUP BY day
    SELECT id FROM o WHERE EXISTS (SELECT 1 FROM c JOIN p ON c.region = p.region WHERE c.cust = o.cust AND p.lim > 1)
    SELECT id FROM o WHERE EXISTS (SELECT 1 FROM c LEFT JOIN p ON c.region = p.region WHERE c.cust = o.cust AND p.lim IS NULL)
    SELECT day, count(*) AS n FROM o GROUP BY day HAVING count(*) > 1
    SELECT d, count(*) AS m FROM (SELECT day AS d, cust, count(*) AS n FROM o GROUP BY day, cust HAVING count(*) > 1) x GROUP BY d
    SELECT DISTINCT o.day, c.region FROM o JOIN c ON o.cust = c.cust
    SELECT region, count(*) AS n FROM (SELECT DISTINCT o.day, c.region FROM o LEFT JOIN c ON o.cust = c.cust) s GROUP BY region
    SELECT c.region, o.day FROM o RIGHT JOIN c ON o.cust = c.cust
    SELECT c.region, count(o.id) AS n FROM o RIGHT JOIN c ON o.cust = c.cust GROUP BY c.region
    SELECT day, min(amt) AS a, max(id) AS b, count(*) AS n FROM o GROUP BY day
    WITH a AS (SELECT day, cust, sum(amt) AS s FROM o GROUP BY day, cust), b AS (SELECT cust, max(s) AS m FROM a GROUP BY cust) SELECT a.day, a.s, b.m FROM a JOIN b ON a.cust = b.cust
    SELECT a.day, a.n, b.n AS n2 FROM (SELECT day, count(*) AS n FROM o GROUP BY day) a LEFT JOIN (SELECT region, count(*) AS n FROM c GROUP BY region) b ON a.day = b.region
    SELECT o.id FROM o LEFT JOIN c ON o.cust = c.cust WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.region = c.region)
    SELECT o.day, sum(CASE WHEN c.lvl > 1 THEN o.amt ELSE 0 END) AS s FROM o LEFT JOIN c ON o.cust <=> c.cust GROUP BY o.day
    SELECT day, n, count(*) AS m FROM (SELECT day, count(*) OVER (PARTITION BY day, cust) AS n FROM o) w GROUP BY day, n
    SELECT day, n FROM (SELECT DISTINCT day, count(*) OVER (PARTITION BY day, cust) AS n FROM o) w
    SELECT o.id, x.n FROM o LEFT JOIN (SELECT c.region, count(*) AS n FROM c LEFT JOIN p ON c.region = p.region AND p.lim > 1 GROUP BY c.region) x ON o.day = x.region
    SELECT id FROM o WHERE cust IN (SELECT DISTINCT cust FROM c) AND NOT EXISTS (SELECT 1 FROM l WHERE l.oid = o.id)
    SELECT id FROM o WHERE EXISTS (SELECT 1 FROM l WHERE l.oid = o.id AND l.part IN (SELECT part FROM p WHERE p.lim > l.qty))
    SELECT id, cust IS NULL AS b FROM o WHERE id + 1 IN (SELECT oid FROM l)
    SELECT o.id, c.lvl FROM o LEFT JOIN c ON c.region = 'm' AND o.cust = c.cust
    SELECT coalesce(c.region, 'none') AS r, count(*) AS n, sum(o.amt) AS s FROM o LEFT JOIN c ON o.cust = c.cust GROUP BY coalesce(c.region, 'none')
    SELECT id FROM o WHERE EXISTS (SELECT 1 FROM o x WHERE x.cust = o.cust AND x.id <> o.id)
    SELECT day, count(*) AS n FROM o WHERE NOT EXISTS (SELECT 1 FROM o x WHERE x.cust = o.cust AND x.id > o.id) GROUP BY day
    SELECT o.id, p.lim FROM o JOIN c ON o.cust = c.cust LEFT JOIN p ON p.region = c.region AND p.lim = o.amt
    SELECT o.id FROM o JOIN c ON o.cust = c.cust WHERE EXISTS (SELECT 1 FROM p WHERE p.region = c.region AND p.lim = o.amt)
    SELECT g, count(*) AS n FROM (SELECT day AS g, id FROM o WHERE EXISTS (SELECT 1 FROM l WHERE l.oid = o.id)) z GROUP BY g
    SELECT u.k, c.region FROM (SELECT cust AS k FROM o UNION ALL SELECT region FROM p) u LEFT JOIN c ON u.k = c.cust
    SELECT u.k, count(*) AS n FROM (SELECT o.cust AS k FROM o LEFT JOIN l ON o.id = l.oid UNION ALL SELECT region FROM p) u JOIN c ON u.k = c.cust GROUP BY u.k
    SELECT o.day, o.id, rank() OVER (PARTITION BY c.region ORDER BY o.id) AS k, c.region FROM o LEFT JOIN c ON o.cust = c.cust
    SELECT o.day, max(c.region) AS m, count(*) AS n FROM o LEFT JOIN c ON o.cust = c.cust LEFT JOIN c d ON c.region = d.region GROUP BY o.day
    SELECT z.region, o.day FROM (SELECT region, count(*) AS n FROM c GROUP BY region) z RIGHT JOIN o ON z.region = o.day AND z.n > 1
    SELECT DISTINCT o.cust, l.part FROM o LEFT JOIN l ON o.id = l.oid WHERE l.qty IS NULL OR l.qty > 1
    SELECT x.day, x.n, y.s FROM (SELECT day, count(*) AS n FROM o GROUP BY day) x JOIN (SELECT day, sum(amt) AS s FROM o GROUP BY day) y ON x.day = y.day
    SELECT day, cust, sum(amt) OVER (PARTITION BY day, cust) AS a, count(*) OVER (PARTITION BY day) AS b FROM o
    SELECT c.region, sum(q.s) AS t FROM c LEFT JOIN (SELECT o.cust, sum(l.qty) AS s FROM o JOIN l ON o.id = l.oid GROUP BY o.cust) q ON q.cust = c.cust GROUP BY c.region
    SELECT id FROM o WHERE cust IN (SELECT cust FROM c GROUP BY cust HAVING max(lvl) > 1) AND day IN (SELECT region FROM p)
    SELECT o.id, l.qty FROM o JOIN l ON o.id = l.oid AND l.qty > o.amt WHERE NOT EXISTS (SELECT 1 FROM p WHERE p.part <=> l.part)
    SELECT day, mean_id FROM (SELECT day, avg(id) AS mean_id, count(*) AS n FROM o GROUP BY day) s WHERE n > 1
    SELECT day, avg(amt) AS a, max(cust) AS m, sum(amt) AS s, count(cust) AS n FROM o GROUP BY day
    WITH a AS (SELECT cust, sum(amt) AS s FROM o GROUP BY cust), b AS (SELECT cust, s FROM a WHERE s > 1), d AS (SELECT b.cust, c.region FROM b JOIN c ON b.cust = c.cust) SELECT region, count(*) AS n FROM d GROUP BY region
    SELECT x.a, x.n FROM (SELECT day AS a, count(*) AS n FROM o GROUP BY day) x WHERE EXISTS (SELECT 1 FROM p JOIN l ON p.part = l.part WHERE p.region = x.a AND l.qty > 0)
    """.strip().splitlines()  # noqa: E501
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """With old rows, new rows and their difference, DATASETS times: each in a schema of its own."""
    with Workspace(tmp_path_factory.mktemp("workspace")) as opened:
        opened.execute("SET threads = 1")
        choice = random.Random(1)
        for number in range(DATASETS):
            opened.execute(f"CREATE SCHEMA data{number}")
            opened.execute(f"SET schema = data{number}")
            for name in TYPES:
                _fill(opened, name, choice)
        yield opened


@pytest.mark.parametrize("query", QUERIES)
def test_updated_rows_equal_the_query_run_fresh(query: str, workspace: Workspace) -> None:
    found = structure(query, COLUMNS)
    read = sorted(tables_of(found.node))
    for changed in ({*read}, {random.Random(query).choice(read)}):
        inputs = {name: _versions(name, name in changed) for name in read}
        updates: list[ByKeys | ByDelta] = [
            *_by_keys(query, found, inputs),
            *_by_delta(query, found, inputs),
        ]
        assert updates, "no incremental strategy applies"
        fresh = _duckdb(placed(query, {name: each.new for name, each in inputs.items()}))
        for number in range(DATASETS):
            workspace.execute(f"SET schema = data{number}")
            expected = _values(workspace.rows(fresh))
            for update in updates:
                assert update(workspace) == expected, (
                    f"data {number}, changes of {changed}: {update}"
                )


def _fill(workspace: Workspace, name: str, choice: random.Random) -> None:
    def row() -> tuple[Any, ...]:
        return tuple(choice.choice(VALUES[column]) for column in TYPES[name])

    old = [row() for _ in range(choice.choice([4, 8, 12]))]
    share = choice.choice([0, 0.2, 0.4])
    removed = [each for each in old if choice.random() < share]
    added = [row() for _ in range(choice.choice([0, 1, 3]))]
    if removed and choice.random() < 0.3:
        added.append(removed[0])  # a row that was rewritten as it was
    new = list((Counter(old) - Counter(removed) + Counter(added)).elements())
    columns = ", ".join(f"{column} {kind}" for column, kind in TYPES[name].items())
    for suffix, rows in (("old", old), ("new", new), ("removed", removed), ("added", added)):
        workspace.execute(f"CREATE TABLE {name}_{suffix} ({columns})")
        if rows:
            values = ", ".join(str(each).replace("None", "NULL") for each in rows)
            workspace.execute(f"INSERT INTO {name}_{suffix} VALUES {values}")


def _versions(name: str, changed: bool) -> Versions:
    if changed:
        return Versions(f"{name}_old", f"{name}_new", f"{name}_removed", f"{name}_added")
    return Versions(f"{name}_new", f"{name}_new", None, None)


@dataclass(frozen=True)
class ByKeys:
    """Recomputes the rows of affected keys. All SQL is DuckDB's."""

    old: str
    keys: str
    node: Select | Union
    inputs: Mapping[str, Versions]

    def __call__(self, workspace: Workspace) -> Counter[Any]:
        table = _stored(workspace, self.old)
        bounds = _bounds(workspace, workspace.table("keys", self.keys))
        met = " AND ".join(
            f"r.{quoted(table.columns[place])} IS NOT DISTINCT FROM k.k{number}"
            for number, place in enumerate(_places(self.node))
        )
        old = f"SELECT {ROW} FROM {table.name} r SEMI JOIN keys k ON {met}"
        fresh = _recomputed(self.node, self.inputs, bounds)
        return _replaced(workspace, table, old, fresh, table.columns)


@dataclass(frozen=True)
class ByDelta:
    """Adds signed changes. All SQL is DuckDB's."""

    shape: DeltaShape
    old: str
    changes: str
    recomputed: str

    def __call__(self, workspace: Workspace) -> Counter[Any]:
        table = _stored(workspace, self.old)
        schema = workspace.read(f"SELECT * FROM {table.name}").schema
        delta = workspace.table("delta_rows", self.changes)
        merged = merge(workspace, self.shape, table, delta, schema)
        columns = table.columns[: len(self.shape.measures)]
        fresh = f"SELECT {_listed(columns)} FROM {merged.new.name}"
        if workspace.count(merged.recompute):
            names = [table.columns[place] for place in _places(self.shape.node)]
            keys = ", ".join(f"{quoted(name)} AS k{n}" for n, name in enumerate(names))
            workspace.table("keys", f"SELECT {keys} FROM {merged.recompute.name}")
            fresh += f" UNION ALL {self.recomputed}"
        return _replaced(workspace, table, f"SELECT {ROW} FROM {merged.old.name}", fresh, columns)


def _by_keys(query: str, found: Structure, inputs: Mapping[str, Versions]) -> list[ByKeys]:
    if not found.node.result_keys:
        return []
    keys = affected_keys(found.node, inputs)
    assert keys is not None
    old = placed(query, {name: each.old for name, each in inputs.items()})
    return [ByKeys(_duckdb(old), _duckdb(keys), found.node, inputs)]


def _by_delta(query: str, found: Structure, inputs: Mapping[str, Versions]) -> list[ByDelta]:
    try:
        shape = delta_shape(found)
        changes = shape.changes(inputs)
    except NotIncremental:
        return []
    assert changes is not None
    old = placed(shape.extended(found.sql), {name: each.old for name, each in inputs.items()})
    recomputed = _recomputed(shape.node, inputs) if shape.node.result_keys else ""
    return [ByDelta(shape, _duckdb(old), _duckdb(changes), recomputed)]


def _recomputed(
    node: Select | Union, inputs: Mapping[str, Versions], bounds: Bounds = NO_BOUNDS
) -> str:
    views = {name: each.new for name, each in inputs.items()}
    return _duckdb(recompute(node, views, "keys", bounds))


def _bounds(workspace: Workspace, keys: Relation) -> Bounds:
    """Of every key without NULL."""
    found = {}
    for number, name in enumerate(keys.columns):
        query = f"SELECT min({name}), max({name}), count(*) FILTER ({name} IS NULL) FROM keys"
        ((low, high, nulls),) = workspace.rows(query)
        if low is not None and not nulls:
            found[number] = (repr(low), repr(high))
    return found


def _places(node: Select | Union) -> tuple[int, ...]:
    return tuple(key.place for key in node.result_keys if key.place is not None)


def _stored(workspace: Workspace, old: str) -> Relation:
    return workspace.table(
        "table_rows", f"SELECT *, 'f' AS {FILE}, row_number() OVER () AS {ROW} FROM ({old})"
    )


def _replaced(
    workspace: Workspace, table: Relation, old: str, fresh: str, columns: Sequence[str]
) -> Counter[Any]:
    kept = f"SELECT {_listed(columns)} FROM {table.name} WHERE {ROW} NOT IN ({old})"
    return _values(workspace.rows(f"{kept} UNION ALL {fresh}"))


def _values(rows: list[tuple[Any, ...]]) -> Counter[Any]:
    """Sums are decimals in one plan and integers in another."""
    return Counter(
        tuple(int(each) if isinstance(each, Decimal) else each for each in row) for row in rows
    )


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in columns)


def _duckdb(spark_sql: str) -> str:
    return sqlglot.transpile(spark_sql, read="spark", write="duckdb")[0]


def test_delta_refuses_an_average_that_doubles_do_not_hold(workspace: Workspace) -> None:
    query = "SELECT day, avg(id) AS a FROM o GROUP BY day"
    shape = delta_shape(structure(query, COLUMNS))
    row = f"SELECT 'm' AS day, 1::DOUBLE AS a, 1 AS {ROWS}, {2**53} AS __kalla_s1, 1 AS __kalla_n1"
    table = workspace.table("table_rows", f"{row}, 'f' AS {FILE}, 0 AS {ROW}")
    delta = workspace.table("delta_rows", row)
    schema = workspace.read("SELECT * FROM table_rows").schema
    with pytest.raises(NotIncremental, match="too large for an exact average"):
        merge(workspace, shape, table, delta, schema)


def test_bounds_of_a_key_reach_the_columns_that_inner_joins_make_equal() -> None:
    query = (
        "SELECT o.id, count(*) AS n FROM o JOIN l ON o.id = l.oid LEFT JOIN p ON l.oid = p.lim"
        " WHERE l.qty <=> l.oid GROUP BY o.id"
    )
    views = {name: name for name in TYPES}
    sql = recompute(structure(query, COLUMNS).node, views, "keys", {0: ("1", "2")})
    bounded = sqlglot.parse_one(sql, read="spark").find_all(exp.Between)
    columns = {
        f"{each.table}.{each.name}" for one in bounded for each in one.this.find_all(exp.Column)
    }
    assert columns == {"o.id", "l.oid", "l.qty"}
