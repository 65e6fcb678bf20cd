"""The gate: one SELECT in, the same SELECT out, written anew from its tree; or every objection.

Spark has no restricted mode, so nothing reaches it that is not on a list here. The text itself is
never passed on: comments, hints and whatever else Spark might read differently stay behind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final
from unicodedata import category

from sqlglot import ErrorLevel, exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from kalla.spark.sandbox import clock, copies, growth, names, order, values
from kalla.spark.sandbox.columns import Columns
from kalla.spark.sandbox.grammar import (
    NODES,
    TYPES,
    Allowed,
    Held,
    TooComplicated,
    called,
    instead_of,
)
from kalla.spark.sandbox.sql_problems import Report, shown

LONGEST: Final = 100_000
_DEEPEST_NESTING: Final = 25  # the parser takes some 25 frames of Python's 1,000 for each
_DEEPEST_TREE: Final = 250
_MOST_SIGNS: Final = 10
_MOST_NODES: Final = 20_000
_MOST_JOINS: Final = 32

_DIALECT: Final = Held()
_OPENING: Final = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING: Final = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}
# One of these after another nests without a bracket.
_SIGNS: Final = {
    TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE, TokenType.INTERVAL,
    TokenType.PARAMETER, TokenType.SELECT, TokenType.WITH, TokenType.DISTINCT,
}  # fmt: skip
_COMPLEX_TYPES: Final = {TokenType.ARRAY, TokenType.MAP, TokenType.STRUCT}
_VARIABLE: Final = re.compile(r"\$\{")
_BEGINNING: Final = "write SELECT … FROM left_src l JOIN right_src r ON …"
_FLATTER: Final = "name the inner parts by WITH"
_OWN: Final = MappingProxyType({"tolerance_match": 3})
_TYPES: Final = "use one of BIGINT, BOOLEAN, DATE, DECIMAL, DOUBLE, INT, STRING, TIMESTAMP"


def hold(
    sql: str,
    tables: Mapping[str, Collection[str]],
    field: str = "match_sql",
    functions: Mapping[str, int] = _OWN,
) -> str:
    """The SQL as Spark may see it: one SELECT over these tables, with the functions on the list.

    `tables` names the columns of each table; none means that nobody knows them. `functions` are
    allowed besides the built-in ones, each with so many arguments. Raises InvalidInput with all
    problems at once.
    """
    _check_length(sql, field)  # of the text that was given: the one that goes out has more quotes
    try:
        held = _write(_checked(sql, tables, field, functions), field)
        # What we wrote is read once more: had the parser misunderstood the text, writing and
        # reading would hardly agree.
        again = _write(_checked(held, tables, field, functions), field)
    except RecursionError:
        Report(field, sql).refuse("the SQL is nested too deeply", suggestion=_FLATTER)
    if again != held:
        Report(field, sql).refuse(
            "this SQL does not read back as written", suggestion="put it more simply"
        )
    return held


def tables_read(sql: str, field: str) -> frozenset[str]:
    """The tables that one SELECT reads, in small letters, without its own WITH names."""
    _check_length(sql, field)
    report = Report(field, sql)
    try:
        tree = _parse(sql, _tokens(sql, report), report)
    except RecursionError:
        report.refuse("the SQL is nested too deeply", suggestion=_FLATTER)
    own = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    return frozenset(table.name.lower() for table in tree.find_all(exp.Table)) - own


def result_columns(held: str, tables: Mapping[str, Collection[str]]) -> Columns:
    """The names, in small letters, that the result of SQL from `hold` has, one that is doubled
    twice; None if one of them is not clear."""
    report = Report("", held)
    tree = _parse(held, _tokens(held, report), report)
    return names.check(tree, tables, report)


def _check_length(sql: str, field: str) -> None:
    if len(sql) > LONGEST:
        Report(field, sql).refuse(
            f"the SQL has {len(sql):,} characters, at most {LONGEST:,} are allowed",
            suggestion="keep long lists of values in a source, or in its filters",
        )


def _checked(
    sql: str, tables: Mapping[str, Collection[str]], field: str, functions: Mapping[str, int]
) -> exp.Expr:
    report = Report(field, sql)
    tree = _parse(sql, _tokens(sql, report), report)
    if _is_bounded(tree, report):
        _check_nodes(tree, report)
        values.check(tree, functions, report)
        order.check(tree, report)
        clock.check(tree, report)
        growth.check(tree, report)
        copies.check(tree, tables, report)
        names.check(tree, tables, report)
    report.check()
    return tree


def _tokens(sql: str, report: Report) -> list[Token]:
    """The text in its parts, none of which would lead the parser too deep."""
    for offset, character in enumerate(sql):
        if not (character.isprintable() or character in "\n\r\t" or category(character) == "Zs"):
            sign = f"U+{ord(character):04X}"  # itself, nobody would see it
            report.add(f"the character {sign} is not allowed", offset, value=sign,
                       suggestion="delete it")  # fmt: skip
    for found in _VARIABLE.finditer(sql):
        # In a comment, too: what Spark puts there may end it.
        report.add("${ is not allowed, not even within a text, a name or a comment: Spark may "
                   "fill in a variable there before it reads the SQL", found.start(),
                   suggestion="put the two signs together, '$' || '{'")  # fmt: skip
    report.check()
    try:
        tokens = _DIALECT.tokenize(sql)
    except SqlglotError:
        report.refuse("a text, name or comment in the SQL is not closed",
                      suggestion="end it with the sign it begins with, or with */")  # fmt: skip
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        report.refuse("the SQL is empty", suggestion=_BEGINNING)
    if (first := _first_word(tokens)).token_type not in (TokenType.SELECT, TokenType.WITH):
        report.add(
            f"only one SELECT is allowed, this begins with {shown(first.text).upper()}",
            first.start,
            value=first.text,
            suggestion=_BEGINNING,
        )
    _check_tokens(tokens, report)
    report.check()
    return tokens


def _first_word(tokens: list[Token]) -> Token:
    return next((each for each in tokens if each.token_type is not TokenType.L_PAREN), tokens[0])


def _check_tokens(tokens: list[Token], report: Report) -> None:
    depth = signs = 0
    for index, token in enumerate(tokens):
        kind = token.token_type
        depth += (kind in _OPENING) - (kind in _CLOSING)
        signs = signs + 1 if kind in _SIGNS else 0
        if depth > _DEEPEST_NESTING or signs > _MOST_SIGNS:
            report.add(
                f"the SQL is nested too deeply, at most {_DEEPEST_NESTING} levels are allowed",
                token.start,
                suggestion=_FLATTER,
            )
            return
        if kind is TokenType.SEMICOLON:
            report.add("only one statement is allowed, a second one begins here", token.end + 1,
                       suggestion="keep the first alone, without its semicolon")  # fmt: skip
            return
        if kind is TokenType.HINT:
            report.add("a hint is not allowed", token.start, value=token.text,
                       suggestion="leave it out")  # fmt: skip
        elif kind is TokenType.PIPE_GT:
            report.add("pipe syntax, |>, is not allowed", token.start, value=token.text,
                       suggestion="write it as SELECT … FROM (SELECT …)")  # fmt: skip
        elif kind is TokenType.VAR and not token.text.replace("_", "a").isalnum():
            report.add(
                f"{shown(token.text)} is neither a name nor a text",
                token.start,
                value=token.text,
                suggestion="names with other signs than letters, digits and _ stand in"
                " `backticks`, texts in 'straight quotes'",
            )
        elif kind in _COMPLEX_TYPES and _kind(tokens, index + 1) is TokenType.LT:
            report.add(f"the type {token.text.upper()} is not allowed", token.start,
                       value=token.text, suggestion=_TYPES)  # fmt: skip
        elif token.text.upper() == "TRANSFORM" and kind is TokenType.VAR:
            report.add("TRANSFORM is not allowed", token.start, value=token.text,
                       suggestion="use functions, such as upper or regexp_replace")  # fmt: skip


def _kind(tokens: list[Token], index: int) -> TokenType | None:
    return tokens[index].token_type if index < len(tokens) else None


def _parse(sql: str, tokens: list[Token], report: Report) -> exp.Expr:
    try:
        trees = _DIALECT.parser(error_level=ErrorLevel.IMMEDIATE).parse(tokens, sql)
    except ParseError as error:
        near, said = _syntax(error)
        report.refuse(said, value=near or None,
                      suggestion="a word, comma or bracket may be missing before it")  # fmt: skip
    except TooComplicated:
        report.refuse("the SQL is too complicated to read", suggestion="put it more simply")
    except RecursionError:
        raise
    except Exception:
        # The parser is made for SQL, not for attacks: whatever else it trips over is not SQL.
        report.refuse("this is not valid SQL", suggestion=_BEGINNING)
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Query):
        report.refuse("only one SELECT is allowed", suggestion=_BEGINNING)
    return tree


def _syntax(error: ParseError) -> tuple[str, str]:
    """The word where reading stopped, and a sentence about it."""
    first = error.errors[0] if error.errors else {}
    near = shown(str(first.get("highlight") or ""))
    line, end = int(first.get("line") or 1), int(first.get("col") or 1)
    column = max(1, end - len(near) + 1)  # the parser gives the last column
    said = str(first.get("description") or "it cannot be read").split(" for <class")[0].rstrip(".")
    return near, f"not valid SQL near {near!r}: {said} (line {line}, column {column})"


def _is_bounded(tree: exp.Expr, report: Report) -> bool:
    """Whether the tree is small enough to walk and to write without running out of stack."""
    nodes, joins = 0, 0
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        nodes, joins = nodes + 1, joins + isinstance(node, exp.Join)
        if depth > _DEEPEST_TREE:
            report.add(
                f"the SQL is nested too deeply, at most {_DEEPEST_TREE} steps are allowed",
                node,
                suggestion=_FLATTER,
            )
            return False
        waiting += [(child, depth + 1) for child in node.iter_expressions()]
    if nodes > _MOST_NODES:
        report.add(f"the SQL has {nodes:,} parts, at most {_MOST_NODES:,} are allowed",
                   suggestion="put it more simply")  # fmt: skip
    if joins > _MOST_JOINS:
        report.add(f"the SQL has {joins} joins, at most {_MOST_JOINS} are allowed",
                   suggestion="join each source as seldom as you can")  # fmt: skip
    return nodes <= _MOST_NODES


def _check_nodes(tree: exp.Expr, report: Report) -> None:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        allowed = NODES.get(type(node))
        if allowed is None:
            kind = type(node).__name__
            report.add(f"{called(kind)} is not allowed", node, suggestion=instead_of(kind))
            continue
        for name, value in node.args.items():
            for each in value if isinstance(value, list) else [value]:
                if each is None or each is False or each == "":
                    continue
                rule = allowed.get(name)
                if rule is None or not _fits(node, rule, each):
                    _refuse_part(node, name, each, report)
                elif isinstance(each, exp.Expr):
                    waiting.append(each)


def _fits(node: exp.Expr, rule: Allowed, value: object) -> bool:
    if isinstance(value, exp.Expr):
        return rule.nodes
    if isinstance(node, exp.DataType):
        return value in TYPES
    if isinstance(value, str):
        return rule.text or value.upper() in rule.words
    return value is True and rule.nodes


def _refuse_part(node: exp.Expr, name: str, value: object, report: Report) -> None:
    if isinstance(value, exp.Expr):
        kind = type(value).__name__
        report.add(f"{called(kind)} is not allowed", value, suggestion=instead_of(kind))
    elif isinstance(node, exp.DataType) and name == "this":
        type_ = str(getattr(value, "value", value))
        report.add(f"the type {type_} is not allowed", node, value=type_, suggestion=_TYPES)
    elif isinstance(value, str):
        report.add(f"{shown(value).upper()} is not allowed", node, value=value,
                   suggestion=instead_of(value.upper()))  # fmt: skip
    else:
        report.add(f"{called(name)} is not allowed", node, suggestion=instead_of(name))


def _write(tree: exp.Expr, field: str) -> str:
    # Every name is quoted, so that none of them can be a keyword to Spark.
    try:
        return tree.sql(
            dialect=_DIALECT,
            identify=True,
            comments=False,
            unsupported_level=ErrorLevel.RAISE,
        )
    except SqlglotError as error:
        Report(field, "").refuse(
            f"this SQL cannot be written for Spark: {error}", suggestion="put it more simply"
        )
