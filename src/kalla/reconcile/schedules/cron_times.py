"""When a cron expression is due, by the clock of a time zone. Pure.

A local time that the clock skips in spring is due when the clock has jumped; one that comes twice
in autumn is due the first time only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

from croniter import croniter

from kalla.errors import InvalidInput, Problem

_LONGEST = 100
_FIELDS = 5
_NEVER_YEARS = 8  # 29 February comes within these


def problems_of(cron: str, time_zone: str) -> list[Problem]:
    found = []
    if time_zone not in available_timezones():
        found.append(
            Problem(
                "time_zone",
                f"{time_zone!r} is not a time zone: use a name such as Europe/Berlin",
            )
        )
    if len(cron) > _LONGEST or len(cron.split()) != _FIELDS or not croniter.is_valid(cron):
        found.append(
            Problem(
                "cron",
                "has five fields, minute hour day month weekday: `0 7 * * 1-5` is 07:00 from Monday"
                " to Friday",
            )
        )
    elif not found and next_time(cron, time_zone, datetime.now(UTC)) is None:
        found.append(Problem("cron", "names a day that never comes"))
    return found


def next_time(cron: str, time_zone: str, after: datetime) -> datetime | None:
    """The first time later than `after`; None for a day that never comes."""
    zone = ZoneInfo(time_zone)
    local = after.astimezone(zone).replace(tzinfo=None)
    times = croniter(cron, local, max_years_between_matches=_NEVER_YEARS, ret_type=datetime)
    while True:
        try:
            wall: datetime = times.get_next()
        except ValueError:  # croniter's own error for no date found is one
            return None
        found = _instant(wall, zone)
        if found > after:
            return found


def times_until(cron: str, time_zone: str, first: datetime, now: datetime) -> tuple[datetime, int]:
    """The last due time up to `now`, beginning with `first`, and how many times were due."""
    last, count = first, 1
    while (following := next_time(cron, time_zone, last)) is not None and following <= now:
        last, count = following, count + 1
        if count >= MOST_MISSED:  # Kalla was down for long: the exact number does not matter
            return _last_before(cron, time_zone, now), count
    return last, count


MOST_MISSED = 1000


def _last_before(cron: str, time_zone: str, now: datetime) -> datetime:
    zone = ZoneInfo(time_zone)
    times = croniter(cron, now.astimezone(zone).replace(tzinfo=None), ret_type=datetime)
    return _instant(times.get_prev(), zone)


def _instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """A local time as an instant. By the offset of before, a skipped 02:30 is 03:30; of two, the
    first is meant (fold is 0)."""
    return wall.replace(tzinfo=zone).astimezone(UTC)


def checked(cron: str, time_zone: str) -> None:
    if found := problems_of(cron, time_zone):
        raise InvalidInput(*found)
