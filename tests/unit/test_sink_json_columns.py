"""Reading a batch at once gives what reading each document gives, or is not done."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.sinks.model import Column
from kalla.sinks.rows import mapping as mappings
from kalla.sinks.rows.json_columns import Misfit
from kalla.sinks.rows.mapping import Mapped, Mapper
from kalla.sinks.servers.message_ranges import Message, MessageBatch

COLUMNS = [
    Column(column="id", type="UInt64", path="id"),
    Column(column="small", type="Nullable(Int8)", path="small"),
    Column(column="rate", type="Float64", path="rate", default=0.5),
    Column(column="single", type="Nullable(Float32)", path="single"),
    Column(column="name", type="LowCardinality(String)", path="name"),
    Column(column="city", type="Nullable(String)", path="address.city"),
    Column(column="paid", type="Bool", path="paid", default=False),
    Column(column="at", type="DateTime64(3, 'UTC')", path="at", unit="ms", default=0),
    Column(column="seen", type="Nullable(DateTime64(3))", path="seen"),
    Column(column="amount", type="Nullable(Decimal(9, 2))", path="amount"),
    Column(column="key", type="Nullable(UUID)", path="key"),
    Column(column="tags", type="Array(String)", path="tags", default=[]),
    Column(column="place", type="Int64", kafka="offset"),
    Column(column="source", type="String", constant="web"),
    Column(column="trace", type="String", header="trace", default="none"),
]
ANY = st.sampled_from(
    [None, True, 0, 1, -1, 300, 2**64, 2**63, 1.5, 1e39, 1e308, "", "x", "1.50", "1.505", "\ud800",
     "6f1c1d3a-57cf-4f0f-9c4e-0d6d1a1b2c3d", "2026-01-31T10:00:00Z", [], ["a"], ["a", None], [1],
     {}, {"city": "Kyiv"}, {"city": 5}, {"city": None}]
)  # fmt: skip
ODD = st.sampled_from(
    [b"", b"{}", b"null", b"[]", b"{", b'{"id": 1', b'{"id": 1}{"id": 2}', b'{"id": 1, "id": 2}',
     b'{"id": 1, "name": "a", "x": "\xff"}', b' {"id": 5, "name": "b"}',
     b'{"id": 1.0, "name": "c"}',
     b'{\n"id": 7,\n"name": "d"\n}', b'{"id": 1e2, "name": "e"}', b'{"id": 1, "name": "f"}}',
     b'{"id": 1, "name": "g", "rate": 1e999}', b'{"id": 1, "name": "h", "rate": NaN}',
     b'{"id": 01, "name": "i"}', b'{"id": 1, "name": "\\ud800"}', b'{"id": 1, "name": "j",}',
     b'{"id": -0, "name": "k"}', b'{"id":1,"name":"l\\u0000"}', b'{"id": 1, "address": 5}',
     b'{"id": 1, "name": "m", "address": {"city": "a", "city": "b"}}']
)  # fmt: skip
PLAIN = st.fixed_dictionaries({"id": st.integers(0, 2**64 - 1), "name": st.text(max_size=3)})
NAMES = ["small", "rate", "single", "address", "paid", "at", "seen", "amount", "key", "tags", "id"]
DOCUMENT = st.builds(
    lambda plain, changes: json.dumps(plain | changes).encode(),
    PLAIN,
    st.dictionaries(st.sampled_from(NAMES), ANY, max_size=2),
)


def messages(values: list[bytes]) -> MessageBatch:
    listed = [
        Message(
            "t",
            0,
            10 + number,
            5,
            None,
            value,
            (("trace", b"\xff" if number % 5 == 4 else b"x"),) if number % 3 else (),
        )
        for number, value in enumerate(values)
    ]
    return MessageBatch.of(listed)


def shown(mapped: Mapped) -> dict[str, Any]:
    return {
        "columns": {name: column.to_pylist() for name, column in mapped.columns.items()},
        "types": {name: column.type for name, column in mapped.columns.items()},
        "offsets": mapped.offsets.tolist(),
        "dead": sorted((each.message.offset, each.field, each.reason) for each in mapped.dead),
    }


@settings(max_examples=150, deadline=None, report_multiple_bugs=False)
@given(st.lists(st.one_of(DOCUMENT, DOCUMENT, DOCUMENT, ODD), max_size=12))
def test_both_ways_agree(values: list[bytes]) -> None:
    given_ = messages(values)
    assert shown(at_once(COLUMNS, given_)) == shown(Mapper(COLUMNS).map_each(given_))


def at_once(columns: list[Column], given_: MessageBatch) -> Mapped:
    """However few they are."""
    mapper = Mapper(columns)
    assert mapper._at_once is not None
    if not len(given_):
        return mapper.map_each(given_)
    return mappings._joined(_parts(mapper, given_), mapper.columns)


def _parts(mapper: Mapper, given_: MessageBatch) -> list[Mapped]:
    try:
        assert mapper._at_once is not None
        return [mapper.map_at_once(mapper._at_once, given_)]
    except Misfit:
        if len(given_) == 1:
            return [mapper.map_each(given_)]
        half = len(given_) // 2
        return [*_parts(mapper, given_[:half]), *_parts(mapper, given_[half:])]


def test_a_large_batch_with_a_few_odd_documents_is_read_at_once_and_whole() -> None:
    values = [json.dumps({"id": n, "name": "x"}).encode() for n in range(2000)]
    values[77], values[1500] = b"nonsense", b'{"id": -1, "name": "x"}'
    mapper = Mapper(COLUMNS[:1] + COLUMNS[4:5])
    mapped = mapper.map(messages(values))
    assert [each.message.offset for each in mapped.dead] == [87, 1510]
    assert len(mapped.offsets) == 1998
    assert mapper._one_by_one == 0


def test_a_message_of_two_documents_is_one_dead_letter() -> None:
    values = [json.dumps({"id": n, "name": "x"}).encode() for n in range(64)]
    values[40] *= 2
    mapped = Mapper(COLUMNS[:1] + COLUMNS[4:5]).map(messages(values))
    assert [each.message.offset for each in mapped.dead] == [50]
    assert mapped.columns["id"].to_pylist() == [n for n in range(64) if n != 40]


def test_documents_of_another_kind_are_not_tried_at_once_again_and_again() -> None:
    values = [json.dumps({"id": float(n), "name": "x"}).encode() for n in range(64)]
    mapper = Mapper(COLUMNS[:1] + COLUMNS[4:5])
    assert mapper.map(messages(values)).offsets.tolist() == [10 + n for n in range(64)]
    assert mapper._one_by_one > 0


@pytest.mark.parametrize(
    "columns",
    [
        [Column(column="a", type="JSON", path="a")],
        [Column(column="a", type="String", kafka="key")],
        [Column(column="a", type="Map(String, Int8)", path="a")],
        [Column(column="a", type="String", path="a"), Column(column="b", type="Int8", path="a.b")],
        [Column(column="a", type="String", path="a"), Column(column="b", type="Int8", path="a")],
    ],
)
def test_what_cannot_be_read_at_once_is_read_one_by_one(columns: list[Column]) -> None:
    assert Mapper(columns)._at_once is None
