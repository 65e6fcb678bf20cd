"""Live pages: the same address gives the page and its changes."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from markupsafe import Markup

from kalla.database import AWAY
from kalla.errors import NotAuthenticated
from kalla.web.app_state import AppState, state_of
from kalla.web.live import View, one_moment
from kalla.web.tokens import tokens
from kalla.web.tokens.credentials import presented


async def live_page(request: Request, view: View, template: str, **context: object) -> Response:
    """The page with the view's fragments, or, for an EventSource, their changes."""
    state = state_of(request)
    if "text/event-stream" in request.headers.get("accept", ""):
        return _stream(request, state, view)
    async with state.database.transaction() as connection:
        now = await one_moment(connection)
        rendered = await view.fragments(connection, now)
    # Markup: fragments were escaped when they were rendered.
    fragments = {name: Markup(html) for name, html in rendered.items()}  # noqa: S704
    page = state.layout.render(
        template, request, now=now, live=True, fragments=fragments, view=view, **context
    )
    return HTMLResponse(page, headers={"Vary": "Accept"})


def _stream(request: Request, state: AppState, view: View) -> Response:
    token, _ = presented(request)

    async def welcome() -> bool:
        """Ends a stream when its token is revoked or expires."""
        try:
            async with state.database.transaction() as connection:
                await tokens.authenticate(connection, token or "")
        except NotAuthenticated:
            return False
        except AWAY:
            return True
        return True

    return StreamingResponse(
        state.live.stream(view, welcome),
        media_type="text/event-stream",
        headers={"Vary": "Accept", "X-Accel-Buffering": "no"},
    )
