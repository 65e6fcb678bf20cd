"""For every row that stayed unmatched: the nearest row of the other side, and why it did not match.

First among the rows with the same key, in any currency, then by amount or date. Bounded: a row is
compared with at most a fixed number of others, always the same ones. Values are looked up and
spelled for the closest one alone, when `{side}_near` is read.
"""

from __future__ import annotations

from dataclasses import replace

from kalla.reconcile.arrays import array_path, nearest_values
from kalla.reconcile.arrays.arrow_numbers import RowIds, as_column, numbers
from kalla.reconcile.arrays.nearest_values import Measured
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import conjunction, equal_columns, value_columns
from kalla.reconcile.sql import column_values
from kalla.reconcile.unmatched.explanations import (
    Nearest,
    count_held,
    explain_candidates,
    explain_nearest,
    holds,
    letters,
    of_one_currency,
)

# Others that are offered to a row: with more it is worth while to see which rows are alike.
_FEW = 5


def search(
    session: MatchSession, side: Side, *, by_key: bool = True, by_value: bool = True
) -> None:
    """Make `{side}_found` (row_id, other) of every unmatched row that has a closest one, and
    `{side}_near`: its explanation.

    Of a bucket only the keys can be searched: what is nearest by value may be in another.
    """
    seen = array_path.candidates(session, side, by_key=by_key, by_value=by_value)
    if seen is not None:
        explain_candidates(session, side, seen)
    else:
        search_by_sql(session, side, by_key=by_key, by_value=by_value)


def search_by_sql(
    session: MatchSession, side: Side, *, by_key: bool = True, by_value: bool = True
) -> None:
    """The same, for all kinds of rules."""
    other = opposite(side)
    found: list[Nearest] = []
    looking: dict[int, str] = {}
    of_keys: dict[object, RowIds] = {}  # rules often have one key
    for rule in session.plan.rules:
        if rule.key and by_key:
            rows = looking[rule.number] = _looking(session, rule, side, "unmatched")
            key = rule.filters, *(rule.checks[place] for place in rule.key)
            if key not in of_keys:
                of_keys[key] = _of_same_key(session, rule, side, other, rows)
            found += _same_key(session, rule, side, other, rows, of_keys[key])
    session.run(
        f"CREATE TEMP TABLE {side}_lonely AS SELECT row_id FROM {side}_unmatched"
        f" WHERE row_id NOT IN ({_row_ids(found)})"
    )
    (lonely,) = session.row(f"SELECT count(*) FROM {side}_lonely")
    for rule in session.plan.rules if lonely and by_value else ():
        if (place := nearest_values.searched(rule)) is not None:
            rows = looking.get(rule.number) or _looking(session, rule, side, "lonely")
            found.append(_nearest(session, rule, side, other, rows, place))
    explain_nearest(session, side, found)


def _looking(session: MatchSession, rule: RulePlan, side: Side, which: str) -> str:
    """A table of the unmatched rows that a rule's filters admit."""
    rows = session.rule_input(rule, side, whole=False)
    name = f"{side}_looking_{rule.number}"
    session.run(
        f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {_columns(rule)} FROM {rows} t"
        f" WHERE t.row_id IN (SELECT row_id FROM {side}_{which})"
    )
    return name


def _same_key(
    session: MatchSession, rule: RulePlan, side: Side, other: Side, looking: str, row_ids: RowIds
) -> list[Nearest]:
    """Rows with the key of a looking one, which are among the given ones."""
    near = Nearest(rule, f"{side}_near_{rule.number}_by_key", looking)
    keys = equal_columns(rule)
    same = conjunction([f"t.{name} = u.{name}" for name in keys])
    rows = _admit(session, rule, other, row_ids)
    key, join = session.keyed(other, "t", "t.row_id")
    session.run(
        f"CREATE OR REPLACE TEMP TABLE {near.offered} AS SELECT {_columns(rule)}, {key} AS key,"
        f" {_in_order(session, other)} FROM {rows} t SEMI JOIN {looking} u ON {same} {join}"
    )
    shared = ", ".join(keys)
    (most,) = session.row(
        f"SELECT max(n) FROM (SELECT count(*) AS n FROM {near.offered} GROUP BY {shared})"
    )
    if not most:
        return []
    if most > (bound := session.plan.bounds.closest_candidates):
        order = ", ".join(_order(session, other))
        crowded = f"SELECT {shared} FROM {near.offered} GROUP BY {shared} HAVING count(*) > {bound}"
        session.run(
            f"DELETE FROM {near.offered} WHERE row_id IN"
            f" (SELECT row_id FROM {near.offered} JOIN ({crowded}) USING ({shared})"
            f" QUALIFY row_number() OVER (PARTITION BY {shared} ORDER BY {order}) > {bound})"
        )
    own, their = letters(side)
    together = conjunction([f"{own}.{name} = {their}.{name}" for name in keys])
    pairs = f"JOIN {near.offered} {their} ON {together}"
    if most == 1:
        # Only another rule could find a closer one.
        satisfied = count_held(rule) if len(session.plan.rules) > 1 else "0"
        session.run(
            f"CREATE OR REPLACE TEMP TABLE {near.table} AS"
            f" SELECT {own}.row_id, {their}.row_id AS other,"
            f" {satisfied} AS satisfied FROM {looking} {own} {pairs}"
        )
        return [replace(near, meet=pairs)]
    many = most > _FEW
    if many:  # one key may well be
        (many,) = session.row(
            f"SELECT count(*) > {_FEW} * (SELECT count(*) FROM {looking})"
            f" FROM {looking} {own} {pairs}"
        )
    _rank(session, near, side, looking, pairs, many=many)
    return [near]


def _of_same_key(
    session: MatchSession, rule: RulePlan, side: Side, other: Side, looking: str
) -> RowIds:
    """The rows of the other side, settled or not, with the key of an unmatched row."""
    places = rule.key
    mine, theirs = (array_path.column(session, rule, places[0], each) for each in (side, other))
    if len(places) == 1 and mine and theirs and mine.is_whole and theirs.is_whole:
        (place,) = places
        row_ids = session.column(f"SELECT row_id FROM {looking} WHERE v{place} IS NOT NULL")
        found = array_path.of_same_key(mine, theirs, row_ids)
        if found is not None:
            return found
    # A view: of all rows nothing but the key is derived.
    every = session.rule_input(rule, other, settled=True, whole=False)
    same = conjunction([f"t.{name} = u.{name}" for name in equal_columns(rule)])
    return session.column(f"SELECT row_id FROM {every} t SEMI JOIN {looking} u ON {same}")


def _admit(session: MatchSession, rule: RulePlan, side: Side, row_ids: RowIds) -> str:
    """Of some rows of a side, settled or not, those that a rule looks at."""
    among = session.rows_at(side, row_ids, f"{side}_chosen")
    return session.rule_input(rule, side, whole=False, among=among)


def _nearest(
    session: MatchSession, rule: RulePlan, side: Side, other: Side, looking: str, place: int
) -> Nearest:
    """Rows with the nearest amount (else date) not above, and the nearest above."""
    near = Nearest(rule, f"{side}_near_{rule.number}_by_value", looking)
    lonely = f"(SELECT * FROM {looking} WHERE row_id IN (SELECT row_id FROM {side}_lonely))"
    found = nearest_values.next_to(
        *(
            _measured_by_arrays(session, rule, side, lonely, place)
            or _measured(session, rule, side, lonely, place)
        )
    )
    wanted, offers = found.wanted(), found.offers()
    session.table("wanted_values", wanted)
    session.table("offers", offers)
    rows = _admit(session, rule, other, numbers(offers.column("row_id").combine_chunks()))
    key, join = session.keyed(other, "t", "t.row_id")
    if found.most > (bound := session.plan.bounds.closest_candidates):
        order = ", ".join(session.key_order(other, "t"))
        session.run(
            "CREATE OR REPLACE TEMP TABLE offers AS SELECT o.row_id, o.value_number"
            f" FROM {rows} t JOIN offers o ON o.row_id = t.row_id {join}"
            f" QUALIFY row_number() OVER (PARTITION BY o.value_number ORDER BY {order}) <= {bound}"
        )
    session.run(
        f"CREATE OR REPLACE TEMP TABLE {near.offered} AS SELECT o.value_number, {_columns(rule)},"
        f" {key} AS key, {_in_order(session, other)}"
        f" FROM {rows} t JOIN offers o ON o.row_id = t.row_id {join}"
    )
    own, their = letters(side)
    pairs = (
        f"JOIN wanted_values n ON n.row_id = {own}.row_id JOIN {near.offered} {their}"
        f" ON {their}.value_number = n.value_number"
    )
    many = found.pairs > _FEW * len(wanted)
    _rank(session, near, side, lonely, pairs, many=many)
    return near


def _measured_by_arrays(
    session: MatchSession, rule: RulePlan, side: Side, looking: str, place: int
) -> tuple[Measured, Measured] | None:
    """The same as `_measured`, without SQL; None where values are not in arrays."""
    other = opposite(side)
    check = rule.checks[place]
    mine, theirs = (array_path.column(session, rule, place, each) for each in (side, other))
    if rule.currency or not (mine and theirs and mine.kind == theirs.kind):
        return None
    row_ids = session.column(f"SELECT row_id FROM {looking} t WHERE v{place} IS NOT NULL")
    return array_path.measured(check, {side: mine, other: theirs}, side, row_ids)


def _measured(
    session: MatchSession, rule: RulePlan, side: Side, looking: str, place: int
) -> tuple[Measured, Measured]:
    """The rows of the other side, and those that look for the nearest of them, comparable."""
    other = opposite(side)
    rows = session.rule_input(rule, other, settled=True, whole=False)
    check = rule.checks[place]
    signed = check.bound.signed("t.v", "t.v") if check.bound else ("t.v", "t.v")
    sides = [sql.replace("t.v", f"t.v{place}") for sql in signed]
    if check.left.scale != check.right.scale:
        sides = [f"CAST({sql} AS {column_values.amount_type(check.scale)})" for sql in sides]
    mine, theirs = sides if side == "left" else sides[::-1]
    if rule.currency:
        session.run(
            "CREATE OR REPLACE TEMP TABLE currencies AS"
            " SELECT cur, CAST(row_number() OVER () - 1 AS INTEGER) AS code"
            f" FROM (SELECT DISTINCT cur FROM {looking} t WHERE cur IS NOT NULL)"
        )
    most = max(session.row_status[each].rows for each in SIDES)

    def measured(rows: str, value: str) -> Measured:
        code, join = (", c.code", "JOIN currencies c USING (cur)") if rule.currency else ("", "")
        found = f"SELECT t.row_id, {value}{code} FROM {rows} t {join} WHERE {value} IS NOT NULL"
        return nearest_values.read(session.batches(found), most, coded=bool(rule.currency))

    offered, wanted = measured(rows, theirs), measured(looking, mine)
    if nearest_values.comparable(offered, wanted):
        return offered, wanted
    # Numbers of more than 64 bits have their ranks for values.
    session.table("chosen", as_column(offered.at(nearest_values.in_sight(offered, wanted))))
    currency = ", t.cur" if rule.currency else ""
    session.run(
        "CREATE OR REPLACE TEMP TABLE ranked AS SELECT *, dense_rank() OVER (ORDER BY x) AS n FROM"
        f" (SELECT t.row_id, true AS wanted, {mine} AS x{currency} FROM {looking} t"
        f" WHERE {mine} IS NOT NULL UNION ALL SELECT t.row_id, false, {theirs}{currency}"
        f" FROM {rows} t SEMI JOIN chosen c ON c.row_id = t.row_id)"
    )
    ranks = (f"(SELECT * FROM ranked WHERE {which})" for which in ("NOT wanted", "wanted"))
    offered, wanted = (measured(each, "t.n") for each in ranks)
    return offered, wanted


def _rank(
    session: MatchSession, near: Nearest, side: Side, looking: str, pairs: str, *, many: bool
) -> None:
    """Of each looking row's offered ones the best: most conditions, least distance, first key.

    By an aggregate, which holds one of each; to sort all pairs takes five times as long. Where
    many are offered to each, rows alike in all that is compared are ranked once.
    """
    own, their = letters(side)
    rule, keys = near.rule, _order(session, opposite(side))
    far = [
        part
        for place in rule.pair_checks
        # A null is further than anything, also where a check knows no distance.
        for part in (
            f"(l.v{place} IS NULL OR r.v{place} IS NULL)",
            rule.checks[place].distance,
        )
    ]
    if rule.currency:  # amounts compare only within one
        far = [f"NOT {holds(of_one_currency(rule.currency))}", *far]
    order = ", ".join(["-satisfied", *(f"f{number}" for number in range(len(far))), *keys])
    listed = "".join(f", {sql} AS f{number}" for number, sql in enumerate(far))

    def ranked(rows: str) -> str:
        return (
            "SELECT row_id, arg_min(other, row("
            + order
            + ")) AS other, max(satisfied) AS satisfied"
            f" FROM (SELECT {own}.row_id, {their}.row_id AS other, {', '.join(keys)},"
            f" {count_held(rule)} AS satisfied{listed} FROM {rows} {own} {pairs}) GROUP BY row_id"
        )

    if not many:
        session.run(f"CREATE OR REPLACE TEMP TABLE {near.table} AS {ranked(near.looking)}")
        return
    alike = [
        # A row that is no candidate does not matter.
        f"CASE WHEN v{place} IN (SELECT v{place} FROM {near.offered}) THEN v{place} END"
        if check.is_key and not check.normalized_key
        else f"v{place}"
        for place, check in enumerate(rule.checks)
    ]
    alike += ["cur"] if rule.currency else []
    session.run(
        "CREATE OR REPLACE TEMP TABLE alike AS SELECT row_id,"
        f" min(row_id) OVER (PARTITION BY {', '.join(alike)}) AS first FROM {looking}"
    )
    first = f"(SELECT * FROM {near.looking} WHERE row_id IN (SELECT first FROM alike))"
    session.run(
        f"CREATE OR REPLACE TEMP TABLE {near.table} AS SELECT a.row_id, w.other, w.satisfied"
        f" FROM alike a JOIN ({ranked(first)}) w ON w.row_id = a.first"
    )


def _columns(rule: RulePlan) -> str:
    """The columns of a row that comparisons need."""
    return ", ".join(f"t.{name}" for name in ["row_id", *value_columns(rule)])


def _in_order(session: MatchSession, side: Side) -> str:
    """What a row's key is in order by, under names of its own."""
    named = zip(session.key_order(side, "t"), _order(session, side), strict=True)
    return ", ".join(f"{sql} AS {name}" for sql, name in named)


def _order(session: MatchSession, side: Side) -> list[str]:
    return [f"o{number}" for number in range(len(session.key_order(side, "t")))]


def _row_ids(found: list[Nearest]) -> str:
    every = [f"SELECT row_id FROM {each.table}" for each in found]
    return " UNION ALL ".join([*every, "SELECT 0 WHERE false"])
