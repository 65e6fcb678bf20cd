"""Direct reads: one Spark data source for every connector, one partition a slice, read lazily.

The connector, and with it the password, travels inside the pickled class: options and plans, which
Spark shows, hold neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from kalla.spark.connectors.connector import Connector, Slice, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession


def read(
    spark: SparkSession,
    connector: Connector,
    slices: Sequence[Slice],
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """The rows of the slices as a DataFrame; each is fetched by the executor that needs it."""
    schema = arrow_schema(connector.schema(), columns)
    # A class of its own for each source, for the class is what Spark carries to the executors.
    source: type[ConnectorSource] = type(
        f"kalla_{uuid4().hex}",
        (ConnectorSource,),
        {"connector": connector, "slices": tuple(slices), "columns": tuple(schema.names),
         "spark_schema": from_arrow_schema(schema)},
    )  # fmt: skip
    spark.dataSource.register(source)
    return spark.read.format(source.name()).load()


class ConnectorSource(DataSource):
    """A connector as Spark sees it."""

    connector: ClassVar[Connector]
    slices: ClassVar[tuple[Slice, ...]]
    columns: ClassVar[tuple[str, ...]]
    spark_schema: ClassVar[StructType]

    def schema(self) -> StructType:
        return self.spark_schema

    def reader(self, schema: StructType) -> SliceReader:  # noqa: ARG002 -- Spark's signature
        return SliceReader(self.connector, self.slices, self.columns)


class SliceReader(DataSourceReader):
    def __init__(
        self, connector: Connector, slices: Sequence[Slice], columns: Sequence[str]
    ) -> None:
        self._connector = connector
        self._slices = slices
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self._slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._connector.read(partition.value, self._columns)
