"""The similarity of two texts by a named metric: a function that DuckDB calls in batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rapidfuzz import process
from rapidfuzz.distance import DamerauLevenshtein, Jaro, JaroWinkler, Levenshtein

from kalla.reconcile.sql.conditions import longest_text

_METRICS = {
    "jaro_winkler": JaroWinkler,
    "jaro": Jaro,
    "levenshtein": Levenshtein,
    "damerau_levenshtein": DamerauLevenshtein,
}
_LIFTED_ABOVE = 0.7
_EXACT_PLACES = 12  # of what is a little off as a float


def of_pairs(metric: pa.Array, left: pa.Array, right: pa.Array) -> pa.Array:
    """Ten-thousandths, by characters. Of texts that are too long, only the same ones are alike."""
    if not len(metric):
        return pa.array([], pa.int32())
    name = metric[0].as_py()
    longest = pc.max_element_wise(pc.utf8_length(left), pc.utf8_length(right)).to_numpy()
    found = pc.equal(left, right).to_numpy(zero_copy_only=False).astype(np.float64)
    short = longest <= longest_text(name)
    texts = [list(compress(each.to_pylist(), short)) for each in (left, right)]
    found[short] = _lifted(*texts) if name == "jaro_winkler" else _scored(name, *texts)
    whole = np.rint(np.round(found * 10_000, _EXACT_PLACES - 4))  # halves to even
    return pa.array(whole.astype(np.int32))


def _scored(metric: str, left: Sequence[str], right: Sequence[str]) -> npt.NDArray[Any]:
    scorer = _METRICS[metric].normalized_similarity
    return process.cpdist(left, right, scorer=scorer, dtype=np.float64, workers=1)


def _lifted(left: Sequence[str], right: Sequence[str]) -> npt.NDArray[Any]:
    """Jaro-Winkler. What is exactly 0.7 by Jaro is more than that as a float, but is not lifted."""
    found = _scored("jaro", left, right)
    above = np.round(found, _EXACT_PLACES) > _LIFTED_ABOVE
    texts = [list(compress(each, above)) for each in (left, right)]
    found[above] = _scored("jaro_winkler", *texts)
    return found
