"""Texts that Spark reads as the time of the run, when it makes a date of them, asked or unasked.

It looks at texts that the SQL itself holds, or makes of its own; one in a column is data to it.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from kalla.spark.sandbox.allowed_functions import INSTEAD, MADE_OF_TEXTS
from kalla.spark.sandbox.sql_problems import Report, shown
from kalla.spark.sandbox.uses import WRITTEN, Use, becomes

_BLANK: Final = r"[\s\x00-\x1f\x7f-\x9f]"
_CLOCK: Final = re.compile(
    rf"{_BLANK}*(now|today|tomorrow|yesterday)({_BLANK}.*)?", re.IGNORECASE | re.DOTALL
)
# A time without its day is on the day of the run. One of hours alone may as well be a tax code.
_NO_DAY: Final = re.compile(rf"{_BLANK}*T?\d{{1,2}}:\d{{1,2}}(:.*|{_BLANK}*)", re.DOTALL)
_HOURS: Final = re.compile(rf"{_BLANK}*T\d{{1,2}}{_BLANK}*")
_BEGINS: Final = re.compile(rf"{_BLANK}*T?\d{{1,2}}:.*", re.DOTALL)
_KEPT: Final = {"lcase", "lower", "ltrim", "rtrim", "trim", "ucase", "upper"}


def check(tree: exp.Expr, report: Report) -> None:
    for node in tree.walk():
        if _is_text(node) or _makes_text(node):
            _text(node, report)
            _time(node, report)
            _written(node, report)


def _time(node: exp.Expr, report: Report) -> None:
    text = constant(node)
    if text is None:
        text = _joined_first(node)
        no_day = text is not None and _BEGINS.fullmatch(text) and becomes(node) is not Use.TEXT
    elif _HOURS.fullmatch(text):
        no_day = becomes(node) is Use.POINT
    else:
        no_day = _NO_DAY.fullmatch(text) and becomes(node) is not Use.TEXT
    if text is not None and no_day:
        report.add(
            f"'{shown(text)}' has no day, so as a point in time it would be on the day of the run",
            node.parent if _is_text(node) else node,
            value=text,
            suggestion="write the day before it, or compare it with CAST(… AS STRING)",
        )


def _written(node: exp.Expr, report: Report) -> None:
    """A point in time that is written without its day, and read again."""
    if not isinstance(node, exp.Anonymous) or node.name.lower() not in WRITTEN:
        return
    format_ = constant(node.expressions[1]) if len(node.expressions) > 1 else None
    if format_ is not None and "y" not in format_ and becomes(node) is Use.POINT:
        report.add(f"'{shown(format_)}' has no year, so what it writes, as a point in time, may be "
                   "on the day of the run", node, suggestion="write the day, too")  # fmt: skip


def _text(node: exp.Expr, report: Report) -> None:
    if (text := constant(node)) is None:
        if not any(node.find_all(exp.Column, exp.Query)):
            report.add("a text that is made of texts alone might stand for the time of the run",
                       node, suggestion="write the text in one piece")  # fmt: skip
    elif _CLOCK.fullmatch(text):
        report.add(
            f"the text '{shown(text)}' would stand for the time of the run, "
            "which differs from run to run",
            node.parent if _is_text(node) else node,
            value=text,
            suggestion=INSTEAD["now"],
        )


def constant(node: exp.Expr) -> str | None:
    """The text of an expression, of which letters' case does not matter, if it is plain to see."""
    if isinstance(node, exp.Literal | exp.RawString):
        return node.name
    if isinstance(node, exp.Paren):
        return constant(node.this)
    if isinstance(node, exp.DPipe):
        return _joined([node.this, node.expression])
    if isinstance(node, exp.Anonymous):
        return _called(node.name.lower(), node.expressions)
    return None


def _called(name: str, arguments: list[exp.Expr]) -> str | None:
    if name == "concat":
        return _joined(arguments)
    if len(arguments) == 1:
        if name in _KEPT:
            return constant(arguments[0])
        if name == "chr" and isinstance(arguments[0], exp.Literal) and arguments[0].is_int:
            return chr(int(arguments[0].name) % 256)
    return None


def _joined(parts: list[exp.Expr]) -> str | None:
    texts = [constant(each) for each in parts]
    known = [each for each in texts if each is not None]
    return "".join(known) if len(known) == len(texts) else None


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string)


def _makes_text(node: exp.Expr) -> bool:
    called = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    return isinstance(node, exp.DPipe) or called in MADE_OF_TEXTS


def _joined_first(node: exp.Expr) -> str | None:
    """The text that a joined one begins with."""
    while isinstance(node, exp.DPipe | exp.Paren):
        if (text := constant(node)) is not None:
            return text
        node = node.this
    if isinstance(node, exp.Anonymous) and node.name.lower() == "concat" and node.expressions:
        return _joined_first(node.expressions[0])
    return constant(node)
