"""The token of a request: a Bearer header, the password of Basic auth, or the login cookie."""

from __future__ import annotations

import base64

from fastapi import Request


def presented(request: Request) -> tuple[str | None, bool]:
    """The token of a request, and whether it came as a cookie."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, credentials = header.partition(" ")
        if scheme.lower() == "basic":
            return _password(credentials.strip()), False
        return (credentials.strip() if scheme.lower() == "bearer" else ""), False
    return request.cookies.get(cookie_name(request)), True


def _password(credentials: str) -> str:
    """The token that Prometheus and other clients send as the password of any user name."""
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except ValueError:
        return ""
    return decoded.partition(":")[2]


def cookie_name(request: Request) -> str:
    """Cookies know no ports: two Kallas on one machine would log each other out."""
    return f"kalla_{request.url.port}" if request.url.port else "kalla"
