"""Cases of **Rows** and **Values**: record keys, amounts, currencies, nulls."""

from __future__ import annotations

from tests.reference.case import (
    Case,
    alone,
    compare,
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
)

KEY = recipe(rule(eq()))
EXACT = "Amounts are decimals; comparisons are exact; a tolerance includes its bound"
PERCENT = "a percentage is of the absolute left value"
CURRENCY = "currency(cur, rcur)"
ONE_CURRENCY = "With a currency column, amounts compare only within one currency."

ROWS = [
    Case(
        "the same key on both sides is two rows",
        "A row is known by its side and primary key.",
        KEY,
        left("id ref", ("1", "a")),
        right("id ref", ("1", "a")),
        expect(pair("1", "1")),
    ),
    Case(
        "a doubled key gets ordinals in the order of all column values",
        "such rows get an ordinal in the order of all their column values (`INV-7#2`",
        KEY,
        left("id ref", ("INV-7", "b"), ("INV-7", "a"), ("INV-8", "c")),
        right("id ref", ("R1", "a"), ("R2", "b"), ("R3", "c")),
        expect(pair("INV-7#1", "R1"), pair("INV-7#2", "R2"), pair("INV-8", "R3")),
    ),
    Case(
        "the order of a doubled key's rows is by column name, null first, numbers as numbers",
        "in the order of all their column values",
        recipe(rule(eq("amount"), eq())),
        left("ref id amount", ("a", "K", "10"), ("z", "K", "9.5"), ("b", "K", "10")),
        right("ref id amount", ("a", "R1", "10"), ("z", "R2", "9.5"), ("b", "R3", "10")),
        expect(pair("K#1", "R2"), pair("K#2", "R1"), pair("K#3", "R3")),
    ),
    Case(
        "a sign of ordinals in a key is doubled",
        "a `#` in a key is doubled",
        KEY,
        left("id ref", ("A#1", "a"), ("A", "b"), ("A", "c")),
        right("id ref", ("R1", "a"), ("R2", "b"), ("R3", "c")),
        expect(pair("A##1", "R1"), pair("A#1", "R2"), pair("A#2", "R3")),
    ),
    Case(
        "a composite key is joined",
        "composite keys are joined with `|`",
        recipe(rule(eq()), keys="id no"),
        left("id no ref", ("A", 7, "a")),
        right("id no ref", ("B", 8, "a")),
        expect(pair("A|7", "B|8")),
    ),
    Case(
        "composite keys that read alike are told apart",
        "composite keys are joined with `|`",
        recipe(rule(eq("note")), keys="id ref"),
        left("id ref note", ("a", "b|c", "x"), ("a|b", "c", "y")),
        right("id ref note", ("R", "1", "x"), ("R", "2", "y")),
        expect(pair("a|b|c#1", "R|1"), pair("a|b|c#2", "R|2")),
    ),
    Case(
        "a null key is written and has an ordinal even when it is the only one",
        "null is `∅`",
        recipe(rule(eq()), keys="id no"),
        left("id no ref", (None, 1, "a"), ("L", None, "b")),
        right("id no ref", (None, None, "a"), (None, None, "b")),
        expect(pair("∅|1#1", "∅|∅#1"), pair("L|∅#1", "∅|∅#2")),
    ),
    Case(
        "rows alike in everything are all there",
        "No row ever disappears.",
        KEY,
        left("id ref", ("A", "a"), ("A", "a"), ("A", "a")),
        right("id ref", ("B", "b"), ("B", "b")),
        expect(alone("left", "A#1 A#2 A#3"), alone("right", "B#1 B#2")),
    ),
]

AMOUNTS = [
    Case(
        "a hundredth is within a hundredth",
        EXACT,
        recipe(rule(eq(), tolerance(absolute="0.01"))),
        left("id ref amount", ("L1", "a", "100.00"), ("L2", "b", "100.01"), ("L3", "c", "0.3")),
        right("id ref amount", ("R1", "a", "100.01"), ("R2", "b", "100.00"), ("R3", "c", "0.31")),
        expect(pair("L1", "R1", "0.01"), pair("L2", "R2", "-0.01"), pair("L3", "R3", "0.01")),
    ),
    Case(
        "a little more than the bound is too much",
        EXACT,
        recipe(rule(eq(), tolerance(absolute="0.01"))),
        left("id ref amount", ("L1", "a", "100.00")),
        right("id ref amount", ("R1", "a", "100.010001")),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "tolerance(amount, ramount)",
                ("100", "100.010001"), "0.010001",
            ),
            missed(
                "right", "R1", "L1", "unmatched", "tolerance(amount, ramount)",
                ("100", "100.010001"), "0.010001",
            ),
        ),
    ),
    Case(
        "numbers of many digits are not rounded",
        EXACT,
        recipe(rule(eq(), tolerance(absolute="0"))),
        left(
            "id ref amount",
            ("L1", "a", "12345678901234567890123456789.01"),
            ("L2", "b", "12345678901234567890123456789.02"),
        ),
        right(
            "id ref amount",
            ("R1", "a", "12345678901234567890123456789.01"),
            ("R2", "b", "12345678901234567890123456789.02"),
        ),
        expect(pair("L1", "R1", "0"), pair("L2", "R2", "0")),
    ),
    Case(
        "a percentage is of the left value, whatever its sign",
        PERCENT,
        recipe(rule(eq(), tolerance(percent="10"))),
        left("id ref amount", ("L1", "a", "-100"), ("L2", "b", "100")),
        right("id ref amount", ("R1", "a", "-90"), ("R2", "b", "110")),
        expect(pair("L1", "R1", "10"), pair("L2", "R2", "10")),
    ),
    Case(
        "a percentage is not of the right value",
        PERCENT,
        recipe(rule(eq(), tolerance(percent="10"))),
        left("id ref amount", ("L1", "a", "90")),
        right("id ref amount", ("R1", "a", "100")),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "tolerance(amount, ramount)", ("90", "100"), "10"
            ),
            missed(
                "right", "R1", "L1", "unmatched", "tolerance(amount, ramount)", ("90", "100"), "10"
            ),
        ),
    ),
    Case(
        "of zero only zero is within a percentage",
        "of zero nothing is within a percentage but zero",
        recipe(rule(eq(), tolerance(percent="50"))),
        left("id ref amount", ("L1", "a", "0"), ("L2", "b", "0")),
        right("id ref amount", ("R1", "a", "0.00"), ("R2", "b", "0.01")),
        expect(
            pair("L1", "R1", "0"),
            missed(
                "left", "L2", "R2", "unmatched", "tolerance(amount, ramount)", ("0", "0.01"), "0.01"
            ),
            missed(
                "right", "R2", "L2", "unmatched", "tolerance(amount, ramount)", ("0", "0.01"),
                "0.01",
            ),
        ),
    ),
    Case(
        "amounts of two currencies do not compare",
        ONE_CURRENCY,
        recipe(rule(eq(), tolerance(absolute="0")), currency="cur"),
        left("id ref amount cur", ("L1", "a", "5", "EUR"), ("L2", "a", "5", "USD")),
        right("id ref amount cur", ("R1", "a", "5", "USD"), ("R2", "a", "5", "SEK")),
        expect(
            pair("L2", "R1", "0"),
            missed("left", "L1", "R1", "matched", CURRENCY, ("EUR", "USD"), None),
            missed("right", "R2", "L1", "unmatched", CURRENCY, ("EUR", "SEK"), None),
        ),
    ),
    Case(
        "a row without a currency has none in common",
        ONE_CURRENCY,
        recipe(rule(eq(), tolerance(absolute="0")), currency="cur"),
        left("id ref amount cur", ("L1", "a", "5", None)),
        right("id ref amount cur", ("R1", "a", "5", None)),
        expect(
            missed("left", "L1", "R1", "unmatched", CURRENCY, (None, None), None),
            missed("right", "R1", "L1", "unmatched", CURRENCY, (None, None), None),
        ),
    ),
    Case(
        "equal amounts of two currencies are not equal",
        ONE_CURRENCY,
        recipe(rule(eq(), eq("amount")), currency="cur", amount="amount"),
        left("id ref amount cur", ("L1", "a", "100", "EUR"), ("L2", "b", "7", "SEK")),
        right("id ref amount cur", ("R1", "a", "100", "JPY"), ("R2", "b", "7", "SEK")),
        expect(
            pair("L2", "R2"),
            missed("left", "L1", "R1", "unmatched", CURRENCY, ("EUR", "JPY"), None),
            missed("right", "R1", "L1", "unmatched", CURRENCY, ("EUR", "JPY"), None),
        ),
    ),
    Case(
        "an amount is not at least another of a different currency",
        ONE_CURRENCY,
        recipe(rule(eq(), compare("gte", "amount")), currency="cur", amount="amount"),
        left("id ref amount cur", ("L1", "a", "100", "EUR"), ("L2", "b", "7", "SEK")),
        right("id ref amount cur", ("R1", "a", "1", "JPY"), ("R2", "b", "6", "SEK")),
        expect(
            pair("L2", "R2", "0"),
            missed("left", "L1", "R1", "unmatched", CURRENCY, ("EUR", "JPY"), None),
            missed("right", "R1", "L1", "unmatched", CURRENCY, ("EUR", "JPY"), None),
        ),
    ),
    Case(
        "what one rule has within a tolerance is an amount to another rule",
        ONE_CURRENCY,
        recipe(
            rule(eq("ref"), eq("qty", "ramount"), name="r"),
            rule(eq("ref"), tolerance("qty", "ramount", absolute="1"), name="s"),
            currency="cur",
        ),
        left("id ref qty cur", ("L1", "a", 100, "EUR")),
        right("id ref amount cur", ("R1", "a", "100", "JPY")),
        expect(
            missed("left", "L1", "R1", "unmatched", CURRENCY, ("EUR", "JPY"), None, "r s"),
            missed("right", "R1", "L1", "unmatched", CURRENCY, ("EUR", "JPY"), None, "r s"),
        ),
    ),
    Case(
        "sums are of one currency, with a tolerance or without",
        ONE_CURRENCY,
        recipe(
            rule(eq(), cardinality="1:N", left_sum="amount", right_sum="ramount"), currency="cur"
        ),
        left("id ref amount cur", ("L1", "a", "100", "EUR"), ("L2", "b", "7", "SEK")),
        right(
            "id ref amount cur",
            ("R1", "a", "60", "USD"),
            ("R2", "a", "40", "JPY"),
            ("R3", "b", "3", "SEK"),
            ("R4", "b", "4", "SEK"),
        ),
        expect(
            group("L2", "R3 R4", "1:N"),
            missed("left", "L1", "R1", "unmatched", CURRENCY, ("EUR", "USD"), None),
            missed("right", "R1", "L1", "unmatched", CURRENCY, ("EUR", "USD"), None),
            missed("right", "R2", "L1", "unmatched", CURRENCY, ("EUR", "JPY"), None),
        ),
    ),
    Case(
        "a currency is no business of a rule without amounts",
        ONE_CURRENCY,
        recipe(rule(eq()), currency="cur"),
        left("id ref cur", ("L1", "a", "EUR")),
        right("id ref cur", ("R1", "a", "USD")),
        expect(pair("L1", "R1")),
    ),
    Case(
        "a turned sign",
        "`negate` turns a sign.",
        recipe(rule(eq(), tolerance(above="1", negate="right"))),
        left("id ref amount", ("L1", "a", "100")),
        right("id ref amount", ("R1", "a", "-101")),
        expect(pair("L1", "R1", "1")),
    ),
    Case(
        "a turned sign on the left, and evidence that shows values as they are",
        "`negate` turns a sign.",
        recipe(rule(eq(), tolerance(above="1", negate="left"))),
        left("id ref amount", ("L1", "a", "100")),
        right("id ref amount", ("R1", "a", "-101")),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "tolerance(amount, ramount)", ("100", "-101"), "-1"
            ),
            missed(
                "right", "R1", "L1", "unmatched", "tolerance(amount, ramount)", ("100", "-101"),
                "-1",
            ),
        ),
    ),
]  # fmt: skip

NULLS = [
    Case(
        "two nulls are not equal",
        "Null equals nothing, null is within no tolerance.",
        KEY,
        left("id ref", ("L1", None)),
        right("id ref", ("R1", None)),
        expect(alone("left", "L1"), alone("right", "R1")),
    ),
    Case(
        "an empty text is not null",
        "Null equals nothing",
        KEY,
        left("id ref", ("L1", "")),
        right("id ref", ("R1", "")),
        expect(pair("L1", "R1")),
    ),
    Case(
        "null is within no tolerance and has no difference",
        "Null equals nothing, null is within no tolerance.",
        recipe(rule(eq(), tolerance(absolute="5"))),
        left("id ref amount", ("L1", "a", None)),
        right("id ref amount", ("R1", "a", None)),
        expect(
            missed(
                "left", "L1", "R1", "unmatched", "tolerance(amount, ramount)", (None, None), None
            ),
            missed(
                "right", "R1", "L1", "unmatched", "tolerance(amount, ramount)", (None, None), None
            ),
        ),
    ),
]

CASES = [*ROWS, *AMOUNTS, *NULLS]
