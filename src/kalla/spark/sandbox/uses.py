"""What becomes of a text where it stands: Spark makes a point in time of one that it compares with
a point in time, joins to one by UNION, or hands to a function of dates.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from sqlglot import exp

from kalla.spark.sandbox.allowed_functions import CASTS, DATES, SHORT, TEXTS

_POINTS: Final = {
    exp.DType.TIMESTAMP, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPNTZ,
}  # fmt: skip
_COMPARISONS: Final = (
    exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Between,
    exp.In,
)  # fmt: skip
# By a format, if they have one.
_READ: Final = {
    "to_date", "to_timestamp", "to_unix_timestamp", "try_to_date", "try_to_timestamp",
}  # fmt: skip
WRITTEN: Final = {"date_format", "from_unixtime"}
# Those that answer one of their arguments, from this one on.
_CHOICES: Final = {
    "coalesce": 0, "greatest": 0, "if": 1, "ifnull": 0, "lag": 0, "lead": 0, "least": 0, "max": 0,
    "min": 0, "nullif": 0, "nvl": 0, "nvl2": 1,
}  # fmt: skip


class Use(Enum):
    TEXT = "text"
    POINT = "point in time"
    UNKNOWN = "either"


def becomes(node: exp.Expr) -> Use:
    """What Spark makes of a text; UNKNOWN where that depends on a column's type."""
    above = node.parent
    if isinstance(above, exp.Paren):
        return becomes(above)
    if isinstance(above, exp.Cast | exp.TryCast):
        return _cast(above)
    if isinstance(above, exp.DPipe):
        return becomes(above) if node is above.this else Use.TEXT
    if isinstance(above, exp.Like | exp.ILike | exp.RegexpLike | exp.Escape | exp.Interval):
        return Use.TEXT
    if isinstance(above, _COMPARISONS):
        others = [each for each in above.iter_expressions() if each is not node]
        return Use.TEXT if all(map(_is_text, others)) else Use.UNKNOWN
    if isinstance(above, exp.Extract):
        return Use.POINT
    if isinstance(above, exp.Anonymous):
        return _argument(above, node)
    case = above.parent if isinstance(above, exp.If) else above
    if isinstance(case, exp.Case):
        return _of_case(case, node)
    return Use.UNKNOWN


def _cast(cast: exp.Cast) -> Use:
    if cast.to.this is exp.DType.TEXT:
        return becomes(cast)
    return Use.POINT if cast.to.this in _POINTS else Use.TEXT


def _argument(call: exp.Anonymous, node: exp.Expr) -> Use:
    name, arguments = call.name.lower(), call.expressions
    place = next((index for index, each in enumerate(arguments) if each is node), 0)
    if (first := _CHOICES.get(name)) is not None and place >= first:
        return becomes(call) if all(map(_is_text, arguments[first:])) else Use.UNKNOWN
    if name in WRITTEN and place:
        return becomes(call)
    if name in _READ and len(arguments) > 1:
        return Use.TEXT
    if name in DATES:
        return Use.POINT
    if name in CASTS:
        return becomes(call) if name == "string" else Use.TEXT
    if name in TEXTS:
        begins = place == (1 if name == "concat_ws" else 0)
        return becomes(call) if begins and name not in SHORT else Use.TEXT
    return Use.UNKNOWN


def _of_case(case: exp.Case, node: exp.Expr) -> Use:
    branches = case.args["ifs"]
    if node is case.this or any(node is each.this for each in branches):
        compared = [case.this, *(each.this for each in branches)]
        return Use.TEXT if all(map(_is_text, compared)) else Use.UNKNOWN
    return becomes(case) if _is_text(case) else Use.UNKNOWN


def _is_text(node: exp.Expr | None) -> bool:
    """Whether it is one whatever the types of columns are."""
    if isinstance(node, exp.Paren):
        return _is_text(node.this)
    if isinstance(node, exp.Cast | exp.TryCast):
        return node.to.this is exp.DType.TEXT
    if isinstance(node, exp.Case):
        results = [*(each.args["true"] for each in node.args["ifs"]), node.args.get("default")]
        return all(each is None or _is_text(each) for each in results)
    if isinstance(node, exp.Literal):
        return node.is_string
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        if (first := _CHOICES.get(name)) is not None:
            return all(map(_is_text, node.expressions[first:]))
        return name == "string" or name in WRITTEN or (name in TEXTS and name not in SHORT)
    return isinstance(node, exp.RawString | exp.DPipe | exp.Null)
