"""Bounds the texts that patterns are searched in, by how often Java may try on a text so long.

`growth` counts for texts as long as sources usually have. A source may have longer ones, and where
Java tries for minutes no cancel reaches it: such a text fails the run, in a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sqlglot import ErrorLevel, exp

from kalla.spark.sandbox.allowed_functions import PATTERNS, SEARCHES, WITH_UNIT
from kalla.spark.sandbox.grammar import Held
from kalla.spark.sandbox.growth import percent_signs
from kalla.spark.sandbox.regex import regex_patterns, tries

FUNCTION: Final = "kalla_searched"
LIKE_FUNCTION: Final = "kalla_liked"
_ERROR: Final = "KALLA_LONG_TEXT"
_LIKE_ERROR: Final = "KALLA_LONG_LIKE"
_LONGEST: Final = 2**31 - 1  # of any text
_WORD: Final = 100
_DIALECT: Final = Held()

DEFINITION: Final = f"""
CREATE OR REPLACE TEMPORARY FUNCTION {FUNCTION}(text STRING, most INT)
RETURNS STRING
DETERMINISTIC
RETURN IF(length(text) > most,
          CAST(raise_error(concat('{_ERROR} ', length(text), ' ', most)) AS STRING), text)
"""

# As `percent_signs` counts them, of a pattern that a row has.
_SIGNS: Final = (
    "length(pattern) - length(replace(pattern, '%', '')) - IF(endswith(pattern, '%'), 1, 0)"
)
LIKE_DEFINITION: Final = f"""
CREATE OR REPLACE TEMPORARY FUNCTION {LIKE_FUNCTION}(text STRING, pattern STRING)
RETURNS STRING
DETERMINISTIC
RETURN IF(pow(length(text), {_SIGNS}) * (1 + length(pattern) DIV {_WORD}) > {tries.MOST},
          CAST(raise_error(concat('{_LIKE_ERROR} ', length(text), ' ', {_SIGNS})) AS STRING), text)
"""


def bounded(held: str) -> str:
    """SQL that `hold` has written, with every text bounded that a pattern is searched in."""
    (tree,) = _DIALECT.parser(error_level=ErrorLevel.IMMEDIATE).parse(_DIALECT.tokenize(held), held)
    if tree is None:
        raise ValueError("SQL from the sandbox cannot be read")
    # The inner ones first: what is replaced keeps what was replaced within it.
    for node in reversed(list(tree.walk())):
        _keep_unit(node)
        if isinstance(node, exp.Like | exp.ILike) and _is_of_rows(node.expression):
            node.this.replace(_called(LIKE_FUNCTION, node.this, _as_text(node.expression)))
            continue
        for text, most in _searched(node):
            if most < _LONGEST:
                text.replace(_called(FUNCTION, text, exp.Literal.number(most)))
    return tree.sql(dialect=_DIALECT, identify=True, comments=False)


def refusal(message: str) -> str | None:
    """What to say of an error that a text was too long; None of any other."""
    if (found := re.search(rf"{_LIKE_ERROR} (\d+) (\d+)", message)) is not None:
        length, signs = (int(each) for each in found.groups())
        return (
            f"the SQL compares a text of {length:,} characters with a pattern of LIKE that has"
            f" {signs:,} % from a row, which may be tried in too many ways: use contains,"
            " startswith or endswith, or compare left(…, 100)"
        )
    found = re.search(rf"{_ERROR} (\d+) (\d+)", message)
    if found is None:
        return None
    length, most = (int(each) for each in found.groups())
    return (
        f"the SQL searches a text of {length:,} characters for a pattern that may be tried in too"
        f" many ways on it, at most {most:,} are allowed: search left(…, {most}), or let the"
        " pattern begin with ^ and repeat classes that differ from what comes after them"
    )


def _searched(node: exp.Expr) -> Iterator[tuple[exp.Expr, int]]:
    """The texts that a node searches, and how long each may be."""
    if isinstance(node, exp.RegexpLike):
        yield node.this, _longest_for(node.expression)
    elif isinstance(node, exp.Like | exp.ILike):
        signs = percent_signs(node.expression)
        yield node.this, _LONGEST if signs < 2 else int(tries.MOST ** (1 / signs))
    elif isinstance(node, exp.Anonymous) and len(node.expressions) > 1:
        name = node.name.lower()
        if name in PATTERNS:
            yield node.expressions[0], _longest_for(node.expressions[PATTERNS[name]])
        elif name in SEARCHES:
            one, other = node.expressions[:2]
            for text, against in ((one, other), (other, one)):
                if not isinstance(text, exp.Literal | exp.RawString):
                    yield text, _longest_against(against)


def _longest_against(other: exp.Expr) -> int:
    """The longest text that may be compared, letter by letter, with another one."""
    if not isinstance(other, exp.Literal | exp.RawString):
        return int(tries.MOST**0.5)
    # Against a word no text of a source is too long, and its call would cost every row.
    return _LONGEST if len(other.name) <= _WORD else tries.MOST // len(other.name)


def _keep_unit(node: exp.Expr) -> None:
    """A unit is a keyword, which the parser takes for a column that has no quotes yet."""
    is_dated = isinstance(node, exp.Anonymous) and node.name.lower() in WITH_UNIT
    if is_dated and len(node.expressions) == 3 and isinstance(node.expressions[0], exp.Column):
        node.expressions[0].replace(exp.Var(this=node.expressions[0].name))


def _longest_for(pattern: exp.Expr) -> int:
    """The longest text on which a pattern is tried no more often than is allowed."""
    if not isinstance(pattern, exp.Literal | exp.RawString):
        return _LONGEST  # the sandbox has refused it
    read = regex_patterns.read(pattern.name)
    shortest, longest = 1, _LONGEST
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if tries.of_pattern(read, middle) <= tries.MOST:
            shortest = middle
        else:
            longest = middle - 1
    return shortest


def _is_of_rows(pattern: exp.Expr) -> bool:
    """Whether a row may bring in a %, which nobody can count before."""
    return pattern.find(exp.Column, exp.Query) is not None


def _called(function: str, text: exp.Expr, bound: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=function, expressions=[_as_text(text), bound])


def _as_text(value: exp.Expr) -> exp.Expr:
    return exp.Cast(this=value.copy(), to=exp.DataType.build("STRING", dialect="spark"))
