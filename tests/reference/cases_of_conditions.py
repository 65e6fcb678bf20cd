"""Cases of **A rule** and **A candidate**: conditions, filters, the order of rules, distances."""

from __future__ import annotations

from tests.reference.case import (
    Case,
    alone,
    compare,
    eq,
    expect,
    fuzzy,
    group,
    left,
    missed,
    pair,
    recipe,
    right,
    rule,
    taken,
    text,
    tolerance,
    unsure,
    window,
)

CHECKS = "the rest are **checks** (tolerance, date window, contains, fuzzy, comparisons)"
DISTANCE = "Its **distance** is a tuple, one entry per check in the rule's order"
SMALL = "A rule without a key is allowed (…) when the leftovers are small"
FILTERED = "Null passes `is_null` alone."

CONDITIONS = [
    Case(
        "every equality counts",
        "Equalities (after derivation) form its **key**",
        recipe(rule(eq(), eq("note"))),
        left("id ref note", ("L1", "a", "x"), ("L2", "a", "y")),
        right("id ref note", ("R1", "a", "y"), ("R2", "b", "x")),
        expect(pair("L2", "R1"), alone("left", "L1"), alone("right", "R2")),
    ),
    Case(
        "a tolerance may be wider on one side",
        CHECKS,
        recipe(rule(eq(), tolerance(below="1", above="2"))),
        left("id ref amount", ("L1", "a", "10"), ("L2", "b", "10"), ("L3", "c", "10")),
        right("id ref amount", ("R1", "a", "12"), ("R2", "b", "9"), ("R3", "c", "8")),
        expect(
            pair("L1", "R1", "2"),
            pair("L2", "R2", "-1"),
            missed(
                "left", "L3", "R3", "unmatched", "tolerance(amount, ramount)", ("10", "8"), "-2"
            ),
            missed(
                "right", "R3", "L3", "unmatched", "tolerance(amount, ramount)", ("10", "8"), "-2"
            ),
        ),
    ),
    Case(
        "percent in one direction, an amount in the other",
        CHECKS,
        recipe(rule(eq(), tolerance(below_percent="50", above="1"))),
        left("id ref amount", ("L1", "a", "-10"), ("L2", "b", "10")),
        right("id ref amount", ("R1", "a", "-15"), ("R2", "b", "11")),
        expect(pair("L1", "R1", "-5"), pair("L2", "R2", "1")),
    ),
    Case(
        "a window before and after the left date, its bounds included",
        CHECKS,
        recipe(rule(eq(), window(before=1, after=2))),
        left("id ref day", ("L1", "a", "2024-03-01"), ("L2", "b", "2024-03-01")),
        right("id ref day", ("R1", "a", "2024-02-29"), ("R2", "b", "2024-03-03")),
        expect(pair("L1", "R1", "-1"), pair("L2", "R2", "2")),
    ),
    Case(
        "what a window does not say is zero days",
        CHECKS,
        recipe(rule(eq(), window(after=5))),
        left("id ref day", ("L1", "a", "2024-03-01")),
        right("id ref day", ("R1", "a", "2024-02-29")),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "date_window(day, rday)",
                ("2024-03-01", "2024-02-29"), "-1",
            ),
            missed(
                "right", "R1", "L1", "unmatched", "date_window(day, rday)",
                ("2024-03-01", "2024-02-29"), "-1",
            ),
        ),
    ),
    Case(
        "the left text contains the right one, and an empty text is in every text",
        CHECKS,
        recipe(rule(eq(), text("contains"))),
        left("id ref note", ("L1", "a", "paid INV-7 late"), ("L2", "b", ""), ("L3", "c", "INV")),
        right("id ref note", ("R1", "a", "INV-7"), ("R2", "b", ""), ("R3", "c", "INV-7")),
        expect(
            pair("L1", "R1", "0"),
            pair("L2", "R2", "0"),
            missed("left", "L3", "R3", "unmatched", "contains(note, rnote)", ("INV", "INV-7"), "0"),
            missed(
                "right", "R3", "L3", "unmatched", "contains(note, rnote)", ("INV", "INV-7"), "0"
            ),
        ),
    ),
    Case(
        "the container may be the right side",
        CHECKS,
        recipe(rule(eq(), text("contains", container="right"))),
        left("id ref note", ("L1", "a", "INV")),
        right("id ref note", ("R1", "a", "INV-7")),
        expect(pair("L1", "R1", "0")),
    ),
    Case(
        "begins and ends with",
        CHECKS,
        recipe(
            rule(eq(), text("startswith"), name="begins"), rule(eq(), text("endswith"), name="ends")
        ),
        left("id ref note", ("L1", "a", "INV-7"), ("L2", "b", "INV-7")),
        right("id ref note", ("R1", "a", "INV"), ("R2", "b", "7")),
        expect(pair("L1", "R1", "0", rule="begins"), pair("L2", "R2", "0", rule="ends")),
    ),
    Case(
        "a number is contained as the text it is written as",
        CHECKS,
        recipe(rule(text("contains", "note", "rqty"))),
        left("id note", ("L1", "order 42")),
        right("id qty", ("R1", 42)),
        expect(pair("L1", "R1", "0")),
    ),
    Case(
        "comparisons of numbers, dates and text, never of null",
        CHECKS,
        recipe(rule(eq(), compare("lt", "amount"), compare("lte", "day"), compare("gt", "note"))),
        left(
            "id ref amount day note",
            ("L1", "a", "9", "2024-01-01", "b"),
            ("L2", "b", "9", "2024-01-01", None),
        ),
        right(
            "id ref amount day note",
            ("R1", "a", "10", "2024-01-01", "B"),
            ("R2", "b", "10", "2024-01-01", "B"),
        ),
        expect(
            pair("L1", "R1", "0", "0", "0"),
            missed("left", "L2", "R2", "unmatched", "gt(note, rnote)", (None, "B"), None),
            missed("right", "R2", "L2", "unmatched", "gt(note, rnote)", (None, "B"), None),
        ),
    ),
    Case(
        "unequal is not said of null",
        CHECKS,
        recipe(rule(eq(), compare("ne", "note"))),
        left("id ref note", ("L1", "a", None), ("L2", "b", "x")),
        right("id ref note", ("R1", "a", "x"), ("R2", "b", "y")),
        expect(
            pair("L2", "R2", "0"),
            missed("left", "L1", "R1", "unmatched", "ne(note, rnote)", (None, "x"), None),
            missed("right", "R1", "L1", "unmatched", "ne(note, rnote)", (None, "x"), None),
        ),
    ),
    Case(
        "similar by Jaro-Winkler unless a metric is named",
        "dissimilarity for text as a whole number of ten-thousandths by the named metric, "
        "default Jaro-Winkler",
        recipe(rule(eq(), fuzzy("0.961"))),
        # Jaro of martha and marhta is 17/18; three common first characters: 0.96111…
        left("id ref note", ("L1", "a", "martha")),
        right("id ref note", ("R1", "a", "marhta")),
        expect(pair("L1", "R1", "389")),
    ),
    Case(
        "Jaro-Winkler does not lift unlike texts",
        "by the named metric, default Jaro-Winkler",
        recipe(rule(eq(), fuzzy("0.6"))),
        # Jaro of ab and ac is 2/3; with a tenth for the common first character it were 0.7.
        left("id ref note", ("L1", "a", "ab")),
        right("id ref note", ("R1", "a", "ac")),
        expect(pair("L1", "R1", "3333")),
    ),
    Case(
        "Jaro alone",
        "by the named metric, default Jaro-Winkler",
        recipe(rule(eq(), fuzzy("0.9", metric="jaro"))),
        left("id ref note", ("L1", "a", "martha")),
        right("id ref note", ("R1", "a", "marhta")),
        expect(pair("L1", "R1", "556")),
    ),
    Case(
        "Levenshtein counts characters, not bytes, and a swap as two edits",
        "by the named metric, default Jaro-Winkler",
        recipe(rule(eq(), fuzzy("0.3", metric="levenshtein"))),
        left("id ref note", ("L1", "a", "åäö"), ("L2", "b", "")),
        right("id ref note", ("R1", "a", "äåö"), ("R2", "b", "")),
        expect(pair("L1", "R1", "6667"), pair("L2", "R2", "0")),
    ),
    Case(
        "Damerau-Levenshtein counts a swap as one edit, and goes on editing after it",
        "by the named metric, default Jaro-Winkler",
        recipe(rule(eq(), fuzzy("0.3", metric="damerau_levenshtein"))),
        left("id ref note", ("L1", "a", "åäö"), ("L2", "b", "ca")),
        right("id ref note", ("R1", "a", "äåö"), ("R2", "b", "abc")),
        expect(pair("L1", "R1", "3333"), pair("L2", "R2", "6667")),
    ),
    Case(
        "of texts that are too long for a metric only the same are alike",
        "by the named metric, default Jaro-Winkler",
        recipe(rule(eq(), fuzzy("0.9", metric="damerau_levenshtein"))),
        left("id ref note", ("L1", "a", "x" * 1001), ("L2", "b", "x" * 1001)),
        right("id ref note", ("R1", "a", "x" * 1001), ("R2", "b", "x" * 1000)),
        expect(
            pair("L1", "R1", "0"),
            *(
                missed(*three, "unmatched", "fuzzy(note, rnote)", ("x" * 1001, "x" * 1000), "10000")
                for three in (("left", "L2", "R2"), ("right", "R2", "L2"))
            ),
        ),
    ),
    Case(
        "the threshold is included, and what is below it says how unlike the texts are",
        CHECKS,
        recipe(rule(eq(), fuzzy("0.75", metric="levenshtein"))),
        left("id ref note", ("L1", "a", "abcd"), ("L2", "b", "abcd")),
        right("id ref note", ("R1", "a", "abcx"), ("R2", "b", "abxx")),
        expect(
            pair("L1", "R1", "2500"),
            missed("left", "L2", "R2", "unmatched", "fuzzy(note, rnote)", ("abcd", "abxx"), "5000"),
            missed(
                "right", "R2", "L2", "unmatched", "fuzzy(note, rnote)", ("abcd", "abxx"), "5000"
            ),
        ),
    ),
    Case(
        "a rule may have no key",
        "A rule without a key is allowed when a window or tolerance can bound the pairs",
        recipe(rule(tolerance(absolute="1"))),
        left("id amount", ("L1", "10"), ("L2", "20")),
        right("id amount", ("R1", "21"), ("R2", "9")),
        expect(pair("L1", "R2", "-1"), pair("L2", "R1", "1")),
    ),
    Case(
        "a rule for what little is left may have neither key nor bound",
        SMALL,
        recipe(rule(eq(), name="first"), rule(text("contains"), name="last")),
        left("id ref note", ("L1", "a", "x"), ("L2", "b", "paid by Smith"), ("L3", "c", "y")),
        right("id ref note", ("R1", "a", "z"), ("R2", "d", "Smith")),
        expect(
            pair("L1", "R1", rule="first"),
            pair("L2", "R2", "0", rule="last"),
            alone("left", "L3", "first last"),
        ),
    ),
    Case(
        "of groups without key and bound all rows are one",
        SMALL,
        recipe(rule(text("contains"), cardinality="M:N")),
        left("id note", ("L1", "ab"), ("L2", "b"), ("L3", "c")),
        right("id note", ("R1", "b"), ("R2", "d")),
        expect(
            group("L1 L2", "R1", "N:1"),
            alone("left", "L3"),
            alone("right", "R2"),
        ),
    ),
]  # fmt: skip

RULES = [
    Case(
        "a later rule sees what an earlier one left",
        "Rules run in priority order on rows not yet matched.",
        recipe(
            rule(eq(), tolerance(absolute="0"), name="strict"),
            rule(eq(), tolerance(absolute="5"), name="loose"),
        ),
        left("id ref amount", ("L1", "a", "10"), ("L2", "a", "20")),
        right("id ref amount", ("R1", "a", "10"), ("R2", "a", "22")),
        expect(pair("L1", "R1", "0", rule="strict"), pair("L2", "R2", "2", rule="loose")),
    ),
    Case(
        "the smaller priority goes first, whatever the order written",
        "Rules run in priority order on rows not yet matched.",
        recipe(rule(eq(), name="second", priority=20), rule(eq("note"), name="first", priority=10)),
        left("id ref note", ("L1", "a", "x")),
        right("id ref note", ("R1", "a", "y"), ("R2", "b", "x")),
        expect(
            pair("L1", "R2", rule="first"),
            taken("right", "R1", "L1", tried="first second", rule="second"),
        ),
    ),
    Case(
        "a filter says which rows a rule may take",
        "`filters` of a rule",
        recipe(
            rule(
                eq(),
                left_filters=[{"column": "amount", "op": "gt", "value": 5}],
                right_filters=[{"column": "rnote", "op": "in", "value": ("x", "y")}],
            )
        ),
        left("id ref amount", ("L1", "a", "5"), ("L2", "b", "6"), ("L3", "c", "7")),
        right("id ref note", ("R1", "a", "x"), ("R2", "b", "y"), ("R3", "c", "z")),
        expect(
            pair("L2", "R2"),
            alone("left", "L1", tried=""),
            alone("left", "L3"),
            alone("right", "R1"),
            alone("right", "R3", tried=""),
        ),
    ),
    Case(
        "null does not pass a filter, not even of what is unequal",
        FILTERED,
        recipe(
            rule(
                eq(),
                left_filters=[{"column": "note", "op": "ne", "value": "x"}],
                right_filters=[{"column": "rnote", "op": "not_in", "value": ("x", "y")}],
            )
        ),
        left("id ref note", ("L1", "a", None), ("L2", "b", "z"), ("L3", "c", "x")),
        right("id ref note", ("R1", "a", "z"), ("R2", "b", None), ("R3", "b", "q")),
        expect(
            pair("L2", "R3"),
            alone("left", "L1 L3", tried=""),
            alone("right", "R1"),
            alone("right", "R2", tried=""),
        ),
    ),
    Case(
        "null passes the filter that asks for it",
        FILTERED,
        recipe(
            rule(
                eq(),
                left_filters=[{"column": "note", "op": "is_null"}],
                right_filters=[{"column": "rnote", "op": "not_null"}],
            )
        ),
        left("id ref note", ("L1", "a", None), ("L2", "b", "")),
        right("id ref note", ("R1", "a", ""), ("R2", "b", None)),
        expect(pair("L1", "R1"), alone("left", "L2", tried=""), alone("right", "R2", tried="")),
    ),
    Case(
        "a filter on text looks into it, and a filter on amounts reads it",
        "`filters` of a rule",
        recipe(
            rule(
                eq(),
                left_filters=[{"column": "note", "op": "startswith", "value": "IN"}],
                right_filters=[{"column": "ramount", "op": "lte", "value": 7}],
            )
        ),
        left("id ref note", ("L1", "a", "INV"), ("L2", "b", "in")),
        right("id ref amount:text", ("R1", "a", "7.00"), ("R2", "b", "10"), ("R3", "a", "many")),
        expect(pair("L1", "R1"), alone("left", "L2", tried=""), alone("right", "R2 R3", tried="")),
    ),
]

DISTANCES = [
    Case(
        "one check is not enough",
        "**A candidate** is a pair that satisfies key and all checks.",
        recipe(rule(eq(), tolerance(absolute="1"), window(days=1))),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01")),
        right(
            "id ref amount day", ("R1", "a", "10", "2024-01-05"), ("R2", "a", "11", "2024-01-01")
        ),
        expect(
            pair("L1", "R2", "1", "0"),
            missed(
                "right", "R1", "L1", "matched", "date_window(day, rday)",
                ("2024-01-01", "2024-01-05"), "4",
            ),
        ),
    ),
    Case(
        "the first check's distance decides before the second's",
        DISTANCE,
        recipe(rule(eq(), window(days=9), tolerance(absolute="9"))),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01")),
        right(
            "id ref amount day", ("R1", "a", "10", "2024-01-03"), ("R2", "a", "19", "2024-01-02")
        ),
        expect(pair("L1", "R2", "1", "9"), taken("right", "R1", "L1")),
    ),
    Case(
        "the same with the checks in the other order",
        DISTANCE,
        recipe(rule(eq(), tolerance(absolute="9"), window(days=9))),
        left("id ref amount day", ("L1", "a", "10", "2024-01-01")),
        right(
            "id ref amount day", ("R1", "a", "10", "2024-01-03"), ("R2", "a", "19", "2024-01-02")
        ),
        expect(pair("L1", "R1", "0", "2"), taken("right", "R2", "L1")),
    ),
    Case(
        "totals decide, not the nearest pair",
        "Totals are summed entry by entry, then compared lexicographically.",
        # Nearest first would pair L1 with R1 (1) and L2 with R2 (8), 9 in all; 4 + 3 is less.
        recipe(rule(eq(), tolerance(absolute="9"))),
        left("id ref amount", ("L1", "a", "0"), ("L2", "a", "-4")),
        right("id ref amount", ("R1", "a", "-1"), ("R2", "a", "4")),
        expect(pair("L1", "R2", "4"), pair("L2", "R1", "3")),
    ),
    Case(
        "texts and comparisons are no distance",
        "contains and comparisons count 0",
        recipe(rule(eq(), text("contains"), compare("lt", "amount"))),
        left("id ref note amount", ("L1", "a", "abc", "1")),
        right("id ref note amount", ("R1", "a", "abc", "2"), ("R2", "a", "a", "9")),
        expect(unsure("left", "L1", "R1 R2", "tie"), unsure("right", "R1 R2", "L1", "tie")),
    ),
    Case(
        "times are apart by microseconds, not days",
        "absolute difference for amounts, days for dates",
        recipe(rule(eq(), window("at", days=1))),
        left("id ref at", ("L1", "a", "2024-01-01T00:00:00Z")),
        right(
            "id ref at",
            ("R1", "a", "2024-01-01T00:00:00.000002Z"),
            ("R2", "a", "2024-01-01T00:00:00.000001Z"),
        ),
        expect(pair("L1", "R2", "0.000001s"), taken("right", "R1", "L1")),
    ),
]  # fmt: skip

CASES = [*CONDITIONS, *RULES, *DISTANCES]
