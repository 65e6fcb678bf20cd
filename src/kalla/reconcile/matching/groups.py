"""Rules that match one row with several, or several with several: whole groups, then subsets.

Whole groups are decided by DuckDB; only keys whose whole group does not fit come to Python, within
bounds that are checked beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from kalla.reconcile.matching import subsets
from kalla.reconcile.matching.pairs import SHOWN_CANDIDATES
from kalla.reconcile.matching.workbench import (
    Workbench,
    conjunction,
    key_columns,
    same_key,
    unscaled,
)
from kalla.reconcile.model import SIDES, Side
from kalla.reconcile.plan import RulePlan

# More pairs than this under one key with several rows on the one side are not looked into.
_HOT_PAIRS = 1_000_000
# More pairs than this of kinds of rows under one key of an M:N rule are not compared.
_HOT_KINDS = 20_000_000


def match(bench: Workbench, rule: RulePlan) -> str:
    """Carry a group rule out. Returns the table of its groups, a line for each row in one."""
    bench.admit(rule, "left")
    bench.admit(rule, "right")
    groups = f"groups_{rule.number}"
    bench.run(
        f"CREATE TEMP TABLE {groups} (gid BIGINT, side VARCHAR, rid BIGINT, status VARCHAR,"
        " cardinality VARCHAR)"
    )
    if rule.cardinality == "M:N":
        _match_many(bench, rule, groups)
    else:
        one: Side = "left" if rule.cardinality == "1:N" else "right"
        _match_one(bench, rule, groups, one)
    for side in SIDES:
        for status in ("matched", "suggested"):
            word = "confirmed" if status == "matched" else status
            rids = f"SELECT rid FROM {groups} WHERE side = '{side}' AND status = '{word}'"
            bench.settle(side, rids, status, rule.number)
    _keep_pairs(bench, rule, groups)
    return groups


def _keep_pairs(bench: Workbench, rule: RulePlan, groups: str) -> None:
    """Groups that are a pair have differences; kept now, since the next rule has other values."""
    kept = ["a.gid"]
    if rule.pair_checks:
        kept += [
            f"struct_pack({', '.join(f'v{n} := {side}.v{n}' for n in rule.pair_checks)}) AS {side}"
            for side in ("l", "r")
        ]
    if rule.sums:
        kept += ["l.amount AS left_amount", "r.amount AS right_amount"]
    bench.run(
        f"CREATE TEMP TABLE {groups}_pairs AS SELECT {', '.join(kept)}"
        f" FROM {groups} a JOIN {groups} b"
        " ON a.gid = b.gid AND a.side = 'left' AND b.side = 'right'"
        " JOIN left_rule l ON l.rid = a.rid JOIN right_rule r ON r.rid = b.rid"
        " WHERE a.cardinality = '1:1'"
    )


# 1:N and N:1


@dataclass
class _Findings:
    """What the searches in Python found, to be written at once."""

    groups: list[tuple[int, str, int]] = field(default_factory=list)  # gid (its one row), side, rid
    doubts: dict[Side, list[tuple[int, str, list[int]]]] = field(
        default_factory=lambda: {"left": [], "right": []}
    )
    too_large: dict[Side, list[int]] = field(default_factory=lambda: {"left": [], "right": []})


def _match_one(bench: Workbench, rule: RulePlan, groups: str, one: Side) -> None:
    many: Side = "right" if one == "left" else "left"
    hot = _admissible(bench, rule, one, many)
    alone = "SELECT kid FROM ones GROUP BY kid HAVING count(*) = 1"
    fits = _whole_fits(rule, one)
    bench.run(
        "CREATE OR REPLACE TEMP TABLE whole AS SELECT one, count(*) AS n,"
        f" {fits} AS fits FROM admissible WHERE kid IN ({alone}) GROUP BY one"
    )
    shape = f"CASE WHEN n = 1 THEN '1:1' ELSE '{rule.cardinality}' END"
    for side, rid in ((one, "one"), (many, "many")):
        source = "whole" if rid == "one" else "whole JOIN admissible USING (one)"
        bench.run(
            f"INSERT INTO {groups} SELECT one, '{side}', {rid}, 'confirmed', {shape}"
            f" FROM {source} WHERE fits"
        )
    findings = _Findings()
    if rule.sums:
        _search_subsets(bench, rule, one, many, findings)
    _search_together(bench, rule, one, many, findings)
    _write(bench, rule, groups, findings)
    _doubt_hot(bench, rule, one, many, hot)


def _admissible(bench: Workbench, rule: RulePlan, one: Side, many: Side) -> list[int]:
    """`admissible` (kid, one, many, both amounts) and `ones`; returns keys too hot to look into.

    A pair is admissible if it satisfies all but the sum.
    """
    keys = key_columns(rule)
    shared = "".join(f"{name}, " for name in keys)
    both = " AND ".join(f"a.{name} = b.{name}" for name in keys) or "true"
    listed = f"a.{', a.'.join(keys)}, " if keys else ""
    bench.run(
        "CREATE OR REPLACE TEMP TABLE kids AS SELECT *, row_number() OVER () AS kid FROM"
        f" (SELECT {listed}a.n AS ones, b.n AS many"
        f" FROM (SELECT {shared}count(*) AS n FROM {one}_rule GROUP BY ALL) a"
        f" JOIN (SELECT {shared}count(*) AS n FROM {many}_rule GROUP BY ALL) b"
        f" ON {both})"
    )
    found = bench.rows(f"SELECT kid FROM kids WHERE ones > 1 AND ones * many > {_HOT_PAIRS}")
    hot = [kid for (kid,) in found]
    same = conjunction([f"t.{name} = k.{name}" for name in keys])
    bench.run(
        f"CREATE OR REPLACE TEMP TABLE ones AS SELECT k.kid, t.rid FROM {one}_rule t"
        f" JOIN kids k ON {same}"
    )
    # Without a sum every row counts as one, and every number of them fits.
    amounts = [
        f"{unscaled(f'{alias}.amount', rule.sum_scale)} AS {name}" if rule.sums else f"1 AS {name}"
        for alias, name in _aliases(one)
    ]
    holds = [rule.checks[place].holds for place in rule.pair_checks if place != rule.sum_check]
    cool = f"k.kid NOT IN ({', '.join(map(str, hot))})" if hot else "true"
    rids = {alias: f"{alias}.rid AS {name}" for alias, name in _rid_aliases(one)}
    on_key = conjunction([f"l.{name} = k.{name}" for name in keys])
    bench.run(
        "CREATE OR REPLACE TEMP TABLE admissible AS SELECT "
        + ", ".join(["k.kid", *rids.values(), *amounts])
        + f" FROM left_rule l JOIN right_rule r ON {conjunction([*same_key(rule), *holds])}"
        f" JOIN kids k ON {on_key} AND {cool}"
    )
    return hot


def _aliases(one: Side) -> list[tuple[str, str]]:
    return [("l", "one_amount"), ("r", "many_amount")] if one == "left" else [
        ("l", "many_amount"), ("r", "one_amount")]  # fmt: skip


def _rid_aliases(one: Side) -> list[tuple[str, str]]:
    return [("l", "one"), ("r", "many")] if one == "left" else [("l", "many"), ("r", "one")]


def _whole_fits(rule: RulePlan, one: Side) -> str:
    """Over the admissible rows of one row: whether their sum fits it."""
    if rule.sum_bound is None:
        return "true"
    exact = f"DECIMAL(38, {rule.sum_scale})"
    row = f"({_scaled('any_value(one_amount)', rule.sum_scale)})::{exact}"
    total = f"({_scaled('sum(many_amount)', rule.sum_scale)})::{exact}"
    return rule.sum_bound.holds(row, total) if one == "left" else rule.sum_bound.holds(total, row)


def _scaled(sql: str, scale: int) -> str:
    """A whole number of last places as the decimal it is; a power of ten as a decimal is exact."""
    if scale == 0:
        return f"CAST({sql} AS HUGEINT)"
    return f"CAST({sql} AS DECIMAL(38, 0)) * 0.{'0' * (scale - 1)}1::DECIMAL(38, {scale})"


def _search_subsets(
    bench: Workbench, rule: RulePlan, one: Side, many: Side, findings: _Findings
) -> None:
    """One row on the one side, and its whole group does not fit."""
    bounds = bench.plan.bounds
    fit = _Fit(rule, one)
    todo = (
        "SELECT one, one_amount, many, many_amount FROM admissible JOIN whole USING (one)"
        " WHERE NOT fits AND n > 1 AND many_amount <> 0 ORDER BY one, many"
    )
    for rows in _grouped(bench, todo):
        owner, wanted = rows[0][0], rows[0][1]
        manys = [row[2] for row in rows]
        found = subsets.for_one(
            [row[3] for row in rows],
            partial(fit, wanted),
            bounds.subset_rows,
            bounds.subset_sums,
        )
        _note(findings, found, [owner], manys, one, many)


def _search_together(
    bench: Workbench, rule: RulePlan, one: Side, many: Side, findings: _Findings
) -> None:
    """Several rows on the one side."""
    bounds = bench.plan.bounds
    fit = _Fit(rule, one)
    crowds = "SELECT kid FROM ones GROUP BY kid HAVING count(*) > 1"
    todo = (
        "SELECT kid, one, one_amount, many, many_amount FROM admissible"
        f" WHERE kid IN ({crowds}) AND many_amount <> 0 ORDER BY kid, one, many"
    )
    by_key = {
        rows[0][0]: [row[1] for row in rows]
        for rows in _grouped(
            bench, f"SELECT kid, rid FROM ones WHERE kid IN ({crowds}) ORDER BY kid, rid"
        )
    }
    for rows in _grouped(bench, todo):
        owners = list(dict.fromkeys(row[1] for row in rows))
        wanted = {row[1]: row[2] for row in rows}
        amounts = {row[3]: row[4] for row in rows}
        # Every one row of the key counts towards the bound, also those that nothing is left for.
        everyone = by_key[rows[0][0]]
        owners += [rid for rid in everyone if rid not in wanted]
        manys = list(amounts)
        place = {rid: number for number, rid in enumerate(owners)}
        may: dict[int, list[int]] = {rid: [] for rid in manys}
        for row in rows:
            may[row[3]].append(place[row[1]])
        found = subsets.for_several(
            len(owners),
            [amounts[rid] for rid in manys],
            [may[rid] for rid in manys],
            partial(fit.one_of, [wanted.get(rid, 0) for rid in owners]),
            bounds.subset_rows,
            bounds.subset_sums,
        )
        _note(findings, found, owners, manys, one, many)


class _Fit:
    """Whether a one row's amount and a sum of the many side agree."""

    def __init__(self, rule: RulePlan, one: Side) -> None:
        self._bound, self._scale, self._one = rule.sum_bound, rule.sum_scale, one

    def __call__(self, row: int, total: int) -> bool:
        if self._bound is None:
            return True
        left, right = (row, total) if self._one == "left" else (total, row)
        return self._bound.fits(left, right, self._scale)

    def one_of(self, rows: Sequence[int], number: int, total: int) -> bool:
        return self(rows[number], total)


def _grouped(bench: Workbench, sql: str) -> Iterator[list[tuple[int, ...]]]:
    """The rows of a query by its first column, as they come."""
    for _, rows in groupby(bench.rows(sql), key=itemgetter(0)):
        yield list(rows)


def _note(
    findings: _Findings,
    found: subsets.Found,
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
            candidates = [rid for rid, used in users.items() if ones[place] in used]
            findings.doubts[one].append((ones[place], found.reason, candidates))
        for rid, used in users.items():
            findings.doubts[many].append((rid, found.reason, used))


def _write(bench: Workbench, rule: RulePlan, groups: str, findings: _Findings) -> None:
    status = "confirmed" if rule.confirm_subset else "suggested"
    gids, sides, rids = zip(*findings.groups, strict=True) if findings.groups else ((), (), ())
    bench.table(
        "found",
        pa.table(
            {
                "gid": pa.array(gids, pa.int64()),
                "side": pa.array(sides, pa.string()),
                "rid": pa.array(rids, pa.int64()),
            }
        ),
    )
    bench.run(
        f"INSERT INTO {groups} SELECT gid, side, rid, '{status}',"
        f" CASE WHEN count(*) OVER (PARTITION BY gid) = 2 THEN '1:1' ELSE '{rule.cardinality}' END"
        " FROM found"
    )
    for side, other in (SIDES, SIDES[::-1]):
        if findings.too_large[side]:
            rids = pa.array(findings.too_large[side], pa.int64())
            bench.table("large", pa.table({"rid": rids}))
            _doubt_whole_keys(bench, rule, side, other, "m.rid IN (SELECT rid FROM large)")
        doubts = findings.doubts[side]
        if not doubts:
            continue
        rids, reasons, candidates = zip(*doubts, strict=True)
        bench.table(
            "doubts",
            pa.table(
                {
                    "rid": pa.array(rids, pa.int64()),
                    "reason": pa.array(reasons, pa.string()),
                    "candidates": pa.array(candidates, pa.list_(pa.int64())),
                }
            ),
        )
        _doubt(
            bench, rule, side, other, "SELECT rid, reason, unnest(candidates) AS other FROM doubts"
        )


def _doubt(bench: Workbench, rule: RulePlan, side: Side, other: Side, pairs: str) -> None:
    """Rows that stay ambiguous, from pairs of (rid, reason, other)."""
    bench.keys_table(other, f"SELECT other FROM ({pairs})", "other_keys")
    bench.doubt(
        side,
        f"SELECT d.rid, {rule.number}, any_value(reason),"
        f" list_sort(min(key, {SHOWN_CANDIDATES})), count(*)"
        f" FROM ({pairs}) d JOIN other_keys k ON k.rid = d.other GROUP BY d.rid",
    )


def _doubt_hot(bench: Workbench, rule: RulePlan, one: Side, many: Side, hot: list[int]) -> None:
    if hot:
        listed = ", ".join(map(str, hot))
        for side, other in ((one, many), (many, one)):
            _doubt_whole_keys(bench, rule, side, other, f"m.kid IN ({listed})")


def _doubt_whole_keys(
    bench: Workbench, rule: RulePlan, side: Side, other: Side, which: str
) -> None:
    """Rows whose key was not looked into: all of the other side in that key are candidates."""
    same = conjunction([f"t.{name} = k.{name}" for name in key_columns(rule)])
    mine, theirs = (
        f"SELECT t.rid, k.kid FROM {each}_rule t JOIN kids k ON {same}" for each in (side, other)
    )
    kids = f"SELECT m.kid FROM ({mine}) m WHERE {which}"
    bench.keys_table(other, f"SELECT rid FROM ({theirs}) WHERE kid IN ({kids})", "other_keys")
    bench.doubt(
        side,
        f"SELECT m.rid, {rule.number}, 'too_large', o.keys, o.n FROM ({mine}) m JOIN"
        f" (SELECT kid, list_sort(min(key, {SHOWN_CANDIDATES})) AS keys, count(*) AS n"
        f" FROM ({theirs}) JOIN other_keys USING (rid) GROUP BY kid) o USING (kid) WHERE {which}",
    )


# M:N


def _match_many(bench: Workbench, rule: RulePlan, groups: str) -> None:
    """Both sides' groups of a key as one, of rows that agree with some row of the other side."""
    keys = key_columns(rule)
    _find_agreeing(bench, rule, keys)
    shared = "".join(f"{name}, " for name in keys)
    summed = "sum(amount)" if rule.sums else "NULL"
    both = " AND ".join(f"a.{name} = b.{name}" for name in keys) or "true"
    fits = rule.sum_bound.holds("a.total", "b.total") if rule.sum_bound else "true"
    shape = (
        "CASE WHEN a.n = 1 AND b.n = 1 THEN '1:1' WHEN a.n = 1 THEN '1:N'"
        " WHEN b.n = 1 THEN 'N:1' ELSE 'M:N' END"
    )
    first = "".join(f"a.{name}, " for name in keys)
    bench.run(
        "CREATE OR REPLACE TEMP TABLE agreed AS"
        f" SELECT {first}row_number() OVER () AS gid, {shape} AS cardinality"
        f" FROM (SELECT {shared}count(*) AS n, {summed} AS total FROM left_part GROUP BY ALL) a"
        f" JOIN (SELECT {shared}count(*) AS n, {summed} AS total FROM right_part GROUP BY ALL) b"
        f" ON {both} AND a.n > 0 AND b.n > 0 AND {fits}"
    )
    same = conjunction([f"p.{name} = g.{name}" for name in keys])
    for side in SIDES:
        bench.run(
            f"INSERT INTO {groups} SELECT g.gid, '{side}', p.rid, 'confirmed', g.cardinality"
            f" FROM {side}_part p JOIN agreed g ON {same}"
        )


def _find_agreeing(bench: Workbench, rule: RulePlan, keys: list[str]) -> None:
    """`left_part` and `right_part`: rows that agree with some row of the other side.

    Rows alike in all that is compared agree with the same ones, so that kinds of rows are held
    against each other; a key with too many kinds of them is not looked into.
    """
    compared = [place for place in rule.pair_checks if place != rule.sum_check]
    names = [*keys, *(f"v{place}" for place in compared)]
    for side in SIDES:
        bench.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_kinds AS"
            f" SELECT DISTINCT {', '.join(['1 AS kind', *names])} FROM {side}_rule"
        )
    shared = "".join(f"{name}, " for name in keys)
    both = conjunction([f"a.{name} = b.{name}" for name in keys])
    listed = "".join(f"a.{name}, " for name in keys)
    bench.run(
        "CREATE OR REPLACE TEMP TABLE kids AS"
        f" SELECT {listed}row_number() OVER () AS kid"
        f" FROM (SELECT {shared}count(*) AS n FROM left_kinds GROUP BY ALL) a"
        f" JOIN (SELECT {shared}count(*) AS n FROM right_kinds GROUP BY ALL) b"
        f" ON {both} WHERE a.n * b.n > {_HOT_KINDS}"
    )
    (hot,) = bench.row("SELECT count(*) FROM kids")
    condition = conjunction([*same_key(rule), *(rule.checks[place].holds for place in compared)])
    for side, alias, other in (("left", "l", "right_kinds r"), ("right", "r", "left_kinds l")):
        kinds = f"SELECT {alias}.* FROM {side}_kinds {alias}"
        if hot:
            cool = conjunction([f"{alias}.{name} = k.{name}" for name in keys])
            kinds += f" ANTI JOIN kids k ON {cool}"
        alike = conjunction([f"t.{name} = k.{name}" for name in names])
        bench.run(
            f"CREATE OR REPLACE TEMP TABLE {side}_part AS SELECT t.* FROM {side}_rule t SEMI JOIN"
            f" (SELECT * FROM ({kinds}) {alias} SEMI JOIN {other} ON {condition}) k ON {alike}"
        )
    if hot:
        for side, other in (SIDES, SIDES[::-1]):
            _doubt_whole_keys(bench, rule, side, other, "true")
