"""A mapping turns values into columns exactly, or names the field that does not fit."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalla.errors import InvalidInput
from kalla.sinks import model
from kalla.sinks.model import Column
from kalla.sinks.rows.mapping import Mapper, mapping_problems
from kalla.sinks.rows.types import Unfit, column_type
from kalla.sinks.servers.message_ranges import Message, MessageBatch

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def message(offset: int, value: bytes | None, **changes: Any) -> Message:
    plain = Message("t", 0, offset, timestamp=5, key=b"k", value=value)
    return replace(plain, **changes)


def only(kind: str, value: object, unit: str | None = None) -> object:
    return column_type(kind, unit).convert(value)


def test_values_become_what_their_type_says() -> None:
    assert only("UInt8", 255) == 255
    assert only("Decimal(10, 2)", "1.50") == Decimal("1.50")
    assert only("Decimal(10, 2)", Decimal("1.500")) == Decimal("1.50")
    assert only("DateTime64(3)", "1970-01-01T00:00:01Z") == 1_000_000
    assert only("DateTime64(3)", 1500, "ms") == 1_500_000
    assert only("Date", "2026-01-31") == dt.date(2026, 1, 31)
    assert only("Nullable(Int8)", None) is None
    assert only("Array(Nullable(Int8))", [1, None]) == [1, None]
    assert only("Map(String, Array(Int8))", {"a": [1]}) == [("a", [1])]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("UInt8", 256),
        ("Int8", -129),
        ("Int32", 1.5),
        ("Int32", "1"),
        ("Int32", True),
        ("Int32", Decimal("1e999999")),
        ("Int32", float("inf")),
        ("DateTime64(3)", "1e999999"),
        ("Decimal(4, 2)", "100"),
        ("Decimal(4, 2)", 0.1),
        ("Float32", 1e39),
        ("String", 1),
        ("String", "\ud800"),
        ("Bool", 1),
        ("UUID", "no"),
        ("Date", "2026-02-30"),
        ("DateTime", "1969-12-31T23:59:59Z"),
        ("Array(Int8)", [1, None]),
        ("Map(String, Int8)", []),
        ("JSON", "text"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind: str, value: object) -> None:
    with pytest.raises(Unfit):
        only(kind, value)


@pytest.mark.parametrize("kind", ["Nullable(Array(Int8))", "Enum8('a' = 1)", "Int", "Array(", ""])
def test_a_type_that_kalla_does_not_know_is_refused(kind: str) -> None:
    with pytest.raises(Unfit):
        column_type(kind)


@pytest.mark.parametrize("kind", ["DateTime64(10)", "Map(String, JSON(a UInt8))"])
def test_a_type_that_only_stored_mappings_may_have_is_refused_in_new_ones(kind: str) -> None:
    mapping = [Column(column="a", type=kind, path="a")]
    assert [each.field for each in mapping_problems(mapping)] == ["mapping.a.type"]
    assert Mapper(mapping).columns


@settings(deadline=None)  # Arrow imports pandas with the first value
@given(st.lists(st.one_of(JSON.map(lambda value: json.dumps(value).encode()), st.binary())))
def test_every_message_is_one_row_or_one_dead_letter(values: list[bytes]) -> None:
    for kind in (
        "Nullable(Int64)", "Decimal(20, 4)", "String", "Array(Float64)",
        "JSON", "DateTime64(9)", "Float32", "Decimal(38, 0)",
    ):  # fmt: skip
        mapper = Mapper([Column(column="a", type=kind, path="a")])
        mapped = mapper.map(
            MessageBatch.of([message(offset, value) for offset, value in enumerate(values)])
        )
        dead = [each.message.offset for each in mapped.dead]
        assert sorted([*mapped.offsets, *dead]) == list(range(len(values)))
        assert len(mapped.columns["a"]) == len(mapped.offsets)


@pytest.mark.parametrize("wanted", [{}, {"default": "none"}])
@pytest.mark.parametrize("address", ['"Kyiv"', "1", "[]", "false"])
def test_a_field_of_something_else_than_an_object_is_no_null_and_no_default(
    address: str, wanted: dict[str, Any]
) -> None:
    column = Column(column="city", type="Nullable(String)", path="address.city", **wanted)
    values = [f'{{"address": {address}}}'.encode(), b'{"address": null}', b'{"address": {}}', b"{}"]
    mapped = Mapper([column]).map(
        MessageBatch.of([message(row, value) for row, value in enumerate(values)])
    )
    assert [(each.message.offset, each.field) for each in mapped.dead] == [(0, "address.city")]
    absent = wanted.get("default")
    assert mapped.columns["city"].to_pylist() == [None, absent, absent]


NINES = "9" * 38


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("Float32", "1e300", []),
        ("Float32", "1.5", [1.5]),
        ("Float64", "1e400", []),
        ("Decimal(18, 2)", "1.1" + "0" * 55, [Decimal("1.10")]),
        ("Decimal(18, 2)", '"1.1' + "0" * 55 + '"', [Decimal("1.10")]),
        ("Decimal(18, 2)", '"0e400"', [Decimal("0.00")]),
        ("Decimal(18, 2)", "1e1000000", []),
        ("Decimal(18, 2)", "-1e1000000", []),
        ("Decimal(18, 2)", "1e-1000000", []),
        ("Decimal(18, 2)", "1e9999999999999999999", []),
        ("Decimal(38, 0)", NINES, [Decimal(NINES)]),
        ("Decimal(76, 38)", f'"{NINES}.{NINES}"', [Decimal(f"{NINES}.{NINES}")]),
        ("JSON", '{"a": 1.5}', ['{"a":1.5}']),
        ("JSON", '{"a": "\\ud800"}', []),
        ("JSON", '{"\\ud800": 1}', []),
        ("JSON", '{"a": 1e400}', []),
        ("JSON", '{"a": 1e9999999999999999999}', []),
        ("JSON", '{"a.b": 1, "a": {"b": 2}}', []),
        ("JSON", '{"a.b": null, "a": {"b": 2}}', ['{"a.b":null,"a":{"b":2}}']),
        ("JSON", '{"a": [[{"x.y": 1, "x": {"y": []}}]]}', []),
        ("JSON", '{"a":' * 5000 + "1" + "}" * 5000, []),
        ("DateTime64(9)", '"2262-04-11T23:47:15.999999Z"', [9_223_372_035_999_999]),
        ("DateTime64(9)", '"2290-01-01T00:00:00Z"', []),
        ("DateTime64(8)", '"2290-01-01T00:00:00Z"', [10098259200000000]),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_value_that_would_stop_a_range_is_a_dead_letter(
    kind: str, value: str, wanted: list[object], exact: bool
) -> None:
    """Every error of one value is its own: one that left the mapping would come back for ever."""
    beside = [Column(column="b", type="Decimal(9, 2)", path="b", default=0)] if exact else []
    mapper = Mapper([Column(column="a", type=kind, path="a"), *beside])
    mapped = mapper.map(MessageBatch.of([message(0, f'{{"a": {value}}}'.encode())]))
    assert len(mapped.dead) == (not wanted)
    column = mapped.columns["a"]
    column = column.cast("int64") if kind.startswith("DateTime") else column
    assert column.to_pylist() == wanted


def test_headers_that_are_no_text_are_dead_letters_of_a_json_column() -> None:
    mapper = Mapper([Column(column="h", type="JSON", kafka="headers")])
    given_ = [message(0, b"{}", headers=(("a", b"\xff"),)), message(1, b"{}")]
    mapped = mapper.map(MessageBatch.of(given_))
    assert [each.message.offset for each in mapped.dead] == [0]
    assert mapped.columns["h"].to_pylist() == ["{}"]


def test_a_value_that_arrow_refuses_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line: a conversion that lets something through costs one row, not the range."""
    column = Column(column="a", type="Date32", path="a")
    mapper = Mapper([column])
    known = replace(mapper.columns[0][1], convert=lambda value: value)
    monkeypatch.setattr(mapper, "columns", [(column, known)])
    values = [b'{"a": "2026-01-31"}', b'{"a": null}']
    mapped = mapper.map(MessageBatch.of([message(row, each) for row, each in enumerate(values)]))
    assert [(each.message.offset, each.field) for each in mapped.dead] == [(0, "a")]
    assert mapped.offsets.tolist() == [1]


def test_the_reason_of_a_refusal_does_not_hold_the_value_so_that_letters_are_grouped() -> None:
    mapper = Mapper([Column(column="id", type="UInt8", path="id")])
    documents = [b'{"id": "one"}', b'{"id": "two"}', b'{"id": 300}', b'{"id": -1}', b'{"id": 1.5}']
    mapped = mapper.map(MessageBatch.of([message(row, each) for row, each in enumerate(documents)]))
    assert [each.reason for each in mapped.dead] == [
        "is text, not a whole number",
        "is text, not a whole number",
        "does not fit UInt8",
        "does not fit UInt8",
        "is not a whole number",
    ]


def test_rows_come_from_paths_headers_kafka_constants_and_defaults() -> None:
    mapper = Mapper(
        [
            Column(column="city", type="String", path="a.city"),
            Column(column="note", type="String", path="note", default="none"),
            Column(column="trace", type="Nullable(String)", header="trace"),
            Column(column="key", type="String", kafka="key"),
            Column(column="place", type="Int64", kafka="offset"),
            Column(column="rate", type="Decimal(4, 2)", constant=0.1),
        ]
    )
    mapped = mapper.map(
        MessageBatch.of(
            [
                message(3, b'{"a": {"city": "Kyiv"}}', headers=(("trace", b"x"),)),
                message(4, b'{"a": 1}'),
                message(5, b'{"a": {"city": "Oslo"}, "note": null}'),
                message(6, b'{"a": {"city": "Lima"}}', key=b"\xff"),
            ]
        )
    )
    row = {name: column.to_pylist() for name, column in mapped.columns.items()}
    assert row == {
        "city": ["Kyiv"],
        "note": ["none"],
        "trace": ["x"],
        "key": ["k"],
        "place": [3],
        "rate": [Decimal("0.10")],
    }
    fields = {each.message.offset: each.field for each in mapped.dead}
    assert fields == {4: "a.city", 5: "note", 6: "key"}


@pytest.mark.parametrize("number", ["1e39", "1e999999", "-1e400", "1.5"])
def test_a_number_of_any_size_is_a_dead_letter_and_no_crash(number: str) -> None:
    mapper = Mapper(
        [
            Column(column="a", type="Decimal(9, 2)", path="b", default=0),  # parsed exactly
            Column(column="id", type="Int64", path="a", default=1),
            Column(column="at", type="DateTime64(3)", path="t", unit="ms", default=0),
        ]
    )
    values = [f'{{"a": {number}}}', f'{{"a": 1, "t": {number}}}']
    mapped = mapper.map(
        MessageBatch.of([message(row, value.encode()) for row, value in enumerate(values)])
    )
    assert [each.message.offset for each in mapped.dead] == ([0] if number == "1.5" else [0, 1])


def test_decimals_keep_every_digit() -> None:
    mapper = Mapper([Column(column="a", type="Decimal(38, 18)", path="a")])
    mapped = mapper.map(
        MessageBatch.of([message(0, b'{"a": 12345678901234567890.123456789012345678}')])
    )
    assert mapped.columns["a"].to_pylist() == [Decimal("12345678901234567890.123456789012345678")]


@pytest.mark.parametrize(
    "name",
    [
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.principal",
        "max.poll.interval.ms",
        "heartbeat.interval.ms",
        "plugin.library.paths",
        "sasl.password",
        "ssl.key.pem",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)
def test_settings_that_run_programs_break_promises_or_hold_secrets_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        model.KafkaConfig(bootstrap_servers="b", topic="t", settings={name: "x; id"})


def test_a_pipeline_names_everything_that_is_wrong_with_it() -> None:
    with pytest.raises(InvalidInput) as refused:
        model.validate(
            {
                "name": "a b",
                "kafka": {"bootstrap_servers": "b", "topic": "t", "settings": {"group.id": "x"}},
                "clickhouse": {"url": "ftp://x", "table": "t;", "password": "inline"},
                "mapping": [{"column": "_offset", "type": "Int64", "path": "a"}],
            }
        )
    places = {each.field for each in refused.value.problems}
    assert places == {
        "name",
        "kafka.settings",
        "clickhouse.url",
        "clickhouse.table",
        "clickhouse.password",
        "mapping.0.column",
    }
