"""Rules that match one row with several: whole groups, then subsets that add up.

Whole groups are decided by DuckDB, and so are keys that are too large to search; only the others
are solved in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter

import pyarrow as pa

from kalla.reconcile.matching import subset_sum
from kalla.reconcile.matching.ambiguity import mark_ambiguous_keys, mark_ambiguous_pairs
from kalla.reconcile.matching.sum_bounds import Fitting
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side, opposite
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.session.rule_sql import conjunction, group_columns, same_key, unscaled
from kalla.reconcile.sql import decimal_sums

# More pairs than this under one key with several rows on the one side are not searched.
_HOT_PAIRS = 1_000_000
_FETCHED = 10_000  # rows at a time


def match(session: MatchSession, rule: RulePlan, groups: str, one: Side) -> None:
    """Executes the rule for keys whose rows of side `one` match several rows each."""
    many = opposite(one)
    _number_keys(session, rule, one, many)
    _find_large(session, rule, one, many)
    _find_admissible(session, rule, one, many)
    shape = f"CASE WHEN n = 1 THEN '1:1' ELSE '{rule.cardinality}' END"
    for side, row_id in ((one, "one"), (many, "many")):
        source = "whole" if row_id == "one" else "whole JOIN admissible USING (one)"
        session.run(
            f"INSERT INTO {groups} SELECT one, '{side}', {row_id}, 'confirmed', {shape}"
            f" FROM {source} WHERE fits"
        )
    findings = _Findings()
    if rule.sums:
        _search_subsets(session, rule, one, many, findings)
    _search_together(session, rule, one, many, findings)
    _write(session, rule, groups, findings)
    _mark_ambiguous_large(session, rule, one, many)


@dataclass
class _Findings:
    """Results of the searches in Python, written in one batch."""

    groups: list[tuple[int, str, int]] = field(
        default_factory=list
    )  # gid (its one row), side, row_id
    ambiguous: dict[Side, list[tuple[int, str, list[int]]]] = field(
        default_factory=lambda: {"left": [], "right": []}
    )
    too_large: dict[Side, list[int]] = field(default_factory=lambda: {"left": [], "right": []})


def _number_keys(session: MatchSession, rule: RulePlan, one: Side, many: Side) -> None:
    """`kids` (the keys of both sides, their rows, whether these make too many pairs, kid), and
    `ones`: the rows of the one side that have such a key."""
    keys = group_columns(rule)
    shared = "".join(f"{name}, " for name in keys)
    both = " AND ".join(f"a.{name} = b.{name}" for name in keys) or "true"
    listed = f"a.{', a.'.join(keys)}, " if keys else ""
    session.run(
        "CREATE OR REPLACE TEMP TABLE kids AS SELECT *, row_number() OVER () AS kid,"
        f" ones > 1 AND ones * many > {_HOT_PAIRS} AS hot"
        f" FROM (SELECT {listed}a.n AS ones, b.n AS many"
        f" FROM (SELECT {shared}count(*) AS n FROM {one}_grouped GROUP BY ALL) a"
        f" JOIN (SELECT {shared}count(*) AS n FROM {many}_grouped GROUP BY ALL) b"
        f" ON {both})"
    )
    same = conjunction([f"t.{name} = k.{name}" for name in keys])
    session.run(
        "CREATE OR REPLACE TEMP TABLE ones AS SELECT k.kid, k.ones = 1 AS alone, k.hot, t.*"
        f" FROM {one}_grouped t JOIN kids k ON {same}"
    )


def _find_large(session: MatchSession, rule: RulePlan, one: Side, many: Side) -> None:
    """`large_kids`: keys with several one rows that are too large to be solved together, known by
    counting; `many_rows` (kid, row_id): the rows of the many side that count."""
    m, o = _letter(many), _letter(one)
    same = conjunction([f"{m}.{name} = k.{name}" for name in group_columns(rule)])
    counts = f"{m}.amount <> 0" if rule.sums else "true"
    session.run(
        f"CREATE OR REPLACE TEMP TABLE many_rows AS SELECT k.kid, {m}.row_id"
        f" FROM {many}_grouped {m} JOIN kids k ON {same} AND k.ones > 1 AND NOT k.hot"
        f" SEMI JOIN {one}_grouped {o} ON {_admits(rule)} WHERE {counts}"
    )
    bounds = session.plan.bounds
    sized = session.rows(
        "SELECT kid, any_value(ones) AS ones, count(*) AS n FROM many_rows JOIN kids USING (kid)"
        f" GROUP BY kid HAVING n > {bounds.subset_rows}"
        f" OR n * ln(ones + 1) >= ln({bounds.subset_sums}) - 0.001"  # roughly; exactly below
    )
    large = [
        kid
        for kid, ones, rows in sized
        if rows > bounds.subset_rows or (ones + 1) ** rows > bounds.subset_sums
    ]
    session.table("large_kids", pa.table({"kid": pa.array(large, pa.int64())}))


def _find_admissible(session: MatchSession, rule: RulePlan, one: Side, many: Side) -> None:
    """`admissible` (kid, alone, one, many, both amounts): pairs that satisfy all but the sum; and
    `whole` (one, n, n that count, fits): what all of them together are to a row that is alone."""
    # Without a sum every row counts as one, and every number of them fits.
    m, o = _letter(many), _letter(one)
    amounts = [
        f"{unscaled(f'{alias}.amount', rule.sum_scale) if rule.sums else '1'} AS {name}"
        for alias, name in ((o, "one_amount"), (m, "many_amount"))
    ]
    looked_at = "SELECT * FROM ones WHERE NOT hot AND kid NOT IN (SELECT kid FROM large_kids)"
    session.run(
        "CREATE OR REPLACE TEMP TABLE admissible AS"
        f" SELECT {o}.kid, {o}.alone, {o}.row_id AS one, {m}.row_id AS many, {', '.join(amounts)}"
        f" FROM ({looked_at}) {o} JOIN {many}_grouped {m} ON {_admits(rule)}"
    )
    session.run(
        "CREATE OR REPLACE TEMP TABLE whole AS"
        f" SELECT one, n, counting, coalesce({_whole_fits(rule, one)}, false) AS fits"
        " FROM (SELECT one, count(*) AS n, count(*) FILTER (many_amount <> 0) AS counting,"
        " any_value(one_amount) AS amount,"
        f" {decimal_sums.halves('many_amount')} AS total"
        " FROM admissible WHERE alone GROUP BY one)"
    )


def _admits(rule: RulePlan) -> str:
    """Over a pair `l` and `r`: whether all but the sum holds."""
    checks = [rule.checks[place].holds for place in rule.pair_checks if place != rule.sum_check]
    return conjunction([*same_key(rule), *checks])


def _letter(side: Side) -> str:
    return "l" if side == "left" else "r"


def _whole_fits(rule: RulePlan, one: Side) -> str:
    """Over the amount of one row and the total of its admissible rows: whether that fits it."""
    if rule.sum_bound is None:
        return "true"
    row = decimal_sums.scaled("amount", rule.sum_scale)
    total = decimal_sums.scaled(decimal_sums.whole("total"), rule.sum_scale)
    return rule.sum_bound.holds(row, total) if one == "left" else rule.sum_bound.holds(total, row)


def _search_subsets(
    session: MatchSession, rule: RulePlan, one: Side, many: Side, findings: _Findings
) -> None:
    """One row on the one side, and its whole group does not fit."""
    bounds = session.plan.bounds
    bounds_of = Fitting(rule.sum_bound, one, rule.sum_scale)
    todo = (
        "SELECT one, one_amount, many, many_amount FROM admissible JOIN whole USING (one)"
        f" WHERE NOT fits AND n > 1 AND counting <= {bounds.subset_rows} AND many_amount <> 0"
        " ORDER BY one, many"
    )
    for rows in _grouped(session, todo):
        owner, wanted = rows[0][0], rows[0][1]
        manys, amounts = [row[2] for row in rows], [row[3] for row in rows]
        fits = bounds_of(wanted, sum(map(abs, amounts)))
        found = subset_sum.for_one(amounts, fits, bounds.subset_rows, bounds.subset_sums)
        _note(findings, found, [owner], manys, one, many)


def _search_together(
    session: MatchSession, rule: RulePlan, one: Side, many: Side, findings: _Findings
) -> None:
    """Several rows on the one side."""
    bounds = session.plan.bounds
    bounds_of = Fitting(rule.sum_bound, one, rule.sum_scale)
    counting = "FROM admissible WHERE NOT alone AND many_amount <> 0"
    todo = f"SELECT kid, one, one_amount, many, many_amount {counting} ORDER BY kid, one, many"
    members = (
        f"SELECT kid, row_id FROM ones WHERE kid IN (SELECT kid {counting}) ORDER BY kid, row_id"
    )
    by_key = {rows[0][0]: [row[1] for row in rows] for rows in _grouped(session, members)}
    for rows in _grouped(session, todo):
        owners = list(dict.fromkeys(row[1] for row in rows))
        wanted = {row[1]: row[2] for row in rows}
        amounts = {row[3]: row[4] for row in rows}
        # Every one row of the key counts towards the bound, also those that nothing is left for.
        everyone = by_key[rows[0][0]]
        owners += [row_id for row_id in everyone if row_id not in wanted]
        manys = list(amounts)
        place = {row_id: number for number, row_id in enumerate(owners)}
        may: dict[int, list[int]] = {row_id: [] for row_id in manys}
        for row in rows:
            may[row[3]].append(place[row[1]])
        reach = sum(map(abs, amounts.values()))
        found = subset_sum.for_several(
            list(amounts.values()),
            list(may.values()),
            [bounds_of(wanted[row_id], reach) if row_id in wanted else () for row_id in owners],
            bounds.subset_rows,
            bounds.subset_sums,
        )
        _note(findings, found, owners, manys, one, many)


def _grouped(session: MatchSession, sql: str) -> Iterator[list[tuple[int, ...]]]:
    """The rows of a query by its first column, as they come. Nothing else is asked meanwhile."""
    found = session.connection.execute(sql)
    batches = iter(lambda: found.fetchmany(_FETCHED), [])
    for _, rows in groupby(chain.from_iterable(batches), key=itemgetter(0)):
        yield list(rows)


def _note(
    findings: _Findings,
    found: subset_sum.Found,
    ones: list[int],
    manys: list[int],
    one: Side,
    many: Side,
) -> None:
    for owner, places in found.groups:
        findings.groups.append((ones[owner], one, ones[owner]))
        findings.groups += [(ones[owner], many, manys[place]) for place in places]
    if found.reason == "too_large":
        findings.too_large[one] += ones
        findings.too_large[many] += manys
    elif found.reason:
        users = {manys[place]: [ones[user] for user in used] for place, used in found.users}
        for place in found.ones:
            candidates = [row_id for row_id, used in users.items() if ones[place] in used]
            findings.ambiguous[one].append((ones[place], found.reason, candidates))
        for row_id, used in users.items():
            findings.ambiguous[many].append((row_id, found.reason, used))


def _write(session: MatchSession, rule: RulePlan, groups: str, findings: _Findings) -> None:
    status = "confirmed" if rule.confirm_subset else "suggested"
    gids, sides, row_ids = zip(*findings.groups, strict=True) if findings.groups else ((), (), ())
    session.table(
        "found",
        pa.table(
            {
                "gid": pa.array(gids, pa.int64()),
                "side": pa.array(sides, pa.string()),
                "row_id": pa.array(row_ids, pa.int64()),
            }
        ),
    )
    session.run(
        f"INSERT INTO {groups} SELECT gid, side, row_id, '{status}',"
        f" CASE WHEN count(*) OVER (PARTITION BY gid) = 2 THEN '1:1' ELSE '{rule.cardinality}' END"
        " FROM found"
    )
    for side, other in (SIDES, SIDES[::-1]):
        if findings.too_large[side]:
            row_ids = pa.array(findings.too_large[side], pa.int64())
            session.table("large", pa.table({"row_id": row_ids}))
            mark_ambiguous_keys(
                session, rule, side, other, "m.row_id IN (SELECT row_id FROM large)"
            )
        ambiguous = findings.ambiguous[side]
        if not ambiguous:
            continue
        row_ids, reasons, candidates = zip(*ambiguous, strict=True)
        session.table(
            "ambiguous_rows",
            pa.table(
                {
                    "row_id": pa.array(row_ids, pa.int64()),
                    "reason": pa.array(reasons, pa.string()),
                    "candidates": pa.array(candidates, pa.list_(pa.int64())),
                }
            ),
        )
        mark_ambiguous_pairs(
            session,
            rule,
            side,
            other,
            "SELECT row_id, reason, unnest(candidates) AS other FROM ambiguous_rows",
        )


def _mark_ambiguous_large(session: MatchSession, rule: RulePlan, one: Side, many: Side) -> None:
    """Marks rows of keys that were too large to search; only counting rows, except in hot keys."""
    hot = "m.kid IN (SELECT kid FROM kids WHERE hot)"
    large = "SELECT kid FROM large_kids"
    whole = f"NOT fits AND n > 1 AND counting > {session.plan.bounds.subset_rows}"
    alone = f"SELECT one FROM whole WHERE {whole}"
    added = f"SELECT many FROM admissible JOIN whole USING (one) WHERE {whole} AND many_amount <> 0"
    many_of_large = f"SELECT row_id FROM many_rows WHERE kid IN ({large})"
    for side, other, which in (
        (one, many, f"{hot} OR m.kid IN ({large}) OR m.row_id IN ({alone})"),
        (many, one, f"{hot} OR m.row_id IN ({many_of_large}) OR m.row_id IN ({added})"),
    ):
        mark_ambiguous_keys(session, rule, side, other, which)
