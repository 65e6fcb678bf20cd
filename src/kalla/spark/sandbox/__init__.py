"""The sandbox: what SQL of a user may say to Spark, which itself would run anything."""

from kalla.spark.sandbox.gate import LONGEST, hold, result_columns, tables_read
from kalla.spark.sandbox.grammar import TooComplicated

__all__ = ["LONGEST", "TooComplicated", "hold", "result_columns", "tables_read"]
