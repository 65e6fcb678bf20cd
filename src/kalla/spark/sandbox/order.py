"""What depends on the order of rows needs one; by a constant, or by none, the order is chance."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from kalla.spark.sandbox.allowed_functions import AGGREGATES, ORDERED
from kalla.spark.sandbox.names import folded
from kalla.spark.sandbox.sql_problems import Report


def check(tree: exp.Expr, report: Report) -> None:
    for node in tree.walk():
        if isinstance(node, exp.Select | exp.SetOperation):
            _limit(node, report)
        elif isinstance(node, exp.Anonymous):
            _call(node, report)
        elif isinstance(node, exp.Window) and _counts_rows(node) and not _is_ordered(node):
            report.add("ROWS needs an order: without it, the rows before and after are chance",
                       node, suggestion="write OVER (… ORDER BY column ROWS …)")  # fmt: skip


def _limit(node: exp.Expr, report: Report) -> None:
    limited = "LIMIT" if node.args.get("limit") else "OFFSET" if node.args.get("offset") else ""
    if limited and not _orders(node.args.get("order"), node):
        report.add(
            "LIMIT and OFFSET need ORDER BY: without it, the rows are chance",
            node,
            value=limited,
            suggestion="order by columns that tell all rows apart",
        )


def _call(node: exp.Anonymous, report: Report) -> None:
    if (name := node.name.lower()) not in ORDERED:
        return
    window = node.parent
    while isinstance(window, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        window = window.parent
    if not isinstance(window, exp.Window) or not _is_ordered(window):
        report.add(f"{name} needs an order: without it, its result is chance", node, value=name,
                   suggestion=f"write {name}(…) OVER (… ORDER BY column)")  # fmt: skip


def _counts_rows(window: exp.Window) -> bool:
    """Whether the frame ends some rows away, and not at the first and the last."""
    spec = window.args.get("spec")
    if spec is None or str(spec.args.get("kind")).upper() != "ROWS":
        return False
    return any(spec.args.get(side) != "UNBOUNDED" for side in ("start", "end"))


def _is_ordered(window: exp.Window) -> bool:
    select = window.find_ancestor(exp.Select)
    if order := window.args.get("order"):
        return _orders(order, select)
    named = (select.args.get("windows") or []) if select else []
    return any(
        each is not window
        and each.name.lower() == window.alias.lower()
        and _orders(each.args.get("order"), select)
        for each in named
    )


def _orders(order: exp.Expr | None, query: exp.Expr | None) -> bool:
    """By a column at least, or what is one in the result of the query."""
    results = query.expressions if isinstance(query, exp.Select) else None
    return order is not None and any(
        _differs(each.this, results, numbers=order.parent is query) for each in order.expressions
    )


def _differs(node: exp.Expr, results: list[exp.Expr] | None, *, numbers: bool) -> bool:
    """Whether it may differ from row to row; `numbers` stand for columns of the result."""
    if numbers and node.is_int:
        place = int(node.name) - 1
        if results is None or not 0 <= place < len(results):
            return True
        return any(map(_varies, _parts(results[place])))
    constants = {
        folded(each.alias)
        for each in results or ()
        if isinstance(each, exp.Alias) and not any(map(_varies, _parts(each)))
    }
    return any(
        _varies(each) and not (_is_unqualified(each) and folded(each.name) in constants)
        for each in _parts(node)
    )


def _is_unqualified(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and not node.table


def _parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """Without those of a query within it, which has one answer for all rows."""
    return node.walk(prune=lambda each: isinstance(each, exp.Query))


def _varies(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in AGGREGATES | ORDERED
    return isinstance(node, exp.Column | exp.Star)
