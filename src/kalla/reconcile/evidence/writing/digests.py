"""The digest of a dataset: the sum of its rows' hashes, which does not depend on their order.

`docs/evidence-format.md` defines the hashes; they are computed in SQL, and summed exactly here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kalla.reconcile.arrays.arrow_numbers import numbers
from kalla.reconcile.evidence.writing.match_ids import SEPARATOR
from kalla.reconcile.session.match_session import MatchSession
from kalla.reconcile.sql.column_values import quote

_WORD = 2**64 - 1
_HALF, _BITS = np.uint64(2**32 - 1), np.uint64(32)
_HOW = "rule, status, cardinality, interchangeable, fifo"

Words = npt.NDArray[np.uint64]


def combined(digests: Sequence[int]) -> str:
    return f"{sum(digests) % 2**128:032x}"


def hash_of_row(columns: Collection[str]) -> str:
    """In SQL, the hash of a row over all its columns."""
    texts = f", {SEPARATOR}, ".join(f"coalesce(CAST({each} AS VARCHAR), '∅')" for each in columns)
    return f"md5_number(concat({texts}))"


def halves(number: str) -> str:
    """In SQL, the two words of a number as `high` and `low`: a sum of the whole would overflow."""
    return f"({number} >> 64)::UBIGINT AS high, ({number} & {_WORD}::UHUGEINT)::UBIGINT AS low"


def sum_of_hashes(block: pa.RecordBatch) -> int:
    """Of rows that have their hashes in two words."""
    high, low = (_exact(numbers(block.column(each))) for each in ("high", "low"))
    return (high << 64) + low


def of_file(path: Path) -> str:
    """The SHA-256 of a file; unlike digests it covers display columns."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_matches(session: MatchSession, rows: str, differences: Mapping[str, str]) -> int:
    """Of rows of `matched` with `high` and `low`, the words of who was matched; with the columns
    of their differences, and each as text.

    A row's hash is a product of two hashes: of the matched rows, and of the kind of match. There
    are few kinds, and the rows are hashed already: the match_id.
    """
    how = (
        f"concat_ws({', '.join([SEPARATOR, 'rule, status, cardinality', *differences.values()])})"
        " || CASE WHEN interchangeable THEN 'i' WHEN fifo THEN 'f' ELSE '' END"
    )
    alike = ", ".join([_HOW, *map(quote, differences)])
    summed = (
        f"SELECT md5_number({how}) AS how, sum(high) AS high, sum(low) AS low FROM {rows}"
        f" GROUP BY {alike}"
    )
    batches = session.batches(
        f"SELECT ((high + (low >> 64)) & {_WORD})::UBIGINT, (low & {_WORD})::UBIGINT,"
        f" (how >> 64)::UBIGINT, (how & {_WORD})::UBIGINT | 1 FROM ({summed})"
    )
    return sum(sum_of_products(*map(numbers, batch.columns)) for batch in batches)


def who_was_matched() -> str:
    """In SQL, of a row of `matched`: the match_id, and of one row of several also its keys."""
    return (
        "CASE WHEN cardinality = '1:1' THEN CAST(match_id AS UHUGEINT)"
        f" ELSE md5_number(concat_ws({SEPARATOR}, CAST(match_id AS VARCHAR),"
        " coalesce(left_key, '∅'), coalesce(right_key, '∅'))) END"
    )


def sum_of_products(high: Words, low: Words, by_high: Words, by_low: Words) -> int:
    """Of numbers of two words each with numbers of two words each, modulo 2^128."""
    upper = int((high * by_low + low * by_high).sum())  # overflows as it should
    return (upper << 64) + sum(
        _exact(first * second) << places
        for first, places_of_first in ((low & _HALF, 0), (low >> _BITS, 32))
        for second, places in (
            (by_low & _HALF, places_of_first),
            (by_low >> _BITS, places_of_first + 32),
        )
    )


def _exact(words: Words) -> int:
    return int((words & _HALF).sum()) + (int((words >> _BITS).sum()) << 32)
