"""One part of a run's evidence as a page shows it: tabs, a sorted and filtered table, paging links
and export links. Separate from `pages.py`: everything here is addresses and labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlencode

from kalla.errors import InvalidInput, KallaError, NotFound
from kalla.reconcile.evidence.reading import evidence_pages
from kalla.reconcile.evidence.reading.column_labels import Labels
from kalla.reconcile.evidence.reading.evidence_export import FORMATS, SHEET_ROWS
from kalla.reconcile.evidence.reading.evidence_filters import OPS, Filter, Order
from kalla.reconcile.evidence.reading.evidence_reader import Column
from kalla.reconcile.evidence.reading.exception_detail import ExceptionDetail, open_exception
from kalla.reconcile.evidence.reading.exception_figures import (
    Bar,
    ExceptionFigures,
    exception_figures,
)
from kalla.reconcile.evidence.reading.run_report import Report
from kalla.reconcile.evidence.writing.datasets import DATASETS
from kalla.reconcile.recipe.model import SIDES, Side
from kalla.reconcile.runs.evidence_routes import asked, in_reader
from kalla.reconcile.runs.store import RunDetail
from kalla.redaction import scrub
from kalla.storage import Storage
from kalla.web.app_state import AppState


def part_label(part: str, names: Mapping[Side, str]) -> str:
    """The label of a part of the evidence."""
    state, _, side = part.partition("_")
    return (
        f"{state.capitalize()} {names['left' if side == 'left' else 'right']}"
        if side
        else (state.capitalize())
    )


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
# The largest absolute amounts first.
_USUAL_SORT = {"unmatched_left": "-|amount|", "unmatched_right": "-|amount|"}
# The most important columns come first, the least important last.
_FIRST = ("record_key", "side", "amount", "currency", "date", "left_key", "right_key",
          "left_amount",
          "right_amount", "difference.", "left_date", "right_date", "rejection_reason", "reason",
          "closest_candidate", "candidate_amount", "candidate_date", "difference",
          "candidates")  # fmt: skip
_LAST = ("left_currency", "right_currency", "candidate_currency", "candidate_status", "rule",
         "attempted_rules", "status", "cardinality", "failing_condition", "left_value",
         "right_value", "interchangeable", "fifo", "confidence", "matched_at",
         "match_id")  # fmt: skip
# An item shows them in its amounts and its number of rows.
_HIDDEN = ("part", "parts", "left_sum", "right_sum")


@dataclass(frozen=True)
class EvidenceRequest:
    """The parameters of a page's address; None is the default."""

    part: str | None = None
    sort: str | None = None
    filters: tuple[str, ...] = ()
    after: str | None = None
    before: str | None = None
    against: int | None = None  # the run that this one is compared with, below the rows
    exception: str | None = None  # the row that is open next to its nearest candidate: side:key

    @property
    def fields(self) -> list[tuple[str, str]]:
        """As query parameters of an address, or hidden fields of a form."""
        given = [("part", self.part or "")]
        given += [("sort", self.sort)] if self.sort is not None else []
        given += [("filter", each) for each in self.filters]
        given += [("after", self.after)] if self.after else []
        given += [("before", self.before)] if self.before else []
        given += [("against", str(self.against))] if self.against else []
        given += [("exception", self.exception)] if self.exception else []
        return given


@dataclass(frozen=True)
class Link:
    label: str
    address: str
    current: bool = False
    count: int | None = None
    unit: str = ""  # empty: rows


@dataclass(frozen=True)
class Head:
    column: Column
    label: str
    address: str
    sorted: str  # none, ascending, descending: values of aria-sort


@dataclass(frozen=True)
class Row:
    """A row of the table; a match of several rows is followed by its parts."""

    cells: tuple[tuple[Head, Any], ...]
    several: str = ""  # how many rows a match has, if more than a pair
    parts: tuple[tuple[tuple[Head, Any], ...], ...] = ()
    address: str | None = None  # where the row opens next to its nearest candidate
    is_open: bool = False


@dataclass(frozen=True)
class Chip:
    words: str
    without: str


@dataclass(frozen=True)
class EvidenceTable:
    """The data of the template."""

    request: EvidenceRequest
    run_id: int
    tabs: tuple[Link, ...]
    label: str
    chips: tuple[Chip, ...]
    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    first: int
    total: int
    unit: str  # what is counted
    turns: tuple[Link, ...]
    files: tuple[Link, ...]
    empty: str
    all_rows: str
    error_message: str | None

    @property
    def ops(self) -> dict[str, str]:
        return {op: OP_WORDS[op] for op in OPS}


async def load_evidence_table(
    state: AppState, detail: RunDetail, request: EvidenceRequest
) -> EvidenceTable:
    """Read the page of evidence for an address."""
    part = request.part or _first_part(detail.report)
    sort = _USUAL_SORT.get(part, "") if request.sort is None else request.sort
    kept = replace(request, part=part, sort=sort)
    storage, page, error_message = Storage.of(state.settings.storage), None, None
    url = detail.evidence_url or ""
    try:
        query = asked(list(request.filters), sort, _ROWS, request.after, request.before)
        query = replace(query, items=part == "matched")
        page = await in_reader(partial(evidence_pages.page, url, part, query, storage))
    except KallaError as error:
        problems = error.problems if isinstance(error, InvalidInput) else ()
        error_message = scrub("; ".join(each.message for each in problems) or str(error))
        page = await _bare(url, part, storage) if problems else None
    return _evidence_table(detail, kept, page, error_message)


@dataclass(frozen=True)
class OpenException:
    """An exception that is open next to the rows it was compared with."""

    detail: ExceptionDetail | None
    error_message: str | None
    close: str


async def load_exception(
    state: AppState, detail: RunDetail, request: EvidenceRequest
) -> OpenException:
    """Read the exception that an address names."""
    close = address(detail.run_id, replace(request, exception=None))
    side, _, key = (request.exception or "").partition(":")
    part = "ambiguous" if request.part == "ambiguous" else f"unmatched_{side}"
    try:
        if side not in SIDES or request.part not in (None, part):
            raise NotFound(f"there is no exception {request.exception!r}")
        url, storage = detail.evidence_url or "", Storage.of(state.settings.storage)
        found = await in_reader(partial(open_exception, url, part, side, key, storage))
    except KallaError as error:
        return OpenException(None, scrub(str(error)), close)
    return OpenException(found, None, close)


async def figures(state: AppState, detail: RunDetail) -> ExceptionFigures | None:
    """The exceptions' figures; errors of the evidence are shown with its rows."""
    url, storage = detail.evidence_url or "", Storage.of(state.settings.storage)
    try:
        return await in_reader(partial(_figures, url, storage))
    except KallaError:
        return None


@lru_cache(maxsize=64)
def _figures(url: str, storage: Storage) -> ExceptionFigures:
    """They are of all unmatched rows, and evidence never changes: pages and filters share them."""
    return exception_figures(url, storage)


def bar_address(run_id: int, bar: Bar) -> str:
    """The address of the rows of a bar."""
    return address(run_id, EvidenceRequest(bar.part, filters=bar.filters))


async def _bare(url: str, part: str, storage: Storage) -> evidence_pages.Page | None:
    """The columns alone, so that an invalid filter can be corrected."""
    try:
        page = await in_reader(
            partial(evidence_pages.page, url, part, evidence_pages.Query(limit=1), storage)
        )
    except KallaError:  # reported already: it was not the filter
        return None
    return replace(page, rows=(), next=None, previous=None)


def _evidence_table(
    detail: RunDetail,
    request: EvidenceRequest,
    page: evidence_pages.Page | None,
    error_message: str | None,
) -> EvidenceTable:
    part = request.part or ""
    run_id = detail.run_id
    labels = page.labels if page else Labels.of({})
    columns = [
        each
        for each in sorted(page.columns if page else (), key=_rank)
        if each.name not in _HIDDEN and not labels.is_empty(part, each.name)
    ]
    texts = labels.texts(part, [each.name for each in columns])
    heads = tuple(_head(run_id, request, each, texts[each.name]) for each in columns)
    counts = _counts(detail.report)
    return EvidenceTable(
        request=request,
        run_id=run_id,
        tabs=tuple(
            Link(
                part_label(name, labels.names),
                address(run_id, EvidenceRequest(name, against=request.against)),
                name == part,
                counts.get(name),
                "matches" if name == "matched" else "",
            )
            for name in DATASETS
        ),
        label=part_label(part, labels.names),
        chips=tuple(_chip(run_id, request, text, texts) for text in request.filters),
        heads=heads,
        rows=tuple(_row(run_id, request, page, heads, each) for each in page.rows) if page else (),
        first=page.first if page else 0,
        total=page.total if page else 0,
        unit="matches" if part == "matched" and _has_items(page) else "rows",
        turns=_turns(run_id, request, page) if page else (),
        files=_files(run_id, request, page.total) if page and not error_message else (),
        empty="No row fits this filter." if request.filters else _empty(part, labels),
        all_rows=address(run_id, replace(request, filters=(), after=None, before=None)),
        error_message=error_message,
    )


def _has_items(page: evidence_pages.Page | None) -> bool:
    """Evidence of older formats has rows alone."""
    return page is not None and any(each.name == "parts" for each in page.columns)


def _rank(column: Column) -> tuple[int, int]:
    if column.name in _LAST:
        return 2, _LAST.index(column.name)
    name = "difference." if column.name.startswith("difference.") else column.name
    return (0, _FIRST.index(name)) if name in _FIRST else (1, 0)


def _empty(part: str, labels: Labels) -> str:
    if not part.startswith("unmatched_"):
        return f"Nothing is {part}."
    return (
        f"No row of {labels.names['left' if part == 'unmatched_left' else 'right']} is unmatched."
    )


def _row(
    run_id: int,
    request: EvidenceRequest,
    page: evidence_pages.Page,
    heads: Sequence[Head],
    row: Mapping[str, Any],
) -> Row:
    def cells(values: Mapping[str, Any]) -> tuple[tuple[Head, Any], ...]:
        return tuple((head, values[head.column.name]) for head in heads)

    if request.part != "matched":
        key = str(row["record_key"])
        side = str(row.get("side") or (request.part or "").removeprefix("unmatched_"))
        mark = f"{side}:{key}"
        return Row(
            cells(row),
            address=address(run_id, replace(request, exception=mark), "exception"),
            is_open=request.exception == mark,
        )
    parts = page.parts.get(str(row["match_id"]), ())
    if not parts:
        return Row(cells(row))
    shape = str(row["cardinality"])
    # The only row of a side is shown in the item; the rows of the other below it.
    many = {"1:N": "right", "N:1": "left"}.get(shape, "")
    counts = {side: len({each[f"{side}_key"] for each in parts} - {None}) for side in SIDES}
    more = " and more" if row["parts"] > len(parts) else ""
    several = " to ".join(f"{counts[side]:,} {page.labels.names[side]}" for side in SIDES) + more
    item = dict(row)
    for side in SIDES:
        if side == many or not many:
            item |= {name: None for name in row if _is_of(name, side) and "amount" not in name}

    def part_cells(values: Mapping[str, Any]) -> tuple[tuple[Head, Any], ...]:
        own = [each for each in SIDES if many in ("", each)]
        return tuple(
            (head, values[name] if any(_is_of(name, each) for each in own) else None)
            for head in heads
            for name in [head.column.name]
        )

    return Row(cells(item), several, tuple(part_cells(each) for each in parts))


def _is_of(column: str, side: str) -> bool:
    return column.startswith((f"{side}_", f"{side}."))


def _first_part(report: Report | None) -> str:
    """The part to show first: exceptions, if there are any."""
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


def _head(run_id: int, request: EvidenceRequest, column: Column, label: str) -> Head:
    """One click sorts, the next reverses the order. Amounts begin with the largest."""
    orders = Order.parse_all(request.sort or "")
    first = orders[0] if orders and orders[0].column == column.name else None
    state = "none" if first is None else "descending" if first.descending else "ascending"
    downwards = state == "ascending" or (state == "none" and column.kind in ("number", "time"))
    sort = Order(column.name, downwards).quoted
    return Head(
        column, label, address(run_id, replace(request, sort=sort, after=None, before=None)), state
    )


def _chip(run_id: int, request: EvidenceRequest, text: str, labels: Mapping[str, str]) -> Chip:
    rest = list(request.filters)
    rest.remove(text)
    try:
        each = Filter.parse(text)
        label = labels.get(each.named) or each.named.replace("_", " ")
        label = f"size of {label}" if each.by_size else label
        words = f"{label} {OP_WORDS[each.op]} {each.value}".strip()
    except InvalidInput:
        words = text
    without = replace(request, filters=tuple(rest), after=None, before=None)
    return Chip(words, address(run_id, without))


def _turns(run_id: int, request: EvidenceRequest, page: evidence_pages.Page) -> tuple[Link, ...]:
    found = []
    if page.previous:
        found.append(Link("First", address(run_id, replace(request, after=None, before=None))))
        back = replace(request, after=None, before=page.previous)
        found.append(Link("Previous", address(run_id, back)))
    if page.next:
        found.append(Link("Next", address(run_id, replace(request, after=page.next, before=None))))
    return tuple(found)


def _files(run_id: int, request: EvidenceRequest, total: int) -> tuple[Link, ...]:
    query = [("filter", each) for each in request.filters]
    query += [("sort", request.sort)] if request.sort else []
    return tuple(
        Link(
            style.upper() if style != "parquet" else "Parquet",
            f"/api/runs/{run_id}/evidence/{request.part}?"
            + urlencode(
                [("format", style), *query, *([("bom", "true")] if style == "csv" else [])]
            ),
        )
        for style in FORMATS
        if style != "xlsx" or total <= SHEET_ROWS
    )


def address(run_id: int, request: EvidenceRequest, place: str = "evidence") -> str:
    return f"/runs/{run_id}?{urlencode(request.fields)}#{place}"
