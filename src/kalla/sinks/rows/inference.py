"""Proposes a mapping from samples: their fields, frequencies and types."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, Field

from kalla.sinks.model import PROVENANCE, Column
from kalla.sinks.rows.mapping import parse_exactly
from kalla.sinks.servers.message_ranges import Message

_MOST_FIELDS = 300
_MOST_EXAMPLES = 3
_MOST_DEPTH = 8
_FEW_VALUES = 30  # at most this many distinct texts make a dictionary worthwhile
_MANY_SAMPLES = 100

_TIME_NAME = re.compile(
    r"(^|_)(at|ts|time|timestamp|date|created|updated|when)($|_)", re.IGNORECASE
)
_AMOUNT = re.compile(r"-?\d{1,15}\.(\d{1,9})")
_UNITS = (("s", 1), ("ms", 1000), ("us", 1_000_000))
_YEAR_2000, _YEAR_2100 = 946_684_800, 4_102_444_800


class FieldFacts(BaseModel):
    """One field of the samples."""

    path: str
    presence: float = Field(description="share of the objects that have it, 0 to 1")
    nulls: int
    types: dict[str, int] = Field(description="how often each JSON type was seen")
    conflict: str | None = Field(description="the conflict between its types")
    examples: list[str]
    column: Column | None = Field(description="the proposed column; none: it cannot be mapped")


class Inference(BaseModel):
    samples: int
    unreadable: int = Field(
        description="samples that are not JSON objects: they become dead letters"
    )
    empty: int = Field(description="samples without a value (tombstones)")
    fields: list[FieldFacts]

    @property
    def mapping(self) -> list[Column]:
        return [each.column for each in self.fields if each.column is not None]


@dataclass
class _Field:
    """The values at a path."""

    present: int = 0
    nulls: int = 0
    types: Counter[str] = field(default_factory=Counter)
    values: list[Any] = field(default_factory=list)


def infer(messages: Sequence[Message]) -> Inference:
    fields: dict[str, _Field] = {}
    objects = unreadable = empty = 0
    for message in messages:
        if message.value is None:
            empty += 1
            continue
        try:
            document = parse_exactly(message.value)
        except (ValueError, RecursionError):
            document = None
        if type(document) is not dict:
            unreadable += 1
            continue
        objects += 1
        for path, value in _leaves(document):
            if path not in fields and len(fields) >= _MOST_FIELDS:
                continue
            seen = fields.setdefault(path, _Field())
            seen.present += 1
            seen.types[_type_of(value)] += 1
            if value is None:
                seen.nulls += 1
            else:
                seen.values.append(value)
    names: set[str] = set(PROVENANCE)
    return Inference(
        samples=len(messages),
        unreadable=unreadable,
        empty=empty,
        fields=[_facts(path, seen, objects, names) for path, seen in fields.items()],
    )


def _leaves(
    document: dict[str, Any], prefix: str = "", depth: int = 1
) -> Iterator[tuple[str, Any]]:
    """Descends into objects; names that cannot be part of a path are left out."""
    for name, value in document.items():
        if "." in name or not name or not _is(str.encode)(name):
            continue
        if type(value) is dict and value and depth < _MOST_DEPTH:
            yield from _leaves(value, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", value


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is list:
        inner = sorted({_type_of(each) for each in value} - {"null"})
        return f"array of {' and '.join(inner)}" if inner else "array"
    return {bool: "boolean", int: "integer", Decimal: "number", str: "text", dict: "object"}[
        type(value)
    ]


def _shown(value: Any) -> str:
    """The beginning, for people and for JSON: half surrogate pairs are replaced."""
    return str(value)[:80].encode("utf-8", "replace").decode()


def _facts(path: str, seen: _Field, objects: int, names: set[str]) -> FieldFacts:
    kinds = {kind for kind in seen.types if kind != "null"}
    kind, unit = _column_type(path, kinds, seen)
    conflict = None
    if len(kinds) > 1 and kinds not in ({"integer", "number"}, {"array", "array of text"}):
        counted = ", ".join(f"{seen.types[each]} {each}" for each in sorted(kinds))
        conflict = f"{counted}: those that do not fit the column become dead letters"
    column = None
    if kind is not None:
        optional = seen.present < objects or seen.nulls > 0
        if optional and not kind.startswith(("Array", "Map")):
            inner = re.fullmatch(r"LowCardinality\((.*)\)", kind)
            kind = f"LowCardinality(Nullable({inner[1]}))" if inner else f"Nullable({kind})"
        given: dict[str, Any] = {"column": _name(path, names), "path": path, "type": kind}
        if unit:
            given["unit"] = unit
        if optional and kind.startswith("Array"):
            given["default"] = []
        column = Column(**given)
    return FieldFacts(
        path=path,
        presence=seen.present / objects if objects else 0.0,
        nulls=seen.nulls,
        types=dict(seen.types),
        conflict=conflict,
        examples=[_shown(each) for each in seen.values[:_MOST_EXAMPLES]],
        column=column,
    )


def _column_type(path: str, kinds: set[str], seen: _Field) -> tuple[str | None, str | None]:
    """The type and the unit of the most frequent values; None where no column type fits."""
    if not kinds:
        return "String", None  # null in every sample: anything may come
    most = max(kinds, key=lambda kind: (seen.types[kind], kind))
    values = [value for value in seen.values if _type_of(value) == most]
    if kinds == {"integer", "number"} or most == "number":
        return "Float64", None
    if most == "boolean":
        return "Bool", None
    if most == "integer":
        if unit := _epoch_unit(path, values):
            return "DateTime64(3, 'UTC')", unit
        return ("UInt64" if max(values) > 2**63 - 1 else "Int64"), None
    if most == "text":
        return _text_type(values), None
    if most == "object":
        return "JSON", None
    return {
        "array": "Array(String)",
        "array of boolean": "Array(Bool)",
        "array of integer": "Array(Int64)",
        "array of number": "Array(Float64)",
        "array of integer and number": "Array(Float64)",
        "array of text": "Array(String)",
    }.get(most), None


def _text_type(values: Sequence[str]) -> str:
    if all(map(_is(uuid.UUID), values)):
        return "UUID"
    if all(map(_is(dt.date.fromisoformat), values)) and all(len(each) == 10 for each in values):
        return "Date32"
    if all(map(_is(dt.datetime.fromisoformat), values)) and all(len(each) > 10 for each in values):
        return "DateTime64(3, 'UTC')"
    amounts = [_AMOUNT.fullmatch(each) for each in values]
    if all(amounts):
        scale = max(len(each[1]) for each in amounts if each)
        return f"Decimal({18 if scale <= 4 else 38}, {scale})"
    if len(values) >= _MANY_SAMPLES and len(set(values)) <= _FEW_VALUES:
        return "LowCardinality(String)"
    return "String"


def _epoch_unit(path: str, values: Sequence[int]) -> str | None:
    """Only if the name suggests a time: a number alone is a number."""
    if not _TIME_NAME.search(path.rpartition(".")[2]):
        return None
    for unit, scale in _UNITS:
        if all(_YEAR_2000 * scale <= each < _YEAR_2100 * scale for each in values):
            return unit
    return None


def _is(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return fits


def _name(path: str, taken: set[str]) -> str:
    """A column's name of a path: customer.address.city is customer_address_city."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", path.replace(".", "_"))[:120]
    plain = plain if re.match(r"[A-Za-z_]", plain) else f"f_{plain}"
    name, number = plain, 2
    while name.lower() in taken:  # filters do not tell apart what differs only by case
        name, number = f"{plain}_{number}", number + 1
    taken.add(name.lower())
    return name
