"""Tokens of the API. Only a SHA-256 of each is stored; the token itself is shown once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal, get_args

from kalla.database import Connection
from kalla.errors import InvalidInput, NotAuthenticated, NotFound, Problem
from kalla.statements import load

sql = load("kalla.web.tokens", "tokens.sql")

Role = Literal["metrics-writer", "viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
_LADDER: tuple[Role, ...] = ("viewer", "operator", "admin")  # each may do what those before it may
_WRITERS = frozenset[Role]({"metrics-writer", "operator", "admin"})

_PREFIX = "kalla_"
_LONGEST_NAME = 100
_LONGEST_TOKEN = 200


@dataclass(frozen=True)
class Caller:
    """The caller that a request's token identifies."""

    token_id: int
    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """One role is separate: a metrics writer cannot even read."""
        if role == "metrics-writer":
            return self.role in _WRITERS
        return self.role in _LADDER[_LADDER.index(role) :]


@dataclass(frozen=True)
class TokenRecord:
    """A token as an admin sees it."""

    token_id: int
    name: str
    role: Role
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    valid: bool


async def create(
    connection: Connection,
    name: str,
    role: Role,
    replace: bool = False,
    expires_seconds: float | None = None,
    is_session: bool = False,
) -> str:
    """A new token; `replace` revokes the earlier ones of the same name."""
    if problems := list(_problems(name, role, expires_seconds)):
        raise InvalidInput(*problems)
    if replace:
        await connection.execute(sql.revoke_named, {"name": name})
    token = _PREFIX + secrets.token_urlsafe(32)
    await connection.execute(
        sql.create,
        {
            "name": name,
            "role": role,
            "hash": _hash(token),
            "expires_seconds": expires_seconds,
            "is_session": is_session,
        },
    )
    return token


async def authenticate(connection: Connection, token: str) -> Caller:
    row = None
    if token.startswith(_PREFIX) and len(token) <= _LONGEST_TOKEN:
        cursor = await connection.execute(sql.authenticate, {"hash": _hash(token)})
        row = await cursor.fetchone()
    if row is None:
        raise NotAuthenticated(
            "the token is unknown, expired or revoked: create one with `kalla token create`"
        )
    return Caller(**row)


async def listing(connection: Connection) -> list[TokenRecord]:
    return [TokenRecord(**row) for row in await (await connection.execute(sql.list)).fetchall()]


async def revoke(connection: Connection, token_id: int) -> TokenRecord:
    row = await (await connection.execute(sql.revoke, {"token_id": token_id})).fetchone()
    if row is None:
        raise NotFound(f"there is no token {token_id}")
    return TokenRecord(**row)


async def end_session(connection: Connection, token: str) -> None:
    """Revokes the token that a login link gave to a browser."""
    await connection.execute(sql.end_session, {"hash": _hash(token)})


def _hash(token: str) -> bytes:
    # 256 random bits need no slow hash: there is nothing to guess.
    return sha256(token.encode()).digest()


def _problems(name: str, role: str, expires_seconds: float | None) -> Iterator[Problem]:
    if not (0 < len(name) <= _LONGEST_NAME and name.isprintable()):
        yield Problem("name", f"must have 1 to {_LONGEST_NAME} printable characters")
    if role not in ROLES:
        yield Problem("role", f"must be one of {', '.join(ROLES)}, got {role!r}")
    if expires_seconds is not None and not 0 < expires_seconds <= 10 * 365 * 24 * 3600:
        yield Problem("expires_seconds", f"must be 0 to ten years, got {expires_seconds:g}")
