"""Cases of **1:N and N:1** and **M:N** where whole groups fit, or do not."""

from __future__ import annotations

from tests.reference.case import (
    Case,
    eq,
    expect,
    group,
    left,
    missed,
    out_of_sum,
    pair,
    recipe,
    right,
    rule,
    tolerance,
    window,
)

SUM = rule(eq(), tolerance(absolute="0"), cardinality="1:N")
ONE_TO_MANY = recipe(SUM)
MANY_TO_ONE = recipe(rule(eq(), tolerance(absolute="0"), cardinality="N:1"))
MANY_TO_MANY = recipe(rule(eq(), tolerance(absolute="0"), cardinality="M:N"))

WHOLE = (
    "If the key has one row on the one side and the whole group's sum is within tolerance: "
    "confirmed."
)
BOTH = "**M:N.** Both sides' group sums within tolerance: confirmed as one group."
FAILED = "the first failing condition, both values, and the difference"
AMOUNT = "tolerance(amount, ramount)"

WHOLES = [
    Case(
        "a whole group",
        WHOLE,
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "12"), ("R2", "a", "-2"), ("R3", "a", "0")),
        expect(group("L1", "R1 R2 R3", "1:N", "0")),
    ),
    Case(
        "a whole group on the left",
        WHOLE,
        MANY_TO_ONE,
        left("id ref amount", ("L1", "a", "4"), ("L2", "a", "6")),
        right("id ref amount", ("R1", "a", "10")),
        expect(group("L1 L2", "R1", "N:1", "0")),
    ),
    Case(
        "the sum may miss by the tolerance, its bound included",
        WHOLE,
        recipe(rule(eq(), tolerance(above="0.01"), cardinality="1:N")),
        left("id ref amount", ("L1", "a", "0.3")),
        right("id ref amount", ("R1", "a", "0.1"), ("R2", "a", "0.21")),
        expect(group("L1", "R1 R2", "1:N", "0.01")),
    ),
    Case(
        "a percentage is of the left sum where the many are on the left",
        "a percentage is of the absolute left value",
        # The sum on the left is -90, so that 9 is within; of the right's 100 it would be 10.
        recipe(rule(eq(), tolerance(percent="10"), cardinality="N:1")),
        left("id ref amount", ("L1", "a", "-40"), ("L2", "a", "-50"), ("L3", "b", "90")),
        right("id ref amount", ("R1", "a", "-99"), ("R2", "b", "100")),
        expect(
            group("L1 L2", "R1", "N:1", "-9"),
            missed("left", "L3", "R2", "unmatched", AMOUNT, ("90", "100"), "10"),
            missed("right", "R2", "L3", "unmatched", AMOUNT, ("90", "100"), "10"),
        ),
    ),
    Case(
        "a turned sign is of the sum",
        "`negate` turns a sign.",
        recipe(rule(eq(), tolerance(absolute="0", negate="right"), cardinality="1:N")),
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "-4"), ("R2", "a", "-6")),
        expect(group("L1", "R1 R2", "1:N", "0")),
    ),
    Case(
        "a group of one",
        "A group of one is a 1:1 match of that rule.",
        recipe(rule(eq(), tolerance(absolute="1"), window(days=2), cardinality="1:N")),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01")),
        right("id ref amount day", ("R1", "a", "11", "2024-01-02")),
        expect(pair("L1", "R1", "1", "1")),
    ),
    Case(
        "a group of one that does not fit",
        "A group of one is a 1:1 match of that rule.",
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "11")),
        expect(
            missed("left", "L1", "R1", "unmatched", AMOUNT, ("10", "11"), "1"),
            missed("right", "R1", "L1", "unmatched", AMOUNT, ("10", "11"), "1"),
        ),
    ),
    Case(
        "checks on single rows come before the sum",
        "Checks on single rows (date window, text) first filter the many side",
        recipe(rule(eq(), tolerance(absolute="0"), window(days=1), cardinality="1:N")),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01")),
        right(
            "id ref amount day",
            ("R1", "a", "4", "2024-01-01"),
            ("R2", "a", "6", "2024-01-02"),
            ("R3", "a", "5", "2024-02-01"),
        ),
        expect(
            group("L1", "R1 R2", "1:N", "0"),
            missed("right", "R3", "L1", "matched", AMOUNT, ("10", "5"), "-5"),
        ),
    ),
    Case(
        "a second tolerance is a check on single rows",
        "Checks on single rows (date window, text) first filter the many side",
        recipe(
            rule(eq(), tolerance(absolute="0"), tolerance("qty", absolute="1"), cardinality="1:N")
        ),
        left("id ref amount qty", ("L1", "a", "10", 5)),
        right("id ref amount qty", ("R1", "a", "4", 5), ("R2", "a", "6", 6), ("R3", "a", "7", 9)),
        expect(
            group("L1", "R1 R2", "1:N", "0"),
            missed("right", "R3", "L1", "matched", AMOUNT, ("10", "7"), "-3"),
        ),
    ),
    Case(
        "the rule names the summed columns",
        "the rule names the summed column (default: that of its tolerance)",
        recipe(
            rule(eq(), tolerance(absolute="1"), left_sum="qty", right_sum="rqty", cardinality="1:N")
        ),
        left("id ref amount qty", ("L1", "a", "1000", 5)),
        right("id ref amount qty", ("R1", "a", "1", 2), ("R2", "a", None, 4)),
        expect(group("L1", "R1 R2", "1:N", "1")),
    ),
    Case(
        "named sums without a tolerance are equal",
        "the rule names the summed column (default: that of its tolerance)",
        recipe(rule(eq(), left_sum="qty", right_sum="rqty", cardinality="1:N")),
        left("id ref qty", ("L1", "a", 5), ("L2", "b", 5)),
        right("id ref qty", ("R1", "a", 2), ("R2", "a", 3), ("R3", "b", 2), ("R4", "b", 4)),
        expect(
            group("L1", "R1 R2", "1:N"),
            out_of_sum("left", "L2", "R3", "qty, rqty", ("5", "6"), "1"),
            out_of_sum("right", "R3", "L2", "qty, rqty", ("5", "6"), "1"),
            out_of_sum("right", "R4", "L2", "qty, rqty", ("5", "6"), "1"),
        ),
    ),
    Case(
        "a rule without amounts checks no sum",
        "the rows left that share the key form a group",
        recipe(rule(eq(), cardinality="1:N")),
        left("id ref", ("L1", "a")),
        right("id ref", ("R1", "a"), ("R2", "a")),
        expect(group("L1", "R1 R2", "1:N")),
    ),
    Case(
        "a null amount is in no group",
        "null is within no tolerance",
        ONE_TO_MANY,
        left("id ref amount", ("L1", "a", "10")),
        right("id ref amount", ("R1", "a", "10"), ("R2", "a", None)),
        expect(
            pair("L1", "R1", "0"),
            missed("right", "R2", "L1", "matched", AMOUNT, ("10", None), None),
        ),
    ),
    Case(
        "groups are of one currency",
        "With a currency column, amounts compare only within one currency.",
        recipe(SUM, currency="cur"),
        left("id ref amount cur", ("L1", "a", "10", "EUR")),
        right(
            "id ref amount cur",
            ("R1", "a", "4", "EUR"),
            ("R2", "a", "6", "EUR"),
            ("R3", "a", "1", "USD"),
        ),
        expect(
            group("L1", "R1 R2", "1:N", "0"),
            missed("right", "R3", "L1", "matched", "currency(cur, rcur)", ("EUR", "USD"), None),
        ),
    ),
    Case(
        "a rule without a key has one group of all",
        "the rows left that share the key form a group",
        recipe(rule(tolerance(absolute="0"), cardinality="1:N")),
        left("id amount", ("L1", "10")),
        right("id amount", ("R1", "4"), ("R2", "6")),
        expect(group("L1", "R1 R2", "1:N", "0")),
    ),
]

MANY = [
    Case(
        "both groups as one",
        BOTH,
        MANY_TO_MANY,
        left("id ref amount", ("L1", "a", "3"), ("L2", "a", "9")),
        right("id ref amount", ("R1", "a", "5"), ("R2", "a", "7")),
        expect(group("L1 L2", "R1 R2", "M:N", "0")),
    ),
    Case(
        "sums that do not fit are no group, and no subset is tried",
        BOTH,
        MANY_TO_MANY,
        left("id ref amount", ("L1", "a", "3"), ("L2", "a", "9")),
        right("id ref amount", ("R1", "a", "3")),
        expect(
            out_of_sum("left", "L1", "R1", "amount, ramount", ("12", "3"), "-9"),
            missed("left", "L2", "R1", "unmatched", AMOUNT, ("9", "3"), "-6"),
            out_of_sum("right", "R1", "L1", "amount, ramount", ("12", "3"), "-9"),
        ),
    ),
    Case(
        "sums that do not fit are told, each as its column has it",
        FAILED,
        recipe(rule(eq(), tolerance(absolute="1", negate="right"), cardinality="M:N")),
        left("id ref amount", ("L1", "a", "3"), ("L2", "a", "0.5")),
        right("id ref amount", ("R1", "a", "-3"), ("R2", "a", "-2.75"), ("R3", "a", None)),
        expect(
            out_of_sum("left", "L1", "R1", "amount, ramount", ("3.5", "-5.75"), "2.25"),
            missed("left", "L2", "R2", "unmatched", AMOUNT, ("0.5", "-2.75"), "2.25"),
            out_of_sum("right", "R1", "L1", "amount, ramount", ("3.5", "-5.75"), "2.25"),
            out_of_sum("right", "R2", "L1", "amount, ramount", ("3.5", "-5.75"), "2.25"),
            missed("right", "R3", "L1", "unmatched", AMOUNT, ("3", None), None),
        ),
    ),
    Case(
        "sums that do not fit are of one currency",
        FAILED,
        recipe(
            rule(eq(), left_sum="qty", right_sum="rqty", cardinality="N:1"),
            currency="cur",
            amount="qty",
        ),
        left("id ref cur qty", ("L1", "a", "EUR", 1), ("L2", "a", "EUR", 2), ("L3", "a", "SEK", 9)),
        right("id ref cur qty", ("R1", "a", "EUR", 7), ("R2", "a", "SEK", 9)),
        expect(
            pair("L3", "R2"),
            out_of_sum("left", "L1", "R1", "qty, rqty", ("3", "7"), "4"),
            out_of_sum("left", "L2", "R1", "qty, rqty", ("3", "7"), "4"),
            out_of_sum("right", "R1", "L1", "qty, rqty", ("3", "7"), "4"),
        ),
    ),
    Case(
        "sums that do not fit are of what the rule has left",
        FAILED,
        recipe(
            rule(eq(), left_sum="qty", right_sum="rqty", cardinality="1:N"),
            rule(eq("no"), name="later"),
        ),
        left("id ref qty no", ("L1", "a", 100, 1), ("L2", "a", 50, 2), ("L3", "a", 8, 3)),
        right("id ref qty no", ("R1", "a", 30, 4), ("R2", "a", 1, 3), ("R3", "a", 50, 5)),
        expect(
            pair("L2", "R3", status="suggested"),
            pair("L3", "R2", rule="later"),
            out_of_sum("left", "L1", "R1", "qty, rqty", ("108", "31"), "-77", tried="r later"),
            out_of_sum("right", "R1", "L1", "qty, rqty", ("108", "31"), "-77", tried="r later"),
        ),
    ),
    Case(
        "a group is called what it is",
        BOTH,
        MANY_TO_MANY,
        left(
            "id ref amount", ("L1", "a", "1"), ("L2", "b", "2"), ("L3", "c", "1"), ("L4", "c", "2")
        ),
        right(
            "id ref amount", ("R1", "a", "1"), ("R2", "b", "1"), ("R3", "b", "1"), ("R4", "c", "3")
        ),
        expect(
            pair("L1", "R1", "0"),
            group("L2", "R2 R3", "1:N", "0"),
            group("L3 L4", "R4", "N:1", "0"),
        ),
    ),
    Case(
        "a row without a partner for its checks takes no part",
        BOTH,
        recipe(rule(eq(), tolerance(absolute="0"), window(days=1), cardinality="M:N")),
        left(
            "id ref amount day",
            ("L1", "a", "3", "2024-01-01"),
            ("L2", "a", "9", "2024-01-03"),
            ("L3", "a", "5", "2024-02-01"),
        ),
        right("id ref amount day", ("R1", "a", "5", "2024-01-02"), ("R2", "a", "7", "2024-01-04")),
        expect(
            group("L1 L2", "R1 R2", "M:N", "0"),
            # R1 is equal in amount but a month away; of R2 neither holds.
            missed(
                "left", "L3", "R1", "matched", "date_window(day, rday)",
                ("2024-02-01", "2024-01-02"), "-30",
            ),
        ),
    ),
    Case(
        "a rule without amounts makes one group of a key",
        BOTH,
        recipe(rule(eq(), cardinality="M:N")),
        left("id ref amount", ("L1", "a", None), ("L2", "a", "1")),
        right("id ref amount", ("R1", "a", "7"), ("R2", "a", "8")),
        expect(group("L1 L2", "R1 R2", "M:N")),
    ),
    Case(
        "a null amount takes no part",
        BOTH,
        MANY_TO_MANY,
        left("id ref amount", ("L1", "a", None), ("L2", "a", "1"), ("L3", "a", "2")),
        right("id ref amount", ("R1", "a", "3")),
        expect(
            group("L2 L3", "R1", "N:1", "0"),
            missed("left", "L1", "R1", "matched", AMOUNT, (None, "3"), None),
        ),
    ),
]  # fmt: skip

CASES = [*WHOLES, *MANY]
