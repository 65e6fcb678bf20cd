"""Turns messages into columns: each message becomes one row or one dead letter, never both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from kalla.errors import Problem
from kalla.sinks.model import Column, KafkaField
from kalla.sinks.rows.json_columns import JsonColumns, Misfit
from kalla.sinks.rows.types import ColumnType, Unfit, check_new, column_type
from kalla.sinks.servers.message_ranges import NO_TIMESTAMP, Integers, Message, MessageBatch

_FEW = 32  # so few documents are faster one by one
_PATIENCE = 20  # batches
_ABSENT, _NO_OBJECT = object(), object()


@dataclass(frozen=True)
class DeadLetter:
    """A message without a row: why, and the faulty field ("" for the whole message)."""

    message: Message
    reason: str
    field: str = ""


@dataclass(frozen=True)
class Mapped:
    """Rows in the order of their offsets, and the messages that have none."""

    columns: dict[str, pa.Array]
    offsets: Integers
    dead: list[DeadLetter]


def mapping_problems(mapping: Sequence[Column]) -> list[Problem]:
    """The problems of a new mapping's types, constants and defaults."""
    problems = []
    for each in mapping:
        place = f"mapping.{each.column}"
        try:
            known = column_type(each.type, each.unit)
            check_new(each.type)
        except (Unfit, ValueError) as error:
            problems.append(Problem(f"{place}.type", str(error)))
            continue
        for name, given in (("constant", each.constant), ("default", each.default)):
            if name in each.model_fields_set:
                try:
                    known.convert(_exact(given) if known.exact_numbers else given)
                except Unfit as error:
                    problems.append(Problem(f"{place}.{name}", str(error)))
    return problems


class Mapper:
    """A compiled mapping: types resolved, paths split, the JSON parser chosen."""

    def __init__(self, mapping: Sequence[Column]) -> None:
        self.columns = [(each, column_type(each.type, each.unit)) for each in mapping]
        # orjson reads numbers as floats, which would change a decimal's last digits.
        exact = any(known.exact_numbers for _, known in self.columns)
        self._parse: Callable[[bytes], Any] = parse_exactly if exact else orjson.loads
        paths = [each for each in self.columns if each[0].path is not None]
        self._at_once = JsonColumns.of(paths) if paths else None
        self._one_by_one = 0  # batches for which reading at once is not tried again

    def map(self, messages: MessageBatch) -> Mapped:
        """`messages` have a value each: tombstones were taken out before.

        A batch is read at once where that is possible; where it is not, each half is tried, so
        that a few odd documents do not slow down the others.
        """
        if self._at_once is None or len(messages) < _FEW or self._one_by_one:
            self._one_by_one = max(0, self._one_by_one - 1)
            return self.map_each(messages)
        parts = self._parts(self._at_once, messages)
        read = sum(len(part.offsets) + len(part.dead) for part, at_once in parts if at_once)
        if read * 2 < len(messages):
            self._one_by_one = _PATIENCE  # these documents are of another kind: stop trying
        return _joined([part for part, _ in parts], self.columns)

    def _parts(self, reader: JsonColumns, messages: MessageBatch) -> list[tuple[Mapped, bool]]:
        """The parts in order, and whether each was read at once."""
        if len(messages) < _FEW:
            return [(self.map_each(messages), False)]
        try:
            return [(self.map_at_once(reader, messages), True)]
        except Misfit:
            half = len(messages) // 2
            first = self._parts(reader, messages[:half])
            return [*first, *self._parts(reader, messages[half:])]

    def map_at_once(self, reader: JsonColumns, messages: MessageBatch) -> Mapped:
        """Misfit if any message is not plain."""
        read = iter(reader.read(messages))
        columns: dict[str, pa.Array] = {}
        for column, known in self.columns:
            if column.path is not None:
                columns[column.column] = next(read)
                continue
            faults: dict[int, tuple[str, str]] = {}
            columns[column.column] = _column(column, known, messages, (), faults)
            if faults:
                raise Misfit
        return Mapped(columns, messages.offsets, [])

    def map_each(self, messages: MessageBatch) -> Mapped:
        """Document by document: the meaning of a mapping."""
        dead: list[DeadLetter] = []
        kept: list[int] = []
        documents: list[Any] = []
        for row, value in enumerate(messages.values.to_pylist()):
            try:
                document = self._parse(value)
            except (ValueError, RecursionError) as error:
                dead.append(DeadLetter(messages[row], f"is not JSON: {_cause(error)}"))
                continue
            if type(document) is not dict:
                dead.append(DeadLetter(messages[row], "is JSON, but not an object"))
                continue
            kept.append(row)
            documents.append(document)
        if dead:
            messages = messages.take(np.array(kept, np.int64))
        faults: dict[int, tuple[str, str]] = {}
        columns = {
            column.column: _column(column, known, messages, documents, faults)
            for column, known in self.columns
        }
        if faults:
            dead += [DeadLetter(messages[row], *faults[row]) for row in faults]
            good = np.array([row for row in range(len(messages)) if row not in faults], np.int64)
            columns = {name: column.take(pa.array(good)) for name, column in columns.items()}
            messages = messages.take(good)
        return Mapped(columns, messages.offsets, dead)


def _joined(parts: Sequence[Mapped], columns: Sequence[tuple[Column, ColumnType]]) -> Mapped:
    if len(parts) == 1:
        return parts[0]
    return Mapped(
        {
            column.column: pa.concat_arrays([part.columns[column.column] for part in parts])
            for column, _ in columns
        },
        np.concatenate([part.offsets for part in parts]),
        [letter for part in parts for letter in part.dead],
    )


def _cause(error: ValueError | RecursionError) -> str:
    """Without the place and the value: letters are grouped by their reason."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error).split(":")[0]


def parse_exactly(value: bytes) -> Any:
    """JSON with numbers as they are written; strict about UTF-8 and about NaN."""
    return json.loads(value.decode("utf-8"), parse_float=_decimal, parse_constant=_refuse)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("a number has too many digits in its exponent") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _column(
    column: Column,
    known: ColumnType,
    messages: MessageBatch,
    documents: Sequence[Any],
    faults: dict[int, tuple[str, str]],
) -> pa.Array:
    """The column's values, converted; failures go to `faults`, the first one counts."""
    raw = _raw(column, messages, documents)
    if known.plain and set(map(type, raw)) <= known.plain:
        values = _array(raw, known)
        if values is not None:
            return values
    converted: list[Any] = []
    where = column.path or column.header or column.kafka or column.column
    absent = _default(column, known)
    for row, value in enumerate(raw):
        try:
            if value is _NO_OBJECT:
                raise Unfit("is inside a value that is not an object")
            if value is not _ABSENT:
                converted.append(known.convert(value))
            elif absent is not _ABSENT:
                converted.append(absent)
            else:
                raise Unfit("is absent, and the mapping has no default for it")
        except Unfit as error:
            faults.setdefault(row, (str(error), where))
            converted.append(None)
    values = _array(converted, known)
    if values is None:  # a value that its conversion should have refused
        for row, value in enumerate(converted):
            if _array([value], known) is None:
                faults.setdefault(row, (f"does not fit {known.name}", where))
                converted[row] = None
        values = pa.array(converted, known.arrow)
    return values


def _array(values: list[Any], known: ColumnType) -> pa.Array | None:
    """None if Arrow does not accept all of them: too large integers, half surrogate pairs."""
    try:
        return pa.array(values, known.arrow)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return None


def _raw(column: Column, messages: MessageBatch, documents: Sequence[Any]) -> list[Any]:
    if column.path is not None:
        return _at(column.path.split("."), documents)
    if column.header is not None:
        return [_header(headers, column.header) for headers in _headers(messages)]
    if column.kafka is not None:
        return _of_kafka(messages, column.kafka)
    constant = column.constant
    if column_type(column.type, column.unit).exact_numbers:
        constant = _exact(constant)
    return [constant] * len(messages)


def _at(path: list[str], documents: Sequence[Any]) -> list[Any]:
    first, *rest = path
    found = [document.get(first, _ABSENT) for document in documents]
    for name in rest:
        found = [
            each.get(name, _ABSENT)
            if type(each) is dict
            else (each if each is None or each is _ABSENT else _NO_OBJECT)
            for each in found
        ]
    return found


def _default(column: Column, known: ColumnType) -> Any:
    if column.has_default:
        given = _exact(column.default) if known.exact_numbers else column.default
        return known.convert(given)
    return None if known.nullable else _ABSENT


def _exact(value: Any) -> Any:
    """YAML reads 0.10 as a float; its shortest notation is what was written."""
    return Decimal(repr(value)) if type(value) is float else value


def _headers(messages: MessageBatch) -> list[tuple[tuple[str, bytes | None], ...]]:
    if messages.headers is None:
        return [()] * len(messages)
    return [messages.headers_of(row) for row in range(len(messages))]


def _header(headers: Sequence[tuple[str, bytes | None]], name: str) -> Any:
    values = [value for key, value in headers if key == name]
    return _decoded(values[-1]) if values else _ABSENT


def _of_kafka(messages: MessageBatch, field: KafkaField) -> list[Any]:
    count = len(messages)
    match field:
        case "key":
            return [_decoded(key) for key in messages.keys.to_pylist()]
        case "headers":
            return [{key: _decoded(value) for key, value in each} for each in _headers(messages)]
        case "timestamp":
            return [None if each == NO_TIMESTAMP else each for each in messages.timestamps.tolist()]
        case "offset":
            return list(messages.offsets.tolist())
        case "partition":
            return [messages.partition] * count
        case "topic":
            return [messages.topic] * count


def _decoded(value: bytes | None) -> str | None:
    # Bytes that are not UTF-8 become half surrogate pairs, which no text column accepts.
    return None if value is None else value.decode("utf-8", "surrogateescape")
