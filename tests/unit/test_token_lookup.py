"""Looking up tokens together: never by a lookup that began before the request came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from kalla.database import Database
from kalla.errors import NotAuthenticated
from kalla.web.tokens import tokens
from kalla.web.tokens.token_lookup import TokenLookup
from kalla.web.tokens.tokens import Caller

ANN = Caller(1, "ann", "operator")


class Lookups:
    """A table of tokens whose lookups see it when they begin and end when they are let go."""

    def __init__(self) -> None:
        self.valid = {"a", "b"}
        self.begun: list[str] = []
        self.go = asyncio.Event()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def authenticate(self, _: object, token: str) -> Caller:
        self.begun.append(token)
        valid = token in self.valid
        await self.go.wait()
        if not valid:
            raise NotAuthenticated("the token is unknown")
        return ANN


@pytest.fixture
async def lookups(monkeypatch: pytest.MonkeyPatch) -> Lookups:
    lookups = Lookups()
    monkeypatch.setattr(tokens, "authenticate", lookups.authenticate)
    return lookups


async def test_those_who_come_together_are_looked_up_once_and_after_they_came(
    lookups: Lookups,
) -> None:
    door = TokenLookup(cast(Database, lookups))
    first = [asyncio.create_task(door.caller("a")) for _ in range(3)]
    other = asyncio.create_task(door.caller("b"))
    await _until(lambda: len(lookups.begun) == 2)
    lookups.valid.remove("a")  # revoked: whoever comes now is refused
    later = [asyncio.create_task(door.caller("a")) for _ in range(3)]
    await asyncio.sleep(0)
    lookups.go.set()
    assert await asyncio.gather(*first, other) == [ANN] * 4
    for outcome in await asyncio.gather(*later, return_exceptions=True):
        assert isinstance(outcome, NotAuthenticated)
    assert sorted(lookups.begun) == ["a", "a", "b"]
    with pytest.raises(NotAuthenticated):
        await door.caller("a")
    assert sorted(lookups.begun) == ["a", "a", "a", "b"]


async def test_one_that_goes_away_does_not_take_the_answer_from_the_others(
    lookups: Lookups,
) -> None:
    door = TokenLookup(cast(Database, lookups))
    gone, stays = (asyncio.create_task(door.caller("a")) for _ in range(2))
    await _until(lambda: bool(lookups.begun))
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    lookups.go.set()
    assert await stays == ANN
    assert lookups.begun == ["a"]


async def _until(condition: object) -> None:
    async with asyncio.timeout(30):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0)
