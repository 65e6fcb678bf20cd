"""What every connector must do. A connector's test inherits `Conformance` and gives a `shelf`.

Tables are described in words that every source has a type for; see `KINDS`.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kalla.errors import InvalidInput, Unavailable
from kalla.spark.connectors.connector import Connector, Predicate, Slice, arrow_schema
from kalla.spark.staging import stage

Kind = Literal[
    "integer", "decimal(38,9)", "double", "boolean", "text", "date", "timestamp", "timestamptz",
    "uuid", "json", "bytes", "integers", "decimals", "texts",
]  # fmt: skip
Row = tuple[Any, ...]

# What each kind is read as, whatever the source calls it.
KINDS: dict[Kind, pa.DataType] = {
    "integer": pa.int64(),
    "decimal(38,9)": pa.decimal128(38, 9),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "uuid": pa.string(),
    "json": pa.string(),
    "bytes": pa.binary(),
    "integers": pa.list_(pa.int64()),
    "decimals": pa.list_(pa.decimal128(38, 9)),
    "texts": pa.list_(pa.string()),
}


class Shelf(Protocol):
    """A source in which a test makes tables."""

    secret: str  # the password, which must be seen nowhere

    def create(
        self, columns: Mapping[str, Kind], rows: Iterable[Row], key: Sequence[str] = ()
    ) -> str:
        """A new table's name; columns of the key are never null."""
        ...

    def add(self, table: str, rows: Iterable[Row]) -> None: ...

    def connector(
        self,
        table: str,
        partition_key: str | None = None,
        predicates: tuple[Predicate, ...] = (),
    ) -> Connector: ...

    def cut(self) -> None:
        """End the connections that data is being read over."""
        ...


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def read_all(connector: Connector, slices: Sequence[Slice]) -> list[Row]:
    return [row for part in slices for row in rows_of(connector.read(part))]


def sizes(connector: Connector, slices: Sequence[Slice]) -> list[int]:
    return [sum(batch.num_rows for batch in connector.read(part)) for part in slices]


def moment(second: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


KEYS: dict[Kind, list[Any]] = {
    "integer": [number * number - 5_000 for number in range(400)],
    "decimal(38,9)": [Decimal(number) / 8 - 20 for number in range(400)],
    "text": [f"{word}{n}" for word in ("é", "a", "B", "'", "\\", "Z%", "_") for n in range(57)],
    "date": [date(2000, 1, 1) + timedelta(days=3 * number) for number in range(400)],
    "timestamp": [moment(number * 7_777).replace(tzinfo=None) for number in range(400)],
    "timestamptz": [moment(number * 7_777) for number in range(400)],
    "uuid": [str(UUID(int=number * 0x9E3779B97F4A7C15 * 2**50)) for number in range(400)],
}  # fmt: skip


class Conformance:
    """The suite. Each test is a promise that the worker, Spark and the matcher rely on."""

    @pytest.fixture
    def shelf(self) -> Iterator[Shelf]:
        raise NotImplementedError("the test of a connector gives its own")

    def test_every_type_comes_back_as_it_was(self, shelf: Shelf) -> None:
        largest = Decimal("99999999999999999999999999999.999999999")
        columns: dict[str, Kind] = {f"c{place}": kind for place, kind in enumerate(KINDS)}
        full: Row = (
            -(2**63), largest, 0.1, True, "Zürich 'n \"so\" \\ 日本 🙂\n", date(1, 1, 1),
            datetime(2024, 2, 29, 23, 59, 59, 999_999),  # noqa: DTZ001 -- it has no zone
            datetime(2024, 2, 29, 23, 59, 59, 999_999, UTC),
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '{"a": [1, null]}', b"\x00\xff",
            [1, None, -3], [largest, None, largest.copy_negate()], ["", None, "x,y"],
        )  # fmt: skip
        empty: Row = (
            0, Decimal(0), -0.0, False, "", date(9999, 12, 31), moment(0).replace(tzinfo=None),
            moment(0), "00000000-0000-0000-0000-000000000000", "{}", b"", [], [], [],
        )  # fmt: skip
        nulls: Row = (None,) * len(KINDS)
        connector = shelf.connector(shelf.create(columns, [full, empty, nulls]))
        assert arrow_schema(connector.schema()) == pa.schema(
            [pa.field(name, KINDS[kind]) for name, kind in columns.items()]
        )
        found = read_all(connector, connector.split(1))
        assert sorted(found, key=repr) == sorted([full, empty, nulls], key=repr)

    def test_each_batch_has_the_schema_that_was_told(self, shelf: Shelf) -> None:
        connector = shelf.connector(shelf.create({"id": "integer", "t": "text"}, [(1, "x")]))
        for columns in (None, ["t"], ["t", "id"]):
            told = arrow_schema(connector.schema(), columns)
            for batch in connector.read(connector.split(1)[0], columns):
                assert batch.schema == told

    def test_a_column_that_is_not_there_is_refused(self, shelf: Shelf) -> None:
        connector = shelf.connector(shelf.create({"id": "integer"}, [(1,)]))
        with pytest.raises(InvalidInput, match="nope"):
            list(connector.read(connector.split(1)[0], ["id", "nope"]))

    def test_an_empty_table_has_no_rows_and_still_its_columns(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        connector = shelf.connector(shelf.create({"id": "integer", "t": "text"}, [], ["id"]))
        slices = connector.split(4)
        assert read_all(connector, slices) == []
        assert connector.estimate().rows == 0
        staged = stage(connector, slices[0], None, tmp_path / "0.parquet")
        assert staged.rows == 0
        assert pq.read_schema(staged.path).names == ["id", "t"]

    def test_one_row_is_one_row(self, shelf: Shelf) -> None:
        connector = shelf.connector(shelf.create({"id": "integer"}, [(7,)], ["id"]))
        assert read_all(connector, connector.split(4)) == [(7,)]

    def test_skewed_keys_make_no_long_slice(self, shelf: Shelf) -> None:
        rows = [(number,) for number in (*range(1, 1_901), *range(10**6, 10**9, 10**7))]
        connector = shelf.connector(shelf.create({"id": "integer"}, rows, ["id"]))
        found = sizes(connector, connector.split(4))
        assert len(found) == 4
        assert sum(found) == len(rows)
        assert max(found) < 2 * len(rows) / 4

    def test_gapped_keys_make_no_empty_slice(self, shelf: Shelf) -> None:
        starts = [sign * 10**exponent for sign in (-1, 1) for exponent in (4, 9, 15)]
        rows = [(start + n,) for start in starts for n in range(200)]
        connector = shelf.connector(shelf.create({"id": "integer"}, rows, ["id"]))
        found = sizes(connector, connector.split(5))
        assert len(found) == 5
        assert sum(found) == len(rows)
        assert min(found) > 0.5 * len(rows) / 5

    @pytest.mark.parametrize("kind", list(KEYS))
    def test_every_kind_of_key_is_cut_so_that_each_row_is_read_once(
        self, shelf: Shelf, kind: Kind
    ) -> None:
        rows = [(key,) for key in KEYS[kind]]
        connector = shelf.connector(shelf.create({"id": kind}, rows, ["id"]))
        parts = [rows_of(connector.read(part)) for part in connector.split(7)]
        assert len(parts) == 7
        assert Counter(chain(*parts)) == Counter(rows)
        assert max(map(len, parts)) < 2 * len(rows) / 7

    def test_a_composite_key_is_cut_even_where_its_first_column_says_little(
        self, shelf: Shelf
    ) -> None:
        rows = [(("even", "odd")[n % 2], n) for n in range(600)]
        table = shelf.create({"a": "text", "b": "integer"}, rows, ["a", "b"])
        connector = shelf.connector(table)
        parts = [rows_of(connector.read(part)) for part in connector.split(6)]
        assert Counter(chain(*parts)) == Counter(rows)
        assert max(map(len, parts)) < 2 * len(rows) / 6

    def test_without_a_key_each_row_is_read_once_and_it_says_how(self, shelf: Shelf) -> None:
        rows = [(n % 10, "x" * (n % 50)) for n in range(2_000)]
        connector = shelf.connector(shelf.create({"a": "integer", "b": "text"}, rows))
        assert Counter(read_all(connector, connector.split(4))) == Counter(rows)
        assert any("key" in note for note in connector.estimate().notes)

    def test_nulls_of_a_key_are_in_exactly_one_slice(self, shelf: Shelf) -> None:
        rows = [(None if n % 3 == 0 else n, n) for n in range(300)]
        table = shelf.create({"part": "integer", "id": "integer"}, rows)
        connector = shelf.connector(table, partition_key="part")
        slices = connector.split(4)
        assert len(slices) == 4
        assert Counter(read_all(connector, slices)) == Counter(rows)

    def test_a_key_that_is_one_value_only_is_one_slice(self, shelf: Shelf) -> None:
        rows = [(1, n) for n in range(100)]
        table = shelf.create({"part": "integer", "id": "integer"}, rows)
        connector = shelf.connector(table, partition_key="part")
        assert Counter(read_all(connector, connector.split(4))) == Counter(rows)

    @pytest.mark.parametrize("least", [True, False])
    def test_a_value_of_the_partition_key_with_most_rows_makes_no_long_slice(
        self, shelf: Shelf, least: bool
    ) -> None:
        rows: list[Row] = [(7 if n < 1_800 else n if least else -n, n) for n in range(2_000)]
        rows += [(None, n) for n in range(2_000, 2_010)]
        table = shelf.create({"part": "integer", "id": "integer"}, rows, ["id"])
        connector = shelf.connector(table, partition_key="part")
        parts = [rows_of(connector.read(part)) for part in connector.split(10)]
        assert Counter(chain(*parts)) == Counter(rows)
        assert len(parts) == 10
        assert 0 < min(map(len, parts)) <= max(map(len, parts)) < 2 * len(rows) / 10

    @pytest.mark.parametrize(
        ("value", "key", "said"),
        [
            (7, (), "90% of the rows have the same part: they are one slice, for no unique key"),
            (None, ("id",), "90% of the rows have no part: they are one slice"),
        ],
    )
    def test_a_value_that_cannot_be_cut_further_is_told_and_leaves_no_empty_slice(
        self, shelf: Shelf, value: int | None, key: Sequence[str], said: str
    ) -> None:
        rows = [(value if n < 1_800 else n, n) for n in range(2_000)]
        table = shelf.create({"part": "integer", "id": "integer"}, rows, key)
        connector = shelf.connector(table, partition_key="part")
        slices = connector.split(10)
        assert Counter(read_all(connector, slices)) == Counter(rows)
        assert min(sizes(connector, slices)) > 0
        assert any(said in note for note in connector.estimate().notes)
        even = shelf.connector(table, "id")
        assert not any("one slice" in note for note in even.estimate().notes)

    def test_a_partition_key_that_is_no_column_is_refused(self, shelf: Shelf) -> None:
        table = shelf.create({"id": "integer"}, [(1,)])
        with pytest.raises(InvalidInput, match="partition_key"):
            shelf.connector(table, partition_key="nope").split(4)

    @pytest.mark.parametrize("kind", ["integer", "text"])
    def test_rows_added_while_it_is_read_displace_no_other(
        self, shelf: Shelf, kind: Literal["integer", "text"]
    ) -> None:
        def key(n: int) -> Any:
            return n if kind == "integer" else f"{n + 10**6:09}"

        rows = [(key(n),) for n in range(0, 4_000, 4)]
        table = shelf.create({"id": kind}, rows, ["id"])
        connector = shelf.connector(table)
        found: list[Row] = []
        added: list[Row] = []
        for turn, part in enumerate(connector.split(4)):
            fresh = [(key(4 * n + 1),) for n in range(turn - 40, 1_100, 100)]
            shelf.add(table, fresh)
            added += fresh
            found += rows_of(connector.read(part))
        assert Counter(found) <= Counter(rows + added), "no row is there twice"
        assert Counter(rows) <= Counter(found), "and none that was there is missing"
        assert Counter(read_all(connector, connector.split(4))) == Counter(rows + added)
        old = shelf.connector(table)
        slices = old.split(4)
        late = [(key(-(10**5)),), (key(10**6),)]
        shelf.add(table, late)
        assert Counter(read_all(old, slices)) == Counter(rows + added + late)

    def test_a_connection_that_drops_is_an_error_and_the_next_read_is_whole(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        rows = [(n, f"{n:09}" * 40) for n in range(150_000)]
        table = shelf.create({"id": "integer", "filler": "text"}, rows, ["id"])
        connector = shelf.connector(table)
        (whole,) = connector.split(1)
        target = tmp_path / "staged" / "0.parquet"
        with pytest.raises(Unavailable) as broken:
            stage(CutMidway(connector, shelf), whole, None, target)
        assert shelf.secret not in str(broken.value)
        assert list(target.parent.iterdir()) == [], "no half file stays"
        staged = stage(connector, whole, ["id"], target)
        assert staged.rows == len(rows)
        assert sorted(pq.read_table(target)["id"].to_pylist()) == [n for n, _ in rows]
        assert [each.name for each in target.parent.iterdir()] == ["0.parquet"]

    def test_slices_and_connectors_travel(self, shelf: Shelf) -> None:
        rows = [(n,) for n in range(100)]
        connector = shelf.connector(shelf.create({"id": "integer"}, rows, ["id"]))
        sent = [json.dumps(part.as_json()) for part in connector.split(3)]
        there = pickle.loads(pickle.dumps(connector))  # noqa: S301
        arrived = [Slice.from_json(json.loads(text)) for text in sent]
        assert Counter(read_all(there, arrived)) == Counter(rows)
        assert shelf.secret not in repr(there) + "".join(sent)

    def test_the_estimate_of_a_small_table_is_near(self, shelf: Shelf) -> None:
        rows = [(n,) for n in range(1_000)]
        table = shelf.create({"id": "integer"}, rows, ["id"])
        assert 800 <= shelf.connector(table).estimate().rows <= 1_200
        few = shelf.connector(table, predicates=(Predicate("id", "lt", 100),))
        assert few.estimate().rows <= 400

    @pytest.mark.parametrize(
        ("predicate", "passing"),
        [
            (Predicate("n", "eq", 2), {2}),
            (Predicate("n", "ne", 2), {1, 3}),
            (Predicate("n", "lt", 2), {1}),
            (Predicate("n", "lte", 2), {1, 2}),
            (Predicate("n", "gt", Decimal("1.5")), {2, 3}),
            (Predicate("n", "gte", "2"), {2, 3}),
            (Predicate("n", "in", (1, 3, 9)), {1, 3}),
            (Predicate("n", "in", ()), set()),
            (Predicate("n", "not_in", (1,)), {2, 3}),
            (Predicate("n", "not_in", ()), {1, 2, 3}),
            (Predicate("n", "is_null"), {4}),
            (Predicate("n", "not_null"), {1, 2, 3}),
            (Predicate("t", "eq", "50% 'off'\\_"), {1}),
            (Predicate("t", "ne", "plain"), {1, 3}),
            (Predicate("t", "contains", "% '"), {1}),
            (Predicate("t", "contains", "_"), {1}),
            (Predicate("t", "startswith", "50%"), {1}),
            (Predicate("t", "endswith", "\\_"), {1}),
            (Predicate("t", "endswith", ""), {1, 2, 3}),
            (Predicate("t", "lt", "a"), {1, 3}),
            (Predicate("t", "eq", "' OR TRUE --"), set()),
            (Predicate("t", "in", ("plain", "'); DROP TABLE x; --")), {2}),
            (Predicate("m", "eq", Decimal("0.30")), {1}),
            (Predicate("d", "gte", date(2024, 1, 2)), {2, 3}),
            (Predicate("d", "eq", "2024-01-01"), {1}),
            (Predicate("z", "eq", date(2024, 1, 1)), {1, 2}),
            (Predicate("z", "eq", date(2024, 1, 1), "Europe/Berlin"), {1}),
            (Predicate("z", "ne", date(2024, 1, 1)), {3}),
            (Predicate("z", "lte", date(2024, 1, 1)), {1, 2}),
            (Predicate("z", "gt", date(2024, 1, 1)), {3}),
            (Predicate("z", "lt", datetime(2024, 1, 1, 23, 30, tzinfo=UTC)), {1}),
            (Predicate("z", "lte", "2024-01-01"), {1, 2}),
            (Predicate("z", "gte", datetime(2024, 1, 2), "Europe/Berlin"), {2, 3}),  # noqa: DTZ001
            (Predicate("b", "eq", True), {1, 3}),
        ],
        ids=str,
    )
    def test_filters_let_through_what_they_say_and_null_only_as_null(
        self, shelf: Shelf, predicate: Predicate, passing: set[int]
    ) -> None:
        columns: dict[str, Kind] = {
            "id": "integer", "n": "integer", "t": "text", "m": "decimal(38,9)", "d": "date",
            "z": "timestamptz", "b": "boolean",
        }  # fmt: skip
        rows: list[Row] = [
            (1, 1, "50% 'off'\\_", Decimal("0.3"), date(2024, 1, 1), moment(0), True),
            (2, 2, "plain", Decimal("0.31"), date(2024, 1, 2), moment(24 * 3600 - 1), False),
            (3, 3, "Zoë", Decimal(-1), date(2024, 1, 3), moment(24 * 3600), True),
            (4, None, None, None, None, None, None),
        ]
        table = shelf.create(columns, rows, ["id"])
        connector = shelf.connector(table, predicates=(predicate,))
        found = read_all(connector, connector.split(3))
        assert sorted(row[0] for row in found) == sorted(passing)
        assert shelf.connector(table).estimate().rows == 4, "and nothing else was done"


class CutMidway:
    """A connector whose line is cut after the first batch."""

    def __init__(self, connector: Connector, shelf: Shelf) -> None:
        self._connector = connector
        self._shelf = shelf
        self.schema = connector.schema
        self.estimate = connector.estimate
        self.split = connector.split

    def read(self, part: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        batches = self._connector.read(part, columns)
        yield next(batches)
        self._shelf.cut()
        yield from batches
