"""Looks up tokens: requests that arrive together with the same token share one look-up."""

from __future__ import annotations

import asyncio

from kalla.database import Database
from kalla.web.tokens import tokens
from kalla.web.tokens.tokens import Caller


class TokenLookup:
    """A lookup answers only requests that came before it began: nothing is remembered, so that a
    token that was revoked is refused from the next request on."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # By token: the lookup under way, and the one that begins when it has ended.
        self._present: dict[str, asyncio.Task[Caller]] = {}
        self._next: dict[str, asyncio.Task[Caller]] = {}

    async def caller(self, token: str) -> Caller:
        """Whose token it is; NotAuthenticated if nobody's."""
        lookup = self._next.get(token)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(token, self._present.get(token)))
            lookup.add_done_callback(_noted)
            self._next[token] = lookup
        # One that goes away does not take the answer from the others.
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
    # Its failure was told to whoever still waited; asyncio need not complain for the others.
    if not lookup.cancelled():
        lookup.exception()
