"""What is to be said of unmatched rows, as a query: by SQL, or from columns in hand, where their
closest ones were found there. Both say the same; the latter joins nothing, and compiled loops spell
its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from kalla.reconcile.evidence import spelling
from kalla.reconcile.matching import shortfalls, telling
from kalla.reconcile.matching.closest_in_hand import Seen, there
from kalla.reconcile.matching.fates import OPEN, OPEN_CODE, SETTLED, Rids
from kalla.reconcile.matching.hand import Column
from kalla.reconcile.matching.values import enum, literal
from kalla.reconcile.matching.workbench import Workbench
from kalla.reconcile.model import SIDES, Side, opposite
from kalla.reconcile.plan import Plan

STATUSES = (*SETTLED, *OPEN)
_AMBIGUOUS, _UNMATCHED = (STATUSES.index(each) for each in OPEN)
_MOST_ROWS = 2**31 // 22  # whose numbers, with sign and point, have places of 32 bits as one text


def by_sql(bench: Workbench, side: Side) -> str:
    """From what the search for the closest ones has left: `{side}_found` and `{side}_near`."""
    other = opposite(side)
    key, join = bench.keyed(side, "t", "t.rid")
    gone = bench.gone(other, f"SELECT other FROM {side}_found")
    attempted, unmet = _attempted(bench.plan, side)
    ambiguous, unmatched = (f"{literal(each)}::{enum(STATUSES)}" for each in OPEN)
    of_row = [f"{sql} AS {name}" for name, sql in worth(bench.plan, side).items()]
    said, sums = {name: f"n.{name}" for name in telling.SAID}, ""
    if shortfalls.are_kept(bench.plan):
        shortfalls.lay_out(bench, side)
        said |= {name: f"coalesce(n.{name}, s.{name})" for name in shortfalls.SAID}
        sums = (
            f" LEFT JOIN {side}_shortfalls s ON s.rid = u.rid AND s.rule = CAST(n.rule AS VARCHAR)"
            " AND n.failing IS NULL AND g.rid IS NULL AND a.rid IS NULL"
        )
    return (
        f"SELECT {key} AS record_key, {', '.join(of_row)}, {attempted} AS attempted_rules,"
        f" {unmet} AS unmet, n.candidate,"
        f" CASE WHEN g.status IS NOT NULL THEN g.status WHEN a.rid IS NOT NULL THEN {ambiguous}"
        f" WHEN n.other IS NOT NULL THEN {unmatched} END AS status,"
        f" n.rule, {', '.join(f'{sql} AS {name}' for name, sql in said.items())}"
        f" FROM {side}_unmatched u JOIN {bench.left_over(side)} t USING (rid) {join}"
        f" LEFT JOIN {side}_near n ON n.rid = u.rid"
        f" LEFT JOIN {gone} g ON g.rid = n.other"
        f" LEFT JOIN {other}_ambiguous a ON a.rid = n.other{sums}"
    )


def in_hand(bench: Workbench, side: Side, seen: Sequence[Seen]) -> str | None:
    """From what was seen in hand; none where more is to be said than is there."""
    hand, plan = bench.hand(side), bench.plan.sides[side]
    amount = hand.column(plan.amount.sql) if hand and plan.amount else None
    if plan.currency or (plan.amount and amount is None) or shortfalls.are_kept(bench.plan):
        return None
    unmatched = bench.column(f"SELECT rid FROM {side}_unmatched")
    if len(unmatched) > _MOST_ROWS or not all(map(bench.has_whole_keys, SIDES)):
        return None
    told = _Told(bench, side, amount)
    lonely = np.zeros(bench.fates[side].rows, np.bool_)
    lonely[unmatched] = True
    for each in seen:
        lonely[each.rids] = False
    said = [told.of_seen(number, each) for number, each in enumerate(seen)]
    return " UNION ALL ".join([*said, told.of_lonely(np.flatnonzero(lonely))])


class _Told:
    """Queries of rows that are alike in what fails, over tables made of columns in hand."""

    def __init__(self, bench: Workbench, side: Side, amount: Column | None) -> None:
        self._bench, self._side, self._other = bench, side, opposite(side)
        self._amount = amount
        self._hands = {each: there(bench.hand(each)) for each in SIDES}
        self._ambiguous = bench.column(f"SELECT rid FROM {self._other}_ambiguous")

    def of_seen(self, number: int, seen: Seen) -> str:
        name = f"{self._side}_told_{number}"
        rids = {self._side: seen.rids, self._other: seen.others}
        columns = {
            "candidate": self._keys(self._other, seen.others),
            "status": self._statuses(seen.others),
        }
        said, rows = dict.fromkeys(telling.SAID, "NULL"), name
        if seen.place is not None:
            check = seen.rule.checks[seen.place]
            held = {each: there(self._hands[each].column(check.of(each).sql)) for each in SIDES}
            if check.left.kind == "number":
                for each in SIDES:
                    units, places = held[each].units(rids[each]), check.of(each).scale
                    columns[f"{each}_value"] = spelling.of_numbers(units, places)
                if seen.window is not None:
                    apart = seen.window.delta(rids)
                    columns["difference"] = spelling.of_numbers(apart, check.scale)
                said |= {each: each for each in telling.SAID if each in columns}
                said["failing"] = literal(check.label)
            else:
                columns |= {each[0]: held[each].at(rids[each]) for each in SIDES}
                said, rows = telling.said_of(seen.rule, seen.place, name)
        told = {"candidate": "candidate", "status": "status", "rule": literal(seen.rule.name)}
        return self._query(name, seen.rids, columns, told | said, rows)

    def of_lonely(self, rids: Rids) -> str:
        name = f"{self._side}_told"
        told = dict.fromkeys(("candidate", "status", "rule", *telling.SAID), "NULL")
        return self._query(name, rids, {}, told, name)

    def _query(
        self,
        name: str,
        rids: Rids,
        columns: Mapping[str, pa.Array],
        told: Mapping[str, str],
        rows: str,
    ) -> str:
        """Of a table of that name, or the rows that are made of it."""
        plan = self._bench.plan
        own = {"record_key": self._keys(self._side, rids)}
        said = {"record_key": "record_key", **worth(plan, self._side)}
        if self._amount is not None:
            own["amount"] = self._amount.at(rids)
            said["amount"] = "amount"
        self._bench.connection.register(name, pa.table({**own, **columns}))
        attempted, unmet = _attempted(plan, self._side)  # of rules without filters
        kinds = {"status": enum(STATUSES)} | telling.kinds(plan.rules)
        said |= {"attempted_rules": attempted, "unmet": unmet}
        said |= {each: f"CAST({sql} AS {kinds.get(each, 'VARCHAR')})" for each, sql in told.items()}
        return f"SELECT {', '.join(f'{sql} AS {each}' for each, sql in said.items())} FROM {rows}"

    def _keys(self, side: Side, rids: Rids) -> pa.Array:
        return spelling.of_numbers(self._hands[side].columns["p0"].units(rids))

    def _statuses(self, others: Rids) -> pa.Array:
        """What became of rows of the other side."""
        codes = self._bench.fates[self._other].codes()[others]
        found = np.where(codes == OPEN_CODE, _UNMATCHED, (codes - 1) % len(SETTLED)).astype(np.int8)
        if len(self._ambiguous):
            found[(codes == OPEN_CODE) & np.isin(others, self._ambiguous)] = _AMBIGUOUS
        return pa.DictionaryArray.from_arrays(pa.array(found), pa.array(STATUSES))


def worth(plan: Plan, side: Side) -> dict[str, str]:
    """The amount of a row, and its currency, where the recipe names them."""
    amount, currency = plan.sides[side].amount, plan.sides[side].currency
    return {
        "amount": amount.sql if amount else "NULL::INTEGER",
        "currency": currency.sql if currency else "NULL::VARCHAR",
    }


def _attempted(plan: Plan, side: Side) -> tuple[str, str]:
    """The names of the rules that met a row, those whose filters admit it; and whether none did."""
    admitted = [(literal(rule.name), rule.filters[SIDES.index(side)]) for rule in plan.rules]
    if not any(filters for _, filters in admitted):
        return f"[{', '.join(name for name, _ in admitted)}]", "false"
    listed = ", ".join(f"CASE WHEN {given or 'true'} THEN {name} END" for name, given in admitted)
    nobody = " AND ".join(f"NOT ({given or 'true'})" for _, given in admitted)
    return f"list_filter([{listed}], lambda name: name IS NOT NULL)", nobody
