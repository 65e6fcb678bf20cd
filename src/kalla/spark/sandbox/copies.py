"""How many parts the SQL has once each name stands for what it was made with.

Spark copies what a column of a WITH or a subquery is made of to where it is read, as when it moves
a condition below it. A column that is twice the one before it, thirty times over, fills its memory,
and no cancel reaches it there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlglot import exp

from kalla.spark.sandbox.names import folded, read_by
from kalla.spark.sandbox.sql_problems import Report

MOST: Final = 20_000
_ENOUGH: Final = 10**12  # further, nobody needs to count


class _Column(NamedTuple):
    parts: int
    times: int = 1  # `SELECT t.*, t.*` has each twice


@dataclass(frozen=True)
class _Relation:
    """Something to read from: its columns in order, as far as they have plain names, and of how
    many parts it is made itself. Those without a name go by none."""

    columns: Mapping[str, _Column]
    parts: int = 1

    def column(self, name: str) -> int:
        found = self.columns.get(name) or self.columns.get("")
        return found.parts if found else 1

    @property
    def largest(self) -> int:
        return max((each.parts for each in self.columns.values()), default=1)

    @property
    def is_plain(self) -> bool:
        """Whether each column has one place."""
        return "" not in self.columns and all(each.times == 1 for each in self.columns.values())

    @property
    def in_all(self) -> int:
        return sum(each.parts * each.times for each in self.columns.values())


_Relations = Mapping[str, _Relation]
_Scopes = tuple[_Relations, ...]  # what a SELECT reads, by alias, after those around it


def check(tree: exp.Expr, tables: Mapping[str, Collection[str]], report: Report) -> None:
    sources = {
        folded(name): _Relation({folded(each): _Column(1) for each in known or [""]})
        for name, known in tables.items()
    }
    copies = _Copies()
    copies.query(tree, sources, ())
    if copies.most > MOST:
        report.add(
            f"the SQL has {copies.most:,} parts once each name stands for what it was made with, "
            f"at most {MOST:,} are allowed",
            copies.where,
            suggestion="let each step read the columns of the one before it once or twice",
        )


class _Copies:
    def __init__(self) -> None:
        self.most = 0
        self.where: exp.Expr | None = None

    def query(self, node: exp.Expr, tables: _Relations, outer: _Scopes) -> _Relation:
        if isinstance(node, exp.Table):
            return tables.get(folded(node.name), _Relation({"": _Column(1)}))
        if (with_ := node.args.get("with_")) is not None:
            tables = dict(tables)
            for cte in with_.expressions:
                found = self.query(cte.this, tables, outer)
                tables[folded(cte.alias)] = _renamed(cte.args.get("alias"), found)
        if isinstance(node, exp.Subquery):
            return self.query(node.this, tables, outer)
        if isinstance(node, exp.Select):
            return self._select(node, tables, outer)
        # A loop, not a recursion: a thousand SELECTs with UNION ALL lean to one side.
        branches: list[_Relation] = []
        while isinstance(node, exp.SetOperation):
            branches.append(self.query(node.expression, tables, outer))
            node = node.this
        is_known = isinstance(node, exp.Query | exp.Table)  # VALUES and the like: others refuse it
        branches.append(self.query(node, tables, outer) if is_known else _Relation({}))
        return _of_all(branches[::-1])

    def _select(self, node: exp.Select, tables: _Relations, outer: _Scopes) -> _Relation:
        sources: dict[str, _Relation] = {}
        for _, source in read_by(node):
            found = _renamed(source.args.get("alias"), self.query(source, tables, outer))
            name = folded(source.alias_or_name)
            sources[name] = _beside([sources[name], found]) if name in sources else found
        everything = _beside(sources.values())
        aliases: dict[str, _Column] = {}  # those after it in the same SELECT may use it
        scopes = (*outer, sources, {"": _Relation(aliases)})
        columns: dict[str, _Column] = {}
        own = 0
        for each in node.expressions:
            if each.is_star:
                qualified = isinstance(each, exp.Column)
                read = sources.get(folded(each.table), everything) if qualified else everything
                _add(columns, read.columns)
                own += read.in_all
                continue
            parts = self._parts(each, tables, scopes)
            own += parts
            is_named = isinstance(each, exp.Alias | exp.Column)
            _add(columns, {folded(each.alias_or_name) if is_named else "": _Column(parts)})
            if isinstance(each, exp.Alias):
                _add(aliases, {folded(each.alias): _Column(parts)})
        for key, value in node.args.items():
            if key not in ("expressions", "from_", "with_"):
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, exp.Join):
                        own += self._inside(each, tables, scopes, but=each.this)
                    elif isinstance(each, exp.Expr):
                        own += self._parts(each, tables, scopes)
        own = min(own, _ENOUGH)
        if own > self.most:
            self.most, self.where = own, node
        return _Relation(columns, min(own + everything.parts, _ENOUGH))

    def _parts(self, node: exp.Expr, tables: _Relations, scopes: _Scopes) -> int:
        if isinstance(node, exp.Query):
            return self.query(node, tables, scopes).parts
        if isinstance(node, exp.Column):
            return _read(node, scopes)
        if isinstance(node, exp.Identifier):
            return 0
        if isinstance(node, exp.Alias):
            return self._parts(node.this, tables, scopes)
        return min(1 + self._inside(node, tables, scopes), _ENOUGH)

    def _inside(
        self, node: exp.Expr, tables: _Relations, scopes: _Scopes, but: exp.Expr | None = None
    ) -> int:
        inside = (each for each in node.iter_expressions() if each is not but)
        return sum(self._parts(each, tables, scopes) for each in inside)


def _read(node: exp.Column, scopes: _Scopes) -> int:
    """Of how many parts the column is that is read, or all of `count(t.*)`."""
    if node.table:
        for scope in reversed(scopes):
            if (source := scope.get(folded(node.table))) is not None:
                return source.in_all if node.is_star else source.column(folded(node.name))
    # What is not a table's alias may be a column with fields.
    names = {folded(part.name) for part in node.parts}
    every = (source for scope in scopes for source in scope.values())
    return max((source.column(name) for source in every for name in names), default=1)


def _add(columns: dict[str, _Column], more: Mapping[str, _Column]) -> None:
    for name, (parts, times) in more.items():
        before = columns.get(name, _Column(0, 0))
        columns[name] = _Column(max(before.parts, parts), min(before.times + times, _ENOUGH))


def _beside(relations: Iterable[_Relation]) -> _Relation:
    """What several have, as one."""
    columns: dict[str, _Column] = {}
    parts = 0
    for each in relations:
        _add(columns, each.columns)
        parts += each.parts
    return _Relation(columns, parts)


def _of_all(relations: list[_Relation]) -> _Relation:
    """The first one's names; each column has the most of those in its place."""
    first = relations[0]
    parts = min(sum(each.parts for each in relations), _ENOUGH)
    if all(each.is_plain and len(each.columns) == len(first.columns) for each in relations):
        rows = zip(*(each.columns.values() for each in relations), strict=True)
        return _Relation(dict(zip(first.columns, map(max, rows), strict=True)), parts)
    largest = max(each.largest for each in relations)
    return _Relation(
        {name: _Column(largest, each.times) for name, each in first.columns.items()}, parts
    )


def _renamed(alias: exp.Expr | None, relation: _Relation) -> _Relation:
    """Under an alias that may give its columns other names: `AS t(a, b)`."""
    given = alias.args.get("columns") if alias is not None else None
    if not given:
        return relation
    names = [folded(each.name) for each in given]
    columns = list(relation.columns.values())
    if not relation.is_plain or len(columns) != len(names):
        columns = [_Column(relation.largest)] * len(names)
    return _Relation(dict(zip(names, columns, strict=True)), relation.parts)
