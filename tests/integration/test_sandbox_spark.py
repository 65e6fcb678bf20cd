"""The SQL sandbox before a real Spark: what passes means to it what the writer meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr
from pyspark.errors import AnalysisException, PySparkException

from kalla.errors import Permanent
from kalla.settings import Spark as SparkSettings
from kalla.spark import sql_functions
from kalla.spark.sandbox import hold, result_columns, searches
from kalla.spark.sandbox.allowed_functions import FUNCTIONS
from kalla.spark.session import SparkSessions, require_reading
from kalla.work.handler import Context
from kalla.work.job import Job
from tests.servers import SparkServer
from tests.unit.test_sandbox import GOOD, KNOWN

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = pytest.mark.spark

LEFT = """
SELECT * FROM VALUES
  ('1', 'INV-1', 100.00, 'EUR', DATE '2024-01-30', 'paid x', 'open'),
  ('2', 'INV-2', 12.34, 'EUR', DATE '2024-02-29', NULL, 'void'),
  ('3', 'inv-3 ', -5.00, 'USD', DATE '2024-03-01', 'ABC12', NULL),
  ('4', 'INV-1', 50.00, 'EUR', DATE '2024-03-02', 'x_y', 'open'),
  ('5', NULL, 0.00, NULL, NULL, '50% it''s', 'draft')
AS t(id, invoice, amount, currency, booked, memo, status)
"""
RIGHT = """
SELECT * FROM VALUES
  ('a', 'INV-1', 100.01, 'EUR', TIMESTAMP '2024-02-01 10:00:00', 'paid x', 1),
  ('b', 'INV-1', 150.00, 'EUR', TIMESTAMP '2024-01-30 00:00:00', NULL, 2),
  ('c', 'INV-3', -5.00, 'USD', TIMESTAMP '2024-03-04 23:59:59', 'm', 3),
  ('d', NULL, 0.00, NULL, NULL, NULL, 4)
AS t(id, reference, amount, currency, paid, memo, created)
"""


@pytest.fixture(scope="module")
def spark(spark_server: SparkServer) -> Iterator[SparkSession]:
    sessions = SparkSessions(
        SparkSettings(remote=spark_server.remote, token=SecretStr(spark_server.token))
    )
    job = Job(1, 1, "sandbox", "exec", {}, 0, 0, 3, 15, 60, None, None, None)
    with sessions.session(job, Context()) as session:
        session.sql(LEFT).createOrReplaceTempView("left_src")
        session.sql(RIGHT).createOrReplaceTempView("right_src")
        sql_functions.install(session)
        yield session
    sessions.close()


@pytest.mark.parametrize("sql", GOOD)
def test_what_passes_gives_the_same_rows_as_the_text_itself(spark: SparkSession, sql: str) -> None:
    held = spark.sql(hold(sql, KNOWN))
    meant = spark.sql(sql.rstrip().rstrip(";"))
    bounded = spark.sql(searches.bounded(hold(sql, KNOWN)))
    assert bounded.dtypes == held.dtypes == meant.dtypes
    assert sorted(map(repr, bounded.collect())) == sorted(map(repr, held.collect()))
    assert named(sql) in (None, Counter(map(str.lower, meant.columns)))
    assert sorted(map(repr, held.collect())) == sorted(map(repr, meant.collect()))


def named(sql: str) -> Counter[str] | None:
    found = result_columns(hold(sql, KNOWN), KNOWN)
    return None if found is None else Counter(found)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM left_src l JOIN right_src r ON l.invoice = r.reference",
        "SELECT * FROM left_src l JOIN right_src r USING (currency, amount)",
        "SELECT l.*, r.* FROM left_src l JOIN right_src r USING (currency)",
        "SELECT * FROM left_src l FULL JOIN right_src r USING (ID)",
        "SELECT * FROM left_src NATURAL JOIN right_src",
        "SELECT * FROM left_src l LEFT SEMI JOIN right_src r ON l.id = r.id",
        "SELECT *, id FROM left_src l LEFT ANTI JOIN right_src r USING (id)",
        "SELECT * EXCEPT (memo, Status), l.memo AS id FROM left_src l",
        "SELECT l.* EXCEPT (id), r.*, l.id AS left_id FROM left_src l, right_src r",
        "SELECT * FROM (SELECT l.*, r.id FROM left_src l CROSS JOIN right_src r) x",
        "WITH t(a, b) AS (SELECT id, id FROM left_src) SELECT *, a FROM t",
        "SELECT id, ID AS Id FROM left_src UNION ALL SELECT id, reference FROM right_src",
    ],
)
def test_the_columns_of_a_result_are_known_before_as_often_as_spark_makes_them(
    spark: SparkSession, sql: str
) -> None:
    assert named(sql) == Counter(map(str.lower, spark.sql(sql).columns))


def test_every_listed_function_is_one_of_sparks(spark: SparkSession) -> None:
    known = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    # These are part of Spark's grammar, not functions with an entry.
    assert FUNCTIONS - known <= {"extract", "timestampadd", "timestampdiff", "try_cast"}


@pytest.mark.parametrize(
    "text", ["${env:HOME}", "${system:user.home}", "${spark.app.name}", "${x}"]
)
def test_spark_fills_in_no_variable(spark: SparkSession, text: str) -> None:
    (row,) = spark.sql(f"SELECT '{text}' AS a").collect()
    assert row[0] == text
    assert spark.sql(f"SELECT 1 AS `{text}`").columns == [text]


def test_spark_takes_no_file_for_a_table(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM text.`/etc/hostname`").collect()


@pytest.mark.filterwarnings("ignore:The SQL config")  # that somebody sets what is deprecated
@pytest.mark.parametrize(
    "name", ["spark.sql.variable.substitute", "spark.sql.parser.escapedStringLiterals"]
)
def test_a_server_that_reads_sql_otherwise_is_noticed(spark: SparkSession, name: str) -> None:
    require_reading(spark)
    spark.conf.set(name, "true")
    try:
        with pytest.raises(Permanent, match=f"{name} on, .* set that to false on the server"):
            require_reading(spark)
    finally:
        spark.conf.set(name, "false")


@pytest.mark.parametrize(
    ("call", "matches"),
    [
        ("10.00, 10.01, 0.01", True),
        ("10.01, 10.00, 0.01", True),
        ("10.00, 10.02, 0.01", False),
        ("-1, 1, 2", True),
        ("1, 1, 0", True),
        ("0.000000000000000001, 0, 0.000000000000000001", True),
        ("0.000000000000000002, 0, 0.000000000000000001", False),
        ("9999999999999999999.000000000000000001, 9999999999999999999, 0", False),
        ("9999999999999999999, -9999999999999999999, 1", False),
        ("CAST(0.1 AS DOUBLE) + CAST(0.2 AS DOUBLE), 0.3, 0", False),
        ("1, 2, -1", False),
        ("NULL, 1, 1", False),
        ("1, NULL, 1", False),
        ("1, 1, NULL", False),
    ],
)
def test_tolerance_match_is_exact_and_never_null(
    spark: SparkSession, call: str, matches: bool
) -> None:
    (row,) = spark.sql(f"SELECT tolerance_match({call})").collect()
    assert row[0] is matches


def test_tolerance_match_keeps_every_digit_of_a_column(spark: SparkSession) -> None:
    least = Decimal("0.000000001")
    rows = spark.createDataFrame(
        [(Decimal("1234567890123456789.123456789"), Decimal("1234567890123456789.123456788"))],
        "a DECIMAL(38, 9), b DECIMAL(38, 9)",
    )
    (row,) = rows.selectExpr(
        f"tolerance_match(a, b, {least})", f"tolerance_match(a, b, {least / 2:f})"
    ).collect()
    assert tuple(row) == (True, False)


def test_tolerance_match_is_inlined(spark: SparkSession) -> None:
    plan = spark.sql(
        "EXPLAIN SELECT l.id, r.id FROM left_src l JOIN right_src r"
        " ON l.invoice = r.reference AND tolerance_match(l.amount, r.amount, 0.01)"
    ).collect()[0][0]
    assert "abs(" in plan
    assert "tolerance_match" not in plan.lower()
    assert "python" not in plan.lower()


@pytest.mark.attack
def test_a_text_that_is_too_long_for_its_pattern_fails_in_a_sentence(spark: SparkSession) -> None:
    sql = "SELECT id FROM left_src WHERE memo RLIKE '.*.*y'"
    held = searches.bounded(hold(sql, KNOWN))
    long = held.replace("`memo`", "repeat('x', 20000)")
    with pytest.raises(PySparkException) as caught:
        spark.sql(long).collect()
    told = searches.refusal(str(caught.value))
    assert told is not None
    assert "a text of 20,000 characters" in told
    assert "at most 1,356 are allowed" in told
    assert searches.refusal("anything else") is None


@pytest.mark.attack
def test_a_pattern_of_like_that_a_row_brings_fails_in_a_sentence(spark: SparkSession) -> None:
    sql = "SELECT id FROM left_src WHERE memo LIKE '%' || status || '%'"
    held = searches.bounded(hold(sql, KNOWN))
    assert spark.sql(held.replace("`memo`", "repeat('void', 5000)")).count() == 1
    poison = held.replace("`status`", "repeat('%a', 20)").replace("`memo`", "repeat('a', 60)")
    with pytest.raises(PySparkException) as caught:
        spark.sql(poison).collect()
    told = searches.refusal(str(caught.value))
    assert told is not None
    assert "a text of 60 characters with a pattern of LIKE that has 21 % from a row" in told


@pytest.mark.attack
def test_what_overflows_the_stack_of_a_task_fails_its_query_alone(spark: SparkSession) -> None:
    """Past the sandbox, which refuses such patterns: Spark once ended with it, for everybody."""
    poison = "SELECT regexp_like(repeat('axa\U0001f600', 100000), '^(?:a.)*$') AS hit FROM left_src"
    with pytest.raises(PySparkException):
        spark.sql(poison).collect()
    assert spark.sql("SELECT 1 AS one").collect()[0][0] == 1, "the same server, the same session"
    assert len(spark.sql("SELECT * FROM left_src").collect()) == 5
