"""Which values lie nearest to wanted ones, against what is found by looking at each of them."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from kalla.reconcile.arrays import nearest_values


def test_whole_numbers_are_in_sight_of_a_number_too_large_to_be_one() -> None:
    offered = nearest_values.Measured(np.arange(4), np.array([10, 20, 30, 40]))
    wanted = nearest_values.Measured(np.arange(2), np.array([21.0, 2.0**70]))
    assert sorted(nearest_values.in_sight(offered, wanted)) == [1, 2, 3]


@pytest.mark.parametrize("unit", [1, 2**24, 2**57])
@pytest.mark.parametrize("currencies", [None, 1, 2])
def test_rows_next_to_a_wanted_one_are_those_of_the_values_below_and_above(
    currencies: int | None, unit: int
) -> None:
    chance = np.random.default_rng(5)
    for offered, wanted in ((0, 3), (4, 0), (1, 5), (300, 80), (300, 2)):
        rows = [
            nearest_values.Measured(
                chance.permutation(count),
                chance.integers(-60, 60, count) * unit,
                None if currencies is None else chance.integers(0, codes, count, np.int32),
            )
            for count, codes in ((offered, (currencies or 0) + 1), (wanted, currencies))
        ]
        there, looking = (
            [
                (row_id, each.values[n], 0 if each.codes is None else each.codes[n])
                for n, row_id in enumerate(each.at(np.arange(len(each.values))))
            ]
            for each in rows
        )
        if not nearest_values.comparable(*rows):
            assert currencies
            assert unit == 2**57
            continue
        nearest = nearest_values.next_to(*rows)
        wanted, offers = nearest.wanted().to_pydict(), nearest.offers().to_pydict()
        assert nearest.most == max(Counter(offers["value_number"]).values(), default=0)
        found = {
            (seeker, row_id)
            for seeker, number in zip(wanted["row_id"], wanted["value_number"], strict=True)
            for row_id, place in zip(offers["row_id"], offers["value_number"], strict=True)
            if number == place
        }
        expected = set()
        for seeker, wish, code in looking:
            given = [(value, row_id) for row_id, value, currency in there if currency == code]
            below = max((value for value, _ in given if value <= wish), default=None)
            above = min((value for value, _ in given if value > wish), default=None)
            expected |= {(seeker, row_id) for value, row_id in given if value in (below, above)}
        assert found == expected
        assert {row_id for _, row_id in expected} <= set(rows[0].at(nearest_values.in_sight(*rows)))


def test_doubles_of_large_numbers_are_in_the_order_of_the_numbers() -> None:
    around = [n * 2**at for at in (0, 52, 63, 64, 65, 116, 117, 120) for n in (-1, 1)]
    known = sorted({each + off for each in around for off in (-(2**10), -1, 0, 1, 2**10)})
    column = pa.array([Decimal(each) for each in known], pa.decimal128(38, 0))
    (batch,) = pa.table({"row_id": range(len(known)), "value": column}).to_batches()
    read = nearest_values.read([batch], len(known), coded=False)
    assert read.values.dtype == np.float64
    assert np.all(np.diff(read.values) >= 0)
    small = nearest_values.read([batch.slice(len(known) // 2 - 3, 6)], 6, coded=False)
    assert small.values.tolist() == known[len(known) // 2 - 3 :][:6]


@pytest.mark.parametrize("shape", ["even", "skewed", "far away", "alike"])
def test_the_nearest_values_are_among_those_beside(shape: str) -> None:
    chance = np.random.default_rng(7)
    for rows in (0, 1, 2, 50, 3000):
        offered = {
            "even": chance.uniform(-1000, 1000, rows).round(2),
            "skewed": np.concatenate([chance.uniform(0, 1, rows), [1e15] * (rows > 1)]),
            "far away": chance.uniform(5e8, 5e8 + 1, rows).round(2),
            "alike": np.full(rows, 3.5),
        }[shape]
        wanted = np.sort(chance.uniform(-1500, 1500, 40).round(2))
        seen = nearest_values.beside(offered, wanted)
        for each in wanted:
            assert max(offered[offered <= each], default=None) == max(
                seen[seen <= each], default=None
            )
            assert min(offered[offered > each], default=None) == min(
                seen[seen > each], default=None
            )
    assert shape != "even" or len(seen) < len(offered) / 2
