"""What user SQL is made of: the dialect that reads and writes it, and every node it may hold.

Whatever is not listed is refused, so that a newer parser cannot open a hole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token

_STEPS_AT_LEAST = 1_000
_STEPS_A_TOKEN = 20


class TooComplicated(Exception):
    """The parser goes back and forth over a text more often than an honest one asks for."""


class LimitedParser(SparkParser):
    """Reads no further than a number of steps that grows with the text: where the parser tries one
    reading after another, such as in joins without ON, each level could double the time.
    """

    _steps = 0

    def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expr | None]:
        self._steps = _STEPS_AT_LEAST + _STEPS_A_TOKEN * len(raw_tokens)
        return super().parse(raw_tokens, sql)

    def _advance(self, times: int = 1) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise TooComplicated
        super()._advance(times)


class HeldParser(LimitedParser):
    """Leaves calls as they are written: a rewritten one may mean something else to Spark."""

    FUNCTIONS: ClassVar[Any] = {}
    FUNCTION_PARSERS: ClassVar[Any] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
    }
    NO_PAREN_FUNCTIONS: ClassVar[Any] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[Any] = {
        "CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]
    }
    STATEMENT_PARSERS: ClassVar[Any] = {}

    def _parse_connect_with_prior(self) -> exp.Expr | None:
        # Changes the class while it reads, and leaves it so where the text breaks off.
        self.raise_error("CONNECT BY is not allowed")
        return None


class HeldGenerator(SparkGenerator):
    """Writes queries as they stand: the usual rewriting for Spark moves a WITH out of its scope."""

    TRANSFORMS: ClassVar[Any] = {
        kind: transform
        for kind, transform in SparkGenerator.TRANSFORMS.items()
        if kind not in (exp.Select, exp.From, exp.Table)
    }
    EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[Any] = set()


class Held(Spark):
    """Spark's dialect for one SELECT."""

    class Tokenizer(Spark.Tokenizer):
        # Spark 4 reads '' within a text as one quote, not as the end of one text before another.
        STRING_ESCAPES: ClassVar[Any] = ["\\", "'", '"']
        COMMANDS: ClassVar[Any] = set()

    Parser = HeldParser
    Generator = HeldGenerator


@dataclass(frozen=True)
class Allowed:
    """What an argument of a node may hold besides nothing and flags."""

    nodes: bool = True
    words: frozenset[str] = frozenset()
    text: bool = False


def _nodes(names: str, **others: Allowed) -> Mapping[str, Allowed]:
    return {name: Allowed() for name in names.split()} | others


def _words(*words: str, nodes: bool = False) -> Allowed:
    return Allowed(nodes=nodes, words=frozenset(words))


_TEXT = Allowed(nodes=False, text=True)
_BINARY = _nodes("this expression")
_QUERY = "with_ order limit offset"
_SIDES = _words("PRECEDING", "FOLLOWING")
_BOUNDS = _words("UNBOUNDED", "CURRENT ROW", nodes=True)

UNITS: Final = frozenset(
    {
        "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND",
        "MICROSECOND", "YEARS", "QUARTERS", "MONTHS", "WEEKS", "DAYS", "HOURS", "MINUTES",
        "SECONDS", "MILLISECONDS", "MICROSECONDS", "DAYOFWEEK", "DAYOFYEAR", "DOW", "DOY",
        "YEAROFWEEK",
    }
)  # fmt: skip

TYPES: Final = frozenset(
    {
        exp.DType.BIGINT, exp.DType.BOOLEAN, exp.DType.DATE, exp.DType.DECIMAL, exp.DType.DOUBLE,
        exp.DType.FLOAT, exp.DType.INT, exp.DType.SMALLINT, exp.DType.TEXT, exp.DType.TIMESTAMP,
        exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ, exp.DType.TIMESTAMPTZ, exp.DType.TINYINT,
    }
)  # fmt: skip

# Looked up by the exact class: a subclass is another node.
NODES: Final[Mapping[type[exp.Expr], Mapping[str, Allowed]]] = {
    # queries
    exp.Select: _nodes(f"{_QUERY} expressions distinct from_ joins where group having windows"),
    exp.Union: _nodes(f"{_QUERY} this expression distinct"),
    exp.Intersect: _nodes(f"{_QUERY} this expression distinct"),
    exp.Except: _nodes(f"{_QUERY} this expression distinct"),
    exp.Subquery: _nodes("this alias"),
    exp.With: _nodes("expressions"),
    exp.CTE: _nodes("this alias"),
    exp.From: _nodes("this"),
    exp.Join: _nodes(
        "this on using",
        side=_words("LEFT", "RIGHT", "FULL"),
        kind=_words("INNER", "OUTER", "CROSS", "SEMI", "ANTI"),
        method=_words("NATURAL"),
    ),
    exp.Table: _nodes("this alias db catalog"),  # `names` refuses the last two by name
    exp.TableAlias: _nodes("this columns"),
    exp.Where: _nodes("this"),
    exp.Group: _nodes("expressions all"),
    exp.Having: _nodes("this"),
    exp.Order: _nodes("expressions"),
    exp.Ordered: _nodes("this desc nulls_first"),
    exp.Limit: _nodes("expression"),
    exp.Offset: _nodes("expression"),
    exp.Distinct: _nodes("expressions"),
    # values
    exp.Alias: _nodes("this alias"),
    exp.Column: _nodes("this table db catalog"),
    exp.Identifier: _nodes("quoted", this=_TEXT),
    exp.Star: _nodes("except_"),
    exp.Literal: _nodes("is_string", this=_TEXT),
    exp.RawString: {"this": _TEXT},
    exp.Boolean: _nodes("this"),
    exp.Null: {},
    exp.Paren: _nodes("this"),
    exp.Tuple: _nodes("expressions"),
    exp.Bracket: _nodes("this expressions"),
    exp.Interval: _nodes("this unit"),
    exp.IntervalSpan: _nodes("this expression"),
    exp.Var: {"this": Allowed(nodes=False, words=UNITS)},
    # conditions and arithmetic
    **dict.fromkeys((exp.And, exp.Or, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), _BINARY),
    **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ, exp.Escape, exp.RegexpLike), _BINARY),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.IntDiv), _BINARY),
    exp.Div: _nodes("this expression safe"),
    exp.DPipe: _nodes("this expression safe"),
    exp.Like: _nodes("this expression negate"),
    exp.ILike: _nodes("this expression negate"),
    exp.Is: _nodes("this expression negate"),
    exp.In: _nodes("this expressions query"),
    exp.Between: _nodes("this low high"),
    exp.Exists: _nodes("this"),
    exp.Not: _nodes("this"),
    exp.Neg: _nodes("this"),
    exp.Case: _nodes("this ifs default"),
    exp.If: _nodes("this true false"),
    exp.Cast: _nodes("this to"),
    exp.TryCast: _nodes("this to safe"),
    exp.DataType: _nodes("expressions", this=Allowed(nodes=False)),
    exp.DataTypeParam: _nodes("this"),
    # calls
    exp.Anonymous: _nodes("expressions", this=Allowed(text=True)),
    exp.Extract: _nodes("this expression"),
    exp.Filter: _nodes("this expression"),
    exp.IgnoreNulls: _nodes("this"),
    exp.RespectNulls: _nodes("this"),
    exp.Window: _nodes("this partition_by order spec alias", over=_words("OVER")),
    exp.WindowSpec: {
        "kind": _words("ROWS", "RANGE"),
        "start": _BOUNDS,
        "start_side": _SIDES,
        "end": _BOUNDS,
        "end_side": _SIDES,
    },
}

# How a person calls what is refused; the rest go by the parser's name for them.
_CALLED: Final = {
    "AtTimeZone": "AT TIME ZONE",
    "Cluster": "CLUSTER BY",
    "Concat": "two texts side by side",
    "Cube": "CUBE",
    "Distribute": "DISTRIBUTE BY",
    "Dot": "a name with dots",
    "Fetch": "FETCH",
    "GroupingSets": "GROUPING SETS",
    "HexString": "a binary literal",
    "Into": "INTO",
    "JoinHint": "a hint",
    "Kwarg": "a named argument",
    "Lambda": "a lambda",
    "Lateral": "LATERAL",
    "Lock": "FOR UPDATE",
    "Parameter": "a parameter marker",
    "Placeholder": "a parameter marker",
    "Qualify": "QUALIFY",
    "QueryTransform": "TRANSFORM",
    "Sort": "SORT BY",
    "TableSample": "a sample, which differs from run to run,",
    "Values": "VALUES",
    "Version": "AS OF",
    "WithinGroup": "WITHIN GROUP",
    "recursive": "a recursive, that is cyclic, WITH",
    "hint": "a hint",
}


_INSTEAD: Final = {
    "All": "write several conditions with AND between them",
    "Any": "write several conditions with OR between them",
    "AtTimeZone": "use from_utc_timestamp or to_utc_timestamp",
    "Cluster": "leave it out: rows have no order",
    "Concat": "write || between them",
    "Cube": "use GROUP BY, and UNION ALL of several",
    "Distribute": "leave it out: rows have no order",
    "Dot": "write one alias before the column's name",
    "Fetch": "use ORDER BY … LIMIT …",
    "GroupingSets": "use GROUP BY, and UNION ALL of several",
    "Into": "leave it out: the result becomes the evidence",
    "JoinHint": "leave it out",
    "Join": "write the join without brackets around it",
    "Kwarg": "write the value alone",
    "Lateral": "use a join with a subquery",
    "Lock": "leave it out: nothing is written",
    "Parameter": "write ${name}, and declare name in the recipe's parameters",
    "Pivot": "use sum(CASE WHEN … THEN … END)",
    "Placeholder": "write ${name}, and declare name in the recipe's parameters",
    "Qualify": "filter the window's result in a SELECT around it",
    "QueryTransform": "use functions, such as upper or regexp_replace",
    "Rollup": "use GROUP BY, and UNION ALL of several",
    "Sort": "leave it out: rows have no order",
    "TableSample": "use a condition that always chooses the same rows",
    "Values": "write CASE WHEN … THEN … END, or keep the values in a source",
    "Version": "leave it out: a source is read as it is when the run begins",
    "hint": "leave it out",
    "recursive": "leave RECURSIVE out, and name each WITH after those it reads",
}


def called(kind: str) -> str:
    """A node class or an argument, as a person would call it."""
    return _CALLED.get(kind, kind.strip("_").replace("_", " ").upper())


def instead_of(kind: str) -> str:
    """What to write in the place of a node or an argument that is refused, if there is anything."""
    return _INSTEAD.get(kind, "")
