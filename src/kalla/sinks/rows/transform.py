"""Turns messages into rows by one version of the rules: mapped, filtered, dead or skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from kalla.sinks.model import RowRules
from kalla.sinks.rows.filters import Filter, Place
from kalla.sinks.rows.mapping import DeadLetter, Mapper
from kalla.sinks.servers.message_ranges import Message


@dataclass(frozen=True)
class Transformed:
    """Every message is in exactly one of: a row, `dead`, `skipped`, `filtered`."""

    columns: dict[str, pa.Array]
    offsets: list[int]  # of the rows
    dead: list[DeadLetter]  # by offset
    skipped: list[int]  # offsets of tombstones
    filtered: list[int]  # offsets of rows that a filter left out


class Transform:
    """Made once a version; `apply` is called for every batch."""

    def __init__(self, rules: RowRules) -> None:
        self.rules = rules
        self.mapper = Mapper(rules.mapping)
        self._filter = Filter(rules.filters, rules.mapping) if rules.filters else None

    @property
    def input_types(self) -> dict[str, str]:
        """How each column is declared to ClickHouse."""
        return {column.column: known.input_type for column, known in self.mapper.columns}

    def close(self) -> None:
        if self._filter is not None:
            self._filter.close()

    def apply(self, messages: Sequence[Message]) -> Transformed:
        """`messages` are of one partition, each offset once."""
        skipped: list[int] = []
        dead: list[DeadLetter] = []
        valued = [message for message in messages if message.value is not None]
        for message in messages:
            if message.value is None:
                if self.rules.tombstones == "dead_letter":
                    dead.append(DeadLetter(message, "has no value (a tombstone)"))
                else:
                    skipped.append(message.offset)
        mapped = self.mapper.map(valued)
        dead += mapped.dead
        columns, offsets, filtered = mapped.columns, mapped.offsets, []
        if self._filter is not None and offsets:
            place = Place(messages[0].topic, messages[0].partition, offsets)
            passing = self._filter.passing(columns, place)
            kept = [row for row, passes in enumerate(passing.rows) if passes]
            by_offset = {message.offset: message for message in valued}
            dead += [
                DeadLetter(by_offset[offsets[row]], reason)
                for row, reason in passing.faults.items()
            ]
            filtered = [
                offsets[row]
                for row, passes in enumerate(passing.rows)
                if not passes and row not in passing.faults
            ]
            if len(kept) < len(offsets):
                chosen = pa.array(kept, pa.int64())
                columns = {name: column.take(chosen) for name, column in columns.items()}
                offsets = [offsets[row] for row in kept]
        dead.sort(key=lambda each: each.message.offset)
        result = Transformed(columns, offsets, dead, skipped, filtered)
        _check(messages, result)
        return result


def _check(messages: Sequence[Message], result: Transformed) -> None:
    """One message is one result, by offset: a parser that loses or splits one is found here."""
    found = sorted(
        [
            *result.offsets,
            *(each.message.offset for each in result.dead),
            *result.skipped,
            *result.filtered,
        ]
    )
    if found != [message.offset for message in messages]:
        raise AssertionError(f"{len(messages)} messages became {len(found)} results, not the same")
    if any(len(column) != len(result.offsets) for column in result.columns.values()):
        raise AssertionError("a column has more or fewer values than there are rows")
