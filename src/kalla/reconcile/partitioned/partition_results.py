"""The results of the tasks of a partitioned match, and how they combine into the facts of one
match.
"""

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
class PartitionResult:
    """What a task found, or left for others."""

    rules: tuple[RuleFacts, ...] = ()
    written: tuple[Written, ...] = ()
    states: Mapping[Side, Mapping[str, Tally]] | None = None
    ambiguous: Mapping[Side, Mapping[int, int]] | None = None
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


def states_of(results: Sequence[PartitionResult], side: Side, loaded: Loaded) -> dict[str, Tally]:
    tallies = [each.states[side] for each in results if each.states is not None]
    states = {
        state: kernel.added([each.get(state, Tally()) for each in tallies]) for state in STATES
    }
    return states | {"filtered": kernel.filtered(loaded)}


def rules_of(
    results: Sequence[PartitionResult], rules: Sequence[RulePlan]
) -> tuple[RuleFacts, ...]:
    facts = []
    for rule in rules:
        tallies = [each for result in results for each in result.rules if each.name == rule.name]
        facts.append(
            replace(
                tallies[0],
                matches=sum(each.matches for each in tallies),
                left=kernel.added([each.left for each in tallies]),
                right=kernel.added([each.right for each in tallies]),
                seconds=max(each.seconds for each in tallies),
                suggested=largest_suggestions.largest(
                    each for one in tallies for each in one.suggested
                ),
            )
        )
    ambiguous: dict[Side, dict[int, int]] = {side: {} for side in SIDES}
    for result in results:
        for side, found in (result.ambiguous or {}).items():
            for number, count in found.items():
                ambiguous[side][number] = ambiguous[side].get(number, 0) + count
    return kernel.with_ambiguous(facts, ambiguous)
