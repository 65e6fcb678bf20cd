"""Turns messages into rows by one version of the rules: mapped, filtered, dead or skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kalla.sinks.model import PROVENANCE, RowRules
from kalla.sinks.rows.filters import Filter, Place
from kalla.sinks.rows.mapping import DeadLetter, Mapper
from kalla.sinks.rows.types import column_type
from kalla.sinks.servers.message_ranges import Integers, Message, MessageBatch

_NONE: Integers = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Transformed:
    """Every message is in exactly one of: a row, `dead`, `skipped`, `filtered`."""

    columns: pa.Table
    offsets: Integers  # of the rows
    dead: list[DeadLetter]  # by offset
    skipped: Integers  # offsets of tombstones
    filtered: Integers  # offsets of rows that a filter left out


class Transform:
    """Made once a version; `apply` is called for every batch."""

    def __init__(self, rules: RowRules) -> None:
        self.rules = rules
        self.mapper = Mapper(rules.mapping)
        self._filter = Filter(rules.filters, rules.mapping) if rules.filters else None

    @property
    def input_types(self) -> dict[str, str]:
        """How each column of a row is declared to ClickHouse, with those of provenance."""
        mapped = {column.column: known.input_type for column, known in self.mapper.columns}
        return mapped | {name: column_type(kind).input_type for name, kind in PROVENANCE.items()}

    def close(self) -> None:
        if self._filter is not None:
            self._filter.close()

    def apply(self, given: Sequence[Message]) -> Transformed:
        """`given` are of one partition, each offset once, in their order."""
        messages = MessageBatch.of(given)
        dead: list[DeadLetter] = []
        skipped, valued = _NONE, messages
        if messages.values.null_count:
            empty = messages.values.is_null().to_numpy(zero_copy_only=False)
            valued = messages.take(np.flatnonzero(~empty))
            if self.rules.tombstones == "dead_letter":
                dead = [
                    DeadLetter(messages[row], "has no value (a tombstone)")
                    for row in map(int, np.flatnonzero(empty))
                ]
            else:
                skipped = messages.offsets[empty]
        mapped = self.mapper.map(valued)
        dead += mapped.dead
        columns, offsets, filtered = pa.table(mapped.columns), mapped.offsets, _NONE
        if self._filter is not None and len(offsets):
            place = Place(messages.topic, messages.partition, offsets)
            passing = self._filter.passing(mapped.columns, place)
            out = ~passing.rows
            for row, reason in passing.faults.items():
                (letter,) = valued.between(offsets[row], offsets[row] + 1)
                dead.append(DeadLetter(letter, reason))
                out[row] = False
            filtered = offsets[out]
            if not passing.rows.all():
                columns = columns.filter(pa.array(passing.rows))
                offsets = offsets[passing.rows]
        dead.sort(key=lambda each: each.message.offset)
        result = Transformed(columns, offsets, dead, skipped, filtered)
        _check(messages, result)
        return result

    def joined(self, parts: Sequence[Transformed]) -> Transformed:
        """The results of several batches as one; no rows for none."""
        empty = {column.column: pa.array([], known.arrow) for column, known in self.mapper.columns}
        return Transformed(
            pa.concat_tables([pa.table(empty), *(part.columns for part in parts)]),
            np.concatenate([_NONE, *(part.offsets for part in parts)]),
            [letter for part in parts for letter in part.dead],
            np.concatenate([_NONE, *(part.skipped for part in parts)]),
            np.concatenate([_NONE, *(part.filtered for part in parts)]),
        )


def _check(messages: MessageBatch, result: Transformed) -> None:
    """One message is one result, by offset: a parser that loses or splits one is found here."""
    dead = np.array([each.message.offset for each in result.dead], np.int64)
    found = np.sort(np.concatenate([result.offsets, dead, result.skipped, result.filtered]))
    if not np.array_equal(found, messages.offsets):
        raise AssertionError(f"{len(messages)} messages became {len(found)} results, not the same")
    if result.columns.num_rows != len(result.offsets):
        raise AssertionError("there are more or fewer rows than offsets of rows")
