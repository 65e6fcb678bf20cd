"""The structure of a query: whether keys that changes affect can be found and recomputed alone,
and the SQL that does both. What has no such structure has a reason for FULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.dialects.spark import Spark

_ROW_BY_ROW = (exp.Inline, exp.Explode, exp.Posexplode)
_Columns = Mapping[str, Sequence[str]]


class NotIncremental(Exception):
    """Why every refresh of a query is a FULL one."""


@dataclass(frozen=True)
class Relation:
    """One table in FROM or JOIN."""

    alias: str
    table: str
    # Of the null-supplying side of a LEFT JOIN: (own column, other side's expression) per equality.
    outer_keys: tuple[tuple[str, str], ...] | None


@dataclass(frozen=True)
class Shape:
    """A SELECT over joined tables, with a key whose rows depend on no row of another key."""

    sql: str
    relations: tuple[Relation, ...]
    keys: tuple[str, ...]  # expressions, in terms of the query's tables
    places: tuple[int, ...]  # of the keys among the result's columns
    grouped: bool

    def affected_keys(self, views: Mapping[str, Versions]) -> str:
        """The keys that changes affect: of rows gone at the old versions, of new rows at the new
        ones, and for the null-supplying side of a join, of the preserved rows that met them."""
        parts = []
        old = {name: each.old for name, each in views.items()}
        new = {name: each.new for name, each in views.items()}
        for relation in self.relations:
            given = views[relation.table]
            if relation.outer_keys is None:
                if given.removed:
                    parts.append(self._keys_of(old, {relation.alias: given.removed}))
                if given.added:
                    parts.append(self._keys_of(new, {relation.alias: given.added}))
                continue
            for changed in (given.removed, given.added):
                if changed:
                    met = _exists(changed, relation.outer_keys)
                    parts += [self._keys_of(old, {}, met), self._keys_of(new, {}, met)]
        return " UNION ".join(parts)

    def recompute(self, views: Mapping[str, str], keys_view: str) -> str:
        """The query at the given versions, for the affected keys alone."""
        tree = _parsed(self.sql)
        met = _exists(keys_view, tuple((f"k{n}", key) for n, key in enumerate(self.keys)))
        tree = tree.where(met, dialect=Spark, copy=False)
        return placed(tree, views, {})

    def _keys_of(
        self, views: Mapping[str, str], instead: Mapping[str, str], met: str | None = None
    ) -> str:
        tree = _parsed(self.sql)
        for part in ("group", "having", "distinct"):
            tree.set(part, None)
        tree.set(
            "expressions",
            [
                exp.alias_(_expression(key), f"k{number}", quoted=True)
                for number, key in enumerate(self.keys)
            ],
        )
        tree.set("distinct", exp.Distinct())
        if met is not None:
            tree = tree.where(met, dialect=Spark, copy=False)
        return placed(tree, views, instead)


@dataclass(frozen=True)
class Versions:
    """The views of one input: at its old and new version, and of what changed between them."""

    old: str
    new: str
    removed: str | None
    added: str | None


def shape(sql: str, columns: _Columns) -> Shape:
    """Raises NotIncremental with the reason for FULL."""
    tree = _parsed(sql)
    _refuse(tree)
    _qualify(tree, _relations(tree, columns, outer=False), columns)
    relations = _relations(tree, columns)
    outputs = [each.unalias() for each in tree.expressions]
    group = tree.args.get("group")
    aggregates = any(each.find(exp.AggFunc) for each in [*outputs, *_having(tree)])
    if group is None and aggregates:
        raise NotIncremental("an aggregate without GROUP BY has no key")
    if group is None:
        keys, places = outputs, list(range(len(outputs)))
    else:
        keys = [_grouping(each, tree, outputs) for each in group.expressions]
        places = []
        for key in keys:
            if key not in outputs:
                raise NotIncremental(f"the result lacks the GROUP BY key {key.sql(Spark)}")
            places.append(outputs.index(key))
        tree.args["group"].set("expressions", [key.copy() for key in keys])
    return Shape(
        tree.sql(Spark, identify=True),
        relations,
        tuple(key.sql(Spark, identify=True) for key in keys),
        tuple(places),
        group is not None,
    )


def placed(tree: exp.Expr, views: Mapping[str, str], instead: Mapping[str, str]) -> str:
    """The SQL with every table read from its view; `instead` names views by alias."""
    own = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        name = table.name.lower()
        if name in own or name not in views:
            continue
        alias = table.alias or table.name
        view = instead.get(alias.lower(), views[name])
        replacement = exp.to_table(view)
        replacement.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        replacement.set("joins", table.args.get("joins"))
        table.replace(replacement)
    return tree.sql(Spark, identify=True)


def placed_text(sql: str, views: Mapping[str, str]) -> str:
    """The SQL of any query with every table read from its view."""
    tree = Spark().parse(sql)[0]
    if tree is None:
        raise ValueError("the query is empty")
    return placed(tree, views, {})


def _refuse(tree: exp.Expr) -> None:
    refusals: tuple[tuple[tuple[type[exp.Expr], ...], str], ...] = (
        ((exp.SetOperation,), "UNION, INTERSECT and EXCEPT"),
        ((exp.With,), "WITH"),
        ((exp.Subquery, exp.Exists, exp.In), "a subquery or IN"),
        ((exp.Window,), "a window function"),
        ((exp.Limit, exp.Offset, exp.Order), "LIMIT or ORDER BY"),
        ((exp.Lateral, *_ROW_BY_ROW), "LATERAL VIEW"),
        ((exp.Star,), "SELECT *"),
        ((exp.Rollup, exp.Cube, exp.GroupingSets), "ROLLUP, CUBE or GROUPING SETS"),
        ((exp.Pivot,), "PIVOT"),
    )
    for kinds, words in refusals:
        for found in tree.find_all(*kinds):
            counts_rows = isinstance(found, exp.Star) and isinstance(found.parent, exp.Count)
            lists_values = isinstance(found, exp.In) and not found.args.get("query")
            if not (counts_rows or lists_values):
                raise NotIncremental(f"the query uses {words}")


def _relations(tree: exp.Expr, columns: _Columns, outer: bool = True) -> tuple[Relation, ...]:
    """The tables of the query; what a LEFT JOIN compares is known once columns are qualified."""
    source = tree.args.get("from_") or tree.args.get("from")
    if source is None or not isinstance(source.this, exp.Table):
        raise NotIncremental("the query reads no table")
    found = [_relation(source.this, None, columns)]
    for join in tree.args.get("joins") or ():
        side, kind = (join.args.get("side") or "").upper(), (join.args.get("kind") or "").upper()
        if join.args.get("using") or join.args.get("method"):
            raise NotIncremental("a join by USING or NATURAL")
        if side in ("RIGHT", "FULL") or kind in ("SEMI", "ANTI"):
            raise NotIncremental(f"the query uses {side or kind} JOIN")
        if not isinstance(join.this, exp.Table):
            raise NotIncremental("the query joins what is no table")
        keys = _outer_keys(join) if side == "LEFT" and outer else None
        found.append(_relation(join.this, keys, columns))
    return tuple(found)


def _relation(
    table: exp.Table, outer: tuple[tuple[str, str], ...] | None, columns: _Columns
) -> Relation:
    if table.name.lower() not in columns:
        raise NotIncremental(f"{table.name} is no table of this query")
    return Relation((table.alias or table.name).lower(), table.name.lower(), outer)


def _outer_keys(join: exp.Join) -> tuple[tuple[str, str], ...]:
    alias = (join.this.alias or join.this.name).lower()
    condition = join.args.get("on")
    keys = []
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        if not isinstance(part, exp.EQ):
            continue
        for own, other in ((part.left, part.right), (part.right, part.left)):
            others = {column.table.lower() for column in other.find_all(exp.Column)}
            if isinstance(own, exp.Column) and own.table.lower() == alias and alias not in others:
                keys.append((own.name, other.sql(Spark, identify=True)))
                break
    if not keys:
        raise NotIncremental("a LEFT JOIN without an equality between its two sides")
    return tuple(keys)


def _qualify(tree: exp.Expr, relations: Sequence[Relation], columns: _Columns) -> None:
    """Give every column the table it is of, so that its table can be replaced."""
    outputs = {each.alias.lower() for each in tree.expressions if each.alias}
    for column in list(tree.find_all(exp.Column)):
        if column.table:
            continue
        name = column.name.lower()
        owners = [
            each.alias
            for each in relations
            if name in {other.lower() for other in columns[each.table]}
        ]
        if len(owners) == 1:
            column.set("table", exp.to_identifier(owners[0], quoted=True))
        elif owners or name not in outputs:
            raise NotIncremental(f"it is not clear which table has the column {column.name}")


def _grouping(key: exp.Expr, tree: exp.Expr, outputs: Sequence[exp.Expr]) -> exp.Expr:
    """What a GROUP BY key stands for: a number is a place, a name may be an alias."""
    if isinstance(key, exp.Literal) and not key.is_string:
        return outputs[int(key.this) - 1]
    if isinstance(key, exp.Column) and not key.table:
        for output in tree.expressions:
            if output.alias.lower() == key.name.lower():
                found: exp.Expr = output.unalias()
                return found
    return key


def _having(tree: exp.Expr) -> list[exp.Expr]:
    having = tree.args.get("having")
    return [] if having is None else [having]


def _exists(view: str, equalities: Sequence[tuple[str, str]]) -> str:
    same = " AND ".join(f"kalla_c.`{own}` <=> ({other})" for own, other in equalities)
    return f"EXISTS (SELECT 1 FROM {view} AS kalla_c WHERE {same})"


def _expression(sql: str) -> exp.Expr:
    found: exp.Expr = exp.maybe_parse(sql, dialect=Spark)
    return found


def _parsed(sql: str) -> exp.Select:
    tree = Spark().parse(sql)[0]
    if not isinstance(tree, exp.Select):
        raise NotIncremental("the query uses UNION, INTERSECT and EXCEPT")
    return tree
