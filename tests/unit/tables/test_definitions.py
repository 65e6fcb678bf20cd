"""Statements and plans of dynamic tables: parsed, ordered, scheduled, without any server."""

from __future__ import annotations

import pytest

from kalla.errors import InvalidInput
from kalla.spark.sandbox import tables_read
from kalla.tables.incremental.changes import placed
from kalla.tables.incremental.structure import NotIncremental, structure
from kalla.tables.model import SourceDefinition, TableDefinition, parse
from kalla.tables.schedule import plan


def test_a_statement_says_all_options() -> None:
    source, table = parse(
        """
        -- the shop's orders; with a semicolon
        CREATE SOURCE orders LOCATION '/data/o' FORMAT parquet;
        create or replace dynamic table Daily target_lag = '5 minutes' REFRESH_STRATEGY = FULL
            DEDUPLICATION = FALSE CARDINALITY_THRESHOLD = 0.5 INITIALIZE = ON_SCHEDULE
            COMMENT "it's; daily" AS SELECT day FROM orders WHERE day <> ';';
        """
    )
    assert source == SourceDefinition("orders", "/data/o", "parquet")
    assert table == TableDefinition(
        name="daily",
        query="SELECT day FROM orders WHERE day <> ';'",
        lag_seconds=300,
        strategy="FULL",
        deduplication=False,
        cardinality_threshold=0.5,
        initialize="ON_SCHEDULE",
        comment="it's; daily",
        replace=True,
    )


def test_a_registered_table_has_a_key_and_may_have_a_watermark() -> None:
    (source,) = parse("CREATE SOURCE o REGISTERED 'erp orders' KEY (id, line) WATERMARK changed")
    assert source == SourceDefinition(
        "o", "erp orders", "registered", key=("id", "line"), watermark="changed"
    )


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "there is no statement"),
        ("DROP TABLE x", "DYNAMIC is expected"),
        ("ALTER TABLE x", "CREATE is expected"),
        ("CREATE DYNAMIC TABLE x AS SELECT 1", "TARGET_LAG is missing"),
        ("CREATE DYNAMIC TABLE x TARGET_LAG = '5 moons' AS SELECT 1", "is not a duration"),
        ("CREATE DYNAMIC TABLE x TARGET_LAG = '0.9 s' AS SELECT 1", "below one second"),
        ("CREATE DYNAMIC TABLE x TARGET_LAG = '1 s'", "ends too early"),
        ("CREATE DYNAMIC TABLE x TARGET_LAG = '1 s' AS", "the query is missing"),
        ("CREATE DYNAMIC TABLE x SPEED = 3 AS SELECT 1", "SPEED is not an option"),
        ("CREATE DYNAMIC TABLE `a b` TARGET_LAG = '1 s' AS SELECT 1", "is not a name"),
        ("CREATE DYNAMIC TABLE x TARGET_LAG = '1 s' STRICT STRICT AS SELECT 1", "given twice"),
        ("CREATE DYNAMIC TABLE x TARGET_LAG = '1 s' REFRESH_STRATEGY = FAST AS SELECT 1",
         "must be one of AUTO, AFFECTED_KEYS, DELTA, FULL"),
        ("CREATE DYNAMIC TABLE x TARGET_LAG = '1 s' AS SELECT 'open", "is not closed"),
        ("CREATE SOURCE a LOCATION '/x'; CREATE SOURCE a LOCATION '/y'", "is defined twice"),
    ],
)  # fmt: skip
def test_a_wrong_statement_is_refused_in_a_sentence(sql: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(sql)


def test_dependencies_are_found_from_the_sql() -> None:
    query = "WITH a AS (SELECT 1 FROM Orders) SELECT * FROM a JOIN (SELECT 2 FROM customers) b"
    assert tables_read(query, "t") == {"orders", "customers"}


def test_a_cycle_is_refused_by_its_names() -> None:
    with pytest.raises(InvalidInput, match=r"in a cycle: (a reads b reads a|b reads a reads b)"):
        plan.ordered({"a": {"b"}, "b": {"a"}, "c": set()})
    with pytest.raises(InvalidInput, match="a reads a"):
        plan.ordered({"a": {"a"}})


def test_tables_that_share_a_source_or_read_each_other_are_one_component() -> None:
    graph: plan.Graph = {"a": set(), "b": {"a"}, "c": set(), "d": set()}
    sources = {"a": {"x"}, "c": {"x", "y"}, "d": {"z"}}
    assert plan.components(graph, sources) == [frozenset("abc"), frozenset("d")]


def test_downstream_takes_the_least_lag_of_its_readers() -> None:
    graph: plan.Graph = {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"a"}, "e": set()}
    lags = plan.effective_lags(graph, {"a": None, "b": None, "c": 60, "d": 300, "e": None})
    assert lags == {"a": 60, "b": 60, "c": 60, "d": 300, "e": None}


def test_periods_are_powers_of_two_that_leave_room_for_the_refresh() -> None:
    assert plan.period_seconds(lag=300, duration=10) == 256
    assert plan.period_seconds(lag=300, duration=20) == 128
    assert plan.period_seconds(lag=10, duration=9) is None


def test_the_time_to_a_commit_is_that_of_the_longest_path() -> None:
    graph: plan.Graph = {"a": set(), "b": set(), "c": {"a", "b"}}
    path = plan.path_seconds(graph, {"a": 2.0, "b": 5.0, "c": 1.0})
    assert path == {"a": 3.0, "b": 6.0, "c": 8.0}


def test_ticks_of_different_periods_align_and_missed_ones_are_one() -> None:
    assert [plan.is_due(now, 7.5, 8) for now in (7.9, 8.0, 50.0)] == [False, True, True]
    assert not plan.is_due(55.0, 50.0, 8)
    assert plan.is_due(56.0, 50.0, 8)
    assert plan.is_due(1.0, None, 8)
    for last in (7.5, 8.0, 50.0):
        due = plan.next_due(last, 8)
        assert not plan.is_due(due - 0.001, last, 8)
        assert plan.is_due(due, last, 8)


# The parser tries two readings of each of these, so each level would double its time.
DOUBLING = [
    "SELECT " + "int(" * 24 + "1" + ")" * 24 + " FROM a",
    "SELECT 1 FROM a" + " JOIN b" * 30,
]


@pytest.mark.attack
@pytest.mark.timeout(20)
@pytest.mark.parametrize("sql", DOUBLING)
def test_a_short_query_cannot_hold_its_parser(sql: str) -> None:
    with pytest.raises(InvalidInput, match="too complicated"):
        tables_read(sql, "query")
    with pytest.raises(NotIncremental, match="too complicated"):
        structure(sql, {"a": ["x"], "b": ["y"]})
    with pytest.raises(InvalidInput, match="too complicated"):
        placed(sql, {"a": "v1", "b": "v2"})


@pytest.mark.attack
def test_a_query_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nested too deeply"):
        tables_read("SELECT " + "int(" * 300 + "1" + ")" * 300 + " FROM a", "query")
