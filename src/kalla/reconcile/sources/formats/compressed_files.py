"""Compressed files: the bytes that they hold, and whether they are whole.

DuckDB takes the end of a .zst that was cut off for the end of its rows, and does not always ask a
.gz for its sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

import pyarrow as pa

from kalla.reconcile.recipe.model import COMPRESSIONS
from kalla.storage import Storage

_PIECE = 1 << 20


def demand_whole(files: Iterable[str], storage: Storage) -> None:
    """Every file that is compressed is read to its end: one that was cut off or damaged would be
    read as fewer rows, or as others."""
    for file in files:
        if file.lower().endswith(tuple(COMPRESSIONS)):
            for _ in pieces(file, storage):
                pass


def pieces(file: str, storage: Storage) -> Iterator[bytes]:
    """All that a file holds, some of it at a time."""
    with storage.open(file) as raw:
        held = plain(raw, file)
        while piece := held.read(_PIECE):
            yield piece


def plain(raw: BinaryIO, file: str) -> BinaryIO:
    """What a file holds: its bytes, or those in them where its name says they are compressed."""
    for ending, compression in COMPRESSIONS.items():
        if file.lower().endswith(ending):
            return cast(BinaryIO, pa.CompressedInputStream(raw, compression))
    return raw
