"""Cutting a key's values into ranges. Pure: where the cuts lie is the source's answer."""

from __future__ import annotations

from collections.abc import Sequence

from kalla.spark.connectors.connector import KeyRange, Slice


def cut(
    columns: Sequence[str],
    cuts: Sequence[Sequence[str]],
    collations: Sequence[str | None] | None = None,
) -> tuple[KeyRange, ...]:
    """The ranges between the cuts, which come in the key's own order; a repeated cut counts once.

    The ends are open and nulls are in the first one: whatever is added meanwhile has its place.
    """
    orders = tuple(collations) if collations is not None else (None,) * len(columns)
    bounds = list(dict.fromkeys(tuple(each) for each in cuts))
    return tuple(
        KeyRange(tuple(columns), lower, upper, lower is None, orders)
        for lower, upper in zip([None, *bounds], [*bounds, None], strict=True)
    )


def even(total: int, n: int) -> list[int]:
    """Where to cut `total` things into n parts that differ by one at most."""
    return sorted({total * part // n for part in range(1, n)} - {0})


def numbered(ranges: Sequence[KeyRange]) -> tuple[Slice, ...]:
    """Slices of ranges; a single range is the whole source, and needs no condition."""
    if len(ranges) <= 1:
        return (Slice(0, 1),)
    return tuple(Slice(number, len(ranges), each) for number, each in enumerate(ranges))
