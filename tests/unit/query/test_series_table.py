"""Series by number: what was asked before stays right when more series come."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kalla.query.labels.label_sets import labels_of
from kalla.query.promql.matchers import Matcher
from kalla.query.store.series_table import SeriesTable, text_of


def grown(table: SeriesTable, *zones: str) -> None:
    table.numbers(
        pa.array(
            [text_of(labels_of({"__name__": "m", "zone": zone})) for zone in zones], pa.string()
        )
    )


def test_an_expression_asked_before_sees_the_values_that_came_since() -> None:
    table = SeriesTable()
    inside, outside = Matcher("zone", "=~", "eu.*"), Matcher("zone", "!~", "eu.*")
    grown(table, "eu-1", "us-1")
    assert table.matching([inside]).tolist() == [True, False]
    assert table.matching([outside]).tolist() == [False, True]
    grown(table, "us-2", "eu-2", "")
    assert table.matching([inside]).tolist() == [True, False, False, True, False]
    assert table.matching([outside]).tolist() == [False, True, True, False, True]


def test_values_have_equal_codes_where_they_are_equal() -> None:
    table = SeriesTable()
    grown(table, "eu", "us")
    first = table.codes("zone").tolist()
    grown(table, "eu", "", "asia")
    codes = table.codes("zone").tolist()
    assert codes[:2] == first
    assert len(codes) == 4  # the second eu is the same series
    assert len(set(codes)) == 4
    assert len(set(table.codes("__name__").tolist())) == 1


def test_names_that_no_series_has_do_not_fill_the_memory() -> None:
    table = SeriesTable()
    grown(table, "eu", "us")
    for number in range(1000):
        assert table.matching([Matcher(f"unknown_{number}", "=", "")]).all()
    assert len(table._values) <= 50
    assert table.matching([Matcher("zone", "=", "eu")]).tolist() == [True, False]


def test_a_check_that_raises_ends_the_matching() -> None:
    table = SeriesTable()
    grown(table, "eu")

    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        table.matching([Matcher("zone", "=", "eu")], check)


TEXTS = [
    text_of(labels_of({"__name__": "m", "zone": zone}))
    for zone in ("eu", "us", "a zone whose name is long", "", "\udcff", "ü", "eu")
]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_texts_as_written_have_the_same_labels_in_another_table(kind: pa.DataType) -> None:
    one, other = SeriesTable(), SeriesTable()
    grown(other, "us", "elsewhere")
    numbers = one.numbers(pa.array(["{}", *TEXTS], kind)[1:])
    assert len(set(numbers.tolist())) == len(one) == 6

    backwards = numbers[::-1].astype(np.int64)
    written = one.written(backwards)
    assert written.to_pylist() == TEXTS[::-1]
    assert other.labels(other.numbers(written)) == one.labels(backwards)
    assert len(other) == 7
    assert one.numbers(written).tolist() == backwards.tolist()


def test_a_text_that_cannot_be_read_adds_no_series() -> None:
    table = SeriesTable()
    grown(table, "eu")
    with pytest.raises(ValueError, match="Expecting"):
        table.numbers(pa.array([TEXTS[1], "not JSON"]))
    grown(table, "us", "eu")
    assert [dict(labels)["zone"] for labels in table.labels(np.arange(2))] == ["eu", "us"]
