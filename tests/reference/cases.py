"""Every hand-made case; another matcher can be run through the same list."""

from __future__ import annotations

from tests.reference.case import Case
from tests.reference.cases_of_conditions import CASES as CONDITIONS
from tests.reference.cases_of_groups import CASES as GROUPS
from tests.reference.cases_of_orders import CASES as ORDERS
from tests.reference.cases_of_pairs import CASES as PAIRS
from tests.reference.cases_of_subsets import CASES as SUBSETS
from tests.reference.cases_of_texts import CASES as TEXTS
from tests.reference.cases_of_times import CASES as TIMES
from tests.reference.cases_of_unmatched import CASES as LEFTOVERS
from tests.reference.cases_of_values import CASES as VALUES

__all__ = ["CASES", "Case"]

CASES: list[Case] = [
    *VALUES, *TEXTS, *TIMES, *ORDERS, *CONDITIONS, *PAIRS, *GROUPS, *SUBSETS, *LEFTOVERS,
]  # fmt: skip
