"""Previews rules on samples: rows, refused messages, and messages that filters leave out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

from pydantic import BaseModel, Field

from kalla.sinks.model import RowRules
from kalla.sinks.rows.transform import Transform
from kalla.sinks.servers.message_ranges import Message

_TEXT_BYTES = 2000


class Sample(BaseModel):
    """A message as text, for people."""

    partition: int
    offset: int
    timestamp: int | None = Field(description="milliseconds since 1970")
    key: str | None
    text: str | None = Field(description="the beginning; bytes that are not UTF-8 are replaced")
    bytes: int

    @classmethod
    def of(cls, message: Message) -> Sample:
        return cls(
            partition=message.partition,
            offset=message.offset,
            timestamp=message.timestamp,
            key=None if message.key is None else message.key.decode("utf-8", "replace"),
            text=None
            if message.value is None
            else message.value[:_TEXT_BYTES].decode("utf-8", "replace"),
            bytes=len(message.value or b""),
        )


class PreviewRow(BaseModel):
    partition: int
    offset: int
    values: dict[str, Any]


class Refusal(BaseModel):
    sample: Sample
    reason: str
    field: str


class Preview(BaseModel):
    samples: int
    rows: list[PreviewRow]
    refusals: list[Refusal]
    filtered: list[Sample]
    skipped: int
    row_count: int
    refusal_count: int
    filtered_count: int


def preview(messages: Sequence[Message], rules: RowRules, limit: int = 50) -> Preview:
    """Every sample is counted; `limit` bounds what is listed."""
    transform = Transform(rules)
    rows: list[PreviewRow] = []
    refusals: list[Refusal] = []
    filtered: list[Sample] = []
    counts = {"skipped": 0, "row_count": 0, "refusal_count": 0, "filtered_count": 0}
    ordered = sorted(messages, key=lambda each: (each.partition, each.offset))
    for partition, group in groupby(ordered, key=lambda each: each.partition):
        batch = list(group)
        by_offset = {each.offset: each for each in batch}
        result = transform.apply(batch)
        counts["row_count"] += len(result.offsets)
        counts["refusal_count"] += len(result.dead)
        counts["filtered_count"] += len(result.filtered)
        counts["skipped"] += len(result.skipped)
        listed = result.columns.slice(0, limit - len(rows)).to_pylist()
        for offset, values in zip(result.offsets.tolist(), listed, strict=False):
            shown = {name: _shown(value) for name, value in values.items()}
            rows.append(PreviewRow(partition=partition, offset=offset, values=shown))
        refusals += [
            Refusal(sample=Sample.of(each.message), reason=each.reason, field=each.field)
            for each in result.dead[: limit - len(refusals)]
        ]
        filtered += [
            Sample.of(by_offset[each]) for each in result.filtered[: limit - len(filtered)].tolist()
        ]
    transform.close()
    return Preview(samples=len(messages), rows=rows, refusals=refusals, filtered=filtered, **counts)


def _shown(value: Any) -> Any:
    if isinstance(value, Decimal | dt.date):
        return str(value)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    return value
