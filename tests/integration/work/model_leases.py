"""A small pure model of leases: what each act makes of the rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tests.integration.work.model_rows import LeaseRow, View


def acquire(
    view: View, resource: str, holder: str, replicas: int, ttl: float, cap: int | None
) -> tuple[int, int] | None:
    """The slot and its epoch."""
    for slot in range(replicas):
        if ("lease", resource, slot) not in view.rows:
            view.put(LeaseRow(resource, slot))
    live = [row for row in view.all(LeaseRow) if row.until is not None and row.until > view.now]
    if cap is not None and sum(row.holder == holder for row in live) >= cap:
        return None
    for slot in range(replicas):
        row = view.rows[("lease", resource, slot)]
        assert isinstance(row, LeaseRow)
        if row not in live and row.key not in view.locked:
            view.put(
                replace(row, holder=holder, epoch=row.epoch + 1, until=round(view.now + ttl, 6))
            )
            return slot, row.epoch + 1
    return None


def renew(
    view: View, holder: str, held: Iterable[tuple[str, int, int]], ttl: float
) -> set[tuple[str, int, int]]:
    renewed = set()
    for resource, slot, epoch in held:
        row = view.rows.get(("lease", resource, slot))
        if not isinstance(row, LeaseRow) or row.until is None or row.until <= view.now:
            continue
        if (row.holder, row.epoch) == (holder, epoch):
            view.put(replace(row, until=round(view.now + ttl, 6)))
            renewed.add((resource, slot, epoch))
    return renewed


def release(view: View, holder: str, held: tuple[str, int, int]) -> bool:
    resource, slot, epoch = held
    row = view.rows.get(("lease", resource, slot))
    if not isinstance(row, LeaseRow) or (row.holder, row.epoch) != (holder, epoch):
        return False
    view.put(replace(row, holder=None, until=None))
    return True
