"""The PostgreSQL connector: the suite that every connector passes, and how tables are cut."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from kalla.errors import InvalidInput, NotFound
from kalla.spark.connectors import ranges
from kalla.spark.connectors.connector import Predicate
from kalla.spark.connectors.postgres_table import look_up
from kalla.spark.connectors.postgres_text import range_condition
from kalla.spark.connectors.postgres_types import PostgresColumn
from tests.integration.connectors.conformance import Conformance, read_all, sizes
from tests.integration.connectors.postgres_shelf import PostgresShelf


class TestPostgres(Conformance):
    @pytest.fixture
    def shelf(self, shared: PostgresShelf) -> PostgresShelf:
        return shared


def test_a_table_that_is_sampled_is_cut_evenly_and_along_its_index(shelf: PostgresShelf) -> None:
    shelf.run(
        "CREATE TABLE t (id int8 PRIMARY KEY, filler text);"
        "INSERT INTO t SELECT (n / 1000.0) ^ 5, repeat('x', 200)"
        " FROM generate_series(1000, 100000) n ON CONFLICT DO NOTHING; ANALYZE t"
    )
    connector = shelf.connector("t")
    slices = connector.split(8)
    found = sizes(connector, slices)
    assert len(found) == 8
    assert max(found) < 1.6 * sum(found) / 8
    assert slices == connector.split(8), "the same table is cut in the same places"
    with psycopg.connect(shelf.url) as connection:
        counted = connection.execute("SELECT count(*) FROM t").fetchone()
    assert counted == (sum(found),)


def test_the_cut_follows_the_rows_that_the_filter_leaves(shelf: PostgresShelf) -> None:
    shelf.run(
        "CREATE TABLE t (id int8 PRIMARY KEY, recent bool);"
        "INSERT INTO t SELECT n, n > 9000 FROM generate_series(1, 10000) n"
    )
    connector = shelf.connector("t", predicates=(Predicate("recent", "eq", True),))
    assert sizes(connector, connector.split(4)) == [250, 250, 250, 250]


def test_rows_that_do_not_lie_in_the_order_of_their_key_are_read_where_they_lie(
    shelf: PostgresShelf,
) -> None:
    shelf.run(
        "CREATE TABLE t (id int4 PRIMARY KEY, filler text, recent bool);"
        "INSERT INTO t SELECT n, repeat('x', 300), row_number() OVER (ORDER BY md5(n::text))"
        " > 30000 FROM generate_series(1, 40000) n ORDER BY md5(n::text)"
    )
    source = shelf.connector("t")
    assert "do not lie in that order" in source.estimate().notes[0]
    few = source.split(8)
    assert [part.range and part.range.columns for part in few] == [("id",)] * 4
    with source.held_snapshot() as snapshot:
        fixed = source.at(snapshot)
        assert "in ctid ranges" in fixed.estimate().notes[0]
        slices = fixed.split(8)
        assert {part.range and part.range.columns for part in slices} == {("ctid",)}
        found = sizes(fixed, slices)
        assert sum(found) == sum(sizes(source, few)) == 40_000
        assert max(found) < 1.2 * 40_000 / 8
        late = replace(fixed, predicates=(Predicate("recent", "eq", True),))
        found = sizes(late, late.split(5))
        assert sum(found) == 10_000
        assert max(found) < 2 * 10_000 / 5, "and the cut follows what the filter leaves"
        asked = replace(fixed, partition_key="id").split(8)
        assert [part.range and part.range.columns for part in asked] == [("id",)] * 8
    with shelf.clerk("GRANT SELECT (id, recent) ON t TO {}") as clerk:
        some = replace(source, uri=clerk)
        parts = some.split(8)
        assert len(parts) == 8, "who may not see where rows lie reads by the key"
        read = (batch.num_rows for part in parts for batch in some.read(part, ["id"]))
        assert sum(read) == 40_000


@pytest.mark.parametrize(
    ("made", "key", "unique"),
    [
        ("id int4 PRIMARY KEY, v int4", ["id"], True),
        ("id int4 PRIMARY KEY, v int4", ["v", "id"], True),
        ("id int4 PRIMARY KEY, v int4", ["v"], False),
        ("id int4, v int4, PRIMARY KEY (id, v)", ["id"], False),
        ("id int4 UNIQUE, v int4", ["id"], False),  # nulls are no key
        ("id int4 UNIQUE NOT NULL, v int4 PRIMARY KEY", ["id"], False),  # which is cut by v
    ],
)
def test_rows_are_told_apart_by_what_the_database_keeps_unique(
    shelf: PostgresShelf, made: str, key: list[str], unique: bool
) -> None:
    shelf.run(f"CREATE TABLE t ({made})")
    assert shelf.connector("t").tells_apart(key) == unique


@pytest.mark.parametrize(
    ("made", "held", "scan"),
    [
        ("id int8 PRIMARY KEY", False, "Index"),
        ("id text PRIMARY KEY", False, "Index"),
        ("id varchar(9) PRIMARY KEY", False, "Index"),
        ("id char(9) PRIMARY KEY", False, "Index"),
        ('id text COLLATE "C.utf8" PRIMARY KEY', False, "Index"),
        ("id numeric(9, 1) PRIMARY KEY", False, "Index"),
        ("a int4 DEFAULT 1, id text, PRIMARY KEY (a, id)", False, "Index"),
        ("id int8", True, "Tid Range"),
    ],
)
def test_a_slice_is_found_without_scanning_the_others(
    shelf: PostgresShelf, made: str, held: bool, scan: str
) -> None:
    shelf.run(f"CREATE TABLE t ({made}); INSERT INTO t (id) SELECT generate_series(1, 2000)")
    connector = shelf.connector("t")
    with (
        connector.held_snapshot() as snapshot,
        psycopg.connect(shelf.url, row_factory=dict_row) as connection,
    ):
        source = connector.at(snapshot) if held else connector
        connection.execute("SET enable_seqscan = off")
        slices = source.split(4)
        assert len(slices) == 4
        columns = look_up(connection, "t", "").by_name
        for part in slices:
            assert part.range is not None
            query = f"EXPLAIN SELECT 1 FROM t WHERE {range_condition(part.range, columns)}"
            plan = str(connection.execute(query.encode()).fetchall())
            assert scan in plan
            assert "Filter" not in plan


def test_a_text_key_without_an_index_is_compared_in_c_order_and_says_what_that_costs(
    shelf: PostgresShelf,
) -> None:
    shelf.run("CREATE TABLE t (ref text); INSERT INTO t SELECT n FROM generate_series(1, 100) n")
    connector = shelf.connector("t", partition_key="ref")
    slices = connector.split(2)
    assert {part.range.collations for part in slices if part.range} == {("C",)}
    assert "each slice scans all rows" in connector.estimate().notes[0]


def test_a_unique_index_will_do_where_there_is_no_primary_key(shelf: PostgresShelf) -> None:
    shelf.run(
        "CREATE TABLE t (id int4, v int4); CREATE UNIQUE INDEX ON t (id);"
        "INSERT INTO t SELECT nullif(n, 5), n FROM generate_series(1, 100) n"
    )
    connector = shelf.connector("t")
    slices = connector.split(4)
    assert len(slices) == 4
    assert {v for _, v in read_all(connector, slices)} == set(range(1, 101))


def test_a_name_that_two_tables_have_is_refused(shelf: PostgresShelf) -> None:
    shelf.run(
        'CREATE SCHEMA a; CREATE TABLE a."b.c" (id int4); CREATE TABLE a.c (id int4);'
        'CREATE SCHEMA "a.b"; CREATE TABLE "a.b".c (id int4)'
    )
    with pytest.raises(InvalidInput, match=r"a\.b\.c is the name of two tables"):
        shelf.connector("a.b.c").schema()
    assert len(shelf.connector("a.c").schema()) == 1


@pytest.mark.parametrize(
    "made",
    [
        "CREATE VIEW t AS SELECT n AS id FROM generate_series(1, 1000) n",
        "CREATE MATERIALIZED VIEW t AS SELECT n AS id FROM generate_series(1, 1000) n",
        """
        CREATE TABLE t (id int4) PARTITION BY RANGE (id);
        CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (500);
        CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (500) TO (2000);
        INSERT INTO t SELECT generate_series(1, 1000)
        """,
        """
        CREATE TABLE t (id int4); CREATE TABLE child () INHERITS (t);
        INSERT INTO t SELECT generate_series(1, 500);
        INSERT INTO child SELECT generate_series(501, 1000)
        """,
    ],
    ids=["view", "materialized view", "partitioned", "inherited"],
)
def test_what_has_no_key_is_one_piece_and_says_so_or_is_cut_by_the_key_given(
    shelf: PostgresShelf, made: str
) -> None:
    shelf.run(made)
    connector = shelf.connector("t")
    assert sizes(connector, connector.split(4)) == [1000]
    assert "one piece" in connector.estimate().notes[0]
    keyed = shelf.connector("t", partition_key="id")
    assert sizes(keyed, keyed.split(4)) == [250, 250, 250, 250]


def test_a_partitioned_table_is_cut_by_its_primary_key(shelf: PostgresShelf) -> None:
    shelf.run(
        "CREATE TABLE t (id int4 PRIMARY KEY, filler text) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (20000);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (20000) TO (200000);"
        "INSERT INTO t SELECT n, repeat('x', 300) FROM generate_series(1, 60000) n"
    )
    connector = shelf.connector("t")
    found = sizes(connector, connector.split(4))
    assert sum(found) == 60_000
    assert max(found) < 1.5 * 15_000


@pytest.mark.parametrize(
    "made",
    [
        (
            "CREATE TABLE t (id int4, k int4); INSERT INTO t SELECT {rows};"
            "ALTER TABLE t ADD CONSTRAINT later NOT NULL k NOT VALID"
        ),
        (
            "CREATE TABLE t (id int4, k int4, CONSTRAINT own NOT NULL k NO INHERIT);"
            "CREATE TABLE below () INHERITS (t); INSERT INTO below SELECT {rows}"
        ),
    ],
    ids=["not validated", "not inherited"],
)
def test_nulls_are_read_though_the_table_says_there_are_none(
    shelf: PostgresShelf, made: str
) -> None:
    shelf.run(made.format(rows="n, nullif(n % 50, 0) FROM generate_series(1, 1000) n"))
    source = shelf.connector("t", partition_key="k")
    slices = source.split(4)
    assert len(slices) == 4
    assert sorted(row[0] for row in read_all(source, slices)) == list(range(1, 1001))


def test_odd_names_are_only_names(shelf: PostgresShelf) -> None:
    shelf.run(
        'CREATE SCHEMA "S""x";'
        'CREATE TABLE "S""x"."T; DROP" ("I""d%s" int4 PRIMARY KEY, "b c" text);'
        'INSERT INTO "S""x"."T; DROP" SELECT n, n FROM generate_series(1, 100) n'
    )
    connector = shelf.connector('S"x.T; DROP', predicates=(Predicate('I"d%s', "gt", 50),))
    assert sum(sizes(connector, connector.split(4))) == 50
    with pytest.raises(NotFound, match=r"schema\.table"):
        shelf.connector("t; DROP TABLE x").schema()


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(WORDS, max_size=6), st.lists(WORDS | st.none(), min_size=1, max_size=20))
@pytest.mark.parametrize("collation", ["C", "default", "C.utf8"])
def test_the_server_puts_any_text_into_exactly_one_range(
    shared: PostgresShelf, collation: str, cuts: list[str], values: list[str | None]
) -> None:
    column = PostgresColumn("k", "text", "text", "b", -1, array=False, not_null=False)
    with psycopg.connect(shared.url) as connection:
        ordered = connection.execute(
            f'SELECT c FROM unnest(%s::text[]) c ORDER BY c COLLATE "{collation}"'.encode(), [cuts]
        ).fetchall()
        conditions = [
            range_condition(each, {"k": column}) for each in ranges.cut(["k"], ordered, [collation])
        ]
        counted = " + ".join(f"coalesce(({each})::int, 0)" for each in conditions)
        connection.execute("CREATE TEMP TABLE w (k text)")
        connection.cursor().executemany("INSERT INTO w VALUES (%s)", [(v,) for v in values])
        found = connection.execute(f"SELECT {counted} FROM w".encode()).fetchall()
        connection.rollback()
    assert found == [(1,)] * len(values)
