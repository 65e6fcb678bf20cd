"""The dialect in which queries are analysed: that of the sandbox, with the aggregates of DELTA.

Every other call stays as it is written: a rewritten one may mean something else to Spark.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot.parsers.spark import SparkParser

from kalla.spark.sandbox.grammar import Held, HeldParser


class StructuredParser(HeldParser):
    FUNCTIONS: ClassVar[Any] = {
        name: SparkParser.FUNCTIONS[name] for name in ("COUNT", "SUM", "AVG", "MIN", "MAX")
    }


class Structured(Held):
    Parser = StructuredParser
