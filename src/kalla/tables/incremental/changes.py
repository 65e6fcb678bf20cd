"""The SQL of incremental changes: removed and new rows of a block, the affected keys, and a block
recomputed for some keys.

`<=>` compares everywhere, so NULL is a key like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sqlglot import exp

from kalla.errors import InvalidInput, Problem
from kalla.spark.sandbox import TooComplicated
from kalla.tables.incremental.dialect import Structured
from kalla.tables.incremental.joins import equal_columns
from kalla.tables.incremental.structure import (
    Input,
    Key,
    Node,
    NotIncremental,
    Select,
    Union,
    expression,
    parsed,
    relation_name,
    tables_of,
)


@dataclass(frozen=True)
class Versions:
    """The views of one input: at its old and new version, and of its changes."""

    old: str
    new: str
    removed: str | None
    added: str | None

    @property
    def changed(self) -> bool:
        return bool(self.removed or self.added)


@dataclass(frozen=True)
class Rows:
    """Removed rows and new rows, as queries; a row may be in both."""

    removed: exp.Query | None
    added: exp.Query | None


Inputs = Mapping[str, Versions]

Bounds = Mapping[int, tuple[str, str]]
"""For keys without NULL: SQL of the smallest and the largest value, in key order.

A join with the keys alone does not let Spark skip parts of files. Nor does Spark apply a bound to
the columns that a join makes equal to the key: its inference of such conditions is off.
"""
NO_BOUNDS: Bounds = MappingProxyType({})


def affected_keys(node: Select | Union, inputs: Inputs) -> str | None:
    """The keys of the result that changes affect, as columns k0, k1, …; None: no key."""
    keys = node.result_keys
    if not keys:
        raise NotIncremental("the result lacks the key that would be needed to recompute its rows")
    places = [key.place for key in keys if key.place is not None]
    found = _affected_at(node, places, inputs)
    return None if found is None else found.sql(Structured, identify=True)


def recompute(
    node: Select | Union, views: Mapping[str, str], keys_view: str, bounds: Bounds = NO_BOUNDS
) -> str:
    """The query at the given versions, for the keys in a view alone."""
    places = [key.place for key in node.result_keys if key.place is not None]
    keys = exp.select("*").from_(exp.to_table(keys_view))
    return _recomputed_at(node, places, views, keys, bounds).sql(Structured, identify=True)


def placed(sql: str, views: Mapping[str, str]) -> str:
    """Any query with every table read from its view."""
    try:
        tree = Structured().parse(sql)[0]
    except TooComplicated:
        raise InvalidInput(Problem("query", "is too complicated to read")) from None
    if tree is None:
        raise ValueError("the query is empty")
    return _placed(tree, views).sql(Structured, identify=True)


def at(node: Node, views: Mapping[str, str]) -> exp.Query:
    """All rows of a node at the given versions."""
    if isinstance(node, Input):
        return exp.select("*").from_(exp.to_table(views[node.name]))
    if isinstance(node, Union):
        return _union([at(each, views) for each in node.branches])
    return block(node, views, {})


def changed(node: Node, inputs: Inputs) -> Rows:
    """The difference between the old and the new rows of a node: old + added = new + removed."""
    if not any(inputs[name].changed for name in tables_of(node)):
        return Rows(None, None)
    if isinstance(node, Input):
        given = inputs[node.name]
        return Rows(*(_all_of(view) for view in (given.removed, given.added)))
    if isinstance(node, Union):
        branches = [changed(each, inputs) for each in node.branches]
        return Rows(
            _union_of([each.removed for each in branches]),
            _union_of([each.added for each in branches]),
        )
    if node.plain and joins_changed_rows(node, inputs):
        return _joined_changes(node, inputs)
    keys = _affected(node, node.keys, inputs)
    if keys is None:
        return Rows(None, None)
    return Rows(
        _recomputed(node, node.keys, old_views(inputs), keys),
        _recomputed(node, node.keys, new_views(inputs), keys),
    )


def joins_changed_rows(node: Select, inputs: Inputs) -> bool:
    """Whether the changes of a block are its changed rows joined with the others: not where a
    change decides whether other rows exist.
    """
    outer = [each.node for each in node.relations if each.outer_keys is not None]
    return not any(
        inputs[name].changed
        for each in [*outer, *(each.node for each in node.filters)]
        for name in tables_of(each)
    )


def _joined_changes(node: Select, inputs: Inputs) -> Rows:
    removed: list[exp.Query | None] = []
    added: list[exp.Query | None] = []
    for number, rows, others in _changed_relations(node, inputs):
        for found, changed_rows in ((removed, rows.removed), (added, rows.added)):
            if changed_rows is not None:
                found.append(block(node, new_views(inputs), {**others, number: changed_rows}))
    return Rows(_union_of(removed), _union_of(added))


def signed_changes(
    node: Select, inputs: Inputs, outputs: Sequence[exp.Expr], sign: str
) -> exp.Query | None:
    """These expressions of the removed and added rows of a block, with a column for the sign: each
    changed relation is joined once for both."""
    parts: list[exp.Query | None] = []
    for number, rows, others in _changed_relations(node, inputs):
        signed = _union_of(
            [
                exp.select("*", f"{value} AS {sign}").from_(
                    exp.Subquery(this=each, alias="kalla_s")
                )
                for value, each in ((-1, rows.removed), (1, rows.added))
                if each is not None
            ]
        )
        if signed is not None:
            column = exp.column(sign, table=node.relations[number].alias, quoted=True)
            chosen = [*(each.copy() for each in outputs), column]
            parts.append(block(node, new_views(inputs), {**others, number: signed}, chosen))
    return _union_of(parts)


def _changed_relations(
    node: Select, inputs: Inputs
) -> Iterator[tuple[int, Rows, dict[int, exp.Query]]]:
    """The changes of each relation in turn, and the others: those before it at the new version,
    those after it at the old."""
    changed_names = {name for name, each in inputs.items() if each.changed}
    old, new = old_views(inputs), new_views(inputs)
    for number, relation in enumerate(node.relations):
        others = {
            other: at(each.node, new if other < number else old)
            for other, each in enumerate(node.relations)
            if other != number and tables_of(each.node) & changed_names
        }
        yield number, changed(relation.node, inputs), others


def block(
    node: Select,
    views: Mapping[str, str],
    instead: Mapping[int, exp.Query],
    outputs: Sequence[exp.Expr] | None = None,
    where: exp.Expr | None = None,
) -> exp.Query:
    """The SELECT with its relations at these versions, some of them replaced; with `outputs` the
    joined rows themselves: these expressions of them, neither grouped nor distinct."""
    tree = parsed(node.sql)
    places = {relation_name(number): number for number in range(len(node.relations))}
    for table in list(tree.find_all(exp.Table)):
        if table.name in places:
            number = places[table.name]
            rows = instead.get(number)
            member = node.relations[number].node
            if rows is None and isinstance(member, Input):
                replacement: exp.Expr = exp.to_table(views[member.name])
            else:
                replacement = exp.Subquery(this=at(member, views) if rows is None else rows.copy())
            replacement.set("alias", table.args["alias"].copy())
            table.replace(replacement)
        elif table.name.lower() in views:
            _replace(table, views)
    if outputs is not None:
        for part in ("group", "having", "distinct", "qualify"):
            tree.set(part, None)
        tree.set("expressions", list(outputs))
    if where is not None:
        tree = tree.where(where, copy=False)
    return tree


def old_views(inputs: Inputs) -> dict[str, str]:
    return {name: each.old for name, each in inputs.items()}


def new_views(inputs: Inputs) -> dict[str, str]:
    return {name: each.new for name, each in inputs.items()}


def _affected_at(node: Node, places: Sequence[int], inputs: Inputs) -> exp.Query | None:
    """The affected keys of a block, or of every branch, by places in the result."""
    if isinstance(node, Union):
        parts = [_affected_at(each, places, inputs) for each in node.branches]
        return _union_of(parts, distinct=True)
    if isinstance(node, Input):
        raise NotIncremental("a UNION of a table without SELECT")
    return _affected(node, _keys_at(node, places), inputs)


def _affected(node: Select, keys: Sequence[Key], inputs: Inputs) -> exp.Query | None:
    parts: list[exp.Query] = []
    old, new = old_views(inputs), new_views(inputs)
    outputs = [exp.alias_(expression(key.sql), f"k{n}", quoted=True) for n, key in enumerate(keys)]

    def keys_of(
        views: Mapping[str, str], instead: Mapping[int, exp.Query], met: exp.Expr | None = None
    ) -> None:
        tree = block(node, views, instead, [each.copy() for each in outputs], met)
        tree.set("distinct", exp.Distinct())
        parts.append(tree)

    for number, relation in enumerate(node.relations):
        rows = changed(relation.node, inputs)
        if relation.outer_keys is None:
            if rows.removed is not None:
                keys_of(old, {number: rows.removed})
            if rows.added is not None:
                keys_of(new, {number: rows.added})
            continue
        for each in (rows.removed, rows.added):
            if each is not None:
                met = _exists(each, relation.outer_keys)
                keys_of(old, {}, met)
                keys_of(new, {}, met.copy())
    for each_filter in node.filters:
        values = _affected(each_filter.node, each_filter.node.keys, inputs)
        if values is not None:
            met = _exists(values, [(f"k{n}", sql) for n, sql in enumerate(each_filter.compared)])
            keys_of(old, {}, met)
            keys_of(new, {}, met.copy())
    return _union_of(list(parts), distinct=True)


def _recomputed_at(
    node: Node, places: Sequence[int], views: Mapping[str, str], keys: exp.Query, bounds: Bounds
) -> exp.Query:
    if isinstance(node, Union):
        parts = [_recomputed_at(each, places, views, keys, bounds) for each in node.branches]
        return _union(parts)
    if isinstance(node, Input):
        raise NotIncremental("a UNION of a table without SELECT")
    return _recomputed(node, _keys_at(node, places), views, keys, bounds)


def _recomputed(
    node: Select,
    keys: Sequence[Key],
    views: Mapping[str, str],
    wanted: exp.Query,
    bounds: Bounds = NO_BOUNDS,
) -> exp.Query:
    """The condition applies before GROUP BY and windows: it keeps whole groups and partitions."""
    met = _exists(wanted, [(f"k{n}", key.sql) for n, key in enumerate(keys)])
    tree = parsed(node.sql)
    between = [
        expression(f"({column}) BETWEEN {low} AND {high}")
        for number, (low, high) in bounds.items()
        for column in (keys[number].sql, *equal_columns(tree, keys[number].sql))
    ]
    return block(node, views, {}, where=exp.and_(*between, met))


def _keys_at(node: Select, places: Sequence[int]) -> list[Key]:
    by_place = {key.place: key for key in node.keys}
    return [by_place[place] for place in places]


def _exists(rows: exp.Query, equalities: Sequence[tuple[str, str]]) -> exp.Expr:
    same = [
        exp.NullSafeEQ(
            this=exp.column(own, table="kalla_c", quoted=True),
            expression=exp.Paren(this=expression(other)),
        )
        for own, other in equalities
    ]
    select = (
        exp.select("1")
        .from_(
            exp.Subquery(this=rows.copy(), alias=exp.TableAlias(this=exp.to_identifier("kalla_c")))
        )
        .where(*same)
    )
    return exp.Exists(this=select)


def _all_of(view: str | None) -> exp.Query | None:
    return None if view is None else exp.select("*").from_(exp.to_table(view))


def _union_of(parts: Sequence[exp.Query | None], distinct: bool = False) -> exp.Query | None:
    some = [each for each in parts if each is not None]
    return _union(some, distinct) if some else None


def _union(parts: Sequence[exp.Query], distinct: bool = False) -> exp.Query:
    found = parts[0].copy()
    for part in parts[1:]:
        found = exp.Union(this=found, expression=part.copy(), distinct=distinct)
    return found


def _placed(tree: exp.Expr, views: Mapping[str, str]) -> exp.Expr:
    own = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        if table.name.lower() not in own and table.name.lower() in views:
            _replace(table, views)
    return tree


def _replace(table: exp.Table, views: Mapping[str, str]) -> None:
    replacement = exp.to_table(views[table.name.lower()])
    alias = exp.to_identifier(table.alias or table.name, quoted=True)
    given = table.args.get("alias")
    columns = [each.copy() for each in given.args.get("columns") or ()] if given else []
    replacement.set("alias", exp.TableAlias(this=alias, columns=columns))
    replacement.set("joins", table.args.get("joins"))
    table.replace(replacement)
