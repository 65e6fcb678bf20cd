"""Login: by a one-time link or with a token; then by a strict cookie."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from kalla.errors import NotAuthenticated
from kalla.web.access import GuardedRoute, needs
from kalla.web.app_state import AppState, State
from kalla.web.tokens import login_links, tokens
from kalla.web.tokens.credentials import cookie_name, presented

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

_COOKIE_SECONDS = 30 * 24 * 3600
_OWN_PATH = re.compile(r"/(?![/\\])[^\x00-\x1f\\]*")


@router.get("/login")
@needs(None)
async def login_by_link(
    request: Request,
    state: State,
    token: str | None = None,
    code: str | None = None,
    next: str = "/",  # noqa: A002
) -> Response:
    if code is not None:
        return await _exchange(request, state, code, next)
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
async def logout(request: Request, state: State) -> Response:
    """A session that a link began ends everywhere; a token that a person made stays valid."""
    known, _ = presented(request)
    if known:
        async with state.database.transaction() as connection:
            await tokens.end_session(connection, known)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
    return response


async def _log_in(request: Request, state: AppState, token: str, target: str) -> Response:
    try:
        async with state.database.transaction() as connection:
            await tokens.authenticate(connection, token)
    except NotAuthenticated as error:
        return _form(request, state, target, str(error))
    return _logged_in(request, token, target, _COOKIE_SECONDS)


async def _exchange(request: Request, state: AppState, code: str, target: str) -> Response:
    """Log in by a link. Opened again in the same browser, it finds the existing session."""
    try:
        async with state.database.transaction() as connection:
            token = await login_links.exchange(connection, code)
    except NotAuthenticated as error:
        known, _ = presented(request)
        if known and await _is_valid(state, known):
            return RedirectResponse(_own(target), 303)
        return _form(request, state, target, str(error))
    return _logged_in(request, token, target, login_links.SESSION_SECONDS)


async def _is_valid(state: AppState, token: str) -> bool:
    try:
        await state.token_lookup.caller(token)
    except NotAuthenticated:
        return False
    return True


def _logged_in(request: Request, token: str, target: str, seconds: int) -> Response:
    response = RedirectResponse(_own(target), 303)
    response.set_cookie(
        cookie_name(request),
        token,
        max_age=seconds,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


def _form(request: Request, state: AppState, target: str, refusal: str | None = None) -> Response:
    page = state.layout.render("login.html", request, target=_own(target), refusal=refusal)
    return HTMLResponse(page, 401 if refusal else 200)


def _own(target: str) -> str:
    """Only a path of Kalla: a login link must not lead elsewhere."""
    return target if _OWN_PATH.fullmatch(target) else "/"
