"""SQL functions of Kalla's own, which user SQL may call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kalla.spark.sandbox import searches

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

# A digit less than the 38 that Spark has: the difference of two such numbers then keeps all its
# digits. Of DECIMAL(38, 9) it would have 8 after the point, and the last one rounded.
_AMOUNT = "DECIMAL(37, 18)"

_TOLERANCE_MATCH = f"""
CREATE OR REPLACE TEMPORARY FUNCTION tolerance_match(a {_AMOUNT}, b {_AMOUNT}, t {_AMOUNT})
RETURNS BOOLEAN
DETERMINISTIC
RETURN coalesce(abs(a - b) <= t, FALSE)
"""


def install(session: SparkSession) -> None:
    """Make `tolerance_match(a, b, t)` known to a session: whether a and b differ by at most t.

    Exact on decimals of up to 19 digits before the point and 18 after it; more before it is an
    error of the query. The bound is included; a null anywhere gives false. It is a SQL function,
    which Spark puts into the plan as the expression it stands for: no Python sees a row.
    """
    session.sql(_TOLERANCE_MATCH)
    session.sql(searches.DEFINITION)
    session.sql(searches.LIKE_DEFINITION)
