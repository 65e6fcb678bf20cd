"""The Query page: an editor, and the answer as a table, a graph or an explanation.

The page uses the public API; this module serves its frame and the vocabulary for completion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from kalla.query.http.query_routes import queries_of
from kalla.query.promql.features import Features
from kalla.query.promql.function_signatures import FUNCTIONS, Signature
from kalla.query.promql.lexer import OPERATOR_WORDS
from kalla.query.promql.syntax_tree import AGGREGATORS
from kalla.web.access import GuardedRoute
from kalla.web.app_state import State

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

TABS = ("table", "graph", "explain")
RANGES = ("15m", "1h", "6h", "1d", "7d")

_MODIFIERS = ("by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset")
_EXPERIMENTAL = ("limitk", "limit_ratio")
_SHORT = {"vector": "vector", "matrix": "range", "scalar": "number", "string": "text"}


@router.get("/query")
async def query(
    request: Request, state: State, expr: str = "", tab: str = "", of: str = ""
) -> Response:
    """What the address asks for has its room on the page before the script runs: nothing jumps."""
    chosen = tab if tab in TABS else TABS[0]
    page = state.layout.render(
        "query.html",
        request,
        expr=expr,
        tabs=TABS,
        chosen=chosen,
        kind=of if chosen == "explain" else chosen,
        address=str(request.base_url).rstrip("/"),
        ranges=RANGES,
        vocabulary=json.dumps(vocabulary(queries_of(request).features)),
    )
    return HTMLResponse(page)


def vocabulary(features: Features) -> dict[str, list[list[str]]]:
    """The words of the language that are switched on, each with a hint of what it takes."""
    experimental = features.experimental_functions
    return {
        "function": [
            [name, _hint(signature)]
            for name, signature in sorted(FUNCTIONS.items())
            if not signature.native and (experimental or not signature.experimental)
        ],
        "aggregation": [
            [name, ""] for name in sorted(AGGREGATORS) if experimental or name not in _EXPERIMENTAL
        ],
        "keyword": [[name, ""] for name in sorted({*_MODIFIERS, *OPERATOR_WORDS})],
    }


def _hint(signature: Signature) -> str:
    return f"({', '.join(_arguments(signature))})"


def _arguments(signature: Signature) -> Iterator[str]:
    for index, kind in enumerate(signature.takes):
        last = index == len(signature.takes) - 1
        yield _SHORT[kind] + ("?" if last and signature.variadic else "")
    if signature.variadic < 0 or signature.variadic > 1:
        yield "…"
