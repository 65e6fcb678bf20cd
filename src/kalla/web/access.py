"""Access control of routes: every route needs a role unless it is marked otherwise. A cookie proves
less than a header: commands with a cookie must also come from Kalla's own pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import urlsplit

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute

from kalla.errors import NotAllowed, NotAuthenticated
from kalla.web import commands
from kalla.web.app_state import state_of
from kalla.web.tokens.credentials import presented
from kalla.web.tokens.tokens import Caller, Role

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_MARK = "_kalla_role"
_HARMLESS = "_kalla_harmless"


def needs(role: Role | None) -> Callable[[Endpoint], Endpoint]:
    """Mark an endpoint as open to this role and higher ones; None opens it to everybody."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _MARK, role)
        return endpoint

    return mark


def harmless(endpoint: Endpoint) -> Endpoint:
    """Mark a POST that changes nothing: it may take long, so it gets no command transaction."""
    setattr(endpoint, _HARMLESS, True)
    return endpoint


def is_harmless(endpoint: object) -> bool:
    return getattr(endpoint, _HARMLESS, False) is True


def role_for(endpoint: object, methods: Collection[str]) -> Role | None:
    """Unmarked endpoints: reading is for viewers, everything else for operators."""
    usual: Role = "viewer" if _SAFE.issuperset(methods) else "operator"
    return cast(Role | None, getattr(endpoint, _MARK, usual))


class GuardedRoute(APIRoute):
    """Checks the caller first, then the body, then runs the command in one transaction."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        role = role_for(self.endpoint, self.methods or ())
        commanding = not is_harmless(self.endpoint)

        async def guarded(request: Request) -> Response:
            changes = request.method not in _SAFE
            if role is None:
                if changes:
                    require_same_origin(request)
                return await answer(request)
            request.state.caller = await admit(request, role, changes)
            if changes and commanding:
                return await commands.carry_out(request, answer)
            return await answer(request)

        return guarded


async def admit(request: Request, role: Role, changes: bool) -> Caller:
    token, by_cookie = presented(request)
    if token is None:
        raise NotAuthenticated(
            "send a token as `Authorization: Bearer ...` or as the password of Basic auth, "
            "or log in with the link of `kalla up`"
        )
    caller = await state_of(request).token_lookup.caller(token)
    if by_cookie and changes:
        require_same_origin(request)
    if not caller.may(role):
        raise NotAllowed(f"this needs the role {role}, and {caller.name} is {caller.role}")
    return caller


def require_same_origin(request: Request) -> None:
    """Refuse requests that another site's page makes a browser send."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        same = site == "same-origin"
    else:
        same = _host_of(request.headers.get("origin", "")) == request.headers.get("host", "") != ""
    if not same:
        raise NotAllowed("this request does not come from Kalla's own pages")


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as `http://[`
        return ""


async def current_caller(request: Request) -> Caller:
    return cast(Caller, request.state.caller)


Asking = Annotated[Caller, Depends(current_caller)]
