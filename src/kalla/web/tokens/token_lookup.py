"""Looks up tokens: requests that arrive together with the same token share one look-up."""

from __future__ import annotations

import asyncio

from kalla.database import Database
from kalla.web.tokens import tokens
from kalla.web.tokens.tokens import Caller


class TokenLookup:
    """A lookup answers only requests that arrived before it began: nothing is cached, so a revoked
    token is refused from the next request on.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        # By token: the running lookup, and the one that starts after it.
        self._present: dict[str, asyncio.Task[Caller]] = {}
        self._next: dict[str, asyncio.Task[Caller]] = {}

    async def caller(self, token: str) -> Caller:
        """The caller of a token; NotAuthenticated if it is not valid."""
        lookup = self._next.get(token)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(token, self._present.get(token)))
            lookup.add_done_callback(_noted)
            self._next[token] = lookup
        # A cancelled caller does not cancel the lookup for the others.
        return await asyncio.shield(lookup)

    async def _look_up(self, token: str, before: asyncio.Task[Caller] | None) -> Caller:
        if before is not None:
            await asyncio.wait([before])
        lookup = self._present[token] = self._next.pop(token)
        try:
            async with self._database.transaction() as connection:
                return await tokens.authenticate(connection, token)
        finally:
            if self._present[token] is lookup:
                del self._present[token]


def _noted(lookup: asyncio.Task[Caller]) -> None:
    # Waiting callers got its error; asyncio must not log it for the others.
    if not lookup.cancelled():
        lookup.exception()
