"""The structure of queries: their keys, or the reason for FULL; without any server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kalla.spark.sandbox.allowed_functions import AGGREGATES
from kalla.tables.incremental.changes import placed
from kalla.tables.incremental.delta import delta_shape, refuse_floats
from kalla.tables.incremental.structure import NotIncremental, Select, structure
from kalla.tables.refresh import judge

COLUMNS = {"orders": ["id", "day", "amount", "customer"], "customers": ["customer", "region"]}


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT count(*) AS n FROM orders", "an aggregate without GROUP BY"),
        ("SELECT id FROM orders ORDER BY id LIMIT 3", "LIMIT"),
        ("SELECT id FROM orders WHERE id > (SELECT max(id) FROM orders)", "a scalar subquery"),
        ("SELECT id FROM orders WHERE id NOT IN (SELECT id FROM orders)", "NOT IN"),
        ("SELECT id FROM orders WHERE id = 1 OR id IN (SELECT id FROM orders)", "subquery"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM orders", "without PARTITION BY"),
        ("SELECT o.id FROM orders o FULL JOIN customers c ON o.customer = c.customer", "FULL JOIN"),
        ("SELECT o.id FROM orders o LEFT JOIN customers c ON o.id > 3", "without an equality"),
        ("SELECT o.id FROM orders o JOIN customers c ON o.id > 3", "without an equality"),
        ("SELECT customer FROM orders JOIN customers ON true", "are ambiguous"),
        ("SELECT day, count(*) AS n FROM orders GROUP BY ROLLUP (day)", "ROLLUP"),
        ("SELECT id FROM orders INTERSECT SELECT id FROM orders", "INTERSECT or EXCEPT"),
        ("SELECT o.id FROM orders o JOIN customers USING (customer)", "USING"),
        ("SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM customers c)", "EXISTS without"),
        ("SELECT o.id FROM orders o LEFT SEMI JOIN customers c ON o.customer = c.customer",
         "the query uses SEMI JOIN"),
        (("SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM customers c"
         " WHERE c.customer = o.customer"
         " AND c.region > (SELECT max(x.region) FROM customers x WHERE x.region = o.day))"),
         "a subquery in a subquery names a table outside"),
        (("SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM customers c"
         " WHERE c.customer = o.customer AND EXISTS (SELECT 1 FROM customers x"
         " WHERE x.customer = c.customer AND x.region = o.day))"),
         "a subquery in a subquery names a table outside"),
        (("SELECT id FROM orders WHERE customer IN (SELECT first_value(customer)"
         " OVER (PARTITION BY region ORDER BY customer) FROM customers)"),
         "a subquery with a window"),
        ("SELECT DISTINCT count(*) AS n FROM orders GROUP BY day",
         "DISTINCT over groups or windows"),
    ],
)  # fmt: skip
def test_what_has_no_key_has_a_reason_for_full(query: str, reason: str) -> None:
    with pytest.raises(NotIncremental, match=reason):
        structure(query, COLUMNS)


@pytest.mark.parametrize(
    ("query", "places"),
    [
        ("SELECT upper(day) AS d, id, count(*) AS n FROM orders GROUP BY d, 2", [0, 1]),
        ("SELECT sum(amount) AS s, day FROM orders GROUP BY day, customer", [1]),
        ("SELECT * FROM orders", [0, 1, 2, 3]),
        ("SELECT DISTINCT day FROM orders", [0]),
        ("WITH a AS (SELECT id, day FROM orders) SELECT day FROM a ORDER BY day", [0]),
        ("SELECT id, row_number() OVER (PARTITION BY day ORDER BY id) AS n, day FROM orders", [2]),
        (
            (
                "SELECT day, count(*) AS n FROM orders GROUP BY day"
                " UNION ALL SELECT customer, 1 FROM customers"
            ),
            [0],
        ),
        ("SELECT c.region FROM orders o RIGHT JOIN customers c ON o.customer = c.customer", [0]),
        ("SELECT id FROM orders WHERE customer IN (SELECT customer FROM customers)", [0]),
    ],
)
def test_keys_are_found_in_the_result(query: str, places: list[int]) -> None:
    assert [key.place for key in structure(query, COLUMNS).node.result_keys] == places


def test_a_key_that_the_result_lacks_is_no_key_of_the_result() -> None:
    found = structure("SELECT sum(amount) AS s FROM orders GROUP BY day", COLUMNS).node
    assert isinstance(found, Select)
    assert [key.place for key in found.keys] == [None]
    assert not found.result_keys


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        (
            (
                "SELECT day, count(*) AS n, sum(amount) AS s, avg(amount) AS a, max(id) AS m"
                " FROM orders GROUP BY day"
            ),
            ["key", "count", "sum", "avg", "max"],
        ),
        ("SELECT id, day FROM orders WHERE id > 3", ["key", "key"]),
    ],
)
def test_sums_and_counts_are_kept_by_delta(query: str, kinds: list[str]) -> None:
    shape = delta_shape(structure(query, COLUMNS))
    assert [each.kind for each in shape.measures] == kinds


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT day, count(DISTINCT id) AS n FROM orders GROUP BY day", "DISTINCT in n"),
        ("SELECT day, sum(amount) + 1 AS s FROM orders GROUP BY day", "not a plain aggregate"),
        ("SELECT day, count(*) AS n FROM orders GROUP BY day HAVING n > 1", "HAVING"),
        ("SELECT DISTINCT day FROM orders", "DISTINCT and windows"),
        ("SELECT DISTINCT day, count(*) AS n FROM orders GROUP BY day", "DISTINCT and windows"),
        ("SELECT day, count(*) AS n FROM orders GROUP BY day, customer", "every GROUP BY key"),
        ("SELECT id FROM orders UNION ALL SELECT id FROM orders", "UNION"),
    ],
)
def test_what_delta_cannot_keep_has_a_reason(query: str, reason: str) -> None:
    with pytest.raises(NotIncremental, match=reason):
        delta_shape(structure(query, COLUMNS))


@pytest.mark.parametrize("name", sorted(AGGREGATES))
def test_every_aggregate_of_the_sandbox_is_one_of_the_structure(name: str) -> None:
    arguments = "id, 0.5" if name == "percentile" else "id"
    with pytest.raises(NotIncremental, match="an aggregate without GROUP BY"):
        structure(f"SELECT {name}({arguments}) AS a FROM orders", COLUMNS)


def test_a_table_keeps_the_names_that_its_alias_gives_to_columns() -> None:
    query = "SELECT o.id FROM customers AS o(id, region)"
    with pytest.raises(NotIncremental, match="gives its columns other names"):
        structure(query, COLUMNS)
    assert placed(query, {"customers": "v"}) == ("SELECT `o`.`id` FROM `v` AS `o`(`id`, `region`)")


def test_a_query_that_the_optimizer_trips_over_has_a_reason_for_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trips(*_args: object, **_named: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("kalla.tables.incremental.structure.qualify", trips)
    with pytest.raises(NotIncremental, match="cannot be analysed: RecursionError"):
        structure("SELECT id FROM orders", COLUMNS)


CALLS = (
    "log10(id) AS a, log2(id) AS b, date_sub(day, 1) AS c, instr(day, 'x') AS d,"
    " to_timestamp(day, 'y') AS e, CAST(id AS INT) AS f, substring(day, 1, 2) AS g"
)


def test_calls_reach_spark_as_they_are_written() -> None:
    names = ("log10", "log2", "date_sub", "instr", "to_timestamp", "substring")
    query = f"SELECT {CALLS} FROM orders"
    found = structure(query, COLUMNS)
    for sql in (placed(query, {"orders": "v"}), found.sql, found.compared_sql):
        for name in names:
            assert f"{name}(" in sql.lower(), sql


def test_two_names_of_with_that_are_alike_are_not_confused() -> None:
    query = (
        "WITH a AS (SELECT id FROM orders),"
        " b AS (WITH a AS (SELECT customer AS id FROM customers) SELECT id FROM a)"
        " SELECT b.id FROM a JOIN b ON a.id = b.id"
    )
    with pytest.raises(NotIncremental, match="two names of WITH are alike"):
        structure(query, COLUMNS)


def test_delta_is_not_used_for_floats() -> None:
    shape = delta_shape(structure("SELECT day, sum(amount) AS s FROM orders GROUP BY day", COLUMNS))
    refuse_floats(shape, {"day": "string", "s": "decimal(22,2)"})
    for kind in ("double", "float"):
        with pytest.raises(NotIncremental, match="does not apply to floats: s"):
            refuse_floats(shape, {"day": "string", "s": kind})


@pytest.mark.parametrize("agrees", [True, False])
def test_a_query_that_spark_reads_differently_has_a_reason_for_full(agrees: bool) -> None:
    """Spark's own comparison is in tests/integration/tables/test_refresh.py."""
    frame: Any = SimpleNamespace(sameSemantics=lambda _other: agrees, dtypes=[("id", "bigint")])
    views: Any = SimpleNamespace(sql=lambda _text: frame)
    columns = {"orders": ("id",)}
    if agrees:
        assert judge._asked("SELECT id FROM orders", columns, {"orders": "v"}, views).delta
        return
    with pytest.raises(NotIncremental, match="Spark interprets the query differently"):
        judge._asked("SELECT id FROM orders", columns, {"orders": "v"}, views)
