"""Cases of **Values**, of times: texts that are points in time, hours that come twice, days that do
not come, and keys of groups.
"""

from __future__ import annotations

from tests.reference.case import (
    Case,
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
    window,
)

INSTANTS = "Times compare as instants"
ZONE = "a date against a timestamp uses the recipe's time zone"
WINDOW = "date_window(at, rat)"

TEXTS = [
    Case(
        "two texts with times are points in time in a window",
        INSTANTS,
        recipe(rule(eq(), window("at", days=1))),
        left(
            "id ref at:text",
            ("L1", "a", "2024-02-01T00:30:00Z"),
            ("L2", "b", "2024-02-01T00:30:00Z"),
        ),
        right(
            "id ref at:text",
            ("R1", "a", "2024-02-02T23:30:00Z"),
            ("R2", "b", "2024-02-02T01:30:00+01:00"),
        ),
        expect(
            pair("L2", "R2", "1d"),
            missed("left", "L1", "R1", "unmatched", WINDOW,
                   ("2024-02-01T00:30:00Z", "2024-02-02T23:30:00Z"), "1d 23h"),
            missed("right", "R1", "L1", "unmatched", WINDOW,
                   ("2024-02-01T00:30:00Z", "2024-02-02T23:30:00Z"), "1d 23h"),
        ),
    ),
    Case(
        "two texts that are dates are days apart, a date and a time are whole days",
        INSTANTS,
        recipe(rule(eq(), window("at", days=1)), time_zone="Europe/Paris"),
        left("id ref at:text", ("L1", "a", "2024-02-01"), ("L2", "b", "2024-02-01")),
        right("id ref at:text", ("R1", "a", "2024-02-02"), ("R2", "b", "2024-02-02T22:30:00Z")),
        expect(pair("L1", "R1", "1"), pair("L2", "R2", "1d")),
    ),
    Case(
        "the nearest text in time is told by dates and times together",
        INSTANTS,
        recipe(rule(eq(), window("at", days=0))),
        left("id ref at:text", ("L1", "a", "2024-02-01T12:00:00Z")),
        right("id ref at:text", ("R1", "b", "2024-01-30"), ("R2", "b", "2024-02-02")),
        expect(
            missed("left", "L1", "R2", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R1", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
            missed("right", "R2", "L1", "unmatched", "eq(ref, rref)", ("a", "b"), None),
        ),
    ),
]  # fmt: skip

ZONES = [
    Case(
        "a time that clocks show twice is the first of them",
        INSTANTS,
        recipe(rule(eq("at")), time_zone="America/New_York"),
        left("id at:text", ("L1", "2024-11-03 01:30:00"), ("L2", "2024-11-03 02:30:00")),
        right("id at", ("R1", "2024-11-03T05:30:00+00:00"), ("R2", "2024-11-03T07:30:00+00:00")),
        expect(pair("L1", "R1"), pair("L2", "R2")),
    ),
    Case(
        "a time that clocks skip is as long after the change as it says",
        INSTANTS,
        recipe(rule(eq("at")), time_zone="America/New_York"),
        left("id at:text", ("L1", "2024-03-10 02:30:00"), ("L2", "2024-03-10 04:30:00")),
        right("id at", ("R1", "2024-03-10T07:30:00+00:00"), ("R2", "2024-03-10T08:30:00+00:00")),
        expect(pair("L1", "R1"), pair("L2", "R2")),
    ),
    Case(
        "a day that its zone skipped is no other day",
        ZONE,
        recipe(rule(eq(), window("at", days=0)), time_zone="Pacific/Apia"),
        left("id ref at:text", ("L1", "a", "2011-12-31"), ("L2", "b", "2011-12-30")),
        right(
            "id ref at",
            ("R1", "a", "2011-12-30T12:00:00+00:00"),
            ("R2", "b", "2011-12-30T12:00:00+00:00"),
        ),
        expect(
            pair("L1", "R1", "0"),
            missed("left", "L2", "R2", "unmatched", WINDOW,
                   ("2011-12-30", "2011-12-30T12:00:00Z"), "1d"),
            missed("right", "R2", "L2", "unmatched", WINDOW,
                   ("2011-12-30", "2011-12-30T12:00:00Z"), "1d"),
        ),
    ),
    Case(
        "a day that its zone skipped comes before the next",
        "Order of texts",
        recipe(rule(eq(), compare("lt", "at")), time_zone="Pacific/Apia"),
        left("id ref at:text", ("L1", "a", "2011-12-30")),
        right("id ref at:text", ("R1", "a", "2011-12-31")),
        expect(pair("L1", "R1", "0")),
    ),
]  # fmt: skip

EQUAL = "eq(at, rat)"
TEN, NOON = "2024-02-01T10:00:00Z", "2024-02-01T12:00:00Z"

GROUPS = [
    Case(
        "sums of two times of a day are not added up",
        "Both sides' group sums within tolerance: confirmed as one group.",
        recipe(rule(eq("at"), tolerance(absolute="0"), cardinality="M:N")),
        left("id at amount", ("L1", TEN, "5"), ("L2", NOON, "7")),
        right("id at:text amount", ("R1", TEN, "7"), ("R2", NOON, "5")),
        expect(
            missed("left", "L1", "R2", "unmatched", EQUAL, (TEN, NOON), None),
            missed("left", "L2", "R1", "unmatched", EQUAL, (NOON, TEN), None),
            missed("right", "R1", "L2", "unmatched", EQUAL, (NOON, TEN), None),
            missed("right", "R2", "L1", "unmatched", EQUAL, (TEN, NOON), None),
        ),
    ),
    Case(
        "each time of a day is the only row of its key",
        "If the key has one row on the one side and the whole group's sum is within tolerance",
        recipe(rule(eq("at"), tolerance(absolute="0"), cardinality="1:N")),
        left("id at amount", ("L1", TEN, "5"), ("L2", NOON, "7")),
        right(
            "id at:text amount",
            ("R1", TEN, "2"),
            ("R2", TEN, "3"),
            ("R3", NOON, "3"),
            ("R4", NOON, "4"),
        ),
        expect(group("L1", "R1 R2", "1:N", "0"), group("L2", "R3 R4", "1:N", "0")),
    ),
    Case(
        "a date in text shares its key with all times of its day",
        "the rows left that share the key form a group",
        recipe(rule(eq("at"), tolerance(absolute="0"), cardinality="M:N")),
        left("id at amount", ("L1", TEN, "5"), ("L2", NOON, "7"), ("L3", "2024-02-02T00:00Z", "1")),
        right("id at:text amount", ("R1", "2024-02-01", "10"), ("R2", NOON, "2")),
        expect(
            group("L1 L2", "R1 R2", "M:N", "0"),
            missed("left", "L3", "R2", "matched", EQUAL, ("2024-02-02T00:00:00Z", NOON), None),
        ),
    ),
    Case(
        "a time that nobody else has is in no group, though its day is",
        "the rows left that share the key form a group",
        recipe(rule(eq("at"), tolerance(absolute="0"), cardinality="N:1")),
        left("id at amount", ("L1", TEN, "5"), ("L2", NOON, "7")),
        right("id at:text amount", ("R1", "2024-02-01", "12"), ("R2", "2024-02-01T11:00Z", "12")),
        expect(
            group("L1 L2", "R1", "N:1", "0"),
            missed("right", "R2", "L2", "matched", EQUAL, (NOON, "2024-02-01T11:00:00Z"), None),
        ),
    ),
]

CASES = [*TEXTS, *ZONES, *GROUPS]
