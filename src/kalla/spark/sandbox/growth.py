"""Bounds how long texts may become, and how often patterns may be tried on texts of a length.

Joined with themselves again and again, texts fill any memory; and on a long one, Java may look for
a pattern for years, where no cancel reaches it.

What counts is how many times as long as a text of the sources one may be; a join adds, a
replacement multiplies, and a column of a WITH, a subquery or an alias has what it was made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from kalla.spark.sandbox.allowed_functions import LENGTHS, PATTERNS, SEARCHES, SHORT
from kalla.spark.sandbox.names import folded
from kalla.spark.sandbox.regex import regex_patterns, tries
from kalla.spark.sandbox.sql_problems import Report, shown

MOST: Final = 10_000
_USUAL: Final = 100  # characters of a text
_LONG: Final = 1_000  # characters of a text that some source has
_ENOUGH: Final = 10**12  # further, nobody needs to count

_Named = Mapping[str, int]


def check(tree: exp.Expr, report: Report) -> None:
    growth = _Growth(report)
    growth.query(tree, {}, 1)
    if growth.most > MOST:
        report.add(
            f"a text may become {growth.most:,} times as long as those of the "
            f"sources, at most {MOST:,} times is allowed",
            growth.where,
            suggestion="join texts once, not what was joined before",
        )


class _Growth:
    def __init__(self, report: Report) -> None:
        self._report = report
        self.most = 1
        self.where: exp.Expr | None = None

    def query(self, node: exp.Expr, tables: _Named, outer: int) -> int:
        """Of the longest column of a query; `outer` is that of the queries around it."""
        if isinstance(node, exp.Table):
            return tables.get(folded(node.name), 1)
        if (with_ := node.args.get("with_")) is not None:
            tables = dict(tables)
            for cte in with_.expressions:
                tables[folded(cte.alias)] = self.query(cte.this, tables, outer)
        if isinstance(node, exp.Subquery):
            return self.query(node.this, tables, outer)
        if isinstance(node, exp.Select):
            return self._select(node, tables, outer)
        # A loop, not a recursion: a thousand SELECTs with UNION ALL lean to one side.
        longest = 1
        while isinstance(node, exp.SetOperation):
            longest = max(longest, self.query(node.expression, tables, outer))
            node = node.this
        if not isinstance(node, exp.Query | exp.Table):  # VALUES and the like: others refuse it
            return longest
        return max(longest, self.query(node, tables, outer))

    def _select(self, node: exp.Select, tables: _Named, outer: int) -> int:
        from_, joins = node.args.get("from_"), node.args.get("joins") or []
        read = [each.this for each in ([from_] if from_ else []) + joins]
        given = max([outer, *(self.query(each, tables, outer) for each in read)])
        columns: dict[str, int] = {}  # by alias: those after it in the same SELECT may use it
        longest = 1
        for each in node.expressions:
            grown = given if each.is_star else self._value(each, tables, given, columns)
            if isinstance(each, exp.Alias):
                columns[folded(each.alias)] = grown
            longest = max(longest, grown)
        for key, value in node.args.items():
            if key not in ("expressions", "from_", "with_"):
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, exp.Join):
                        self._inside(each, tables, given, columns, but=each.this)
                    elif isinstance(each, exp.Expr):
                        self._inside(each, tables, given, columns)
        return longest

    def _value(self, node: exp.Expr, tables: _Named, given: int, columns: _Named) -> int:
        grown = min(self._grown(node, tables, given, columns), _ENOUGH)
        if grown > self.most:
            self.most, self.where = grown, node
        return grown

    def _grown(self, node: exp.Expr, tables: _Named, given: int, columns: _Named) -> int:
        if isinstance(node, exp.Query):
            return self.query(node, tables, max(given, *columns.values(), 1))
        if isinstance(node, exp.Column):
            return max(given, columns.get(folded(node.name), 1))
        if isinstance(node, exp.Literal | exp.RawString):
            return 1 + len(node.name) // _USUAL
        parts = self._inside(node, tables, given, columns)
        self._look_up(node, parts)
        if isinstance(node, exp.DPipe):
            return sum(parts)
        if not isinstance(node, exp.Anonymous):
            return max(parts, default=1)
        name, arguments = node.name.lower(), node.expressions
        if name in SHORT:
            return 1
        if name in LENGTHS:
            return 1 + _characters(arguments) // _USUAL
        if name == "hex":
            return 2 * max(parts, default=1)
        if name in ("concat", "overlay"):
            return sum(parts)
        if name == "concat_ws" and arguments:
            return sum(parts) * max(1, _length(arguments[0], parts[0]))
        if name == "replace" and len(arguments) > 2:
            return parts[0] * max(1, _length(arguments[2], parts[2]))
        if name == "regexp_replace" and len(arguments) > 2:  # also before and after each letter
            return parts[0] * (1 + _length(arguments[2], parts[2]))
        return max(parts, default=1)

    def _look_up(self, node: exp.Expr, parts: list[int]) -> None:
        """Whether Spark would search too long, in a text so many times as long."""
        length = max(_LONG, parts[0] * _USUAL) if parts else _LONG
        if isinstance(node, exp.RegexpLike):
            self._pattern(node.expression, length)
        elif isinstance(node, exp.Like | exp.ILike):
            # A long pattern takes long at each place.
            times = parts[1] * _USUAL if parts[1] * _USUAL > _LONG else 1
            count = times * tries.of_like(percent_signs(node.expression), length)
            self._tried("LIKE, by its %,", count, length, node,
                        "make several of it, with AND between")  # fmt: skip
        elif _makes_decimal(node):
            # Java reads its digits in a time that grows with their square.
            self._tried("a decimal", length * length, length, node,
                        "make it of a shorter text")  # fmt: skip
        elif isinstance(node, exp.Anonymous) and len(node.expressions) > 1:
            name = node.name.lower()
            if name in PATTERNS:
                self._pattern(node.expressions[PATTERNS[name]], length, name)
            elif name in SEARCHES:
                one, other = map(_length, node.expressions[:2], parts[:2])
                self._tried(name, one * other, max(one, other), node,
                            "look for a shorter text, or in one")  # fmt: skip

    def _pattern(self, pattern: exp.Expr, length: int, name: str = "RLIKE") -> None:
        if not isinstance(pattern, exp.RawString | exp.Literal):
            return  # `values` says so
        try:
            found = regex_patterns.read(pattern.name)
            count = tries.of_pattern(found, length)
        except regex_patterns.Unreadable:
            self._report.add(
                f"the pattern {shown(pattern.name)} may run without end: it repeats a group that "
                "repeats or chooses, is not closed, or has what only Java would read; or "
                "it repeats more than a class by * or +, where an emoji may stand",
                pattern.parent,
                value=pattern.name,
                suggestion="repeat a class of characters instead, such as [A-Z0-9]+, or add a + "
                "behind the repetition, (…)*+, so that nothing is given back",
            )
        else:
            if name == "regexp_replace" and regex_patterns.looks_around_for_a_group(found):
                # Otherwise all that a group has found is, in all, no longer than the text.
                self._report.add(
                    f"the pattern {shown(pattern.name)} of regexp_replace has a group that looks "
                    "ahead or behind, so that each match could bring in the whole text",
                    pattern.parent,
                    value=pattern.name,
                    suggestion="write (?:…) for a group in (?=…), (?!…), (?<=…) or (?<!…)",
                )
            self._tried(f"the pattern {shown(pattern.name)}", count, length, pattern.parent,
                        "let it begin with ^, and repeat classes that differ from what comes "
                        "after them, such as [^-]*-")  # fmt: skip

    def _tried(
        self, what: str, count: int, length: int, node: exp.Expr | None, suggestion: str
    ) -> None:
        if count > tries.MOST:
            self._report.add(
                f"{what} may run without end: a text of {length:,} characters may be tried in "
                f"{count:,} ways, at most {tries.MOST:,} are allowed",
                node,
                suggestion=suggestion,
            )

    def _inside(
        self,
        node: exp.Expr,
        tables: _Named,
        given: int,
        columns: _Named,
        but: exp.Expr | None = None,
    ) -> list[int]:
        # Of a call its arguments alone: its name may stand in quotes, and is a node then.
        inside = node.expressions if isinstance(node, exp.Anonymous) else node.iter_expressions()
        return [self._value(each, tables, given, columns) for each in inside if each is not but]


def _length(node: exp.Expr, grown: int) -> int:
    """In characters: of a text that is written out, or of any other."""
    return len(node.name) if isinstance(node, exp.Literal | exp.RawString) else grown * _USUAL


def _makes_decimal(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast | exp.TryCast):
        return node.to.this is exp.DType.DECIMAL
    return isinstance(node, exp.Anonymous) and node.name.lower() == "decimal"


def _characters(padding: list[exp.Expr]) -> int:
    """That lpad and rpad make, or the most that `values` allows."""
    length = padding[1] if len(padding) > 1 else None
    return int(length.name) if length is not None and length.is_int else 1_000


def percent_signs(pattern: exp.Expr) -> int:
    """That take a part of the text; one at the end takes whatever is left."""
    texts = list(pattern.find_all(exp.Literal, exp.RawString))
    last = pattern
    while isinstance(last, exp.DPipe | exp.Paren) or (
        isinstance(last, exp.Anonymous) and last.expressions
    ):
        parts = list(last.iter_expressions())
        last = parts[-1]
    ends = last in texts and last.name.endswith("%")
    return sum(each.name.count("%") for each in texts) - ends
