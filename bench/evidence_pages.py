"""Seconds of the evidence pages of a large run: the first page, a filter and a sort, of exceptions
and of matches. `python -m bench.evidence_pages [ROWS]`; 5 million a side unless said.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench import reconcile_data
from bench.reconcile_peers import MEMORY, THREADS, recipe_of
from kalla.reconcile.evidence.reading import evidence_pages
from kalla.reconcile.evidence.reading.evidence_filters import Filter, Order
from kalla.reconcile.evidence.reading.evidence_pages import Query
from kalla.reconcile.sources.source_planning import Limits
from kalla.storage import LOCAL
from tests.evidence_kit import match_here

ROWS = 5_000_000
REPEAT = 5
PAGE_ROWS = 25  # as the page of a run asks for


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as folder:
        pair = reconcile_data.make(Path(folder) / "data", rows)
        limits = Limits(memory=MEMORY, threads=THREADS, buckets=1)
        url = match_here(recipe_of(pair, "text"), Path(folder) / "evidence", limits)
        for part, key, amount in (
            ("matched", "left_key", "left_amount"),
            ("unmatched_left", "record_key", "amount"),
        ):
            is_matched = part == "matched"
            sort = (Order(amount, descending=True, by_size=True),)
            usual = () if is_matched else sort
            asked = {
                "first page": (usual, ()),
                "filter by text": (usual, (Filter(key, "contains", "1234"),)),
                "filter by amount": (usual, (Filter(amount, "gt", "250000"),)),
                "sort by amount": (sort, ()),
                "sort by key": ((Order(key),), ()),
            }
            for name, (orders, filters) in asked.items():
                query = Query(filters, orders, PAGE_ROWS, items=is_matched)
                seconds, total = timed(url, part, query)
                figures = {
                    "name": f"{name}, {part}",
                    "rows_a_side": rows,
                    "rows_of_the_filter": total,
                    "ours": round(seconds, 3),
                    "unit": "s",
                    "goal": 0.3 if name == "first page" else 1,
                }
                print(json.dumps(figures), flush=True)


def timed(url: str, part: str, query: Query) -> tuple[float, int]:
    """The median of several reads, and how many rows the filter has; nothing is cached."""
    seconds = []
    total = 0
    for _ in range(REPEAT):
        began = time.monotonic()
        total = evidence_pages.page(url, part, query, LOCAL).total
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds), total


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)
