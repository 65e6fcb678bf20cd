"""Checks `match_sql` before it reaches Spark: the sandbox's findings, and the key columns of its
result.

Separate from `validation`, because only these recipes need its parser.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe.model import SIDES, Recipe, Side, opposite
from kalla.reconcile.recipe.recipe_problems import Finding

# The names of the two sources in a user's SQL.
VIEWS: Mapping[Side, str] = {"left": "left_src", "right": "right_src"}

_PLACE = ("match_sql",)


def held_sql(sql: str, columns: Mapping[Side, Collection[str]]) -> str:
    """The SQL that Spark may run; for a side with unknown columns, any may be named."""
    from kalla.spark import sandbox

    return sandbox.hold(sql, _tables(columns))


def findings(
    recipe: Recipe, columns: Mapping[Side, Collection[str]], *, keys: bool = True
) -> Iterator[Finding]:
    """Every problem of a recipe's SQL, as far as it can be checked without running it; without
    `keys` the result's key columns are not checked.
    """
    sql = recipe.match_sql
    if sql is None or not sql.strip():
        return
    from kalla.spark import sandbox

    try:
        held = held_sql(sql, columns)
        result = sandbox.result_columns(held, _tables(columns))
        if keys and result is not None:
            key_places(recipe, result)
    except InvalidInput as error:
        for each in error.problems:
            yield Finding(_PLACE, each.message, each.value, each.suggestion)


def key_places(recipe: Recipe, columns: Sequence[str]) -> dict[str, int]:
    """The positions of both primary keys' parts in the result."""
    lowered = [name.lower() for name in columns]
    found: dict[str, int] = {}
    problems = []
    for side in SIDES:
        other = opposite(side)
        theirs = {name.lower() for name in recipe.sources[other].primary_key}
        for number, name in enumerate(recipe.sources[side].primary_key):
            alias = f"{side}_{name}"
            names = [alias] if name.lower() in theirs else [alias, name]
            known = next((each for each in names if each.lower() in lowered), None)
            if known is None or lowered.count(known.lower()) > 1:
                what = "is missing from" if known is None else "occurs more than once in"
                problems.append(
                    Problem(
                        "match_sql",
                        f"the {side} primary key {name} {what} its result",
                        known or name,
                        f"select it once, AS {alias}",
                    )
                )
            else:
                found[f"{'l' if side == 'left' else 'r'}{number}"] = lowered.index(known.lower())
    if problems:
        raise InvalidInput(*problems)
    return found


def _tables(columns: Mapping[Side, Collection[str]]) -> dict[str, Collection[str]]:
    return {VIEWS[side]: columns.get(side, ()) for side in SIDES}
