"""Accepts a query's structure, once Spark confirms that it means the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kalla.tables.incremental.changes import placed
from kalla.tables.incremental.delta import DeltaShape, delta_shape, refuse_floats
from kalla.tables.incremental.structure import NotIncremental, Structure, structure
from kalla.tables.refresh.views import Views
from kalla.tables.sources.snapshots import Pin, columns, schema_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_KNOWN = 1000


@dataclass(frozen=True)
class Known:
    """A query that can be refreshed by its structure."""

    found: Structure
    delta: DeltaShape | None
    no_delta: str  # why there is none


_Key = tuple[str, tuple[tuple[str, str], ...]]
_known: OrderedDict[_Key, Known | str] = OrderedDict()
_lock = threading.Lock()


def judged(query: str, pins: Mapping[str, Pin], names: Mapping[str, str], views: Views) -> Known:
    """Raises NotIncremental with the reason for FULL. Spark checks a query over the same columns
    once.
    """
    key = (query, tuple(sorted((name, schema_text(pin)) for name, pin in pins.items())))
    with _lock:
        found = _known.get(key)
    if found is None:
        try:
            found = _asked(query, {name: columns(pin) for name, pin in pins.items()}, names, views)
        except NotIncremental as reason:
            found = str(reason)
        with _lock:
            _known[key] = found
            if len(_known) > _MOST_KNOWN:
                _known.popitem(last=False)
    if isinstance(found, str):
        raise NotIncremental(found)
    return found


def _asked(
    query: str, given: Mapping[str, tuple[str, ...]], names: Mapping[str, str], views: Views
) -> Known:
    found = structure(query, given)
    ours = views.sql(placed(found.sql, names))
    if not _means_the_same(ours, views.sql(placed(found.compared_sql, names))):
        raise NotIncremental("Spark interprets the query differently from its parsed structure")
    try:
        shape = delta_shape(found)
        extended = views.sql(placed(shape.extended(found.sql), names))
        refuse_floats(shape, dict(extended.dtypes))
    except NotIncremental as reason:
        return Known(found, None, str(reason))
    return Known(found, shape, "")


def _means_the_same(ours: DataFrame, given: DataFrame) -> bool:
    return bool(ours.sameSemantics(given))
