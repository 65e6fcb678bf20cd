"""When schedules are due: each local time once, whatever the clock does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kalla.errors import InvalidInput
from kalla.reconcile.schedules import cron_times

BERLIN = "Europe/Berlin"


def times(cron: str, zone: str, after: str, count: int) -> list[str]:
    at, found = datetime.fromisoformat(after).replace(tzinfo=UTC), []
    for _ in range(count):
        following = cron_times.next_time(cron, zone, at)
        assert following is not None
        found.append(f"{following:%Y-%m-%d %H:%M}")
        at = following
    return found


def test_a_time_is_of_the_clock_of_its_zone() -> None:
    assert times("0 7 * * 1-5", "America/New_York", "2026-01-01", 3) == [
        "2026-01-01 12:00", "2026-01-02 12:00", "2026-01-05 12:00",
    ]  # fmt: skip


def test_a_time_that_the_clock_skips_is_due_after_the_jump_and_one_that_comes_twice_once() -> None:
    assert times("30 2 * * *", BERLIN, "2026-03-28T12:00", 2) == [
        "2026-03-29 01:30", "2026-03-30 00:30",
    ]  # fmt: skip
    assert times("30 2 * * *", BERLIN, "2026-10-24T12:00", 2) == [
        "2026-10-25 00:30", "2026-10-26 01:30",
    ]  # fmt: skip
    assert times("0 * * * *", BERLIN, "2026-03-29T00:30", 2) == [
        "2026-03-29 01:00", "2026-03-29 02:00",
    ]  # fmt: skip


def test_missed_times_are_counted_and_the_last_one_is_named() -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    now = first + timedelta(hours=5, minutes=30)
    assert cron_times.times_until("0 * * * *", "UTC", first, now) == (first.replace(hour=5), 6)
    years = first + timedelta(days=800, seconds=30)
    last, count = cron_times.times_until("* * * * *", "UTC", first, years)
    assert (last, count) == (first + timedelta(days=800), cron_times.MOST_MISSED)


@pytest.mark.parametrize(
    ("cron", "zone", "part"),
    [
        ("* * * * * *", "UTC", "five fields"),
        ("61 * * * *", "UTC", "five fields"),
        ("@daily", "UTC", "five fields"),
        ("0 0 30 2 *", "UTC", "never comes"),
        ("0 7 * * *", "Mars/Olympus", "not a time zone"),
    ],
)
def test_what_is_no_schedule_is_refused_with_an_example(cron: str, zone: str, part: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        cron_times.checked(cron, zone)
