"""The relations and subquery filters of one SELECT, with their joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from kalla.tables.incremental.dialect import Structured
from kalla.tables.incremental.structure import (
    Columns,
    Filter,
    Node,
    NotIncremental,
    Relation,
    Select,
    relation_name,
)

MakeNode = Callable[[exp.Expr, Columns], Node]


def relations(tree: exp.Select, columns: Columns, node: MakeNode) -> tuple[Relation, ...]:
    """Replaces the relations of a SELECT by `__relation_N`."""
    source = tree.args.get("from_")
    if source is None:
        raise NotIncremental("the query reads no table")
    joins: list[exp.Join] = list(tree.args.get("joins") or ())
    if len(joins) == 1 and (joins[0].side or "").upper() == "RIGHT":
        first, second = source.this, joins[0].this
        source.set("this", second)
        joins[0].set("this", first)
        joins[0].set("side", "LEFT")
    found = [_relation(source.this, 0, None, columns, node)]
    for number, join in enumerate(joins, 1):
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        if side in ("RIGHT", "FULL") or kind in ("SEMI", "ANTI"):
            raise NotIncremental(f"the query uses {kind or side} JOIN")
        keys = _outer_keys(join) if side == "LEFT" else None
        found.append(_relation(join.this, number, keys, columns, node))
    _require_equalities(tree, [each.alias for each in found])
    return tuple(found)


def _relation(
    member: exp.Expr,
    number: int,
    outer: tuple[tuple[str, str], ...] | None,
    columns: Columns,
    node: MakeNode,
) -> Relation:
    if not isinstance(member, (exp.Table, exp.Subquery)) or member.args.get("joins"):
        raise NotIncremental("the query joins something that is not a table")
    given = member.args.get("alias")
    if given is not None and given.args.get("columns"):
        raise NotIncremental("a subquery gives its columns other names")
    alias = member.alias or member.name
    inner = member.this if isinstance(member, exp.Subquery) else member
    found = node(inner, columns)
    placeholder = exp.to_table(relation_name(number))
    placeholder.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    member.replace(placeholder)
    return Relation(alias.lower(), found, outer)


def _outer_keys(join: exp.Join) -> tuple[tuple[str, str], ...]:
    alias = join.this.alias_or_name.lower()
    keys = []
    for own, other in _equalities(join.args.get("on")):
        others = {column.table.lower() for column in other.find_all(exp.Column)}
        if isinstance(own, exp.Column) and own.table.lower() == alias and alias not in others:
            keys.append((own.name, other.sql(Structured, identify=True)))
    if not keys:
        raise NotIncremental("a LEFT JOIN without an equality between its two sides")
    return tuple(keys)


def equal_columns(tree: exp.Query, column: str) -> list[str]:
    """The other columns that equal this one in every row, by inner joins and WHERE."""
    where = tree.args.get("where")
    conditions = [each.args.get("on") for each in tree.args.get("joins") or () if not each.side]
    pairs = [
        (one.sql(Structured, identify=True), other.sql(Structured, identify=True))
        for condition in [*conditions, where.this if where else None]
        for one, other in _equalities(condition)
        if isinstance(one, exp.Column) and isinstance(other, exp.Column)
    ]
    found = [column]
    for each in found:  # grows
        for one, other in pairs:
            if one == each and other not in found:
                found.append(other)
    return found[1:]


def _equalities(condition: exp.Expr | None) -> list[tuple[exp.Expr, exp.Expr]]:
    """The equalities that hold together, each in both directions."""
    parts = condition.flatten() if isinstance(condition, exp.And) else [condition]
    found = []
    for part in parts:
        while isinstance(part, exp.Paren):
            part = part.this
        if isinstance(part, (exp.EQ, exp.NullSafeEQ)):
            found += [(part.left, part.right), (part.right, part.left)]
    return found


def _require_equalities(tree: exp.Select, aliases: Sequence[str]) -> None:
    """Every relation is joined to the others by equalities; a product of two is recomputed."""
    group = {alias: alias for alias in aliases}

    def root(alias: str) -> str:
        while group[alias] != alias:
            alias = group[alias]
        return alias

    where = tree.args.get("where")
    conditions = [join.args.get("on") for join in tree.args.get("joins") or ()]
    for condition in [*conditions, where.this if where else None]:
        for left, right in _equalities(condition):
            sides = {
                column.table.lower()
                for side in (left, right)
                for column in side.find_all(exp.Column)
                if column.table.lower() in group
            }
            first, *others = sides or {aliases[0]}
            for other in others:
                group[root(other)] = root(first)
    if len({root(alias) for alias in aliases}) > 1:
        raise NotIncremental("a join without an equality between its sides")


def filters(tree: exp.Select, columns: Columns, node: MakeNode) -> tuple[Filter, ...]:
    """The subqueries of WHERE; others are a reason for FULL."""
    where = tree.args.get("where")
    known: list[exp.Expr] = []
    found = []
    parts = [] if where is None else [where.this]
    while parts:
        part = parts.pop()
        if isinstance(part, exp.And):
            parts += [part.left, part.right]
            continue
        if isinstance(part, exp.Paren):
            parts.append(part.this)
            continue
        inner = part.this if isinstance(part, exp.Not) else part
        while isinstance(inner, exp.Paren):
            inner = inner.this
        if isinstance(inner, exp.In) and inner.args.get("query"):
            if part is not inner:
                raise NotIncremental("NOT IN with a subquery, which NULLs make depend on all rows")
            found.append(_in_filter(inner, columns, node))
            known.append(inner.args["query"])
        elif isinstance(inner, exp.Exists):
            found.append(_exists_filter(inner, columns, node))
            known.append(inner)
    inside = {id(each) for one in known for each in one.walk()}
    members = _members(tree)
    for each in tree.find_all(exp.Subquery, exp.Exists, exp.In, exp.Query):
        nested = isinstance(each, exp.Query) and each is not tree
        subquery = nested or (isinstance(each, exp.In) and each.args.get("query"))
        if subquery and id(each) not in inside and id(each) not in members:
            if isinstance(each, exp.In) and id(each.args["query"]) in inside:
                continue
            raise NotIncremental("a scalar subquery, or one outside of WHERE … AND …")
    return tuple(found)


def _members(tree: exp.Select) -> set[int]:
    """The members of FROM and JOIN, with nested ones."""
    found: set[int] = set()
    source = tree.args.get("from_")
    tops = [] if source is None else [source.this]
    tops += [join.this for join in tree.args.get("joins") or ()]
    for top in tops:
        found |= {id(each) for each in top.walk()}
    return found


def _in_filter(given: exp.In, columns: Columns, node: MakeNode) -> Filter:
    query = given.args["query"]
    query = query.this if isinstance(query, exp.Subquery) else query
    if not isinstance(query, exp.Select):
        raise NotIncremental("IN with a subquery that is not a SELECT")
    inner, compared = _uncorrelated(query.copy())
    if isinstance(given.this, exp.Tuple):
        raise NotIncremental("IN with several columns")
    values = [each.unalias() for each in query.expressions]
    compared = [(values[0], given.this), *compared]
    if inner.args.get("group"):
        # Groups pass by their keys, not by the value alone.
        made = node(inner, columns)
        if not isinstance(made, Select) or made.keys[0].place != 0 or len(compared) > 1:
            raise NotIncremental("IN with a grouped subquery that does not return its key")
        return Filter(
            _only(made, (made.keys[0].sql,)), (given.this.sql(Structured, identify=True),)
        )
    return _filter(inner, compared, columns, node)


def _exists_filter(given: exp.Exists, columns: Columns, node: MakeNode) -> Filter:
    query = given.this.this if isinstance(given.this, exp.Subquery) else given.this
    if not isinstance(query, exp.Select) or query.args.get("group"):
        raise NotIncremental("EXISTS with a subquery that is grouped or not a SELECT")
    inner, compared = _uncorrelated(query.copy())
    if not compared:
        raise NotIncremental("EXISTS without an equality with the rows outside")
    return _filter(inner, compared, columns, node)


def _filter(
    inner: exp.Select,
    compared: Sequence[tuple[exp.Expr, exp.Expr]],
    columns: Columns,
    node: MakeNode,
) -> Filter:
    """The values inside that rows outside are compared with; other conditions only narrow them."""
    inner.set(
        "expressions",
        [exp.alias_(own.copy(), f"v{n}", quoted=True) for n, (own, _) in enumerate(compared)],
    )
    inner.set("distinct", None)
    made = node(inner, columns)
    if not isinstance(made, Select) or not made.plain:
        raise NotIncremental("a subquery with a window")
    return Filter(made, tuple(other.sql(Structured, identify=True) for _, other in compared))


def _only(made: Select, keys: Sequence[str]) -> Select:
    values: Mapping[str, object] = vars(made)
    return Select(**{**values, "keys": tuple(k for k in made.keys if k.sql in keys)})  # type: ignore[arg-type]


def _uncorrelated(
    query: exp.Select,
) -> tuple[exp.Select, list[tuple[exp.Expr, exp.Expr]]]:
    """The subquery without the conditions that name a table outside, and its equalities of them."""
    own = {
        each.alias_or_name.lower()
        for each in query.find_all(exp.Table, exp.Subquery)
        if each.alias_or_name
    }

    def outside(part: exp.Expr) -> bool:
        return any(column.table.lower() not in own for column in part.find_all(exp.Column))

    where = query.args.get("where")
    compared: list[tuple[exp.Expr, exp.Expr]] = []
    kept = []
    if where is not None:
        parts = where.this.flatten() if isinstance(where.this, exp.And) else [where.this]
        for part in parts:
            if not outside(part):
                kept.append(part.copy())
                continue
            if part.find(exp.Query):  # its tables would be in no node
                raise NotIncremental("a subquery in a subquery names a table outside")
            for left, right in _equalities(part):
                tables = {column.table.lower() for column in right.find_all(exp.Column)}
                if not outside(left) and tables and not tables & own:
                    compared.append((left, right))
        query.set("where", exp.Where(this=exp.and_(*kept)) if kept else None)
    for join in query.args.get("joins") or ():
        if (on := join.args.get("on")) is not None and outside(on):
            raise NotIncremental("a join inside a subquery that names a table outside")
    if any(outside(each) for each in query.expressions):
        raise NotIncremental("a subquery that returns columns of a table outside")
    return query, compared
