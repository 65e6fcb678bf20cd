"""Prometheus' HTTP API for reading, by GET or by a form; answers and refusals in its shapes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from kalla.pattern_size import ExpressionBudget
from kalla.query.http import request_times, response_json
from kalla.query.http.error_responses import REFUSALS, PrometheusRoute
from kalla.query.http.explain import explained, stats
from kalla.query.http.label_name_escapes import unescaped
from kalla.query.http.tree_json import tree
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.features import Features
from kalla.query.promql.lexer import go_quote, is_label_name
from kalla.query.promql.matchers import Matcher, readable
from kalla.query.promql.parser import parse
from kalla.query.promql.printer import formatted
from kalla.query.promql.query_errors import BadRequest, ParseFailed
from kalla.query.promql.syntax_tree import Expr, VectorSelector
from kalla.query.promql.type_checker import checked
from kalla.query.service import query_request
from kalla.query.service.query_request import QueryOptions, QueryRequest
from kalla.query.service.query_service import QueryService, Store
from kalla.web.access import Endpoint, harmless, needs

router = APIRouter(
    prefix="/api/v1", route_class=PrometheusRoute, tags=["query"], responses=REFUSALS
)

# The version of PromQL that is implemented; Kalla's own version is given as the revision.
PROMETHEUS_VERSION = "3.14.0"
# Answers up to this size are sent as one, larger ones piece by piece.
_WHOLE_BYTES = 1 << 20
_JSON = "application/json"
MOST_SELECTORS = 1_000

Result = TypeVar("Result")


@dataclass(frozen=True)
class RequestParameters:
    """The parameters of a request, from its form and its address; a form's come first."""

    fields: Mapping[str, Sequence[str]]

    def one(self, name: str) -> str:
        return next(iter(self.fields.get(name, ())), "")

    def all(self, name: str) -> Sequence[str]:
        return self.fields.get(name, ())

    def time(self, name: str, otherwise: int) -> int:
        text = self.one(name)
        context = f"invalid time value for '{name}': "
        return request_times.time_of(text, name, context) if text else otherwise

    @property
    def limit(self) -> int:
        return request_times.limit_of(self.one("limit"))

    def options(self, features: Features) -> QueryOptions:
        timeout, lookback = self.one("timeout"), self.one("lookback_delta")
        return QueryOptions(
            seconds=request_times.duration_of(timeout, "timeout") / 1000 if timeout else None,
            lookback_ms=request_times.lookback_of(lookback) if lookback else 0,
            counted=bool(self.one("stats")),
            features=features,
        )


async def request_parameters(request: Request) -> RequestParameters:
    fields: dict[str, list[str]] = {}
    texts = [request.scope["query_string"]]
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind == "application/x-www-form-urlencoded":
        texts.insert(0, await request.body())
    for text in texts:
        found = parse_qs(
            text.decode(errors="surrogateescape"), keep_blank_values=True, errors="surrogateescape"
        )
        for name, values in found.items():
            fields.setdefault(name, []).extend(values)
    return RequestParameters(fields)


def queries_of(request: Request) -> QueryService:
    return cast(QueryService, request.app.state.queries)


def store_of(request: Request) -> Store:
    return cast(Store, request.app.state.metric_store)


Parameters = Annotated[RequestParameters, Depends(request_parameters)]
Queries = Annotated[QueryService, Depends(queries_of)]
Stored = Annotated[Store, Depends(store_of)]


def _reading(path: str, *parameters: str, form: bool = True) -> Callable[[Endpoint], Endpoint]:
    """A route for viewers, by GET and, where Prometheus has it, by a form that changes nothing."""
    described = {
        "parameters": [
            {
                "name": name,
                "in": "query",
                "required": name in ("query", "start", "end", "step") and "query" in parameters,
                "schema": {"type": "array", "items": {"type": "string"}}
                if name.endswith("[]")
                else {"type": "string"},
            }
            for name in parameters
        ]
    }

    def add(endpoint: Endpoint) -> Endpoint:
        endpoint = harmless(needs("viewer")(endpoint))
        router.get(path, openapi_extra=described)(endpoint)
        if form:
            router.post(path, openapi_extra=described)(endpoint)
        return endpoint

    return add


_OF_QUERIES = ("timeout", "lookback_delta", "limit", "stats", "explain")


@_reading("/query", "query", "time", *_OF_QUERIES)
async def query(request: Request, parameters: Parameters, queries: Queries) -> Response:
    """The value of an expression at one time."""
    limit = parameters.limit
    when = parameters.time("time", int(time.time() * 1000))
    options = parameters.options(queries.features)
    question = await queries.prepare(
        lambda: query_request.instant(parameters.one("query"), when, options),
        left(request),
        options.seconds,
    )
    return await _answered(request, parameters, queries, question, limit)


@_reading("/query_range", "query", "start", "end", "step", *_OF_QUERIES)
async def query_range(request: Request, parameters: Parameters, queries: Queries) -> Response:
    """The values of an expression over a time, one per step."""
    limit = parameters.limit
    start = request_times.time_of(parameters.one("start"), "start")
    end = request_times.time_of(parameters.one("end"), "end")
    step = int(request_times.duration_of(parameters.one("step"), "step"))
    options = parameters.options(queries.features)
    question = await queries.prepare(
        lambda: query_request.ranged(parameters.one("query"), start, end, step, options),
        left(request),
        options.seconds,
    )
    return await _answered(request, parameters, queries, question, limit)


@_reading("/series", "match[]", "start", "end", "limit")
async def series(request: Request, parameters: Parameters, queries: Queries) -> Response:
    """The label sets of the series that match one of the selectors."""
    if not parameters.all("match[]"):
        raise BadRequest("no match[] parameter provided")
    limit = parameters.limit
    found = await _search(request, parameters, queries, sorted, "match[]")
    return await _sent(response_json.label_sets(*_limited(found, limit)))


@_reading("/labels", "match[]", "start", "end", "limit")
async def labels(request: Request, parameters: Parameters, queries: Queries) -> Response:
    """The names of labels, of all series or of those that match."""
    limit = parameters.limit

    def names(found: set[Labels]) -> list[str]:
        return sorted({name for one in found for name, _ in one})

    return _json_response(*_limited(await _search(request, parameters, queries, names), limit))


@_reading("/label/{name}/values", "match[]", "start", "end", "limit", form=False)
async def label_values(
    name: str, request: Request, parameters: Parameters, queries: Queries
) -> Response:
    """The values of a label, of all series or of those that match."""
    name = unescaped(name)
    if not is_label_name(name):
        raise BadRequest(f"invalid label name: {go_quote(name)}")
    limit = parameters.limit

    def values(found: set[Labels]) -> list[str]:
        return sorted({value for one in found for key, value in one if key == name})

    limited, warnings = _limited(await _search(request, parameters, queries, values), limit)
    return await asyncio.to_thread(_json_response, limited, warnings)


@_reading("/metadata", "metric", "limit", "limit_per_metric", form=False)
async def metadata(parameters: Parameters, store: Stored) -> Response:
    """Type, help and unit of metrics, as far as senders sent them."""
    limit = request_times.count_of(parameters.one("limit"), "limit")
    request_times.count_of(
        parameters.one("limit_per_metric"), "limit_per_metric"
    )  # there is never a second
    metric = readable(parameters.one("metric"))
    if "\x00" in metric:
        return _json_response({})  # Postgres cannot store such a text, so no metric has this name
    found = await store.metadata(metric or None, limit if limit >= 0 else None)
    return _json_response(
        {
            metric: [{"type": entry.type, "help": entry.help, "unit": entry.unit}]
            for metric, entry in found.items()
        }
    )


@_reading("/format_query", "query")
async def format_query(request: Request, parameters: Parameters, queries: Queries) -> Response:
    """The expression, laid out."""
    return _json_response(await _parsed(request, parameters, queries, formatted))


@_reading("/parse_query", "query")
async def parse_query(request: Request, parameters: Parameters, queries: Queries) -> Response:
    """The expression as a tree."""
    return _json_response(await _parsed(request, parameters, queries, tree))


@_reading("/status/buildinfo", form=False)
async def buildinfo() -> Response:
    """The version of Prometheus whose language this is; Kalla's own is the revision."""
    return _json_response(
        {
            "version": PROMETHEUS_VERSION,
            "revision": f"kalla {version('kalla')}",
            "branch": "kalla",
            "buildUser": "",
            "buildDate": "",
            "goVersion": "",
        }
    )


@_reading("/rules", form=False)
async def rules() -> Response:
    """Kalla evaluates no rules: there are none."""
    return _json_response({"groups": []})


@_reading("/alerts", form=False)
async def alerts() -> Response:
    """Kalla evaluates no rules: there are no alerts."""
    return _json_response({"alerts": []})


@_reading("/query_exemplars", "query", "start", "end")
async def query_exemplars(request: Request, parameters: Parameters, queries: Queries) -> Response:
    """Kalla keeps no exemplars: there are none for any expression."""
    await _parsed(request, parameters, queries, lambda expr: expr)
    return _json_response([])


def caller_name(request: Request) -> str:
    return str(request.state.caller.name)


async def left(request: Request) -> None:
    """Returns when the caller has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _parsed(
    request: Request,
    parameters: RequestParameters,
    queries: QueryService,
    extract: Callable[[Expr], Result],
) -> Result:
    """The result of `extract` on the checked expression, within a query's time limit."""
    return await queries.parse(
        lambda: extract(checked(parameters.one("query"), queries.features)), left(request)
    )


async def _answered(
    request: Request,
    parameters: RequestParameters,
    queries: QueryService,
    question: QueryRequest,
    limit: int,
) -> Response:
    reply = await queries.ask(question, left(request), user=caller_name(request))
    extra_fields: dict[str, Any] = {}
    if parameters.one("stats"):
        extra_fields["stats"] = stats(reply, per_step=parameters.one("stats") == "all")
    if parameters.one("explain").lower() in ("1", "true"):
        extra_fields["explain"] = explained(reply)
    return await _sent(
        response_json.pieces(reply.answer, question.steps.start, limit, extra_fields)
    )


async def _sent(parts: Iterator[response_json.Piece]) -> Response:
    """Encoded off the event loop; a long answer is sent while the rest of it is encoded."""
    first_pieces, whole = await asyncio.to_thread(_first_pieces, parts)
    if whole:
        return Response(b"".join(first_pieces), media_type=_JSON)
    return StreamingResponse(chain(first_pieces, parts), media_type=_JSON)


def _first_pieces(parts: Iterator[response_json.Piece]) -> tuple[list[response_json.Piece], bool]:
    first_pieces: list[response_json.Piece] = []
    size = 0
    for part in parts:
        first_pieces.append(part)
        size += len(part)
        if size > _WHOLE_BYTES:
            return first_pieces, False
    return first_pieces, True


def _json_response(data: Any, warnings: Sequence[str] = ()) -> Response:
    return Response(response_json.success(data, warnings), media_type=_JSON)


def _limited(found: Sequence[Any], limit: int) -> tuple[Sequence[Any], Sequence[str]]:
    if limit and len(found) > limit:
        return found[:limit], [response_json.TRUNCATED]
    return found, []


async def _search(
    request: Request,
    parameters: RequestParameters,
    queries: QueryService,
    extract: Callable[[set[Labels]], list[Result]],
    parameter: str = "",
) -> list[Result]:
    """Extracts from the series of the requested time that any selector matches; all without a
    selector.

    As Prometheus has it, only /series names the refused parameter.
    """
    after = parameters.time("start", request_times.EARLIEST) - 1
    until = parameters.time("end", request_times.LATEST)
    texts = parameters.all("match[]")
    if len(texts) > MOST_SELECTORS:
        raise BadRequest(f"more than {MOST_SELECTORS} selectors", parameter)
    expressions = ExpressionBudget()
    selectors = await queries.parse(
        lambda: [_matchers(text, parameter, expressions) for text in texts] or [()], left(request)
    )
    bounds = (request_times.within(after), request_times.within(until))
    return await queries.search(selectors, bounds, extract, left(request), caller_name(request))


def _matchers(text: str, parameter: str, expressions: ExpressionBudget) -> tuple[Matcher, ...]:
    try:
        selector = parse(text, expressions=expressions)
        if not isinstance(selector, VectorSelector) or (
            selector.offset or selector.at is not None or selector.extension
        ):
            raise BadRequest("a series selector is expected, without modifiers", parameter)
        matchers = tuple(Matcher.of(one) for one in selector.matchers)
        if all(matcher.matches("") for matcher in matchers):
            raise BadRequest("match[] must contain at least one non-empty matcher", parameter)
        checked(text)
    except ParseFailed as problem:
        raise BadRequest(str(problem), parameter) from None
    return matchers
