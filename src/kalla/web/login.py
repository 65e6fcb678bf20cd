"""Logging in with a token, as notebooks do: a link or a form, and from then on a strict cookie."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from kalla.errors import NotAuthenticated
from kalla.web import tokens
from kalla.web.access import GuardedRoute, needs
from kalla.web.app_state import AppState, State
from kalla.web.credentials import cookie_name

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_COOKIE_SECONDS = 30 * 24 * 3600
_OWN_PATH = re.compile(r"/(?![/\\])[^\x00-\x1f\\]*")


@router.get("/login")
@needs(None)
async def login_by_link(
    request: Request,
    state: State,
    token: str | None = None,
    next: str = "/",  # noqa: A002
) -> Response:
    if token is None:
        return _form(request, state, next)
    return await _log_in(request, state, token, next)


@router.post("/login")
@needs(None)
async def login_by_form(request: Request, state: State) -> Response:
    fields = parse_qs((await request.body()).decode("utf-8", "replace"))
    token = fields.get("token", [""])[-1].strip()
    return await _log_in(request, state, token, fields.get("next", ["/"])[-1])


@router.post("/logout")
@needs(None)
async def logout(request: Request) -> Response:
    response = RedirectResponse("/login", 303)
    response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
    return response


async def _log_in(request: Request, state: AppState, token: str, target: str) -> Response:
    try:
        async with state.database.transaction() as connection:
            await tokens.authenticate(connection, token)
    except NotAuthenticated as error:
        return _form(request, state, target, str(error))
    response = RedirectResponse(_own(target), 303)
    response.set_cookie(
        cookie_name(request),
        token,
        max_age=_COOKIE_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


def _form(request: Request, state: AppState, target: str, refusal: str | None = None) -> Response:
    page = state.layout.render("login.html", request, target=_own(target), refusal=refusal)
    return HTMLResponse(page, 401 if refusal else 200)


def _own(target: str) -> str:
    """Only ever a path of ours: a login link must not send people elsewhere."""
    return target if _OWN_PATH.fullmatch(target) else "/"
