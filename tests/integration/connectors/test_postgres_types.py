"""PostgreSQL's types: read exactly, or refused by name."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from kalla.errors import InvalidInput
from kalla.spark.connectors.connector import Unreadable
from tests.integration.connectors.conformance import read_all, rows_of
from tests.integration.connectors.postgres_shelf import PostgresShelf


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("numeric", "'12345678901234567890123456789012345678'"),  # wraps in Arrow's own cast
        ("numeric", "'-123456789012345678901234567890.5'"),
        ("numeric", "'0.0000000001'"),
        ("numeric", "'NaN'"),
        ("numeric", "'Infinity'"),
        ("numeric(5,2)", "'NaN'"),
        ("numeric[]", "'{1,1e30}'"),
        ("numeric(50,2)", "1e45"),
        ("date", "'infinity'"),
        ("date", "'0044-03-15 BC'"),
        ("timestamp", "'-infinity'"),
        ("timestamptz", "'infinity'"),
        ("timestamptz", "'10000-01-01'"),
        ("timestamptz[]", "'{infinity}'"),
        ("time", "'24:00'"),
        ("int4[]", "'{{1,2},{3,4}}'"),
    ],
)
def test_a_value_that_would_change_on_the_way_is_an_error_that_names_its_column(
    shelf: PostgresShelf, declared: str, value: str
) -> None:
    shelf.run(f"CREATE TABLE t (id int4, odd {declared}); INSERT INTO t VALUES (1, {value})")
    connector = shelf.connector("t")
    with pytest.raises(Unreadable, match="odd"):
        read_all(connector, connector.split(1))
    assert rows_of(connector.read(connector.split(1)[0], ["id"])) == [(1,)]


@pytest.mark.parametrize(
    ("declared", "value", "read_as", "read"),
    [
        ("numeric", "'-99999999999999999999999999999.5'", pa.decimal128(38, 9),
         Decimal("-99999999999999999999999999999.5")),
        ("numeric", "'1.50000000000000'", pa.decimal128(38, 9), Decimal("1.5")),
        ("numeric(3,5)", "0.00123", pa.decimal128(5, 5), Decimal("0.00123")),
        ("numeric(5,-2)", "1234", pa.decimal128(7, 0), Decimal(1200)),
        ("numeric(12,2)", "-0.01", pa.decimal128(12, 2), Decimal("-0.01")),
        ("amount", "12.50", pa.decimal128(10, 2), Decimal("12.50")),
        ("amounts", "'{1,2.5}'", pa.list_(pa.decimal128(6, 1)), [Decimal(1), Decimal("2.5")]),
        ("mood", "'glad'", pa.string(), "glad"),
        ("mood[]", "'{glad,NULL}'", pa.list_(pa.string()), ["glad", None]),
        ("uuid[]", "'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'", pa.list_(pa.string()),
         ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
        ("oid", "4294967295", pa.int64(), 2**32 - 1),
        ("int4[]", "'[5:6]={1,2}'", pa.list_(pa.int32()), [1, 2]),
        ("json", "'{\"b\":  1}'", pa.string(), '{"b":  1}'),
        ("char(4)", "'ab'", pa.string(), "ab"),
        ("char(4)", "' a b'", pa.string(), " a b"),
        ("code", "'ab'", pa.string(), "ab"),
        ("char(4)[]", "'[0:2]={ab,NULL,abcd}'", pa.list_(pa.string()), ["ab", None, "abcd"]),
        ("mood[]", "'[0:0]={glad}'", pa.list_(pa.string()), ["glad"]),
    ],
)  # fmt: skip
def test_what_is_named_is_read_exactly(
    shelf: PostgresShelf, declared: str, value: str, read_as: pa.DataType, read: object
) -> None:
    shelf.run(
        "CREATE TYPE mood AS ENUM ('glad'); CREATE DOMAIN amount AS numeric(10,2);"
        "CREATE DOMAIN amounts AS numeric(6,1)[]; CREATE DOMAIN code AS char(4);"
        f"CREATE TABLE t (c {declared}); INSERT INTO t VALUES ({value})"
    )
    connector = shelf.connector("t")
    assert connector.schema()[0].arrow == read_as
    assert read_all(connector, connector.split(1)) == [(read,)]


@pytest.mark.parametrize(
    "declared",
    ["interval", "money", "int4range", "pair", "inet", "bit(3)", "point", "timetz", "xml"],
)
def test_a_type_nobody_mapped_is_refused_where_it_is_named_and_else_left_out_with_a_note(
    shelf: PostgresShelf, declared: str
) -> None:
    shelf.run(
        f"CREATE TYPE pair AS (a int4, b int4); CREATE TABLE t (id int4, odd {declared});"
        "INSERT INTO t VALUES (1, NULL)"
    )
    connector = shelf.connector("t")
    with pytest.raises(InvalidInput, match=r"odd: the type .* is not supported"):
        list(connector.read(connector.split(1)[0], ["id", "odd"]))
    assert rows_of(connector.read(connector.split(1)[0], ["id"])) == [(1,)]
    assert read_all(connector, connector.split(1)) == [(1,)]
    notes = connector.estimate().notes
    assert [each for each in notes if each.startswith("odd: left out, for its type")]


def test_a_float_and_a_loose_numeric_are_noted(shelf: PostgresShelf) -> None:
    shelf.run("CREATE TABLE t (id int4 PRIMARY KEY, rate float8, amount numeric)")
    notes = " ".join(shelf.connector("t").estimate().notes)
    assert "rate: double precision is approximate" in notes
    assert "amount: numeric without a precision" in notes
