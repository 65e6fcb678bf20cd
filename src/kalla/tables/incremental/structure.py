"""The structure of a query, from its text: which rows depend on which, or why this is unknown.

A query is a tree of blocks. A block is one SELECT over joined relations (tables or blocks again),
or a UNION ALL of blocks. Each block has keys: expressions such that the rows of one key depend on
no input row of another key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from kalla.spark.sandbox import TooComplicated
from kalla.spark.sandbox.allowed_functions import AGGREGATES
from kalla.tables.incremental.dialect import Structured

Columns = Mapping[str, Sequence[str]]
"""The columns of every table that a query reads."""


class NotIncremental(Exception):
    """The reason for a FULL refresh."""


@dataclass(frozen=True)
class Input:
    """A source or a dynamic table."""

    name: str


@dataclass(frozen=True)
class Key:
    sql: str
    place: int | None  # among the columns of the result; None if it is missing


@dataclass(frozen=True)
class Relation:
    """One member of FROM and JOIN. In the block's SQL it is `__relation_N`."""

    alias: str
    node: Node
    # Of the null-supplying side of an outer join: (own column, other side's expression) for each
    # equality of the join.
    outer_keys: tuple[tuple[str, str], ...] | None


@dataclass(frozen=True)
class Filter:
    """EXISTS or IN with a subquery: its values, and the compared outer expressions."""

    node: Select
    compared: tuple[str, ...]


@dataclass(frozen=True)
class Select:
    """One SELECT."""

    sql: str
    relations: tuple[Relation, ...]
    filters: tuple[Filter, ...]
    keys: tuple[Key, ...]
    grouped: bool
    # Without DISTINCT, GROUP BY and windows: each row comes from one row of every relation.
    plain: bool

    @property
    def result_keys(self) -> tuple[Key, ...]:
        return tuple(key for key in self.keys if key.place is not None)


@dataclass(frozen=True)
class Union:
    """UNION ALL."""

    branches: tuple[Node, ...]

    @property
    def result_keys(self) -> tuple[Key, ...]:
        """The places at which every branch has a key; the SQL is that of no branch."""
        shared: set[int] | None = None
        for branch in self.branches:
            own = (
                set() if isinstance(branch, Input) else {each.place for each in branch.result_keys}
            )
            places = {place for place in own if place is not None}
            shared = places if shared is None else shared & places
        return tuple(Key("", place) for place in sorted(shared or ()))


Node = Input | Select | Union


@dataclass(frozen=True)
class Structure:
    sql: str  # the whole query with every column qualified, for Spark to judge
    compared_sql: str  # the query as it was given, in the same form of WITH
    node: Select | Union


def relation_name(number: int) -> str:
    return f"__relation_{number}"


def structure(sql: str, columns: Columns) -> Structure:
    """Raises NotIncremental with the reason for FULL."""
    try:
        return _analysed(sql, columns)
    except NotIncremental:
        raise
    except Exception as error:
        # The optimizer is made for other queries, too: one that it trips over is still a valid one.
        kind = type(error).__name__
        raise NotIncremental(f"its structure cannot be analysed: {kind}: {error}") from error


def _analysed(sql: str, columns: Columns) -> Structure:
    given = parsed(sql)
    if any(each.args.get("recursive") for each in given.find_all(exp.With)):
        raise NotIncremental("the query is recursive")
    names = [each.alias.lower() for each in given.find_all(exp.CTE)]
    if len(set(names)) < len(names):  # `_without_with` replaces by the name alone
        raise NotIncremental("two names of WITH are alike")
    for join in given.find_all(exp.Join):
        if join.args.get("using") or join.args.get("method"):
            raise NotIncremental("a join by USING or NATURAL")
    compared = _without_with(given.copy())
    try:
        tree = qualify(
            given.copy(),
            dialect=Structured,
            schema={name: dict.fromkeys(each, "string") for name, each in columns.items()},
        )
    except SqlglotError as error:
        first = (str(error).splitlines() or [""])[0]
        raise NotIncremental(f"its columns are ambiguous: {first[:120]}") from None
    tree = _without_with(tree)
    for each in (tree, compared):
        for select in each.find_all(exp.Select):
            select.set("expressions", [_without_alias(output) for output in select.expressions])
    qualified = tree.sql(Structured, identify=True)
    if tree.args.get("order") and not tree.args.get("limit"):
        tree.set("order", None)  # the rows of a table have no order
    node = _node(tree, columns)
    if isinstance(node, Input):
        raise NotIncremental("the query is not a SELECT")
    return Structure(qualified, compared.sql(Structured), node)


def parsed(sql: str) -> exp.Query:
    try:
        tree = Structured().parse(sql)[0]
    except TooComplicated:
        raise NotIncremental("the query is too complicated to analyse") from None
    while isinstance(tree, exp.Subquery) and not tree.alias:
        tree = tree.this
    if not isinstance(tree, exp.Query):
        raise NotIncremental("the query is not a SELECT")
    return tree


def expression(sql: str) -> exp.Expr:
    found: exp.Expr = exp.maybe_parse(sql, dialect=Structured)
    return found


def tables_of(node: Node) -> frozenset[str]:
    """Every input that a node depends on."""
    if isinstance(node, Input):
        return frozenset({node.name})
    if isinstance(node, Union):
        return frozenset().union(*(tables_of(each) for each in node.branches))
    found: frozenset[str] = frozenset()
    for relation in node.relations:
        found |= tables_of(relation.node)
    for each in node.filters:
        found |= tables_of(each.node)
    return found


def _without_alias(output: exp.Expr) -> exp.Expr:
    """Without an alias that repeats the column's name: Spark treats the two as different."""
    inner = output.this if isinstance(output, exp.Alias) else None
    if isinstance(inner, exp.Column) and inner.name.lower() == output.alias.lower():
        return inner
    return output


def _without_with(tree: exp.Query) -> exp.Query:
    """With every name of a WITH replaced by its query: Spark cannot compare queries with WITH."""
    while (with_ := tree.find(exp.With)) is not None:
        owner = with_.parent
        if owner is None:
            break
        first = with_.expressions[0]
        name, query = first.alias.lower(), first.this
        if first.args["alias"].args.get("columns"):
            raise NotIncremental("WITH gives its columns other names")
        rest = with_.expressions[1:]
        with_.set("expressions", rest)
        if not rest:
            owner.set("with_", None)
        for table in list(owner.find_all(exp.Table)):
            if table.name.lower() == name and not table.db:
                alias = exp.TableAlias(this=exp.to_identifier(table.alias or table.name))
                subquery = exp.Subquery(this=query.copy(), alias=alias)
                subquery.set("joins", table.args.get("joins"))
                table.replace(subquery)
    return tree


def _node(tree: exp.Expr, columns: Columns) -> Node:
    while isinstance(tree, exp.Subquery) and not tree.args.get("joins"):
        tree = tree.this
    if isinstance(tree, exp.Table):
        if tree.name.lower() not in columns:
            raise NotIncremental(f"{tree.name} is not a table of this query")
        return Input(tree.name.lower())
    if isinstance(tree, exp.Union):
        _refuse_clauses(tree)
        names = [each.alias_or_name for each in tree.left.selects]
        branches = (_node(tree.left, columns), _node(_named(tree.right, names), columns))
        if tree.args.get("distinct"):
            return _distinct(tree, Union(branches))
        return Union(branches)
    if isinstance(tree, exp.SetOperation):
        raise NotIncremental("the query uses INTERSECT or EXCEPT")
    if not isinstance(tree, exp.Select):
        raise NotIncremental("the query reads something that is not a table")
    return _select(tree, columns)


def _named(branch: exp.Expr, names: Sequence[str]) -> exp.Expr:
    """A branch of a UNION with the names of the first one, for when it alone has changes."""
    branch = branch.copy()
    if isinstance(branch, exp.Subquery):
        branch.set("this", _named(branch.this, names))
    elif isinstance(branch, exp.SetOperation):
        branch.set("this", _named(branch.this, names))
        branch.set("expression", _named(branch.expression, names))
    elif isinstance(branch, exp.Select) and len(branch.expressions) == len(names):
        outputs = zip(branch.expressions, names, strict=True)
        branch.set(
            "expressions",
            [exp.alias_(each.unalias().copy(), name, quoted=True) for each, name in outputs],
        )
    return branch


def _distinct(tree: exp.Union, union: Union) -> Select:
    """UNION without ALL: the distinct rows of a UNION ALL."""
    names = [each.alias_or_name for each in tree.left.selects]
    outputs = [exp.column(name, table="u", quoted=True) for name in names]
    select = exp.select(*outputs).distinct().from_(f"{relation_name(0)} AS u")
    keys = tuple(
        Key(each.sql(Structured, identify=True), place) for place, each in enumerate(outputs)
    )
    sql = select.sql(Structured, identify=True)
    return Select(sql, (Relation("u", union, None),), (), keys, grouped=False, plain=False)


_REFUSED: tuple[tuple[tuple[type[exp.Expr], ...], str], ...] = (
    ((exp.Lateral, exp.Explode, exp.Posexplode, exp.Inline, exp.Unnest), "LATERAL VIEW"),
    ((exp.Rollup, exp.Cube, exp.GroupingSets), "ROLLUP, CUBE or GROUPING SETS"),
    ((exp.Pivot,), "PIVOT"),
    ((exp.TableSample,), "TABLESAMPLE"),
    ((exp.Values,), "VALUES"),
)


def _refuse_clauses(tree: exp.Expr) -> None:
    for clause, words in (("limit", "LIMIT"), ("offset", "OFFSET"), ("order", "ORDER BY inside")):
        if tree.args.get(clause):
            raise NotIncremental(f"the query uses {words}")
    for kinds, words in _REFUSED:
        if tree.find(*kinds):
            raise NotIncremental(f"the query uses {words}")


def _select(tree: exp.Select, columns: Columns) -> Select:
    from kalla.tables.incremental.joins import filters, relations  # they hold nodes again

    _refuse_clauses(tree)
    tree = tree.copy()
    found_filters = filters(tree, columns, _node)
    found_relations = relations(tree, columns, _node)
    outputs = [each.unalias() for each in tree.expressions]
    group = tree.args.get("group")
    windows = [each for output in outputs for each in output.find_all(exp.Window)]
    if (qualifying := tree.args.get("qualify")) is not None:
        windows += list(qualifying.find_all(exp.Window))
    having = tree.args.get("having")
    aggregates = any(
        each.find_ancestor(exp.Window) is None
        for output in [*outputs, *([having] if having else [])]
        for each in output.walk()
        if _is_aggregate(each)
    )
    if windows and (group is not None or aggregates):
        raise NotIncremental("a window over GROUP BY")
    if group is not None:
        keys = [each.copy() for each in group.expressions]
        if not keys or set(group.args) - {"expressions"} & {
            name for name, value in group.args.items() if value
        }:
            raise NotIncremental("the query uses GROUP BY ALL, ROLLUP or CUBE")
    elif aggregates:
        raise NotIncremental("an aggregate without GROUP BY has no key")
    elif windows:
        keys = _partitions(windows)
    else:
        keys = outputs
    if tree.args.get("distinct") and (group is not None or windows):
        # A row may come from several groups: it is recomputed by what it shows of their keys.
        keys = [key for key in keys if key in outputs]
        if not keys:
            raise NotIncremental("DISTINCT over groups or windows whose keys are not in the result")
    return Select(
        sql=tree.sql(Structured, identify=True),
        relations=found_relations,
        filters=found_filters,
        keys=tuple(
            Key(
                key.sql(Structured, identify=True),
                outputs.index(key) if key in outputs else None,
            )
            for key in keys
        ),
        grouped=group is not None,
        plain=group is None and not windows and not tree.args.get("distinct"),
    )


def _is_aggregate(part: exp.Expr) -> bool:
    if isinstance(part, exp.Anonymous):  # one that the parser does not know, as `mean`
        return part.name.lower() in AGGREGATES
    return isinstance(part, exp.AggFunc)


def _partitions(windows: Sequence[exp.Window]) -> list[exp.Expr]:
    """The expressions by which every window is partitioned."""
    shared: list[exp.Expr] | None = None
    for window in windows:
        own = list(window.args.get("partition_by") or ())
        shared = own if shared is None else [each for each in shared if each in own]
    if not shared:
        raise NotIncremental("a window without PARTITION BY, or windows that share none")
    return shared
