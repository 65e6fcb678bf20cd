"""Cases of **Unmatched**: the rules tried, the closest candidate, and what was wrong with it."""

from __future__ import annotations

from kalla.reconcile.recipe.model import Bounds
from tests.reference.case import (
    Case,
    alone,
    eq,
    expect,
    left,
    missed,
    pair,
    recipe,
    right,
    rule,
    taken,
    tolerance,
    window,
)

AMOUNT = "tolerance(amount, ramount)"
CURRENCY = "currency(cur, rcur)"
TRIED = "**Unmatched** rows carry: the rules tried"
MOST = "that satisfies the most conditions of some rule, ties by distance, then key"
WITHIN = "Searched within the same key first, then by amount and date; bounded"
FAILING = "the first failing condition, both values, and the difference"

PAID = rule(eq(), eq("note"), right_filters=[{"column": "rnote", "op": "eq", "value": "paid"}])

CASES = [
    Case(
        "the rules that admit a row, in order",
        TRIED,
        recipe(
            rule(eq(), name="second", priority=2),
            rule(
                eq(),
                name="third",
                priority=3,
                left_filters=[{"column": "note", "op": "eq", "value": "x"}],
            ),
            rule(eq("note"), name="first", priority=1),
        ),
        left("id ref note", ("L1", "a", "x"), ("L2", "b", "y")),
        right("id ref note"),
        expect(alone("left", "L1", "first second third"), alone("left", "L2", "first second")),
    ),
    Case(
        "a row that no rule admits was not attempted",
        TRIED,
        recipe(PAID),
        left("id ref note", ("L1", "a", "open")),
        right("id ref note", ("R1", "a", "open")),
        expect(alone("left", "L1"), alone("right", "R1", tried="")),
    ),
    Case(
        "the closest candidate may be matched, and it says so",
        "the row of the other side (matched or not, it says which)",
        recipe(rule(eq(), tolerance(absolute="1"))),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "10"), ("R2", "a", "12")),
        expect(
            pair("L1", "R1", "0"), missed("right", "R2", "L1", "matched", AMOUNT, ("10", "12"), "2")
        ),
    ),
    Case(
        "a candidate that satisfies everything was taken by another",
        "the row of the other side (matched or not, it says which)",
        recipe(rule(eq(), tolerance(absolute="2"))),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "10"), ("R2", "a", "12")),
        expect(pair("L1", "R1", "0"), taken("right", "R2", "L1")),
    ),
    Case(
        "more conditions beat a smaller distance",
        MOST,
        recipe(rule(eq(), tolerance(absolute="1"), window(days=1))),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01")),
        right(
            "id ref amount day",
            ("R1", "a", "12", "2024-01-03"),
            ("R2", "a", "99", "2024-01-02"),
        ),
        expect(
            missed("left", "L1", "R2", "unmatched", AMOUNT, ("10", "99"), "89"),
            missed("right", "R1", "L1", "unmatched", AMOUNT, ("10", "12"), "2"),
            missed("right", "R2", "L1", "unmatched", AMOUNT, ("10", "99"), "89"),
        ),
    ),
    Case(
        "as many conditions: the least distance, in the order of the checks",
        MOST,
        recipe(rule(eq(), window(days=1), tolerance(absolute="1"))),
        left("id ref amount day", ("L1", "a", "10", "2024-01-05")),
        right(
            "id ref amount day",
            ("R1", "a", "12", "2024-01-09"),
            ("R2", "a", "99", "2024-01-02"),
        ),
        expect(
            missed(
                "left", "L1", "R2", "unmatched", "date_window(day, rday)",
                ("2024-01-05", "2024-01-02"), "-3",
            ),
            missed(
                "right", "R1", "L1", "unmatched", "date_window(day, rday)",
                ("2024-01-05", "2024-01-09"), "4",
            ),
            missed(
                "right", "R2", "L1", "unmatched", "date_window(day, rday)",
                ("2024-01-05", "2024-01-02"), "-3",
            ),
        ),
    ),
    Case(
        "as far: the first key",
        MOST,
        recipe(rule(eq(), tolerance(absolute="1"))),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R2", "a", "8"), ("R1", "a", "12")),
        expect(
            missed("left", "L1", "R1", "unmatched", AMOUNT, ("10", "12"), "2"),
            missed("right", "R1", "L1", "unmatched", AMOUNT, ("10", "12"), "2"),
            missed("right", "R2", "L1", "unmatched", AMOUNT, ("10", "8"), "-2"),
        ),
    ),
    Case(
        "as far: the first key, numbers as numbers",
        MOST,
        recipe(rule(eq(), tolerance(absolute="1")), keys="no"),
        left("no ref amount", (1, "a", "10"), (2, "b", "50")),
        right(
            "no ref amount", (10, "a", "12"), (9, "a", "8"), (11, "c", "52"), (8, "c", "48"),
        ),
        expect(
            missed("left", "1", "9", "unmatched", AMOUNT, ("10", "8"), "-2"),
            missed("left", "2", "8", "unmatched", "eq(ref, rref)", ("b", "c"), None),
            missed("right", "10", "1", "unmatched", AMOUNT, ("10", "12"), "2"),
            missed("right", "9", "1", "unmatched", AMOUNT, ("10", "8"), "-2"),
            missed("right", "11", "2", "unmatched", "eq(ref, rref)", ("b", "c"), None),
            missed("right", "8", "2", "unmatched", "eq(ref, rref)", ("b", "c"), None),
        ),
    ),
    Case(
        "a null is further than anything",
        MOST,
        recipe(rule(eq(), tolerance(absolute="1"))),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", None), ("R2", "a", "1000000")),
        expect(
            missed("left", "L1", "R2", "unmatched", AMOUNT, ("10", "1000000"), "999990"),
            missed("right", "R1", "L1", "unmatched", AMOUNT, ("10", None), None),
            missed("right", "R2", "L1", "unmatched", AMOUNT, ("10", "1000000"), "999990"),
        ),
    ),
    Case(
        "a rule of which more holds is the one that explains",
        "that satisfies the most conditions of some rule",
        recipe(
            rule(eq(), tolerance(absolute="0"), name="amount"),
            rule(eq(), eq("note"), window(days=0), name="day"),
        ),
        left("id ref note amount day", ("L1", "a", "x", "10", "2024-01-01")),
        right("id ref note amount day", ("R1", "a", "x", "11", "2024-01-02")),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "date_window(day, rday)",
                ("2024-01-01", "2024-01-02"), "1", tried="amount day", rule="day",
            ),
            missed(
                "right", "R1", "L1", "unmatched", "date_window(day, rday)",
                ("2024-01-01", "2024-01-02"), "1", tried="amount day", rule="day",
            ),
        ),
    ),
    Case(
        "of two rules of which as much holds the earlier explains",
        "that satisfies the most conditions of some rule",
        recipe(
            rule(eq(), tolerance(absolute="0"), name="amount"),
            rule(eq("note"), window(days=0), name="day"),
        ),
        left("id ref note amount day", ("L1", "a", "x", "10", "2024-01-01")),
        right(
            "id ref note amount day",
            ("R1", "b", "x", "10", "2024-01-02"),
            ("R2", "a", "y", "99", "2024-01-01"),
        ),
        expect(
            missed(
                "left", "L1", "R2", "unmatched", AMOUNT, ("10", "99"), "89",
                tried="amount day", rule="amount",
            ),
            missed(
                "right", "R1", "L1", "unmatched", "date_window(day, rday)",
                ("2024-01-01", "2024-01-02"), "1", tried="amount day", rule="day",
            ),
            missed(
                "right", "R2", "L1", "unmatched", AMOUNT, ("10", "99"), "89",
                tried="amount day", rule="amount",
            ),
        ),
    ),
    Case(
        "the first of the conditions that fail, in the rule's order",
        FAILING,
        recipe(rule(window(days=0), eq(), tolerance(absolute="0"))),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01")),
        right("id ref amount day", ("R1", "a", "11", "2024-01-02")),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "date_window(day, rday)",
                ("2024-01-01", "2024-01-02"), "1",
            ),
            missed(
                "right", "R1", "L1", "unmatched", "date_window(day, rday)",
                ("2024-01-01", "2024-01-02"), "1",
            ),
        ),
    ),
    Case(
        "values are shown as they were compared",
        FAILING,
        recipe(rule(eq(), eq("note", derive=("upper",)), tolerance(absolute="0"))),
        left("id ref note amount:text", ("L1", "a", "x", "10.50")),
        right("id ref note amount", ("R1", "a", "y", "10.5")),
        expect(
            missed("left", "L1", "R1", "unmatched", "eq(note, rnote)", ("X", "Y"), None),
            missed("right", "R1", "L1", "unmatched", "eq(note, rnote)", ("X", "Y"), None),
        ),
    ),
    Case(
        "the nearest amount above and not above, where no key is shared",
        WITHIN,
        recipe(rule(eq(), tolerance(absolute="9"), window(days=0))),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01")),
        right(
            "id ref amount day",
            ("R1", "b", "8", "2024-01-01"),
            ("R2", "b", "7", "2024-01-01"),
            ("R3", "b", "11", "2024-01-09"),
            ("R4", "b", "10.5", "2024-01-09"),
        ),
        expect(
            # Of R1 (8, below) and R4 (10.5, above) R1 has two conditions right, R4 one.
            missed("left", "L1", "R1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R1", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R2", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R3", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R4", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
        ),
    ),
    Case(
        "the nearest amount after its sign is turned, in the same currency",
        WITHIN,
        recipe(rule(eq(), tolerance(absolute="0", negate="right")), currency="cur"),
        left("id ref amount cur", ("L1", "a", "10", "EUR")),
        right(
            "id ref amount cur",
            ("R1", "b", "10", "EUR"),
            ("R2", "b", "-12", "EUR"),
            ("R3", "b", "-10", "USD"),
        ),
        expect(
            # Not above: R1 (-10 when turned), 20 away; above: R2 (12), 2 away. R3 is not euro.
            missed("left", "L1", "R2", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R1", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R2", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            alone("right", "R3"),
        ),
    ),
    Case(
        "a row of the same key in another currency is the closest, and the currency is what fails",
        MOST,
        recipe(rule(eq(), tolerance(absolute="0")), currency="cur"),
        left("id ref amount cur", ("L1", "a", "100", "EUR")),
        right("id ref amount cur", ("R1", "a", "100", "USD"), ("R2", "b", "3", "EUR")),
        expect(
            missed("left", "L1", "R1", "unmatched", CURRENCY, ("EUR", "USD"), None),
            missed("right", "R1", "L1", "unmatched", CURRENCY, ("EUR", "USD"), None),
            missed("right", "R2", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
        ),
    ),
    Case(
        "amounts of two currencies have no difference, and to have none is to share none",
        "amounts compare only within one currency",
        recipe(rule(eq(), tolerance(absolute="0"), window(days=0)), currency="cur"),
        left("id ref amount cur day", ("L1", "a", "100", None, "2024-01-01")),
        right(
            "id ref amount cur day",
            ("R1", "a", "105", "USD", "2024-01-01"),
            ("R2", "a", "100", None, "2024-01-03"),
            ("R3", "a", "120", "USD", "2024-01-02"),
        ),
        expect(
            # Key and date hold of R1, key and amount of R2; R2 is nearer.
            missed("left", "L1", "R2", "unmatched", CURRENCY, (None, None), None),
            missed("right", "R1", "L1", "unmatched", CURRENCY, (None, "USD"), None),
            missed("right", "R2", "L1", "unmatched", CURRENCY, (None, None), None),
            missed("right", "R3", "L1", "unmatched", CURRENCY, (None, "USD"), None),
        ),
    ),
    Case(
        "as many conditions: the same currency before the nearer amount of another",
        MOST,
        recipe(rule(eq(), tolerance(absolute="0")), currency="cur"),
        left("id ref amount cur", ("L1", "a", "100", "EUR"), ("L2", "b", "100", "EUR")),
        right(
            "id ref amount cur",
            ("R1", "a", "100", "USD"),
            ("R2", "a", "97", "EUR"),
            ("R3", "b", "500", "USD"),
            ("R4", "b", "101", "USD"),
        ),
        expect(
            missed("left", "L1", "R2", "unmatched", AMOUNT, ("100", "97"), "-3"),
            missed("left", "L2", "R4", "unmatched", CURRENCY, ("EUR", "USD"), None),
            missed("right", "R1", "L1", "unmatched", CURRENCY, ("EUR", "USD"), None),
            missed("right", "R2", "L1", "unmatched", AMOUNT, ("100", "97"), "-3"),
            missed("right", "R3", "L2", "unmatched", CURRENCY, ("EUR", "USD"), None),
            missed("right", "R4", "L2", "unmatched", CURRENCY, ("EUR", "USD"), None),
        ),
    ),
    Case(
        "a condition that stands before the amounts fails before their currency",
        FAILING,
        recipe(rule(eq(), window(days=0), tolerance(absolute="0")), currency="cur"),
        left("id ref amount cur day", ("L1", "a", "100", "EUR", "2024-01-01")),
        right("id ref amount cur day", ("R1", "a", "100", "USD", "2024-01-02")),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "date_window(day, rday)",
                ("2024-01-01", "2024-01-02"), "1",
            ),
            missed(
                "right", "R1", "L1", "unmatched", "date_window(day, rday)",
                ("2024-01-01", "2024-01-02"), "1",
            ),
        ),
    ),
    Case(
        "the nearest date, where a rule has no amount",
        WITHIN,
        recipe(rule(eq(), window(days=1))),
        left("id ref day", ("L1", "a", "2024-01-10")),
        right("id ref day", ("R1", "b", "2024-01-01"), ("R2", "b", "2024-01-12")),
        expect(
            missed("left", "L1", "R2", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R1", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R2", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
        ),
    ),
    Case(
        "a row in the same key is closer than any nearer amount",
        WITHIN,
        recipe(rule(eq(), tolerance(absolute="1"))),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "99"), ("R2", "b", "10")),
        expect(
            missed("left", "L1", "R1", "unmatched", AMOUNT, ("10", "99"), "89"),
            missed("right", "R1", "L1", "unmatched", AMOUNT, ("10", "99"), "89"),
            missed("right", "R2", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
        ),
    ),
    Case(
        "no more than so many of a key are looked at, the first by key",
        "bounded",
        recipe(rule(eq(), tolerance(absolute="1")), bounds=Bounds(closest_candidates=2)),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "99"), ("R2", "a", "50"), ("R3", "a", "12")),
        expect(
            missed("left", "L1", "R2", "unmatched", AMOUNT, ("10", "50"), "40"),
            missed("right", "R1", "L1", "unmatched", AMOUNT, ("10", "99"), "89"),
            missed("right", "R2", "L1", "unmatched", AMOUNT, ("10", "50"), "40"),
            missed("right", "R3", "L1", "unmatched", AMOUNT, ("10", "12"), "2"),
        ),
    ),
    Case(
        "the first by key of very many are the first as numbers",
        "bounded",
        recipe(
            rule(eq(), tolerance(absolute="1")), keys="no", bounds=Bounds(closest_candidates=2)
        ),
        left("no ref amount", (1, "a", "10"), (2, "c", "200")),
        right(
            "no ref amount", (10, "a", "12"), (2, "a", "99"), (9, "a", "50"),
            (30, "b", "250"), (4, "b", "250"), (5, "b", "250"),
        ),
        expect(
            missed("left", "1", "9", "unmatched", AMOUNT, ("10", "50"), "40"),
            missed("left", "2", "4", "unmatched", "eq(ref, rref)", ("c", "b"), None),
            missed("right", "2", "1", "unmatched", AMOUNT, ("10", "99"), "89"),
            missed("right", "9", "1", "unmatched", AMOUNT, ("10", "50"), "40"),
            missed("right", "10", "1", "unmatched", AMOUNT, ("10", "12"), "2"),
            missed("right", "4", "2", "unmatched", "eq(ref, rref)", ("c", "b"), None),
            missed("right", "5", "2", "unmatched", "eq(ref, rref)", ("c", "b"), None),
            missed("right", "30", "2", "unmatched", "eq(ref, rref)", ("c", "b"), None),
        ),
    ),
    Case(
        "a row that the rule's filter keeps out is no candidate",
        WITHIN,
        recipe(
            rule(
                eq(),
                tolerance(absolute="1"),
                right_filters=[{"column": "ramount", "op": "lt", "value": 50}],
            )
        ),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "99"), ("R2", "b", "40")),
        expect(
            missed("left", "L1", "R2", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            alone("right", "R1", tried=""),
            missed("right", "R2", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
        ),
    ),
    Case(
        "none found",
        '"none found" is an answer',
        recipe(rule(eq())),
        left("id ref", ("L1", "a")),
        right("id ref", ("R1", "b")),
        expect(alone("left", "L1"), alone("right", "R1")),
    ),
]  # fmt: skip
