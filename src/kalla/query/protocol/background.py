"""Tasks that API and worker repeat in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kalla import logs

_log = logs.get(__name__)


async def repeat(seconds: float, step: Callable[[], Awaitable[None]], task: str) -> None:
    """Runs a step, waits, and so on until cancelled; an error is logged and ends nothing."""
    while True:
        try:
            await step()
        except Exception:
            _log.exception("a background task failed and goes on", task=task)
        await asyncio.sleep(seconds)
