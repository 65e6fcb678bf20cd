"""Every error as an answer: RFC 9457 problem details for programs, a small page for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import quote
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from kalla import logs
from kalla.database import AWAY, NOT_MIGRATED
from kalla.errors import InvalidInput, KallaError, NotAuthenticated, Problem, Unavailable
from kalla.redaction import scrub
from kalla.web.app_state import state_of
from kalla.web.tokens.credentials import presented

REFUSALS = (KallaError, HTTPException, RequestValidationError)
_SERVERS = tuple(kind for kind in AWAY if not issubclass(kind, KallaError))
_RETRY_SECONDS = 2
_log = logs.get(__name__)


class FieldProblem(BaseModel):
    field: str
    message: str


class ProblemDetails(BaseModel):
    """The body of every answer from 400 on."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] | None = None
    id: str | None = None


def install(app: FastAPI) -> None:
    """Answers every expected error in one way; the middleware answers unexpected ones."""

    async def handle(request: Request, error: Exception) -> Response:
        await recognise(request)
        return answer(request, error)

    for kind in (*REFUSALS, *_SERVERS, *NOT_MIGRATED):
        app.add_exception_handler(kind, handle)


async def recognise(request: Request) -> None:
    """The caller of a missing page: a logged-in one keeps the menu."""
    if not wants_page(request) or hasattr(request.state, "caller"):
        return
    token, _ = presented(request)
    if token:
        with suppress(NotAuthenticated, *AWAY, *NOT_MIGRATED):
            request.state.caller = await state_of(request).token_lookup.caller(token)


def _of_content_type(request: Request, error: Exception) -> Exception:
    """FastAPI reads a body of another type as text, and would report that it is not an object."""
    if not isinstance(error, RequestValidationError) or not isinstance(error.body, str | bytes):
        return error
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.endswith("json") or all(item["loc"] != ("body",) for item in error.errors()):
        return error
    sent = f"is {kind}" if kind else "is missing"
    return HTTPException(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"the body must be JSON and its content type {sent}: send `Content-Type: application/json`",
    )


def _of_method(request: Request, error: Exception) -> Exception:
    """The answer to a method that an address does not have: lists its methods.

    The router names those of one route, and takes `/runs/import` for a run of that name.
    """
    is_path = isinstance(error, RequestValidationError) and all(
        item["loc"][:1] == ("path",) for item in error.errors()
    )
    is_method = getattr(error, "status_code", None) == HTTPStatus.METHOD_NOT_ALLOWED
    if not (is_path or is_method) or "app" not in request.scope:
        return error
    named, fitting = set[str](), set[str]()
    for route in iter_route_contexts(request.app.routes):
        if route.path == request.url.path:
            named |= set(route.methods or ())
        elif compile_path(str(route.path))[0].match(request.url.path):
            fitting |= set(route.methods or ())
    if is_path and (not named or request.method in named):
        return error
    allowed = ", ".join(sorted(named or fitting))
    return HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": allowed})


def status_of(error: Exception) -> int:
    return _details(error).status


def answer(request: Request, error: Exception) -> Response:
    error = _of_method(request, _of_content_type(request, error))
    details = _details(error)
    if details.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        details.id = uuid4().hex[:12]
        _log.error("unexpected", error_id=details.id, path=request.url.path, exc_info=error)
        details.detail = f"the log says more under {details.id}"
    headers = dict(getattr(error, "headers", None) or {})
    if details.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(_RETRY_SECONDS)
    if wants_page(request):
        return _page(request, details, headers)
    if details.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="kalla"'
    return JSONResponse(
        details.model_dump(exclude_none=True),
        details.status,
        headers,
        media_type="application/problem+json",
    )


def wants_page(request: Request) -> bool:
    """Whether the caller is a browser, not a program or a script of Kalla's pages."""
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get(
        "accept", ""
    )


def _page(request: Request, details: ProblemDetails, headers: Mapping[str, str]) -> Response:
    layout = state_of(request).layout
    if details.status == HTTPStatus.UNAUTHORIZED and request.method == "GET":
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            # A link on another site: the browser holds the strict cookie back, and sends it as
            # soon as the navigation starts from a page of ours.
            page = layout.render("again.html", request, here=here)
            return HTMLResponse(page, details.status)
        return RedirectResponse(f"/login?next={quote(here, safe='/')}", 303)
    page = layout.render("problem.html", request, problem=details)
    return HTMLResponse(page, details.status, dict(headers))


def _details(error: Exception) -> ProblemDetails:
    if isinstance(error, RequestValidationError):
        return _details(InvalidInput(*_field_problems(error)))
    if isinstance(error, InvalidInput):
        return _invalid(error)
    if isinstance(error, KallaError):
        return _of(type(error), scrub(str(error)))
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        return ProblemDetails(
            type="about:blank",
            title=phrase,
            status=error.status_code,
            detail=scrub(_UNHELPFUL.get(error.detail, error.detail)),
        )
    if isinstance(error, NOT_MIGRATED):
        _log.error("the database does not fit this version", exc_info=error)
        return _of(Unavailable, "the database is not migrated: run `kalla migrate`")
    if isinstance(error, _SERVERS):
        return _of(Unavailable, "Postgres does not answer: try again in a moment")
    return ProblemDetails(type="about:blank", title="Internal Server Error", status=500, detail="")


_UNHELPFUL = {
    "Not Found": "this address does not exist",
    "Method Not Allowed": "this address exists, but not with this method",
}


def _invalid(error: InvalidInput) -> ProblemDetails:
    # Each part by itself: in "password: holds ..." the message would look like a password.
    found = [
        FieldProblem(field=scrub(item.field), message=scrub(_message(item)))
        for item in error.problems
    ]
    details = _of(type(error), "; ".join(str(Problem(item.field, item.message)) for item in found))
    details.errors = found
    return details


def _message(problem: Problem) -> str:
    """The message, with suggestions for some kinds of problems."""
    return str(problem).removeprefix(f"{problem.field}: ")


def _of(kind: type[KallaError], detail: str) -> ProblemDetails:
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
    return ProblemDetails(
        type=f"urn:kalla:problem:{name}", title=kind.title, status=kind.status, detail=detail
    )


def _field_problems(error: RequestValidationError) -> Iterator[Problem]:
    found: dict[str, list[str]] = {}
    for item in error.errors():
        kind, message = item["type"], item["msg"]
        if kind == "json_invalid":
            reason, where = item.get("ctx", {}).get("error", ""), item["loc"][-1]
            yield Problem("", f"the body is not valid JSON: {reason} (character {where})")
            continue
        place = ".".join(_place(item["loc"], error.body, kind)) or str(item["loc"][0])
        if kind == "extra_forbidden":
            found.setdefault(place, []).append("there is no such field")
        elif kind == "missing":
            found.setdefault(place, []).append("is required")
        else:
            found.setdefault(place, []).append(_sentence(message))
    for place, messages in found.items():
        yield Problem(place, _either(messages))


def _place(loc: Sequence[str | int], body: object, kind: str) -> Iterator[str]:
    """Where in the document it is. Of a value that may be of several kinds, pydantic tells each
    kind's name as if it were a field: such names are left out."""
    here = body if loc[0] == "body" else None
    for depth, part in enumerate(loc[1:]):
        below = dict(enumerate(here)) if isinstance(here, list) else here
        if isinstance(below, dict) and part in below:
            here = below[part]
        elif depth and kind != "missing" and not isinstance(part, int):
            continue
        yield str(part)


def _either(messages: Sequence[str]) -> str:
    """One sentence about one place: it must be this or that."""
    must = "must be "
    distinct = list(dict.fromkeys(messages))
    if all(each.startswith(must) for each in distinct):
        return must + " or ".join(each.removeprefix(must) for each in distinct)
    return "; ".join(distinct)


def _sentence(message: str) -> str:
    for head, better in (("Value error, ", ""), ("Input should be", "must be")):
        if message.startswith(head):
            return better + message.removeprefix(head)
    return message
