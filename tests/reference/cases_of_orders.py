"""Cases of text that is a number or a date in fact: its order, and what it is against times."""

from __future__ import annotations

from kalla.reconcile.recipe.model import Csv
from tests.reference.case import (
    Case,
    alone,
    compare,
    eq,
    expect,
    left,
    missed,
    pair,
    recipe,
    right,
    rule,
    taken,
    window,
)
from tests.reference.evidence import Table, Unmatched

ZONE = "a date against a timestamp uses the recipe's time zone (default UTC)"
ORDER = "two texts are compared as numbers where both are, as dates where both are, else as text"


def _pairs(*rows: tuple[str, str]) -> tuple[Table, Table]:
    """A row of each side for each two notes, which a reference of their own brings together."""
    return (
        left("id ref note", *((f"L{n}", str(n), note) for n, (note, _) in enumerate(rows, 1))),
        right("id ref note", *((f"R{n}", str(n), note) for n, (_, note) in enumerate(rows, 1))),
    )


def _unordered(number: int, *notes: str) -> list[Unmatched]:
    """Two texts that are not in the order asked for."""
    first, second = notes
    condition = "lt(note, rnote)"
    return [
        missed("left", f"L{number}", f"R{number}", "unmatched", condition, (first, second), "0"),
        missed("right", f"R{number}", f"L{number}", "unmatched", condition, (first, second), "0"),
    ]


ORDERED = [
    Case(
        "texts that are numbers are in the order of numbers",
        ORDER,
        recipe(rule(eq(), compare("lt", "note"))),
        *_pairs(("9.00", "10.00"), ("10.00", "9.00"), (" -2", "1"), ("1.0", "1")),
        expect(
            pair("L1", "R1", "0"),
            _unordered(2, "10.00", "9.00"),
            pair("L3", "R3", "0"),
            _unordered(4, "1.0", "1"),
        ),
    ),
    Case(
        "texts that are dates are in the order of dates, and times are instants",
        ORDER,
        recipe(rule(eq(), compare("lt", "note")), time_zone="Europe/Stockholm"),
        *_pairs(
            ("2024-01-31T23:00:00-05:00", "2024-02-01T05:00:00Z"),
            ("2024-02-01T05:00:00Z", "2024-01-31T23:00:00-05:00"),
            ("2024-01-31", "2024-01-31T23:00:00Z"),  # which is the first of February
            ("2024-02-01", "2024-02-01T08:00:00Z"),
            ("2024-02-01T07:30:00", "2024-02-01T07:00:00Z"),  # in Stockholm: 06:30 UTC
        ),
        expect(
            pair("L1", "R1", "0"),
            _unordered(2, "2024-02-01T05:00:00Z", "2024-01-31T23:00:00-05:00"),
            pair("L3", "R3", "0"),
            _unordered(4, "2024-02-01", "2024-02-01T08:00:00Z"),
            pair("L5", "R5", "0"),
        ),
    ),
    Case(
        "texts are ordered as their source writes them",
        ORDER,
        recipe(
            rule(eq(), compare("lt", "note")), csv=Csv(decimal=",", date_format="%d.%m.%Y")
        ),
        *_pairs(("31.01.2024", "01.02.2024"), ("9,5", "10,25"), ("10.25", "9.5")),
        expect(pair("L1", "R1", "0"), pair("L2", "R2", "0"), pair("L3", "R3", "0")),
    ),
    Case(
        "a number, a date and another text are compared as text",
        ORDER,
        recipe(rule(eq(), compare("lt", "note"))),
        *_pairs(("10", "2024-01-01"), ("9", "2024-01-01"), ("2024-01-01", "B"), ("b", "B")),
        expect(
            pair("L1", "R1", "0"),
            _unordered(2, "9", "2024-01-01"),
            pair("L3", "R3", "0"),
            _unordered(4, "b", "B"),
        ),
    ),
    Case(
        "the first of texts is a number, then a date, then any other",
        "`ties: first_in_first_out` (by a named date, then key)",
        recipe(
            rule(eq(), ties="first_in_first_out", left_order="note", right_order="rnote"),
        ),
        left(
            "id ref note",
            ("L1", "a", "10"), ("L2", "a", "9.0"), ("L3", "a", "2024-02-01T01:00:00Z"),
            ("L4", "a", "2024-01-31T23:00:00-05:00"), ("L5", "a", "b"), ("L6", "a", "B"),
            ("L7", "a", None),
        ),
        right(
            "id ref note",
            ("R1", "a", "1"), ("R2", "a", "2"), ("R3", "a", "3"), ("R4", "a", "4"),
            ("R5", "a", "5"), ("R6", "a", "6"),
        ),
        expect(
            pair("L2", "R1", fifo=True), pair("L1", "R2", fifo=True), pair("L3", "R3", fifo=True),
            pair("L4", "R4", fifo=True), pair("L6", "R5", fifo=True), pair("L5", "R6", fifo=True),
            taken("left", "L7", "R1"),
        ),
    ),
]  # fmt: skip

MET = [
    Case(
        "a date in text against a time is that day in the time zone",
        ZONE,
        recipe(rule(eq("ref", "rat")), time_zone="Europe/Stockholm"),
        left("id ref", ("L1", "2024-01-31"), ("L2", "2024-02-01")),
        right("id at", ("R1", "2024-01-31T23:30:00Z")),
        expect(pair("L2", "R1"), alone("left", "L1")),
    ),
    Case(
        "a time in text is an instant, though a date beside it is a day",
        "Times compare as instants",
        recipe(rule(eq("note"), eq("ref", "rat"))),
        left(
            "id note ref",
            ("L1", "a", "2024-02-01"), ("L2", "b", "2024-02-01T10:00:00Z"),
            ("L3", "c", "2024-02-01T10:00:00Z"),
        ),
        right(
            "id note at",
            ("R1", "a", "2024-02-01T10:00:00Z"), ("R2", "b", "2024-02-01T10:00:00Z"),
            ("R3", "c", "2024-02-01T10:00:01Z"),
        ),
        expect(
            pair("L1", "R1"),
            pair("L2", "R2"),
            missed(
                "left", "L3", "R3", "unmatched", "eq(ref, rat)",
                ("2024-02-01T10:00:00Z", "2024-02-01T10:00:01Z"), None,
            ),
            missed(
                "right", "R3", "L3", "unmatched", "eq(ref, rat)",
                ("2024-02-01T10:00:00Z", "2024-02-01T10:00:01Z"), None,
            ),
        ),
    ),
    Case(
        "a window from a date in text to a time is of whole days",
        ZONE,
        recipe(rule(eq("note"), window("ref", "rat", days=0))),
        left("id note ref", ("L1", "a", "2024-02-01"), ("L2", "b", "2024-02-01")),
        right("id note at", ("R1", "a", "2024-02-01T23:59:59Z"), ("R2", "b", "2024-02-03T01:00Z")),
        expect(
            pair("L1", "R1", "0"),
            missed(
                "left", "L2", "R2", "unmatched", "date_window(ref, rat)",
                ("2024-02-01", "2024-02-03T01:00:00Z"), "2d",
            ),
            missed(
                "right", "R2", "L2", "unmatched", "date_window(ref, rat)",
                ("2024-02-01", "2024-02-03T01:00:00Z"), "2d",
            ),
        ),
    ),
    Case(
        "a date in a format of its own is a day as well",
        ZONE,
        recipe(
            rule(eq("ref", "rat")),
            time_zone="Europe/Stockholm",
            csv=Csv(date_format="%d.%m.%Y"),
        ),
        left("id ref", ("L1", "31.01.2024"), ("L2", "01.02.2024")),
        right("id at", ("R1", "2024-01-31T23:30:00Z")),
        expect(pair("L2", "R1"), alone("left", "L1")),
    ),
    Case(
        "a time without an offset is one of the time zone",
        ZONE,
        recipe(rule(eq("ref", "rat")), time_zone="Europe/Stockholm"),
        left("id ref", ("L1", "2024-02-01T10:00:00")),
        right("id at", ("R1", "2024-02-01T09:00:00Z")),
        expect(pair("L1", "R1")),
    ),
]  # fmt: skip

CASES = [*ORDERED, *MET]
