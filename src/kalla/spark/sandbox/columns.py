"""What the columns of a SELECT are called, each as often as it comes out.

None stands for columns that nobody knows; one that is there more than twice counts as twice, so
that `SELECT t.*, t.*` over itself, again and again, does not fill the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sqlglot import exp

Columns = tuple[str, ...] | None

_MOST = 2


def output(select: exp.Select, everything: Columns, sources: Mapping[str, Columns]) -> Columns:
    """Of a SELECT over these sources by their aliases, of which `*` alone is `everything`."""
    names: list[str] = []
    for each in select.expressions:
        if each.is_star:
            qualified = isinstance(each, exp.Column)
            found = sources.get(each.table.lower()) if qualified else everything
            found = _without(each.this if qualified else each, found)
            if not found:
                return None
            names += found
        elif isinstance(each, exp.Alias | exp.Column):
            names.append(each.alias_or_name.lower())
        else:
            return None
    return _kept(names)


def joined(before: Columns, join: exp.Expr, source: Columns) -> Columns:
    """What `*` stands for once a source has joined those before it."""
    if before is None or str(join.args.get("kind") or "").upper() in ("SEMI", "ANTI"):
        return before
    if source is None:
        return None
    shared = set(lowered(each.name for each in join.args.get("using") or ()))
    if str(join.args.get("method") or "").upper() == "NATURAL":
        shared = set(before) & set(source)
    return _kept((*before, *(name for name in source if name not in shared)))


def both(one: Columns, other: Columns) -> Columns:
    """Of two sources of the same name."""
    return None if one is None or other is None else _kept((*one, *other))


def renamed(alias: exp.Expr | None, columns: Columns) -> Columns:
    """Under an alias that may give them other names: `AS t(a, b)`."""
    given = alias.args.get("columns") if alias is not None else None
    return lowered(each.name for each in given) if given else columns


def lowered(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


def _without(star: exp.Expr, columns: Columns) -> Columns:
    """Less those in its `EXCEPT (…)`; of a field within a column, nobody knows what is left."""
    left_out = star.args.get("except_") or ()
    if columns is None or any(isinstance(each, exp.Column) and each.table for each in left_out):
        return None
    names = lowered(each.name for each in left_out)
    return tuple(name for name in columns if name not in names)


def _kept(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name, times in Counter(names).items() for _ in range(min(times, _MOST)))
