"""Cases of **1:N and N:1** where the whole does not fit: subsets, and several on the one side."""

from __future__ import annotations

from kalla.reconcile.recipe.model import Bounds
from tests.reference.case import (
    Case,
    eq,
    expect,
    group,
    left,
    missed,
    pair,
    recipe,
    right,
    rule,
    tolerance,
    unsure,
    window,
)

SUM = rule(eq(), tolerance(absolute="0"), cardinality="1:N")
ONE_TO_MANY = recipe(SUM)
MANY_TO_ONE = recipe(rule(eq(), tolerance(absolute="0"), cardinality="N:1"))

SUBSET = "exactly one such subset is **suggested**"
MORE = "more are ambiguous"
SEVERAL = "Several rows on the one side: solved together within the bound, else ambiguous."
AMOUNT = "tolerance(amount, ramount)"

SUBSETS = [
    Case(
        "the one subset that fits is suggested",
        SUBSET,
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "3"), ("R2", "a", "7"), ("R3", "a", "5")),
        expect(
            group("L1", "R1 R2", "1:N", "0", status="suggested"),
            missed("right", "R3", "L1", "suggested", AMOUNT, ("10", "5"), "-5"),
        ),
    ),
    Case(
        "or confirmed where the rule says so",
        "(or confirmed if the rule says `subset: confirm`)",
        recipe(rule(eq(), tolerance(absolute="0"), cardinality="N:1", subset="confirm")),
        left("id ref amount", ("L1", "a", "3"), ("L2", "a", "7"), ("L3", "a", "5")),
        right("id ref amount", ("R1", "a", "10")),
        expect(
            group("L1 L2", "R1", "N:1", "0"),
            missed("left", "L3", "R1", "matched", AMOUNT, ("5", "10"), "5"),
        ),
    ),
    Case(
        "a subset of one row",
        SUBSET,
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "10"), ("R2", "a", "7")),
        expect(
            pair("L1", "R1", "0", status="suggested"),
            missed("right", "R2", "L1", "suggested", AMOUNT, ("10", "7"), "-3"),
        ),
    ),
    Case(
        "two subsets that fit",
        MORE,
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right(
            "id ref amount", ("R1", "a", "4"), ("R2", "a", "6"), ("R3", "a", "10"), ("R4", "a", "1")
        ),
        expect(
            unsure("left", "L1", "R1 R2 R3", "several_subsets"),
            unsure("right", "R1 R2 R3", "L1", "several_subsets"),
            missed("right", "R4", "L1", "ambiguous", AMOUNT, ("10", "1"), "-9"),
        ),
    ),
    Case(
        "no subset that fits",
        "Otherwise subsets of the group (…) whose sum fits",
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "4"), ("R2", "a", "7")),
        expect(
            missed("left", "L1", "R2", "unmatched", AMOUNT, ("10", "7"), "-3"),
            missed("right", "R1", "L1", "unmatched", AMOUNT, ("10", "4"), "-6"),
            missed("right", "R2", "L1", "unmatched", AMOUNT, ("10", "7"), "-3"),
        ),
    ),
    Case(
        "zero amounts are in no subset",
        "zero amounts left out",
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right(
            "id ref amount", ("R1", "a", "4"), ("R2", "a", "6"), ("R3", "a", "5"), ("R4", "a", "0")
        ),
        expect(
            group("L1", "R1 R2", "1:N", "0", status="suggested"),
            missed("right", "R3", "L1", "suggested", AMOUNT, ("10", "5"), "-5"),
            missed("right", "R4", "L1", "suggested", AMOUNT, ("10", "0"), "-10"),
        ),
    ),
    Case(
        "equal rows taken together are one way",
        "equal rows counted, not enumerated",
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "5"), ("R2", "a", "5"), ("R3", "a", "7")),
        expect(
            group("L1", "R1 R2", "1:N", "0", status="suggested"),
            missed("right", "R3", "L1", "suggested", AMOUNT, ("10", "7"), "-3"),
        ),
    ),
    Case(
        "one of two equal rows is not known which",
        "equal rows counted, not enumerated",
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "5")),
        right("id ref amount", ("R1", "a", "5"), ("R2", "a", "5"), ("R3", "a", "9")),
        expect(
            unsure("left", "L1", "R1 R2", "several_subsets"),
            unsure("right", "R1 R2", "L1", "several_subsets"),
            missed("right", "R3", "L1", "ambiguous", AMOUNT, ("5", "9"), "4"),
        ),
    ),
    Case(
        "negative amounts take part",
        SUBSET,
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "-1")),
        right("id ref amount", ("R1", "a", "3"), ("R2", "a", "-4"), ("R3", "a", "20")),
        expect(
            group("L1", "R1 R2", "1:N", "0", status="suggested"),
            missed("right", "R3", "L1", "suggested", AMOUNT, ("-1", "20"), "21"),
        ),
    ),
    Case(
        "a percentage is of the sum where the many are on the left",
        "a percentage is of the absolute left value",
        # The sum is 110, of which ten percent are 11.
        recipe(rule(eq(), tolerance(percent="10"), cardinality="N:1")),
        left("id ref amount", ("L1", "a", "50"), ("L2", "a", "60"), ("L3", "a", "-200")),
        right("id ref amount", ("R1", "a", "100")),
        expect(
            group("L1 L2", "R1", "N:1", "-10", status="suggested"),
            missed("left", "L3", "R1", "suggested", AMOUNT, ("-200", "100"), "300"),
        ),
    ),
    Case(
        "within a hundred percent of a sum lies what is twice as much, on its side of zero",
        "a percentage is of the absolute left value",
        recipe(rule(eq(), tolerance(percent="100"), cardinality="N:1")),
        left("id ref amount", ("L1", "a", "-3"), ("L2", "a", "5"), ("L3", "a", "1")),
        right("id ref amount", ("R1", "a", "-6")),
        expect(
            # -3 alone, of which -6 is twice as much; with a row more the sum is nearer to zero.
            pair("L1", "R1", "-3", status="suggested"),
            missed("left", "L2", "R1", "suggested", AMOUNT, ("5", "-6"), "-11"),
            missed("left", "L3", "R1", "suggested", AMOUNT, ("1", "-6"), "-7"),
        ),
    ),
    Case(
        "more rows than the bound are not tried",
        "(at most 24 rows, 1,000,000 sums, checked before trying",
        recipe(SUM, bounds=Bounds(subset_rows=2)),
        left("id ref amount", ("L1", "a", "10")),
        right(
            "id ref amount", ("R1", "a", "3"), ("R2", "a", "7"), ("R3", "a", "5"), ("R4", "a", "0")
        ),
        expect(
            unsure("left", "L1", "R1 R2 R3 R4", "too_large"),
            unsure("right", "R1 R2 R3", "L1", "too_large"),
            missed("right", "R4", "L1", "ambiguous", AMOUNT, ("10", "0"), "-10"),
        ),
    ),
    Case(
        "sums are counted by equal rows",
        "(at most 24 rows, 1,000,000 sums, checked before trying",
        # Two fives and a seven: (2 + 1) * (1 + 1) = 6 sums.
        recipe(SUM, bounds=Bounds(subset_sums=6)),
        left("id ref amount", ("L1", "a", "10"), ("L2", "b", "10")),
        right(
            "id ref amount",
            ("R1", "a", "5"),
            ("R2", "a", "5"),
            ("R3", "a", "7"),
            ("R4", "b", "3"),
            ("R5", "b", "5"),
            ("R6", "b", "7"),
        ),
        expect(
            group("L1", "R1 R2", "1:N", "0", status="suggested"),
            missed("right", "R3", "L1", "suggested", AMOUNT, ("10", "7"), "-3"),
            unsure("left", "L2", "R4 R5 R6", "too_large"),
            unsure("right", "R4 R5 R6", "L2", "too_large"),
        ),
    ),
    Case(
        "a suggested row leaves, as a confirmed one does",
        "**After a rule**, confirmed and suggested rows leave.",
        recipe(
            rule(eq(), tolerance(absolute="0"), cardinality="1:N", name="sum"),
            rule(eq(), name="ref"),
        ),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "10"), ("R2", "a", "7")),
        expect(
            pair("L1", "R1", "0", rule="sum", status="suggested"),
            # Of both rules one condition holds, and the earlier explains.
            missed(
                "right",
                "R2",
                "L1",
                "suggested",
                AMOUNT,
                ("10", "7"),
                "-3",
                tried="sum ref",
                rule="sum",
            ),
        ),
    ),
]

TOGETHER = [
    Case(
        "two bills and the one way to pay both",
        SEVERAL,
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10"), ("L2", "a", "5")),
        right("id ref amount", ("R1", "a", "4"), ("R2", "a", "6"), ("R3", "a", "5")),
        expect(
            group("L1", "R1 R2", "1:N", "0", status="suggested"),
            pair("L2", "R3", "0", status="suggested"),
        ),
    ),
    Case(
        "the most that can be served is served",
        SEVERAL,
        # R1 + R2 would serve L1; but then L2, who needs R1, would have nothing.
        recipe(rule(eq(), tolerance(absolute="0"), cardinality="1:N", subset="confirm")),
        left("id ref amount", ("L1", "a", "10"), ("L2", "a", "4")),
        right("id ref amount", ("R1", "a", "4"), ("R2", "a", "6"), ("R3", "a", "10")),
        expect(pair("L1", "R3", "0"), pair("L2", "R1", "0"),
               missed("right", "R2", "L2", "matched", AMOUNT, ("4", "6"), "2")),
    ),
    Case(
        "two ways to serve as many",
        SEVERAL,
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10"), ("L2", "a", "10"), ("L3", "a", "99")),
        right("id ref amount", ("R1", "a", "4"), ("R2", "a", "6"), ("R3", "a", "50")),
        expect(
            unsure("left", "L1 L2", "R1 R2", "several_groups"),
            unsure("right", "R1 R2", "L1 L2", "several_groups"),
            missed("left", "L3", "R3", "unmatched", AMOUNT, ("99", "50"), "-49"),
            missed("right", "R3", "L1", "ambiguous", AMOUNT, ("10", "50"), "40"),
        ),
    ),
    Case(
        "nobody can be served",
        SEVERAL,
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "1"), ("L2", "a", "2")),
        right("id ref amount", ("R1", "a", "9")),
        expect(
            missed("left", "L1", "R1", "unmatched", AMOUNT, ("1", "9"), "8"),
            missed("left", "L2", "R1", "unmatched", AMOUNT, ("2", "9"), "7"),
            missed("right", "R1", "L2", "unmatched", AMOUNT, ("2", "9"), "7"),
        ),
    ),
    Case(
        "each row goes only where its own checks allow",
        SEVERAL,
        recipe(rule(eq(), tolerance(absolute="0"), window(days=1), cardinality="1:N")),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01"), ("L2", "a", "10", "2024-02-01")),
        right(
            "id ref amount day",
            ("R1", "a", "4", "2024-01-01"),
            ("R2", "a", "6", "2024-01-02"),
            ("R3", "a", "10", "2024-02-02"),
        ),
        expect(
            group("L1", "R1 R2", "1:N", "0", status="suggested"),
            pair("L2", "R3", "0", "1", status="suggested"),
        ),
    ),
    Case(
        "more ways than the bound are not tried",
        SEVERAL,
        # Two on the one side, three rows: (2 + 1) ** 3 = 27 ways.
        recipe(SUM, bounds=Bounds(subset_sums=26)),
        left("id ref amount", ("L1", "a", "10"), ("L2", "a", "5"), ("L3", "a", None)),
        right(
            "id ref amount", ("R1", "a", "4"), ("R2", "a", "6"), ("R3", "a", "5"), ("R4", "a", "0")
        ),
        expect(
            unsure("left", "L1 L2", "R1 R2 R3 R4", "too_large"),
            unsure("right", "R1 R2 R3", "L1 L2", "too_large"),
            missed("left", "L3", "R1", "ambiguous", AMOUNT, (None, "4"), None),
            missed("right", "R4", "L2", "ambiguous", AMOUNT, ("5", "0"), "-5"),
        ),
    ),
    Case(
        "several on the right, where the many are on the left",
        "**1:N and N:1.**",
        MANY_TO_ONE,
        left("id ref amount", ("L1", "a", "4"), ("L2", "a", "6"), ("L3", "a", "5")),
        right("id ref amount", ("R1", "a", "10"), ("R2", "a", "5")),
        expect(
            group("L1 L2", "R1", "N:1", "0", status="suggested"),
            pair("L3", "R2", "0", status="suggested"),
        ),
    ),
]  # fmt: skip

CASES = [*SUBSETS, *TOGETHER]
