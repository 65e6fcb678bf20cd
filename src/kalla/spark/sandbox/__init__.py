"""The sandbox: what SQL of a user may say to Spark, which itself would run anything."""

from kalla.spark.sandbox.gate import LONGEST, hold, result_columns

__all__ = ["LONGEST", "hold", "result_columns"]
