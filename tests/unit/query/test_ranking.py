"""The k best rows of every group and step, against sorting all of them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from kalla.query.evaluate import top_k
from kalla.query.evaluate.frames import Frame
from kalla.query.evaluate.top_k import best_rows

VALUES = (0.0, -0.0, 1.0, 1.0, 2.5, -3.0, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("operator", ["topk", "bottomk", "limitk"])
@pytest.mark.parametrize("cells", [1, 40, 1 << 21])
def test_the_best_are_the_first_of_all_sorted(
    operator: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_k, "_CELLS", cells)
    random = np.random.default_rng(7)
    for _ in range(60):
        rows, steps = int(random.integers(1, 25)), int(random.integers(1, 6))
        values = random.choice(VALUES, (rows, steps))
        present = random.random((rows, steps)) < 0.8
        order = random.permutation(rows)
        bounds = np.unique([0, rows, *random.integers(0, rows + 1, 2)])
        k = random.integers(-1, rows + 3, steps)
        frame = Frame.of(tuple(() for _ in range(rows)), values, present)
        kept, sequence = best_rows(frame, order, bounds, k, operator, lambda: None)
        expected = np.zeros((rows, steps), bool)
        answer: list[int] = []
        for low, high in pairwise(bounds):
            for step in range(steps):
                there = [row for row in order[low:high] if present[row, step]]
                chosen = _sorted(operator, there, values[:, step])[: max(0, k[step])]
                expected[chosen, step] = True
                answer += chosen
        np.testing.assert_array_equal(kept, expected)
        assert sequence.tolist() == (answer if steps == 1 else [])


def _sorted(operator: str, rows: list[int], values: np.ndarray) -> list[int]:
    if operator == "limitk":
        return rows
    sign = -1 if operator == "topk" else 1
    numbers = [row for row in rows if not math.isnan(values[row])]
    missing = [row for row in rows if math.isnan(values[row])]
    return sorted(numbers, key=lambda row: sign * values[row]) + missing
