"""Calls, literals and windows: what a listed node may say, beyond being listed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from sqlglot import exp

from kalla.spark.sandbox.allowed_functions import (
    FUNCTIONS,
    INSTEAD,
    LENGTHS,
    PATTERNS,
    PLACES,
    REASONS,
    WITH_UNIT,
)
from kalla.spark.sandbox.clock import constant
from kalla.spark.sandbox.grammar import UNITS
from kalla.spark.sandbox.sql_problems import Report, shown

_LONGEST_PADDING: Final = 1_000
_LONGEST_PATTERN: Final = 1_000
_MOST_PLACES: Final = 38  # as many as a decimal of Spark has digits
_KINDS: Final = "use Spark's functions of numbers, texts, dates, conditions and sums"
_NUMBER: Final = re.compile(r"\d+\.?\d*(e[+-]?\d+)?", re.IGNORECASE)
_FORMAT: Final = re.compile(r"[#0,.]+")
# Spark would write out as many digits, to make a decimal of it.
_EXPONENT: Final = re.compile(r"\s*[+-]?[\d.]+e[+-]?\d{5,}\s*", re.IGNORECASE)
_EXPONENT_ALONE: Final = re.compile(r"[\d.]*e[+-]?\d{5,}\s*", re.IGNORECASE)

_TEXTS: Final = (exp.Literal, exp.RawString, exp.DPipe, exp.Anonymous)


def check(tree: exp.Expr, functions: Mapping[str, int], report: Report) -> None:
    allowed = FUNCTIONS | functions.keys()
    others = _has_percent_outside_like(tree)
    for node in list(tree.walk()):
        _exponent(node, report)
        if isinstance(node, exp.Anonymous):
            _call(node, allowed, report)
            _count_arguments(node, functions, report)
        elif isinstance(node, exp.Literal):
            _literal(node, report)
        elif isinstance(node, exp.RegexpLike):
            _pattern("RLIKE", node.expression, report)
        elif isinstance(node, exp.Like | exp.ILike):
            _like(node.expression, report, others=others)
        elif isinstance(node, exp.Alias):
            if not isinstance(node.parent, exp.Select):
                report.add(f"AS {shown(node.alias)} is not allowed here", node,
                           suggestion="leave it out: columns of the result have names")  # fmt: skip
        elif isinstance(node, exp.Star):
            _star(node, report)
        elif isinstance(node, exp.Select):
            _select(node, report)
        elif isinstance(node, exp.Subquery) and node.parent is None:
            report.add("parentheses around the whole SQL are not needed", node,
                       suggestion="leave them out")  # fmt: skip


def _count_arguments(node: exp.Anonymous, functions: Mapping[str, int], report: Report) -> None:
    """Of Spark's own functions Spark knows the arguments better."""
    wanted = functions.get(node.name.lower(), given := len(node.expressions))
    if wanted != given:
        report.add(f"{node.name} takes {wanted} arguments, not {given}", node, value=node.name)


def _call(node: exp.Anonymous, allowed: Collection[str], report: Report) -> None:
    name = node.name.lower()
    arguments = node.expressions
    if name not in allowed:
        reason = REASONS.get(name)
        why = f": {reason}" if reason else ""
        report.add(
            f"the function {shown(name)} is not allowed{why}",
            node,
            value=node.name,
            suggestion=INSTEAD.get(name)
            or ("" if reason else report.nearest(name, allowed) or _KINDS),
        )
        return
    if name in WITH_UNIT and len(arguments) == 3:
        _unit(name, arguments[0], report)
    if (place := LENGTHS.get(name)) is not None and place < len(arguments):
        length = arguments[place]
        if not (length.is_int and int(length.name) <= _LONGEST_PADDING):
            report.add(f"the length of {name} must be a number up to {_LONGEST_PADDING:,}", node,
                       suggestion="write the number itself")  # fmt: skip
    if (place := PLACES.get(name)) is not None and place < len(arguments):
        _places(name, arguments[place], node, report)
    if (place := PATTERNS.get(name)) is not None and place < len(arguments):
        _pattern(name, arguments[place], report)


def _places(name: str, places: exp.Expr, call: exp.Expr, report: Report) -> None:
    """Spark would write any number with as many digits as the query asks for."""
    number = places.this if isinstance(places, exp.Neg) else places
    if isinstance(number, exp.Literal):
        if number.is_int and int(number.name) <= _MOST_PLACES:
            return
        # Other signs would make any text of a number, such as a time.
        if name == "format_number" and number.is_string and len(number.name) <= 2 * _MOST_PLACES:
            if not _FORMAT.fullmatch(number.name):
                report.add("the format of format_number may have #, 0, comma and point alone", call,
                           value=number.name, suggestion="such as '#,##0.00'")  # fmt: skip
            return
    report.add(f"the decimal places of {name} must be a number up to {_MOST_PLACES}", call,
               suggestion="write the number itself")  # fmt: skip


def _star(node: exp.Star, report: Report) -> None:
    parent = node.parent.parent if isinstance(node.parent, exp.Column) else node.parent
    counted = isinstance(parent, exp.Anonymous) and parent.name.lower() == "count"
    if not counted and not isinstance(parent, exp.Select):
        report.add("* is not allowed here", node, value="*", suggestion="name the columns")


def _unit(name: str, unit: exp.Expr, report: Report) -> None:
    """A unit is a keyword to Spark; quoted as a column it would be something else."""
    if isinstance(unit, exp.Column) and not unit.table and unit.name.upper() in UNITS:
        unit.replace(exp.Var(this=unit.name.upper()))
    elif not isinstance(unit, exp.Var):
        report.add(f"the first of three arguments of {name} must be a unit", unit,
                   suggestion="such as DAY")  # fmt: skip


def _exponent(node: exp.Expr, report: Report) -> None:
    text = constant(node) if isinstance(node, _TEXTS) else None
    if text is not None and (
        _EXPONENT.fullmatch(text) or (_joins(node.parent) and _EXPONENT_ALONE.fullmatch(text))
    ):
        report.add(f"{shown(text)} would be a number of too many digits", node.parent, value=text,
                   suggestion="write an exponent of up to four digits")  # fmt: skip


def _literal(node: exp.Literal, report: Report) -> None:
    if not node.is_string and not _NUMBER.fullmatch(node.name):
        report.add(f"{shown(node.name)} is not a number", node.parent, value=node.name,
                   suggestion="such as 12.5 or 1e3")  # fmt: skip


def _pattern(name: str, pattern: exp.Expr, report: Report) -> None:
    if not isinstance(pattern, exp.RawString | exp.Literal):
        report.add(f"the pattern of {name} must be written out as a text", pattern,
                   suggestion="such as '[0-9]+'")  # fmt: skip
    elif len(pattern.name) > _LONGEST_PATTERN:
        report.add(f"the pattern of {name} has more than {_LONGEST_PATTERN:,} characters", pattern,
                   value=pattern.name, suggestion="make several, with OR between")  # fmt: skip


def _like(pattern: exp.Expr, report: Report, *, others: bool) -> None:
    """`others`: whether a column may hold a % that the SQL itself has put there."""
    if pattern.find(exp.Like, exp.ILike):
        report.add("a pattern of LIKE may not hold another LIKE", pattern.parent,
                   suggestion="name the inner one in a SELECT below")  # fmt: skip
    texts = [each for each in pattern.find_all(exp.Literal, exp.RawString) if "%" in each.name]
    if not all(each is pattern or _joins(each.parent) for each in texts) or (
        others and any(pattern.find_all(exp.Column, exp.Query))
    ):
        report.add("a pattern of LIKE may take its % from texts in it alone", pattern.parent,
                   suggestion="write it as '%' || column || '%', and no % elsewhere")  # fmt: skip


def _joins(node: exp.Expr | None) -> bool:
    called = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    return isinstance(node, exp.DPipe | exp.Paren) or called == "concat"


def _has_percent_outside_like(tree: exp.Expr) -> bool:
    patterns = {
        id(each) for like in tree.find_all(exp.Like, exp.ILike) for each in like.expression.walk()
    }
    for each in tree.find_all(exp.Literal, exp.RawString, exp.Anonymous):
        called = each.name.lower() if isinstance(each, exp.Anonymous) else ""
        if called == "chr" or (not called and id(each) not in patterns):
            text = constant(each)
            if text is None or "%" in text:
                return True
    return False


def _select(node: exp.Select, report: Report) -> None:
    if not node.expressions:
        report.add("SELECT must say what", node,
                   suggestion="name the columns, both primary keys among them")  # fmt: skip
