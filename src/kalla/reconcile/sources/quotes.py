"""Whether a CSV is to be read in one place, from its beginning to its end.

DuckDB's threads each begin in the middle of a file, where nobody knows whether a line is a row or
in quotes: it guesses, and calls files damaged that are not. But in one place it does not see that
the last quote is never closed, and leaves out what is behind it: so that is looked at here.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence

import numpy as np

from kalla.reconcile.model import Csv
from kalla.reconcile.sources.compressed import pieces
from kalla.storage import Storage

_LINE_ENDS = b"\r\n"


def are_in_order(csv: Csv, files: Sequence[str], storage: Storage) -> bool:
    """Whether there are quotes, and each of them opens a value or closes one.

    Looks at every byte, and so tells of compressed files that are damaged.
    """
    found = [_in(csv, pieces(file, storage)) for file in files]
    return csv.encoding != "utf-16" and any(found) and None not in found


def _in(csv: Csv, content: Iterable[bytes]) -> bool | None:
    """Whether a file has quotes; None where it is not known what one of them means."""
    sign = csv.quote.encode()  # one byte, or nothing is read
    before = np.frombuffer(sign + csv.delimiter.encode() + _LINE_ENDS, np.uint8)
    last, opened, found, strange = _LINE_ENDS[-1:], False, False, False
    for number, piece in enumerate(content):
        seen = piece if number else piece.removeprefix(BOM_UTF8)
        if sign in seen and not strange:
            signs = np.frombuffer(last + seen, np.uint8)
            quotes = np.flatnonzero(signs[1:] == sign[0])
            # By turns they open a value and close one; two in a value do both.
            strange = not np.isin(signs[quotes[int(opened) :: 2]], before).all()
            opened ^= bool(len(quotes) % 2)
            found = True
        last = piece[-1:]
    return None if strange or opened else found
