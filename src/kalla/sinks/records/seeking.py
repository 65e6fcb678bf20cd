"""Decides the effect of a seek: which offsets are delivered again, and which are skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from kalla.errors import Conflict, InvalidInput, Problem
from kalla.sinks.ledger import LedgerRow
from kalla.sinks.store import PipelineRecord


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    to: str = Field(description="earliest, latest, or an offset", max_length=20)
    partition: int | None = Field(None, ge=0, description="only this partition")
    dry_run: bool = False


class Move(BaseModel):
    partition: int
    from_offset: int
    to_offset: int
    rereads: int = Field(description="offsets that are delivered again, as a new generation")


def moves(
    record: PipelineRecord,
    ledger: Sequence[LedgerRow],
    ends: Mapping[int, tuple[int, int]],
    wanted: Wanted,
) -> list[Move]:
    if record.desired != "stopped":
        raise Conflict(f"the pipeline is started: `kalla sinks stop {record.pipeline}` first")
    if wanted.to not in ("earliest", "latest") and not wanted.to.isdigit():
        raise InvalidInput(Problem("to", "must be earliest, latest, or an offset", wanted.to))
    found = []
    for row in ledger:
        if row.topic != record.kafka.topic or row.partition not in ends:
            continue
        if wanted.partition not in (None, row.partition):
            continue
        low, high = ends[row.partition]
        target = {"earliest": low, "latest": high}.get(wanted.to)
        target = int(wanted.to) if target is None else target
        if not low <= target <= high:
            raise InvalidInput(
                Problem("to", f"partition {row.partition} has the offsets {low} to {high}", target)
            )
        if target != row.next_offset or row.stopped:
            found.append(
                Move(
                    partition=row.partition,
                    from_offset=row.next_offset,
                    to_offset=target,
                    rereads=max(0, min(row.next_offset, high) - target),
                )
            )
    return found
