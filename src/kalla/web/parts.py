"""What the app is made of, typed: how a request finds the database, the wake channel and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from kalla.database import Database
from kalla.settings import Settings
from kalla.web.door import Door
from kalla.web.layout import Layout
from kalla.web.live import Live
from kalla.work.duty import Crew
from kalla.work.kinds import Kinds
from kalla.work.wake.channel import Wake


@dataclass(frozen=True)
class Parts:
    settings: Settings
    kinds: Kinds
    database: Database
    wake: Wake
    layout: Layout
    live: Live
    crew: Crew
    door: Door


def parts_of(request: Request) -> Parts:
    return cast(Parts, request.app.state.parts)


async def _whole(request: Request) -> Parts:
    # Not parts_of itself: FastAPI calls a plain function in a thread.
    return parts_of(request)


Whole = Annotated[Parts, Depends(_whole)]
