"""Tables and columns: each must be one that was given, or one that the text itself defines.

Follows Spark in where a name is seen: a WITH name in what comes after it and inside that, a
table's alias in its SELECT and in the subqueries there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sqlglot import exp

from kalla.spark.sandbox import columns
from kalla.spark.sandbox.allowed_functions import WITHOUT_PARENTHESES
from kalla.spark.sandbox.columns import Columns, lowered
from kalla.spark.sandbox.sql_problems import Report, shown

MOST_TABLES: Final = 64

# Hidden columns of files, which tell where these lie.
_HIDDEN: Final = frozenset({"_metadata", "input__file__name", "block__offset__inside__file"})

# Where Spark keeps the variables of a session.
_OUTSIDE: Final = frozenset({"system", "session"})


@dataclass(frozen=True)
class _Relation:
    """Something to read from."""

    columns: Columns
    tables: int

    @cached_property
    def names(self) -> frozenset[str] | None:
        return None if self.columns is None else frozenset(self.columns)


_Relations = Mapping[str, _Relation]


@dataclass(frozen=True)
class _Scope:
    """What a column's name can mean in one SELECT."""

    sources: _Relations
    aliases: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str] | None:
        names = set(self.aliases)
        for source in self.sources.values():
            if source.names is None:
                return None
            names |= source.names
        return frozenset(names)


def check(tree: exp.Expr, tables: Mapping[str, Collection[str]], report: Report) -> Columns:
    """Reports what is not known, and returns what the columns of the result are called."""
    names = _Names(tables, report)
    found = names.query(tree, {}, ())
    if found.tables > MOST_TABLES:
        report.add(
            f"tables are read {found.tables:,} times once the WITH names are filled in, "
            f"at most {MOST_TABLES} are allowed",
            suggestion="let each WITH name be read once or twice",
        )
    for table in tree.find_all(exp.Table):
        if id(table) not in names.seen:
            report.add(f"the table {shown(table.name)} stands where no table can", table,
                       value=table.name, suggestion="read it in FROM or JOIN")  # fmt: skip
    return found.columns


class _Names:
    def __init__(self, tables: Mapping[str, Collection[str]], report: Report) -> None:
        self._tables = {
            name.lower(): _Relation(lowered(known) if known else None, 1)
            for name, known in tables.items()
        }
        self._report = report
        self._undefined: list[str] = []  # WITH names whose turn has not come
        self.seen: set[int] = set()

    def query(self, node: exp.Expr, ctes: _Relations, outer: tuple[_Scope, ...]) -> _Relation:
        if isinstance(node, exp.Subquery):
            return self.query(node.this, ctes, outer)
        if isinstance(node, exp.Table):
            return self._table(node, ctes)
        defined = self._with(node, ctes, outer)
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, defined, outer)
        if isinstance(node, exp.Select):
            return self._select(node, defined, outer)
        return _Relation(None, self._values([node], defined, outer))

    def _with(self, node: exp.Expr, ctes: _Relations, outer: tuple[_Scope, ...]) -> _Relations:
        with_ = node.args.get("with_")
        if with_ is None:
            return ctes
        defined, own = dict(ctes), set[str]()
        names = [folded(cte.alias) for cte in with_.expressions]
        waiting = self._undefined
        for index, cte in enumerate(with_.expressions):
            name = names[index]
            if name in self._tables:
                self._report.add(f"WITH may not take the name of a source, {name}", cte,
                                 value=cte.alias, suggestion="take another name")  # fmt: skip
            elif name in own:
                self._report.add(f"WITH defines {shown(name)} twice", cte, value=cte.alias,
                                 suggestion="take another name for one of them")  # fmt: skip
            self._undefined = [*waiting, *names[index:]]
            body = self.query(cte.this, defined, outer)
            defined[name] = _Relation(
                columns.renamed(cte.args.get("alias"), body.columns), body.tables
            )
            own.add(name)
        self._undefined = waiting
        return defined

    def _set_operation(
        self, node: exp.SetOperation, ctes: _Relations, outer: tuple[_Scope, ...]
    ) -> _Relation:
        # A loop, not a recursion: a thousand SELECTs with UNION ALL lean to one side.
        tables, modifiers = 0, list(_modifiers(node))
        left: exp.Expr = node
        while isinstance(left, exp.SetOperation) and (left is node or not left.args.get("with_")):
            if left is not node:
                modifiers += _modifiers(left)
            tables += self.query(left.expression, ctes, outer).tables
            left = left.this
        first = self.query(left, ctes, outer)
        sources = {"": first}
        tables += first.tables + self._values(modifiers, ctes, (*outer, _Scope(sources)))
        return _Relation(first.columns, tables)

    def _select(self, node: exp.Select, ctes: _Relations, outer: tuple[_Scope, ...]) -> _Relation:
        sources: dict[str, _Relation] = {}
        tables, values = 0, list[exp.Expr]()
        everything: Columns = ()
        for clause, source in read_by(node):
            relation = self.query(source, ctes, outer)
            tables += relation.tables
            found = columns.renamed(source.args.get("alias"), relation.columns)
            everything = columns.joined(everything, clause, found)
            name = source.alias_or_name.lower()
            if name in sources:  # Spark tells who is meant, or that it cannot
                found = columns.both(sources[name].columns, found)
            sources[name] = _Relation(found, relation.tables)
        for join in node.args.get("joins") or ():
            values += _children(join, but="this")
        for key, value in node.args.items():
            if key not in ("from_", "joins", "with_"):
                values += _expressions(value)
        aliases = lowered(each.alias for each in node.expressions if isinstance(each, exp.Alias))
        scope = _Scope(sources, frozenset(aliases))
        tables += self._values(values, ctes, (*outer, scope))
        known = {name: source.columns for name, source in sources.items()}
        return _Relation(columns.output(node, everything, known), tables)

    def _values(
        self, roots: Iterable[exp.Expr], ctes: _Relations, scopes: tuple[_Scope, ...]
    ) -> int:
        """Look at the columns and queries in some expressions; how many tables they read."""
        tables, waiting = 0, list(roots)
        while waiting:
            node = waiting.pop()
            if isinstance(node, exp.Query):
                tables += self.query(node, ctes, scopes).tables
            elif isinstance(node, exp.Column):
                self._column(node, scopes)
                waiting += [each for each in _children(node) if not isinstance(each, exp.Star)]
            elif isinstance(node, exp.Star):
                continue  # `EXCEPT (…)`: Spark says which it does not find
            else:
                waiting += _children(node)
        return tables

    def _table(self, node: exp.Table, ctes: _Relations) -> _Relation:
        self.seen.add(id(node))
        unknown = _Relation(None, 1)
        allowed = " and ".join(self._tables)
        if not isinstance(node.this, exp.Identifier):
            what = node.this.name if isinstance(node.this, exp.Expr) else ""
            self._report.add(
                f"{shown(what) or 'this'}(…) cannot be read as a table, only {allowed} can",
                node,
                value=what or None,
                suggestion=f"read {allowed}",
            )
            return unknown
        if len(node.parts) > 1:
            name = ".".join(part.name for part in node.parts)
            self._report.add(
                f"the table {shown(name)} cannot be read, only {allowed} can, "
                "with no catalogue or schema before the name",
                node,
                value=name,
                suggestion=f"read {allowed}",
            )
            return unknown
        name = folded(node.name)
        if (relation := ctes.get(name) or self._tables.get(name)) is not None:
            return relation
        if name in self._undefined:
            self._report.add(
                f"{shown(name)} is read by itself or before WITH defines it: "
                "a cyclic definition is not allowed",
                node,
                value=node.name,
                suggestion="name each WITH after those it reads",
            )
        else:
            self._report.add(
                f"there is no table {shown(node.name)}",
                node,
                value=node.name,
                suggestion=self._report.nearest(name, [*self._tables, *ctes]) or f"read {allowed}",
            )
        return unknown

    def _column(self, node: exp.Column, scopes: tuple[_Scope, ...]) -> None:
        parts = [part.name for part in node.parts]
        names = [part.lower() for part in parts]
        for name in map(folded, names):
            if name in _HIDDEN:
                self._report.add(f"the hidden column {name} may not be read", node, value=name,
                                 suggestion="read columns of the sources alone")  # fmt: skip
        if len(parts) == 1:
            self._unqualified(node, names[0], scopes)
            return
        for scope in reversed(scopes):
            if (source := scope.sources.get(names[0])) is not None:
                known = source.names
                if known is not None and not node.is_star and names[1] not in known:
                    self._report.add(
                        f"{shown(parts[0])} has no column {shown(parts[1])}",
                        node,
                        value=".".join(parts[:2]),
                        suggestion=self._report.nearest_or_all(names[1], known),
                    )
                return
        if folded(names[0]) in _OUTSIDE:
            self._report.add(f"{shown('.'.join(parts))} may not be read", node,
                             value=".".join(parts),
                             suggestion="read columns of the sources alone")  # fmt: skip
            return
        # What is not a table's alias may be a column with fields.
        if not (seen := _all_known(scopes)) or names[0] in seen:
            return
        aliases = {name for scope in scopes for name in scope.sources if name}
        self._report.add(
            f"there is no table or alias {shown(parts[0])}",
            node,
            value=".".join(parts),
            suggestion=self._report.nearest_or_all(names[0], aliases),
        )

    def _unqualified(self, node: exp.Column, name: str, scopes: tuple[_Scope, ...]) -> None:
        if (function := folded(name)) in WITHOUT_PARENTHESES:
            self._report.add(
                f"{function} would be a function, whose result may differ from run to run",
                node,
                value=node.name,
                suggestion="if a column is meant, write its table before it",
            )
        elif (known := _all_known(scopes)) is not None and name not in known:
            self._report.add(
                f"there is no column {shown(node.name)}",
                node,
                value=node.name,
                suggestion=self._report.nearest_or_all(name, known),
            )


def read_by(select: exp.Select) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    """Each source, and the FROM or JOIN that names it."""
    from_ = select.args.get("from_")
    for clause in (*([from_] if from_ else []), *(select.args.get("joins") or ())):
        source = clause.this
        while isinstance(source, exp.Subquery) and not source.alias and not _is_query(source.this):
            source = source.this  # parentheses around a table
        yield clause, source


def folded(name: str) -> str:
    """As Java compares names, letter by letter: to it, ſ is an s, ı an i and the sign K a k."""
    upper = (each.upper() if len(each.upper()) == 1 else each for each in name)
    return "".join(each.lower() if len(each.lower()) == 1 else each for each in upper)


def _is_query(node: exp.Expr) -> bool:
    return isinstance(node, exp.Select | exp.SetOperation)


def _all_known(scopes: tuple[_Scope, ...]) -> frozenset[str] | None:
    names = set[str]()
    for scope in scopes:
        if (known := scope.known) is None:
            return None
        names |= known
    return frozenset(names)


def _modifiers(node: exp.Expr) -> Iterator[exp.Expr]:
    for key in ("order", "limit", "offset"):
        if (value := node.args.get(key)) is not None:
            yield value


def _children(node: exp.Expr, but: str = "") -> list[exp.Expr]:
    return [each for key, value in node.args.items() if key != but for each in _expressions(value)]


def _expressions(value: object) -> list[exp.Expr]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, exp.Expr)]
