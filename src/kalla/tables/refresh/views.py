"""DataFrames that SQL reads by name, sent with the query: the session does not store them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_NAME = re.compile(r"`?(kalla_[0-9a-f]{32})`?")


class Views:
    """Names for the DataFrames of one piece of work."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._rows: dict[str, DataFrame] = {}

    def add(self, rows: DataFrame) -> str:
        name = f"kalla_{uuid4().hex}"
        self._rows[name] = rows
        return name

    def sql(self, text: str) -> DataFrame:
        """The rows of a query over these names."""
        used: dict[str, Any] = {
            name: self._rows[name] for name in _NAME.findall(text) if name in self._rows
        }
        if not used:
            return self._spark.sql(text)
        # Spark fills in {name}; every other brace is one of the text.
        escaped = text.replace("{", "{{").replace("}", "}}")
        return self._spark.sql(_NAME.sub(r"{\1}", escaped), **used)
