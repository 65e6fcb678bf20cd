"""`kalla autoscale`: as many workers on this machine as the demand needs."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Annotated

import typer
import uvloop

from kalla import logs, settings


def command(
    min_workers: Annotated[int | None, typer.Option("--min", help="Workers at the least.")] = None,
    max_workers: Annotated[int | None, typer.Option("--max", help="Workers at the most.")] = None,
    roles: Annotated[
        str | None, typer.Option(help="JobTypes of work the workers take, comma-separated.")
    ] = None,
) -> None:
    """Start workers as demand rises, drain idle ones as it falls; SIGTERM drains them all."""
    scaling = {"min_workers": min_workers, "max_workers": max_workers}
    overrides: dict[str, dict[str, object]] = {
        "scaling": {name: value for name, value in scaling.items() if value is not None}
    }
    if roles is not None:
        overrides["worker"] = {"roles": [role.strip() for role in roles.split(",")]}
    effective = settings.load(overrides=overrides).settings
    logs.configure(effective.log.level, effective.log.format)
    uvloop.run(_run(effective))


async def _run(effective: settings.Settings) -> None:
    from kalla.database import Database
    from kalla.local.autoscaler import Autoscaler

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    async def wait(seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), seconds)
        return stopping.is_set()

    async with Database(effective.database, name="kalla autoscale") as database:
        await Autoscaler(effective, database).run(wait)
