"""Temporary views of one piece of work on a session that several share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


class Views:
    """Temporary views under names of this refresh's own: a session has several refreshes."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._names: list[str] = []

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            self._spark.catalog.dropTempView(name)

    def add(self, rows: DataFrame) -> str:
        name = f"kalla_{uuid4().hex}"
        rows.createOrReplaceTempView(name)
        self._names.append(name)
        return name
