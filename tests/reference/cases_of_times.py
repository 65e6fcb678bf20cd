"""Cases of **Values**, of times: texts that are points in time, hours that come twice, days that do
not come, and keys of groups.
"""

from __future__ import annotations

from tests.reference.case import (
    Case,
    compare,
    eq,
    expect,
    left,
    missed,
    pair,
    recipe,
    right,
    rule,
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

CASES = [*TEXTS, *ZONES]
