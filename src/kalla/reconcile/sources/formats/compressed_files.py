"""Compressed files: their contents, and whether they are complete.

DuckDB takes the end of a truncated .zst for the end of its rows, and does not always verify the
checksum of a .gz.
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
    """The contents of a file, in pieces."""
    with storage.open(file) as raw:
        held = plain(raw, file)
        while piece := held.read(_PIECE):
            yield piece


def plain(raw: BinaryIO, file: str) -> BinaryIO:
    """The contents of a file: decompressed, if its name says that it is compressed."""
    for ending, compression in COMPRESSIONS.items():
        if file.lower().endswith(ending):
            return cast(BinaryIO, pa.CompressedInputStream(raw, compression))
    return raw
