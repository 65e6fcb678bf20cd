"""What the tasks of a match in buckets found, and the facts of many as the facts of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kalla.reconcile import kernel
from kalla.reconcile.evidence.writing import largest_suggestions
from kalla.reconcile.evidence.writing.datasets import Written
from kalla.reconcile.kernel import STATES, RuleFacts, Tally
from kalla.reconcile.partitioned.shuffle import Spread
from kalla.reconcile.plan.plan import RulePlan
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.session import currency_sums
from kalla.reconcile.session.side_loading import Loaded, Unreadable


@dataclass(frozen=True)
class Outcome:
    """What a task found, or left for others."""

    rules: tuple[RuleFacts, ...] = ()
    written: tuple[Written, ...] = ()
    states: Mapping[Side, Mapping[str, Tally]] | None = None
    doubts: Mapping[Side, Mapping[int, int]] | None = None
    left_over: Mapping[Side, str] | None = None  # rows that the next stage looks at, by its key
    open_rows: Mapping[Side, str] | None = None  # what the last stage left
    suggested: Mapping[Side, str] | None = None  # the keys of rows that left so
    lonely: Mapping[Side, int] | None = None  # unmatched rows whose evidence is yet to be written


def loaded_of(parts: Sequence[Spread]) -> Loaded:
    loads = [part.loaded for part in parts]
    return Loaded(
        sum(each.rows for each in loads),
        sum(each.filtered for each in loads),
        kernel.total([each.amount for each in loads]),
        kernel.total([each.filtered_amount for each in loads]),
        0,
        _together(each.unreadable for each in loads),
        currency_sums.together(each.filtered_currencies for each in loads),
        _together(each.filtered_unreadable for each in loads),
        sum(each.filtered_unread for each in loads),
    )


def _together(parts: Iterable[Unreadable]) -> Unreadable:
    found: dict[tuple[str, str], tuple[int, set[str]]] = {}
    for part in parts:
        for column, kind, rows, examples in part:
            count, shown = found.get((column, kind), (0, set()))
            found[column, kind] = (count + rows, shown | set(examples))
    return tuple(
        (*read, count, tuple(sorted(shown)[:3])) for read, (count, shown) in sorted(found.items())
    )


def states_of(outcomes: Sequence[Outcome], side: Side, loaded: Loaded) -> dict[str, Tally]:
    told = [each.states[side] for each in outcomes if each.states is not None]
    states = {state: kernel.added([each.get(state, Tally()) for each in told]) for state in STATES}
    return states | {"filtered": kernel.filtered(loaded)}


def rules_of(outcomes: Sequence[Outcome], rules: Sequence[RulePlan]) -> tuple[RuleFacts, ...]:
    facts = []
    for rule in rules:
        told = [each for outcome in outcomes for each in outcome.rules if each.name == rule.name]
        facts.append(
            replace(
                told[0],
                matches=sum(each.matches for each in told),
                left=kernel.added([each.left for each in told]),
                right=kernel.added([each.right for each in told]),
                seconds=max(each.seconds for each in told),
                suggested=largest_suggestions.largest(
                    each for one in told for each in one.suggested
                ),
            )
        )
    doubts: dict[Side, dict[int, int]] = {side: {} for side in SIDES}
    for outcome in outcomes:
        for side, found in (outcome.doubts or {}).items():
            for number, count in found.items():
                doubts[side][number] = doubts[side].get(number, 0) + count
    return kernel.with_doubts(facts, doubts)
