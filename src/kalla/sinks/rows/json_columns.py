"""Reads whole batches of JSON documents into columns at once, where every document is plain.

It is several times faster than document by document, and never guesses: values that it cannot read
exactly are left to the mapping, which reads document by document.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from kalla.sinks.model import Column
from kalla.sinks.rows.types import ColumnType, Unfit, moment_bounds
from kalla.sinks.servers.message_ranges import MessageBatch

_MOST_BYTES = 1 << 30
_INTEGER = re.compile(r"U?Int(8|16|32|64)")


class Misfit(Exception):
    """Some document of the batch is not plain."""


@dataclass(frozen=True)
class Leaf:
    """A column to read: its path, its Arrow type, and its conversion."""

    path: tuple[str, ...]
    read_as: Any
    known: ColumnType
    scale: int | None  # microseconds of a unit, for epochs
    low: int
    high: int
    each: bool  # converted value by value
    nulls: bool  # whether null and absent are the same to the mapping


@dataclass
class _Node:
    """Fields of an object: leaves have a type, objects have more fields."""

    type: Any = None
    fields: dict[str, _Node] = field(default_factory=dict)


class JsonColumns:
    """The batch reader of one mapping; `of` returns None if there is none."""

    def __init__(self, leaves: Sequence[Leaf], schema: Any) -> None:
        self._leaves = leaves
        self._schema = schema

    @classmethod
    def of(cls, columns: Sequence[tuple[Column, ColumnType]]) -> JsonColumns | None:
        """None where the mapping has types or paths that are read document by document."""
        leaves, tree = [], _Node()
        for column, known in columns:
            leaf = _leaf(column, known)
            if leaf is None or not _plant(tree, leaf):
                return None
            leaves.append(leaf)
        return cls(leaves, [pa.field(name, _type(node)) for name, node in tree.fields.items()])

    def read(self, messages: MessageBatch) -> list[pa.Array]:
        """The columns, a row for each message; Misfit if any of them is not plain."""
        mark = secrets.token_urlsafe(8)  # writers of messages cannot know it
        body = _spliced(messages, mark)
        try:
            # Arrow does not check the fields it skips.
            _one_text(body).validate(full=True)
            table = pj.read_json(
                pa.BufferReader(body),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(body) + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=pa.schema([pa.field(mark, pa.int64()), *self._schema]),
                    unexpected_field_behavior="ignore",
                ),
            ).combine_chunks()
        except pa.ArrowException:
            raise Misfit from None
        # A document that is two, none, or part of another shows in the offsets.
        found = table.column(mark)
        if found.null_count or not np.array_equal(found.to_numpy(), messages.offsets):
            raise Misfit
        return [_converted(_at(table, leaf.path), leaf) for leaf in self._leaves]


def _spliced(messages: MessageBatch, mark: str) -> pa.Buffer:
    """A line for each document, each with its offset as its first field."""
    from kalla.sinks.rows.splicing import DIGITS, splice

    head = np.frombuffer(f'{{"{mark}":'.encode(), np.uint8)
    _, ends, values = messages.values.buffers()
    first = messages.values.offset
    spans = np.frombuffer(ends, np.int64)[first : first + len(messages) + 1]
    most = messages.value_bytes + len(messages) * (len(head) + DIGITS + 2) + DIGITS
    if values is None or most > _MOST_BYTES:
        raise Misfit
    body = np.empty(most, np.uint8)
    size = splice(messages.offsets, spans, np.frombuffer(values, np.uint8), head, body)
    if size < 0:
        raise Misfit
    return pa.py_buffer(body).slice(0, size)


def _one_text(body: pa.Buffer) -> pa.LargeStringArray:
    ends = pa.py_buffer(np.array([0, len(body)], np.int64))
    return pa.Array.from_buffers(pa.large_string(), 1, [None, ends, body])


def _leaf(column: Column, known: ColumnType) -> Leaf | None:
    if column.path is None or not all(column.path.split(".")):
        return None
    kind = re.sub(r"^(LowCardinality|Nullable)\((.*)\)$", r"\2", known.name.replace(" ", ""))
    kind = re.sub(r"^(LowCardinality|Nullable)\((.*)\)$", r"\2", kind)
    path = tuple(column.path.split("."))
    nulls = known.nullable and not column.has_default
    scale, low, high, each = None, 0, 0, False
    if _INTEGER.fullmatch(kind):
        read_as = known.arrow
    elif kind in ("Float32", "Float64"):
        read_as = pa.float64()
    elif kind == "Bool":
        read_as = pa.bool_()
    elif kind == "String":
        read_as = pa.string()
    elif kind.startswith("DateTime") and column.unit is not None:
        read_as = pa.int64()
        scale = {"s": 1_000_000, "ms": 1_000, "us": 1}[column.unit]
        low, high = (each * 1_000_000 // scale for each in moment_bounds(kind))
    elif kind == "UUID" or kind.startswith(("DateTime", "Date", "Decimal")):
        read_as, each = pa.string(), True
    elif kind == "Array(String)":
        read_as = pa.list_(pa.string())
    else:
        return None
    return Leaf(path, read_as, known, scale, low, high, each, nulls)


def _plant(tree: _Node, leaf: Leaf) -> bool:
    """Puts the leaf's type at its path; False if another column has a different one there."""
    node = tree
    for name in leaf.path[:-1]:
        node = node.fields.setdefault(name, _Node())
        if node.type is not None:
            return False
    last = node.fields.setdefault(leaf.path[-1], _Node())
    if last.fields or last.type not in (None, leaf.read_as):
        return False
    last.type = leaf.read_as
    return True


def _type(node: _Node) -> Any:
    if node.type is not None:
        return node.type
    return pa.struct([pa.field(name, _type(each)) for name, each in node.fields.items()])


def _at(table: pa.Table, path: Sequence[str]) -> pa.Array:
    column = table.column(path[0])
    found = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    for name in path[1:]:
        found = pc.struct_field(found, name)
    return found


def _converted(values: pa.Array, leaf: Leaf) -> pa.Array:
    """Converts to the column's type; Misfit for values that the slower way would not take
    unchanged.
    """
    if values.null_count and not leaf.nulls:
        raise Misfit  # null or absent: the mapping distinguishes them
    if leaf.each:
        try:
            return pa.array(
                [
                    None if value is None else leaf.known.convert(value)
                    for value in values.to_pylist()
                ],
                leaf.known.arrow,
            )
        except (Unfit, pa.ArrowException):
            raise Misfit from None
    if leaf.scale is not None:
        bounds = pc.min_max(values).as_py()
        if bounds["min"] is not None and not leaf.low <= bounds["min"] <= bounds["max"] < leaf.high:
            raise Misfit
        return pc.multiply(values, leaf.scale).cast(leaf.known.arrow)
    if pa.types.is_floating(values.type):
        if pc.any(pc.is_inf(values)).as_py():
            raise Misfit
        if values.type != leaf.known.arrow:
            bounds = pc.min_max(pc.abs(values)).as_py()
            if bounds["max"] is not None and bounds["max"] > 3.4028235e38:
                raise Misfit
            return values.cast(leaf.known.arrow, safe=False)
    if pa.types.is_list(values.type) and values.flatten().null_count:
        raise Misfit
    return values
