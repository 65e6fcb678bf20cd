"""Commands: every change happens in one transaction, and once per Idempotency-Key.

The effect and the stored answer commit together; waiting processes are woken after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, cast

from fastapi import Depends, Request, Response
from psycopg.types.json import Jsonb

from kalla.database import COLLIDED, Connection
from kalla.errors import Conflict, InvalidInput, Problem, Unavailable
from kalla.settings import Retention
from kalla.statements import load
from kalla.web import problems
from kalla.web.app_state import AppState, state_of
from kalla.web.tokens.tokens import Caller
from kalla.work.state.job_insertion import Woken

sql = load("kalla.web", "commands.sql")

Answer = Callable[[Request], Awaitable[Response]]

NOT_KEPT = "no-store"  # as Cache-Control of an answer that no store may hold, ours included

_TRIES = 5
_LONGEST_KEY = 255
_KEPT_HEADERS = ("content-type", "location")
_PATIENCE = 5.0  # how long a command waits for what is in use
_PLACE_SECONDS = 2.0  # how long it waits for a place
_LOOK_AGAIN_SECONDS = 0.05


class Busy(Exception):
    """What a command needs is in use at this moment: it is tried again, and waits without a
    connection."""


@dataclass
class Command:
    """One command: its caller, its one transaction, and the processes that it will wake."""

    caller: Caller
    connection: Connection
    woken: Woken = field(default_factory=Woken)
    alarm: bool = False  # a running job was cancelled: tell every worker at once


async def carry_out(request: Request, answer: Answer) -> Response:
    """Executes the command of an authenticated caller."""
    state = state_of(request)
    caller = cast(Caller, request.state.caller)
    key = _key(request)
    digest = await _digest(request)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            async with _place(state):
                response, command = await _retry_conflicts(
                    state, request, answer, caller, key, digest
                )
            break
        except Busy as busy:
            if time.monotonic() > deadline:
                raise Conflict(f"{busy}: ask again in a moment") from None
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    await _wake(state, command)
    return response


@asynccontextmanager
async def _place(state: AppState) -> AsyncIterator[None]:
    """One of the places for commands: fewer than there are connections, so that commands which wait
    for another server leave some for whoever reads or logs in."""
    try:
        async with asyncio.timeout(_PLACE_SECONDS):
            await state.command_places.acquire()
    except TimeoutError:
        raise Unavailable(
            "too many changes are being made at once: ask again in a moment"
        ) from None
    try:
        yield
    finally:
        state.command_places.release()


async def _retry_conflicts(
    state: AppState,
    request: Request,
    answer: Answer,
    caller: Caller,
    key: str | None,
    digest: bytes,
) -> tuple[Response, Command]:
    """Retries when two transactions conflict."""
    for left in reversed(range(_TRIES)):
        try:
            # Explicit, so that what is inside _attempt is a savepoint and never the commit itself.
            async with (
                state.database.transaction() as connection,
                connection.transaction(),
            ):
                command = Command(caller, connection)
                if key is None:
                    return await _attempt(request, answer, command), command
                return await _once(request, answer, command, key, digest), command
        except COLLIDED:
            if not left:
                raise
    raise AssertionError("unreachable")


async def _once(
    request: Request, answer: Answer, command: Command, key: str, digest: bytes
) -> Response:
    connection = command.connection
    mine = {"caller": command.caller.token_id, "key": key}
    lock = await (await connection.execute(sql.try_serialise, mine)).fetchone()
    if lock is None or not lock["got"]:
        raise Busy("another request with this Idempotency-Key is still being answered")
    row = await (await connection.execute(sql.remembered, mine)).fetchone()
    if row is not None:
        if bytes(row["request"]) != digest:
            raise InvalidInput(
                Problem("Idempotency-Key", "was used for another request before: take a new key")
            )
        headers = row["headers"] | {"Idempotency-Replayed": "true"}
        return Response(bytes(row["body"]), row["status"], headers)
    response = await _attempt(request, answer, command)
    # An invalid request had no effect: once corrected it may keep its key.
    is_kept = response.headers.get("cache-control") != NOT_KEPT
    if is_kept and response.status_code < 500 and response.status_code not in (400, 422):
        kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        await connection.execute(
            sql.remember,
            mine
            | {
                "request": digest,
                "status": response.status_code,
                "headers": Jsonb(kept),
                "body": bytes(response.body),
            },
        )
    return response


async def _attempt(request: Request, answer: Answer, command: Command) -> Response:
    """The endpoint's answer; if it is an error, its changes are rolled back."""
    request.state.command = command
    try:
        async with command.connection.transaction():
            return await answer(request)
    except problems.REFUSALS as error:
        if problems.status_of(error) >= 500:
            raise
        command.woken.clear()
        command.alarm = False
        return problems.answer(request, error)


async def _wake(state: AppState, command: Command) -> None:
    if command.woken:
        await state.wake.nudge(command.woken)
    if command.alarm:
        await state.wake.alarm()
    state.live.hurry()


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _LONGEST_KEY:
        raise InvalidInput(
            Problem("Idempotency-Key", f"must have 1 to {_LONGEST_KEY} characters, got {len(key)}")
        )
    return key


async def _digest(request: Request) -> bytes:
    head = f"{request.method} {request.url.path}?{request.url.query}\n"
    return sha256(head.encode() + await request.body()).digest()


def _current(request: Request) -> Command:
    return cast(Command, request.state.command)


Commanded = Annotated[Command, Depends(_current)]


async def sweep(connection: Connection, retention: Retention) -> None:
    """Remove stored answers after their retention time."""
    await connection.execute(sql.sweep, {"seconds": retention.idempotency_seconds})
