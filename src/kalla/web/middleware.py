"""Middleware: headers of every answer, limits of request bodies, unexpected errors."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kalla import logs
from kalla.web import problems

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: browsers would then send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_log = logs.get(__name__)


class RequestMiddleware:
    """`roomy` names the paths that take more than `body_bytes`, with the limit and its setting."""

    def __init__(
        self, app: ASGIApp, body_bytes: int, roomy: Mapping[str, tuple[int, str]] | None = None
    ) -> None:
        self._app = app
        self._usual = (body_bytes, "limits.payload_bytes and some room")
        self._roomy = roomy or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.monotonic()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _complete(MutableHeaders(scope=message), scope["path"])
            await send(message)

        try:
            await self._app(scope, self._limited(scope, receive), sending)
        except Exception as error:
            if status:
                # The answer has begun, so the server must break it off.
                raise
            request = Request(scope, receive)
            await problems.answer(request, error)(scope, receive, sending)
        finally:
            # The path without its query: a login link has the token there.
            _log.debug(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=round(time.monotonic() - started_at, 4),
            )

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        read = 0
        most, setting = self._roomy.get(scope["path"], self._usual)
        header = dict(scope["headers"]).get(b"content-length", b"")
        declared = int(header) if header.isdigit() else 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if max(read, declared) > most:
                    raise HTTPException(413, f"the body has more than {most} bytes ({setting})")
            return message

        return limited


def _complete(headers: MutableHeaders, path: str) -> None:
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    # Pages and answers are not cached; static files are revalidated and rarely sent again.
    headers.setdefault("Cache-Control", "no-cache" if path.startswith("/static/") else "no-store")
