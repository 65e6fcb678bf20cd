"""Login links: each works once, and is exchanged for a session that expires."""

from __future__ import annotations

import secrets
from hashlib import sha256

from kalla.database import Connection
from kalla.errors import NotAuthenticated
from kalla.settings import Retention
from kalla.statements import load
from kalla.web.tokens import tokens
from kalla.web.tokens.tokens import Role

sql = load("kalla.web.tokens", "login_links.sql")

LINK_SECONDS = 24 * 3600
SESSION_SECONDS = 7 * 24 * 3600


async def create(connection: Connection, name: str, role: Role) -> str:
    """The code of a new link."""
    code = "kalla_" + secrets.token_urlsafe(32)  # so that it is masked as a token is
    await connection.execute(
        sql.create,
        {"hash": _hash(code), "name": name, "role": role, "seconds": LINK_SECONDS},
    )
    return code


async def exchange(connection: Connection, code: str) -> str:
    """The token of a new session; the link does not work again."""
    row = await (await connection.execute(sql.use, {"hash": _hash(code)})).fetchone()
    if row is None:
        raise NotAuthenticated(
            "the link was used before or has expired: `kalla up` in its folder prints a new one"
        )
    return await tokens.create(
        connection,
        f"{row['name']}, browser",
        row["role"],
        expires_seconds=SESSION_SECONDS,
        is_session=True,
    )


async def sweep(connection: Connection, retention: Retention) -> None:
    """Removes links and sessions that expired long ago."""
    await connection.execute(sql.sweep_links)
    await connection.execute(sql.sweep_sessions, {"seconds": retention.finished_seconds})


def address(api_url: str, code: str) -> str:
    return f"{api_url}/login?code={code}"


def _hash(code: str) -> bytes:
    return sha256(code.encode()).digest()
