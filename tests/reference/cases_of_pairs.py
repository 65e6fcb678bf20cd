"""Cases of **1:1**: the best assignment, interchangeable rows, ties, and **After a rule**."""

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
    unsure,
    window,
)

CLOSE = recipe(rule(eq(), tolerance(absolute="5")))
ALL_AGREE = "What all optimal assignments have in common is **confirmed**."
UNEQUAL = (
    "with unequal numbers it is not known which row is left over, so all of them are ambiguous"
)
FIFO = "unless the rule says `ties: first_in_first_out` (by a named date, then key)"
TOO_LARGE = "A component above the bound (…) is not solved: ambiguous, reason `too_large`."
GO_ON = "Ambiguous rows go on to later rules"

ASSIGNMENTS = [
    Case(
        "two pairs that are further apart beat one that is near",
        "Choose the assignment with the most pairs, then the least total distance.",
        CLOSE,
        left("id ref amount", ("L1", "a", "0"), ("L2", "a", "5")),
        right("id ref amount", ("R1", "a", "5"), ("R2", "a", "10")),
        expect(pair("L1", "R1", "5"), pair("L2", "R2", "5")),
    ),
    Case(
        "of as many pairs the least distance wins",
        "Choose the assignment with the most pairs, then the least total distance.",
        CLOSE,
        left("id ref amount", ("L1", "a", "1"), ("L2", "a", "2")),
        right("id ref amount", ("R1", "a", "2.5"), ("R2", "a", "1.5")),
        expect(
            # 1 → 1.5 and 2 → 2.5 is 1 in all; 1 → 2.5 and 2 → 1.5 is 2.
            pair("L1", "R2", "0.5"),
            pair("L2", "R1", "0.5"),
        ),
    ),
    Case(
        "a row that every best assignment leaves out is left over, not ambiguous",
        ALL_AGREE,
        CLOSE,
        left("id ref amount", ("L1", "a", "1"), ("L2", "a", "3")),
        right("id ref amount", ("R1", "a", "1")),
        expect(pair("L1", "R1", "0"), taken("left", "L2", "R1")),
    ),
    Case(
        "two equally good ways are no match",
        "The rest is **ambiguous**: listed with its candidates.",
        CLOSE,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "9"), ("R2", "a", "11")),
        expect(unsure("left", "L1", "R1 R2", "tie"), unsure("right", "R1 R2", "L1", "tie")),
    ),
    Case(
        "four rows in two equally good ways",
        "The rest is **ambiguous**: listed with its candidates.",
        CLOSE,
        left("id ref amount", ("L1", "a", "1"), ("L2", "a", "2")),
        right("id ref amount", ("R1", "a", "3"), ("R2", "a", "4")),
        expect(unsure("left", "L1 L2", "R1 R2", "tie"), unsure("right", "R1 R2", "L1 L2", "tie")),
    ),
    Case(
        "what is certain in a component is confirmed beside what is not",
        ALL_AGREE,
        # L1 could reach R2 as well: all five are one component.
        recipe(rule(eq(), tolerance(absolute="9"))),
        left("id ref amount", ("L1", "a", "0"), ("L2", "a", "10")),
        right("id ref amount", ("R1", "a", "0"), ("R2", "a", "9"), ("R3", "a", "11")),
        expect(
            pair("L1", "R1", "0"),
            unsure("left", "L2", "R2 R3", "tie"),
            unsure("right", "R2", "L1 L2", "tie"),
            unsure("right", "R3", "L2", "tie"),
        ),
    ),
    Case(
        "components do not disturb each other",
        "In the graph of candidates, per connected component",
        CLOSE,
        left("id ref amount", ("L1", "a", "10"), ("L2", "b", "10")),
        right("id ref amount", ("R1", "a", "10"), ("R2", "b", "9"), ("R3", "b", "11")),
        expect(
            pair("L1", "R1", "0"),
            unsure("left", "L2", "R2 R3", "tie"),
            unsure("right", "R2 R3", "L2", "tie"),
        ),
    ),
    Case(
        "candidates are all that a row could have, not only the best",
        "listed with its candidates",
        CLOSE,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "9"), ("R2", "a", "11"), ("R3", "a", "14")),
        expect(
            unsure("left", "L1", "R1 R2 R3", "tie"),
            unsure("right", "R1 R2", "L1", "tie"),
            taken("right", "R3", "L1", "ambiguous"),
        ),
    ),
    Case(
        "twenty candidates are listed, and all are counted",
        "listed with its candidates",
        recipe(rule(eq())),
        left("id ref", ("L1", "a")),
        right("id ref", *((f"R{number:02}", "a") for number in range(25, 0, -1))),
        expect(
            unsure("left", "L1", " ".join(f"R{number:02}" for number in range(1, 26)), "unequal"),
            unsure("right", " ".join(f"R{number:02}" for number in range(1, 26)), "L1", "unequal"),
        ),
    ),
    Case(
        "a component above the bound is not solved",
        TOO_LARGE,
        recipe(rule(eq(), tolerance(absolute="5")), bounds=Bounds(component_edges=3)),
        left("id ref amount", ("L1", "a", "1"), ("L2", "a", "2"), ("L3", "b", "1")),
        right("id ref amount", ("R1", "a", "1"), ("R2", "a", "2"), ("R3", "b", "1")),
        expect(
            unsure("left", "L1 L2", "R1 R2", "too_large"),
            unsure("right", "R1 R2", "L1 L2", "too_large"),
            pair("L3", "R3", "0"),
        ),
    ),
    Case(
        "a component at the bound is solved, and equal rows are one edge",
        "A hot key with 100,000 equal rows a side is one edge.",
        recipe(rule(eq()), bounds=Bounds(component_edges=1)),
        left("id ref", ("L1", "a"), ("L2", "a")),
        right("id ref", ("R1", "a"), ("R2", "a")),
        expect(pair("L1", "R1", interchangeable=True), pair("L2", "R2", interchangeable=True)),
    ),
]

CLASSES = [
    Case(
        "interchangeable rows are paired in key order",
        "Interchangeable rows with as many on one side as on the other are paired in "
        "primary-key order and marked `interchangeable`",
        recipe(rule(eq(), tolerance(absolute="1"))),
        left("id ref amount", ("L9", "a", "5"), ("L10", "a", "5.0")),
        right("id ref amount", ("R2", "a", "6"), ("R1", "a", "6")),
        expect(
            pair("L10", "R1", "1", interchangeable=True),
            pair("L9", "R2", "1", interchangeable=True),
        ),
    ),
    Case(
        "the order of keys is that of their values: numbers as numbers",
        "paired in primary-key order",
        recipe(rule(eq()), keys="no"),
        left("no ref", (10, "a"), (2, "a")),
        right("no ref", (5, "a"), (-7, "a")),
        expect(
            pair("2", "-7", interchangeable=True),
            pair("10", "5", interchangeable=True),
        ),
    ),
    Case(
        "by the first part of a key, then by the next, null first",
        "paired in primary-key order",
        recipe(rule(eq()), keys="no day"),
        left(
            "no ref day", (9, "a", "2024-01-10"), (10, "a", "2024-01-01"), (9, "a", None),
            (9, "a", "2024-01-02"),
        ),
        right(
            "no ref day", (1, "a", "2024-01-01"), (2, "a", "2024-01-01"), (3, "a", "2024-01-01"),
            (4, "a", "2024-01-01"),
        ),
        expect(
            pair("9|∅#1", "1|2024-01-01", interchangeable=True),
            pair("9|2024-01-02", "2|2024-01-01", interchangeable=True),
            pair("9|2024-01-10", "3|2024-01-01", interchangeable=True),
            pair("10|2024-01-01", "4|2024-01-01", interchangeable=True),
        ),
    ),
    Case(
        "rows of one key by their ordinals: the tenth comes after the ninth",
        "paired in primary-key order",
        recipe(rule(eq())),
        left("id ref qty", *(("L", "a", number) for number in range(9, -1, -1))),
        right("id ref", *((f"R{number}", "a") for number in range(10))),
        expect([
            pair(f"L#{number + 1}", f"R{number}", interchangeable=True) for number in range(10)
        ]),
    ),
    Case(
        "rows that differ in a column that is not compared are interchangeable",
        "Rows equal in all compared values are interchangeable",
        recipe(rule(eq())),
        left("id ref note", ("L1", "a", "x"), ("L2", "a", "y")),
        right("id ref note", ("R1", "a", "y"), ("R2", "a", "x")),
        expect(pair("L1", "R1", interchangeable=True), pair("L2", "R2", interchangeable=True)),
    ),
    Case(
        "unequal numbers of interchangeable rows",
        UNEQUAL,
        recipe(rule(eq())),
        left("id ref", ("L1", "a"), ("L2", "a")),
        right("id ref", ("R1", "a")),
        expect(
            unsure("left", "L1 L2", "R1", "unequal"), unsure("right", "R1", "L1 L2", "unequal")
        ),
    ),
    Case(
        "a class that is shared out among two others is not known row by row",
        "The rest is **ambiguous**",
        # Two rows of 10 must go to 9 and to 12: every best solution says so, but not which.
        CLOSE,
        left("id ref amount", ("L1", "a", "10"), ("L2", "a", "10")),
        right("id ref amount", ("R1", "a", "9"), ("R2", "a", "12")),
        expect(
            unsure("left", "L1 L2", "R1 R2", "tie"), unsure("right", "R1 R2", "L1 L2", "tie")
        ),
    ),
    Case(
        "the first in are the first out",
        FIFO,
        recipe(rule(eq(), ties="first_in_first_out", left_order="day", right_order="rday")),
        left(
            "id ref day", ("L1", "a", "2024-03-01"), ("L2", "a", "2024-01-01"),
            ("L3", "a", "2024-02-01"),
        ),
        right("id ref day", ("R1", "a", "2024-02-09"), ("R2", "a", "2024-02-08")),
        expect(
            pair("L2", "R2", fifo=True),
            pair("L3", "R1", fifo=True),
            taken("left", "L1", "R1"),
        ),
    ),
    Case(
        "without a date a row comes last, and without a named one the key decides",
        FIFO,
        recipe(rule(eq(), ties="first_in_first_out", left_order="day")),
        left(
            "id ref day", ("L1", "a", None), ("L3", "a", "2024-03-01"), ("L2", "a", "2024-03-01")
        ),
        right("id ref day", ("R2", "a", "2024-01-01"), ("R1", "a", "2024-01-02")),
        expect(
            pair("L2", "R1", fifo=True),
            pair("L3", "R2", fifo=True),
            taken("left", "L1", "R1"),
        ),
    ),
    Case(
        "of two that came in on one day the first by key goes first, numbers as numbers",
        "(by a named date, then key)",
        recipe(
            rule(eq(), ties="first_in_first_out", left_order="day", right_order="rday"), keys="no"
        ),
        left("no ref day", (10, "a", "2024-01-01"), (9, "a", "2024-01-01")),
        right("no ref day", (1, "a", "2024-01-01")),
        expect(pair("9", "1", fifo=True), taken("left", "10", "1")),
    ),
    Case(
        "as many on both sides are paired by key even where ties are first in, first out",
        FIFO,
        recipe(rule(eq(), ties="first_in_first_out", left_order="day", right_order="rday")),
        left("id ref day", ("L1", "a", "2024-03-01"), ("L2", "a", "2024-01-01")),
        right("id ref day", ("R1", "a", "2024-02-08"), ("R2", "a", "2024-02-09")),
        expect(pair("L1", "R1", interchangeable=True), pair("L2", "R2", interchangeable=True)),
    ),
    Case(
        "first in, first out does not settle a tie of unlike rows",
        FIFO,
        recipe(rule(eq(), tolerance(absolute="5"), ties="first_in_first_out")),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "9"), ("R2", "a", "11")),
        expect(unsure("left", "L1", "R1 R2", "tie"), unsure("right", "R1 R2", "L1", "tie")),
    ),
]  # fmt: skip

LATER = [
    Case(
        "a later rule settles what was ambiguous",
        GO_ON,
        recipe(rule(eq(), name="ref"), rule(eq(), window(days=0), name="ref and day")),
        left("id ref day", ("L1", "a", "2024-01-01")),
        right("id ref day", ("R1", "a", "2024-01-01"), ("R2", "a", "2024-01-02")),
        expect(
            pair("L1", "R1", "0", rule="ref and day"),
            unsure("right", "R2", "L1", "unequal", rule="ref"),
        ),
    ),
    Case(
        "what no rule settles is ambiguous under the first that found it so",
        "those that no later rule settles end as ambiguous under the first rule that found them so",
        recipe(
            rule(eq("note"), name="note"),
            rule(eq(), tolerance(absolute="5"), name="close"),
            rule(eq(), name="ref"),
        ),
        left("id ref amount note", ("L1", "a", "10", "x")),
        right("id ref amount note", ("R1", "a", "9", "y"), ("R2", "a", "11", "z")),
        expect(
            unsure("left", "L1", "R1 R2", "tie", rule="close"),
            unsure("right", "R1 R2", "L1", "tie", rule="close"),
        ),
    ),
    Case(
        "what is left over of first in, first out goes on",
        "**After a rule**, confirmed and suggested rows leave.",
        recipe(rule(eq(), ties="first_in_first_out", name="ref"), rule(eq("note"), name="note")),
        left("id ref note", ("L1", "a", "x"), ("L2", "a", "y")),
        right("id ref note", ("R1", "a", "q"), ("R2", "b", "y")),
        expect(pair("L1", "R1", rule="ref", fifo=True), pair("L2", "R2", rule="note")),
    ),
    Case(
        "a match of an earlier rule is not touched by a better one",
        "Rules run in priority order on rows not yet matched.",
        recipe(
            rule(eq(), tolerance(absolute="5"), name="loose"),
            rule(eq("note"), tolerance(absolute="0"), name="strict"),
        ),
        left("id ref amount note", ("L1", "a", "10", "x")),
        right("id ref amount note", ("R1", "a", "12", "y"), ("R2", "b", "10", "x")),
        expect(
            pair("L1", "R1", "2", rule="loose"),
            taken("right", "R2", "L1", tried="loose strict", rule="strict"),
        ),
    ),
    Case(
        "nothing on one side",
        "No row ever disappears.",
        CLOSE,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount"),
        expect(alone("left", "L1")),
    ),
    Case(
        "two sides that share a key and nothing else",
        "**A candidate** is a pair that satisfies key and all checks.",
        CLOSE,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "100")),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "tolerance(amount, ramount)", ("10", "100"), "90"
            ),
            missed(
                "right", "R1", "L1", "unmatched", "tolerance(amount, ramount)", ("10", "100"), "90"
            ),
        ),
    ),
]

CASES = [*ASSIGNMENTS, *CLASSES, *LATER]
