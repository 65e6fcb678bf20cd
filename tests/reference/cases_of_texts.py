"""Cases of **Values** that are text or time: derivations, reading, time zones."""

from __future__ import annotations

from kalla.reconcile.model import Csv
from tests.reference.case import (
    Case,
    alone,
    eq,
    expect,
    fuzzy,
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

KEY = recipe(rule(eq()))
DERIVED = (
    "Text is compared as given unless the rule derives (trim, upper, digits, regex, date part)"
)
ZONE = "a date against a timestamp uses the recipe's time zone (default UTC)"

TEXTS = [
    Case(
        "a threshold of many digits is held to all of them",
        "a whole number of ten-thousandths",
        recipe(rule(eq(), fuzzy("0.90005", metric="levenshtein"))),
        left("id ref note", ("L1", "a", "abcdefghij")),
        right("id ref note", ("R1", "a", "abcdefghix")),
        expect(
            missed(
                "left",
                "L1",
                "R1",
                "unmatched",
                "fuzzy(note, rnote)",
                ("abcdefghij", "abcdefghix"),
                "1000",
            ),
            missed(
                "right",
                "R1",
                "L1",
                "unmatched",
                "fuzzy(note, rnote)",
                ("abcdefghij", "abcdefghix"),
                "1000",
            ),
        ),
    ),
    Case(
        "capitals and spaces matter",
        DERIVED,
        KEY,
        left("id ref", ("L1", "a"), ("L2", "b ")),
        right("id ref", ("R1", "A"), ("R2", "b")),
        expect(alone("left", "L1 L2"), alone("right", "R1 R2")),
    ),
    Case(
        "trimmed, then in capitals",
        DERIVED,
        recipe(rule(eq(derive=("trim", "upper")))),
        left("id ref", ("L1", " é1\t")),
        right("id ref", ("R1", "É1")),
        expect(pair("L1", "R1")),
    ),
    Case(
        "derived on one side alone",
        DERIVED,
        recipe(rule(eq(derive_left=("lower",)))),
        left("id ref", ("L1", "ABC")),
        right("id ref", ("R1", "abc"), ("R2", "ABC")),
        expect(pair("L1", "R1"), alone("right", "R2")),
    ),
    Case(
        "digits alone, and of a text without any, nothing",
        DERIVED,
        recipe(rule(eq(derive=("digits",)))),
        left("id ref", ("L1", "INV-00 7"), ("L2", "none")),
        right("id ref", ("R1", "#007"), ("R2", "")),
        expect(pair("L1", "R1"), alone("left", "L2"), alone("right", "R2")),
    ),
    Case(
        "an expression's first group",
        DERIVED,
        recipe(rule(eq(derive_left=({"regex": "INV-([0-9]+)-([0-9]+)"},)))),
        left("id ref", ("L1", "see INV-12-34."), ("L2", "12")),
        right("id ref", ("R1", "12")),
        expect(pair("L1", "R1"), alone("left", "L2")),
    ),
    Case(
        "an expression without a group is taken whole, and what it does not match is null",
        DERIVED,
        recipe(rule(eq(derive=({"regex": "[A-Z]+"},)))),
        left("id ref", ("L1", "12AB34CD"), ("L2", "12")),
        right("id ref", ("R1", "xABx"), ("R2", "34")),
        expect(pair("L1", "R1"), alone("left", "L2"), alone("right", "R2")),
    ),
    Case(
        "text against a number is read as one",
        "Amounts are decimals; comparisons are exact",
        recipe(rule(eq("ref", "rqty"))),
        left("id ref", ("L1", "007"), ("L2", "8.0"), ("L3", " -9 "), ("L4", "1x"), ("L5", "1.5")),
        right("id qty", ("R1", 7), ("R2", 8), ("R3", -9), ("R4", 1), ("R5", 2)),
        expect(
            pair("L1", "R1"),
            pair("L2", "R2"),
            pair("L3", "R3"),
            alone("left", "L4 L5"),
            alone("right", "R4 R5"),
        ),
    ),
    Case(
        "text against text is not read, though both look like numbers",
        "Text is compared as given",
        recipe(rule(eq("amount"))),
        left("id amount:text", ("L1", "1.0")),
        right("id amount:text", ("R1", "1")),
        expect(alone("left", "L1"), alone("right", "R1")),
    ),
    Case(
        "a tolerance reads text on both sides",
        "Amounts are decimals; comparisons are exact",
        recipe(rule(eq(), tolerance(absolute="0.5"))),
        left("id ref amount:text", ("L1", "a", "1.50")),
        right("id ref amount:text", ("R1", "a", "2")),
        expect(pair("L1", "R1", "0.5")),
    ),
    Case(
        "grouped digits are an amount where their source writes them so",
        "Amounts are decimals; comparisons are exact",
        recipe(
            rule(eq(), tolerance(absolute="0")),
            csv=Csv(decimal=",", thousands="."),
        ),
        left(
            "id ref amount:text",
            ("L1", "a", "1.234,50"),
            ("L2", "b", "-1.234.567"),
            ("L3", "c", "12.34"),
        ),
        right("id ref amount", ("R1", "a", "1234.5"), ("R2", "b", "-1234567"), ("R3", "c", "1234")),
        expect(
            pair("L1", "R1", "0"),
            pair("L2", "R2", "0"),
            missed(
                "left",
                "L3",
                "R3",
                "unmatched",
                "tolerance(amount, ramount)",
                (None, "1234"),
                None,
            ),
            missed(
                "right",
                "R3",
                "L3",
                "unmatched",
                "tolerance(amount, ramount)",
                (None, "1234"),
                None,
            ),
        ),
    ),
    Case(
        "rows whose values are read alike are interchangeable",
        "Rows equal in all compared values are interchangeable",
        recipe(rule(eq("ref", "rqty"))),
        left("id ref", ("L1", "7"), ("L2", "07")),
        right("id qty", ("R1", 7)),
        expect(unsure("left", "L1 L2", "R1", "unequal"), unsure("right", "R1", "L1 L2", "unequal")),
    ),
    Case(
        "a group that took no part is null, and one that matched nothing is empty",
        DERIVED,
        recipe(rule(eq(derive=({"regex": "A([0-9]*)|B[0-9]+"},)))),
        left("id ref", ("L1", "A12"), ("L2", "B13"), ("L3", "A")),
        right("id ref", ("R1", "A12 B7"), ("R2", "B99"), ("R3", "A-1")),
        expect(pair("L1", "R1"), pair("L3", "R3"), alone("left", "L2"), alone("right", "R2")),
    ),
]

TIMES = [
    Case(
        "the same instant written in two time zones",
        "Times compare as instants",
        recipe(rule(eq("at"))),
        left("id at", ("L1", "2024-02-01T01:00:00+01:00")),
        right("id at", ("R1", "2024-02-01T00:00:00+00:00"), ("R2", "2024-02-01T00:00:00.000001Z")),
        expect(pair("L1", "R1"), alone("right", "R2")),
    ),
    Case(
        "a window of times is of instants, to the microsecond",
        "Times compare as instants",
        recipe(rule(eq(), window("at", days=1))),
        left("id ref at", ("L1", "a", "2024-02-01T12:00:00Z"), ("L2", "b", "2024-02-01T12:00:00Z")),
        right(
            "id ref at",
            ("R1", "a", "2024-02-02T12:00:00Z"),
            ("R2", "b", "2024-02-02T12:00:00.000001Z"),
        ),
        expect(
            pair("L1", "R1", "1d"),
            missed(
                "left", "L2", "R2", "unmatched", "date_window(at, rat)",
                ("2024-02-01T12:00:00Z", "2024-02-02T12:00:00.000001Z"), "1d 0.000001s",
            ),
            missed(
                "right", "R2", "L2", "unmatched", "date_window(at, rat)",
                ("2024-02-01T12:00:00Z", "2024-02-02T12:00:00.000001Z"), "1d 0.000001s",
            ),
        ),
    ),
    Case(
        "a late evening in UTC is that day in UTC",
        ZONE,
        recipe(rule(eq("day", "rat"))),
        left("id day", ("L1", "2024-01-31"), ("L2", "2024-02-01")),
        right("id at", ("R1", "2024-01-31T23:30:00Z")),
        expect(pair("L1", "R1"), alone("left", "L2")),
    ),
    Case(
        "a late evening in UTC is the next day in Stockholm",
        ZONE,
        recipe(rule(eq("day", "rat")), time_zone="Europe/Stockholm"),
        left("id day", ("L1", "2024-01-31"), ("L2", "2024-02-01")),
        right("id at", ("R1", "2024-01-31T23:30:00Z")),
        expect(pair("L2", "R1"), alone("left", "L1")),
    ),
    Case(
        "a window between a date and a time counts days of the time zone",
        ZONE,
        recipe(rule(window("day", "rat", after=1)), time_zone="America/New_York"),
        left("id day", ("L1", "2024-01-31")),
        right("id at", ("R1", "2024-02-02T04:59:59Z"), ("R2", "2024-02-02T05:00:00Z")),
        expect(
            pair("L1", "R1", "1"),
            missed(
                "right", "R2", "L1", "matched", "date_window(day, rat)",
                ("2024-01-31", "2024-02-02"), "2",
            ),
        ),
    ),
    Case(
        "the month of a date, of a time and of a text",
        DERIVED,
        recipe(
            rule(eq("day", "rat", derive=({"date_part": "month"},)), name="time"),
            rule(eq("day", "rref", derive=({"date_part": "month"},)), name="text"),
            time_zone="Europe/Stockholm",
        ),
        left("id day", ("L1", "2024-02-29"), ("L2", "2024-03-01")),
        right("id at ref", ("R1", "2024-01-31T23:30:00Z", "soon"), ("R2", None, "2024-03-31")),
        expect(pair("L1", "R1", rule="time"), pair("L2", "R2", rule="text")),
    ),
    Case(
        "the year of a date is its first day",
        DERIVED,
        recipe(rule(eq("day", derive_left=({"date_part": "year"},)))),
        left("id day", ("L1", "2024-05-06")),
        right("id day", ("R1", "2024-01-01"), ("R2", "2024-05-06")),
        expect(pair("L1", "R1"), alone("right", "R2")),
    ),
    Case(
        "text against a date is read as one",
        DERIVED,
        recipe(rule(eq("ref", "rday"))),
        left("id ref", ("L1", "2024-02-01"), ("L2", "2024-02-30"), ("L3", "soon")),
        right("id day", ("R1", "2024-02-01"), ("R2", None)),
        expect(pair("L1", "R1"), alone("left", "L2 L3"), alone("right", "R2")),
    ),
]  # fmt: skip

CASES = [*TEXTS, *TIMES]
