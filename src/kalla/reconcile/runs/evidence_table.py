"""One part of a run's evidence as a page shows it: tabs, a sorted and filtered table, ways to turn
it, and files to take away. Apart from `pages.py`: all of it is addresses and words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from kalla.errors import InvalidInput, KallaError
from kalla.reconcile.evidence.reading import evidence_pages
from kalla.reconcile.evidence.reading.evidence_export import FORMATS, SHEET_ROWS
from kalla.reconcile.evidence.reading.evidence_filters import OPS, Filter
from kalla.reconcile.evidence.reading.evidence_reader import Column
from kalla.reconcile.evidence.reading.run_report import Report
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.runs.evidence_routes import asked, in_reader
from kalla.reconcile.runs.store import RunDetail
from kalla.redaction import scrub
from kalla.storage import Storage
from kalla.web.app_state import AppState

LABELS = {
    "matched": "Matched",
    "unmatched_left": "Unmatched left",
    "unmatched_right": "Unmatched right",
    "ambiguous": "Ambiguous",
}
OP_WORDS = {
    "eq": "is",
    "ne": "is not",
    "in": "is one of",
    "contains": "contains",
    "startswith": "begins with",
    "gt": "is more than",
    "gte": "is at least",
    "lt": "is less than",
    "lte": "is at most",
    "is_null": "is empty",
    "not_null": "is not empty",
}
_ROWS = 25
# The largest first, whichever sign they have.
_USUAL_SORT = {"unmatched_left": "-|amount|", "unmatched_right": "-|amount|"}
# What says least to a person stands last.
_LAST = (
    "rule",
    "attempted_rules",
    "interchangeable",
    "fifo",
    "confidence",
    "matched_at",
    "match_id",
)
_EMPTY = {
    "matched": "Nothing is matched.",
    "unmatched_left": "No row of the left side is unmatched.",
    "unmatched_right": "No row of the right side is unmatched.",
    "ambiguous": "Nothing is ambiguous.",
}


@dataclass(frozen=True)
class Wanted:
    """What a page's address asks for; None is what is usual."""

    part: str | None = None
    sort: str | None = None
    filters: tuple[str, ...] = ()
    after: str | None = None
    before: str | None = None
    against: int | None = None  # the run that this one is compared with, below the rows

    @property
    def fields(self) -> list[tuple[str, str]]:
        """As an address has them, or a form that asks for more."""
        given = [("part", self.part or "")]
        given += [("sort", self.sort)] if self.sort is not None else []
        given += [("filter", each) for each in self.filters]
        given += [("after", self.after)] if self.after else []
        given += [("before", self.before)] if self.before else []
        given += [("against", str(self.against))] if self.against else []
        return given


@dataclass(frozen=True)
class Link:
    label: str
    address: str
    current: bool = False
    count: int | None = None
    unit: str = ""  # rows, if nothing else is said


@dataclass(frozen=True)
class Head:
    column: Column
    label: str
    address: str
    sorted: str  # none, ascending, descending: as ARIA has it


@dataclass(frozen=True)
class Chip:
    words: str
    without: str


@dataclass(frozen=True)
class Shelf:
    """What the template shows."""

    wanted: Wanted
    run_id: int
    tabs: tuple[Link, ...]
    label: str
    chips: tuple[Chip, ...]
    heads: tuple[Head, ...]
    rows: tuple[tuple[Any, ...], ...]
    first: int
    total: int
    matches: int | None  # that all the rows are those of, which may be several of one
    turns: tuple[Link, ...]
    files: tuple[Link, ...]
    empty: str
    all_rows: str
    trouble: str | None

    def cells(self, row: tuple[Any, ...]) -> list[tuple[Head, Any]]:
        return list(zip(self.heads, row, strict=True))

    @property
    def ops(self) -> dict[str, str]:
        return {op: OP_WORDS[op] for op in OPS}


async def shelve(state: AppState, detail: RunDetail, wanted: Wanted) -> Shelf:
    """Read the page of evidence that an address asks for."""
    part = wanted.part or _telling(detail.report)
    sort = _USUAL_SORT.get(part, "") if wanted.sort is None else wanted.sort
    kept = replace(wanted, part=part, sort=sort)
    storage, page, trouble = Storage.of(state.settings.storage), None, None
    url = detail.evidence_url or ""
    try:
        query = asked(list(wanted.filters), sort, _ROWS, wanted.after, wanted.before)
        page = await in_reader(partial(evidence_pages.page, url, part, query, storage))
    except KallaError as error:
        problems = error.problems if isinstance(error, InvalidInput) else ()
        trouble = scrub("; ".join(each.message for each in problems) or str(error))
        page = await _bare(url, part, storage) if problems else None
    return _shelf(detail, kept, page, trouble)


async def _bare(url: str, part: str, storage: Storage) -> evidence_pages.Page | None:
    """The columns alone, so that a filter that was not understood can be mended."""
    try:
        page = await in_reader(
            partial(evidence_pages.page, url, part, evidence_pages.Query(limit=1), storage)
        )
    except KallaError:  # told already: it was not the filter
        return None
    return replace(page, rows=(), next=None, previous=None)


def _shelf(
    detail: RunDetail, wanted: Wanted, page: evidence_pages.Page | None, trouble: str | None
) -> Shelf:
    part = wanted.part or ""
    run_id = detail.run_id
    columns = sorted(page.columns, key=_rank) if page else []
    counts = _counts(detail.report)
    return Shelf(
        wanted=wanted,
        run_id=run_id,
        tabs=tuple(
            Link(
                LABELS[name],
                _address(run_id, Wanted(name, against=wanted.against)),
                name == part,
                counts.get(name),
                "matches" if name == "matched" else "",
            )
            for name in DATASETS
        ),
        label=LABELS[part],
        chips=tuple(_chip(run_id, wanted, text) for text in wanted.filters),
        heads=tuple(_head(run_id, wanted, each) for each in columns),
        rows=tuple(tuple(row[each.name] for each in columns) for row in page.rows) if page else (),
        first=page.first if page else 0,
        total=page.total if page else 0,
        matches=counts.get(part) if part == "matched" and not wanted.filters else None,
        turns=_turns(run_id, wanted, page) if page else (),
        files=_files(run_id, wanted, page.total) if page and not trouble else (),
        empty="No row fits this filter." if wanted.filters else _EMPTY[part],
        all_rows=_address(run_id, replace(wanted, filters=(), after=None, before=None)),
        trouble=trouble,
    )


def _rank(column: Column) -> int:
    return _LAST.index(column.name) + 1 if column.name in _LAST else 0


def _telling(report: Report | None) -> str:
    """The part a person wants to see first: what is wrong, if anything is."""
    counts = _counts(report)
    order = ("unmatched_left", "unmatched_right", "ambiguous")
    return next((part for part in order if counts.get(part)), "matched")


def _counts(report: Report | None) -> dict[str, int]:
    if report is None:
        return {}
    left, right = report.sides["left"], report.sides["right"]
    return {
        "matched": sum(rule.matches for rule in report.rules),
        "unmatched_left": left["unmatched"].rows,
        "unmatched_right": right["unmatched"].rows,
        "ambiguous": left["ambiguous"].rows + right["ambiguous"].rows,
    }


def _head(run_id: int, wanted: Wanted, column: Column) -> Head:
    """One click sorts, the next one turns the order round. Amounts begin with the largest."""
    first = wanted.sort.split(",")[0].replace("|", "") if wanted.sort else ""
    state = {column.name: "ascending", f"-{column.name}": "descending"}.get(first, "none")
    downwards = state == "ascending" or (state == "none" and column.kind in ("number", "time"))
    sort = f"-{column.name}" if downwards else column.name
    address = _address(run_id, replace(wanted, sort=sort, after=None, before=None))
    return Head(column, column.name.replace("_", " "), address, state)


def _chip(run_id: int, wanted: Wanted, text: str) -> Chip:
    rest = list(wanted.filters)
    rest.remove(text)
    try:
        each = Filter.parse(text)
        words = f"{each.column.replace('_', ' ')} {OP_WORDS[each.op]} {each.value}".strip()
    except InvalidInput:
        words = text
    without = replace(wanted, filters=tuple(rest), after=None, before=None)
    return Chip(words, _address(run_id, without))


def _turns(run_id: int, wanted: Wanted, page: evidence_pages.Page) -> tuple[Link, ...]:
    found = []
    if page.previous:
        found.append(Link("First", _address(run_id, replace(wanted, after=None, before=None))))
        back = replace(wanted, after=None, before=page.previous)
        found.append(Link("Previous", _address(run_id, back)))
    if page.next:
        found.append(Link("Next", _address(run_id, replace(wanted, after=page.next, before=None))))
    return tuple(found)


def _files(run_id: int, wanted: Wanted, total: int) -> tuple[Link, ...]:
    query = [("filter", each) for each in wanted.filters]
    query += [("sort", wanted.sort)] if wanted.sort else []
    return tuple(
        Link(
            style.upper() if style != "parquet" else "Parquet",
            f"/api/runs/{run_id}/evidence/{wanted.part}?"
            + urlencode(
                [("format", style), *query, *([("bom", "true")] if style == "csv" else [])]
            ),
        )
        for style in FORMATS
        if style != "xlsx" or total <= SHEET_ROWS
    )


def _address(run_id: int, wanted: Wanted) -> str:
    return f"/runs/{run_id}?{urlencode(wanted.fields)}#evidence"
