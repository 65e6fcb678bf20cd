"""REST of a run's evidence: its metadata, pages and exports of its state, and two runs compared.

DuckDB runs in a few threads of its own: the event loop never blocks, and readers are limited.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from kalla.errors import Unavailable
from kalla.reconcile.evidence.reading import evidence_pages
from kalla.reconcile.evidence.reading.evidence_export import EXPORT, MEDIA_TYPES, Format, export
from kalla.reconcile.evidence.reading.evidence_filters import Filter, Order
from kalla.reconcile.evidence.reading.evidence_reader import reading
from kalla.reconcile.evidence.reading.run_comparison import COMPARE, Difference, compare
from kalla.reconcile.runs import store
from kalla.storage import Storage
from kalla.web.access import GuardedRoute
from kalla.web.app_state import AppState, State

router = APIRouter(prefix="/api", route_class=GuardedRoute, tags=["evidence"])

Part = Literal["matched", "unmatched_left", "unmatched_right", "ambiguous"]
RunId = Annotated[int, Path(ge=1, le=2**63 - 1)]
Result = TypeVar("Result")

_PAGES = ThreadPoolExecutor(4, thread_name_prefix="evidence")
_LONG_AT_ONCE, _MOST_WAITING = 2, 4
_LONG = ThreadPoolExecutor(
    _LONG_AT_ONCE, thread_name_prefix="evidence-long"
)  # no page waits for it
_under_way: set[Future[Any]] = set()
_GLANCE_SECONDS = 0.5
_CHUNK = 256 * 1024


class EvidenceColumn(BaseModel):
    name: str
    kind: Literal["text", "number", "time", "boolean", "list"]


class EvidencePage(BaseModel):
    """Rows of one part of the evidence. Numbers with a point are text, so that none is rounded."""

    part: Part
    columns: list[EvidenceColumn]
    rows: list[dict[str, Any]]
    first: int = Field(description="how many rows of the filter come before these")
    total: int = Field(description="rows of the filter")
    next: str | None = Field(description="`after` of the next page; null on the last one")
    previous: str | None = Field(description="`before` of the page before; null on the first one")

    @classmethod
    def of(cls, page: evidence_pages.Page) -> EvidencePage:
        columns = [EvidenceColumn(name=each.name, kind=each.kind) for each in page.columns]
        return cls.model_validate(vars(page) | {"columns": columns})


@router.get("/runs/{run_id}/evidence")
async def show_evidence(state: State, run_id: RunId) -> dict[str, Any]:
    """The metadata of the evidence: recipe, sources, counts, sums and digests."""
    url, storage = await place_of(state, run_id), Storage.of(state.settings.storage)

    def read() -> dict[str, Any]:
        with reading(storage) as reader:
            return reader.metadata(url)

    return await in_reader(read)


Cursor = Annotated[
    str | None, Query(max_length=20_000, json_schema_extra={"pattern": "^[A-Za-z0-9_-]*$"})
]


@router.get("/runs/{run_id}/evidence/{part}", response_model=EvidencePage)
async def list_evidence(
    request: Request,
    state: State,
    run_id: RunId,
    part: Part,
    filters: Annotated[
        list[str] | None,
        Query(
            alias="filter",
            description="`column:op:value`, repeated; op is eq, ne, in (values with commas between"
            " them), contains, startswith, gt, gte, lt, lte, is_null or not_null",
        ),
    ] = None,
    sort: Annotated[
        str, Query(max_length=500, description="columns with commas between them; -column descends")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=evidence_pages.MOST_ROWS)] = 100,
    after: Cursor = None,
    before: Cursor = None,
    style: Annotated[Literal["json"] | Format, Query(alias="format")] = "json",
    bom: Annotated[bool, Query(description="CSV: begin with a UTF-8 byte order mark")] = False,
) -> Any:
    """Rows of a part of the evidence, filtered and sorted: a page of them, or all as a file."""
    query = asked(filters or [], sort, limit, after, before)
    url, storage = await place_of(state, run_id), Storage.of(state.settings.storage)
    if style == "json":
        return EvidencePage.of(
            await in_reader(partial(evidence_pages.page, url, part, query, storage))
        )
    exported = partial(_exported, url, part, query, style, storage, bom)
    file = await _in_long_reader(request, exported)
    return StreamingResponse(
        _chunks(file),
        media_type=MEDIA_TYPES[style],
        headers={
            "Content-Disposition": f'attachment; filename="run-{run_id}-{part}.{style}"',
            "Content-Length": str(os.fstat(file.fileno()).st_size),
        },
    )


@router.get("/runs/{run_id}/diff/{other}")
async def compare_runs(
    request: Request,
    state: State,
    run_id: RunId,
    other: RunId,
    examples: Annotated[int, Query(ge=0, le=1000, description="rows shown of each change")] = 20,
) -> Difference:
    """Compare the result of every row of this run (A) with the other (B)."""
    return await difference(request, state, run_id, other, examples)


async def difference(
    request: Request, state: AppState, a: int, b: int, examples: int
) -> Difference:
    storage = Storage.of(state.settings.storage)
    urls = await place_of(state, a), await place_of(state, b)

    def compared(given_up: threading.Event) -> Difference:
        return compare(*urls, storage, examples, replace(COMPARE, given_up=given_up))

    return await _in_long_reader(request, compared)


async def place_of(state: AppState, run_id: int) -> str:
    async with state.database.transaction() as connection:
        return await store.evidence_url(connection, run_id)


async def in_reader(work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_PAGES, work)


def asked(
    filters: list[str],
    sort: str,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> evidence_pages.Query:
    orders = Order.parse_all(sort)
    return evidence_pages.Query(
        tuple(map(Filter.parse, filters)), orders, limit, after or None, before or None
    )


async def _in_long_reader(request: Request, work: Callable[[threading.Event], Result]) -> Result:
    """Runs while the caller waits: a disconnected caller does not block others."""
    if len(_under_way) >= _LONG_AT_ONCE + _MOST_WAITING:
        raise Unavailable(
            f"{len(_under_way)} exports and comparisons are running: try again in a minute"
        )
    given_up = threading.Event()
    job = _LONG.submit(work, given_up)
    _under_way.add(job)
    job.add_done_callback(_under_way.discard)
    working = asyncio.wrap_future(job)
    try:
        while not (await asyncio.wait({working}, timeout=_GLANCE_SECONDS))[0]:
            if await request.is_disconnected():
                raise Unavailable("the caller has left")
        return working.result()
    finally:
        given_up.set()
        working.cancel()


def _exported(
    url: str,
    part: str,
    query: evidence_pages.Query,
    style: Format,
    storage: Storage,
    bom: bool,
    given_up: threading.Event,
) -> BinaryIO:
    """A file without a name: it is removed when its last reader closes it."""
    with tempfile.TemporaryDirectory(prefix="kalla-export-") as folder:
        path = FilePath(folder) / f"{part}.{style}"
        bounds = replace(EXPORT, given_up=given_up)
        export(url, part, query, style, path, storage, bom=bom, bounds=bounds)
        return path.open("rb")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK):
            yield chunk
