"""Series by number: what was asked before stays right when more series come."""

from __future__ import annotations

import pytest

from kalla.query.labels.label_sets import labels_of
from kalla.query.promql.matchers import Matcher
from kalla.query.store.series_table import SeriesTable, text_of


def grown(table: SeriesTable, *zones: str) -> None:
    table.numbers([text_of(labels_of({"__name__": "m", "zone": zone})) for zone in zones])


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
