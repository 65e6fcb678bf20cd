"""The typed state of the app: the database, the wake channel and other parts, for requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from kalla.database import Database
from kalla.settings import Settings
from kalla.web.layout import Layout
from kalla.web.live import Live
from kalla.web.tokens.token_lookup import TokenLookup
from kalla.work.job_type import JobTypes
from kalla.work.service import ServiceGroup
from kalla.work.wake.channel import Wake


@dataclass(frozen=True)
class AppState:
    settings: Settings
    job_types: JobTypes
    database: Database
    wake: Wake
    layout: Layout
    live: Live
    services: ServiceGroup
    token_lookup: TokenLookup
    command_places: asyncio.Semaphore  # see kalla.web.commands


def state_of(request: Request) -> AppState:
    return cast(AppState, request.app.state.kalla)


async def _whole(request: Request) -> AppState:
    # Not state_of itself: FastAPI calls a plain function in a thread.
    return state_of(request)


State = Annotated[AppState, Depends(_whole)]
