"""How alike two texts are, by a named metric: a function that DuckDB calls, a batch at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from rapidfuzz import process
from rapidfuzz.distance import DamerauLevenshtein, Jaro, JaroWinkler, Levenshtein

_METRICS = {
    "jaro_winkler": JaroWinkler,
    "jaro": Jaro,
    "levenshtein": Levenshtein,
    "damerau_levenshtein": DamerauLevenshtein,
}


def of_pairs(metric: pa.Array, left: pa.Array, right: pa.Array) -> pa.Array:
    """Ten-thousandths, by characters."""
    if not len(metric):
        return pa.array([], pa.int32())
    scorer = _METRICS[metric[0].as_py()].normalized_similarity
    found = process.cpdist(
        left.to_pylist(), right.to_pylist(), scorer=scorer, dtype=np.float64, workers=1
    )
    return pa.array([round(float(each) * 10_000) for each in found], pa.int32())
