"""`kalla autoscale`: as many workers on this machine as the demand needs."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, suppress
from typing import Annotated

import typer
import uvloop

from kalla import logs, settings


def command(
    min_workers: Annotated[
        int | None, typer.Option("--min", help="Minimum number of workers.")
    ] = None,
    max_workers: Annotated[
        int | None, typer.Option("--max", help="Maximum number of workers.")
    ] = None,
    roles: Annotated[
        str | None, typer.Option(help="Kinds of work the workers take, comma-separated.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of /metrics, /health and /ready; by default none is served."),
    ] = None,
) -> None:
    """Start workers as demand rises, drain idle ones as it falls; SIGTERM drains them all.

    Never more than --max, four per core, or than the free memory allows.

    Examples:

      kalla autoscale --min 1 --max 8

      kalla autoscale --roles stage,exec --port 9100
    """
    scaling = {"min_workers": min_workers, "max_workers": max_workers}
    overrides: dict[str, dict[str, object]] = {
        "scaling": {name: value for name, value in scaling.items() if value is not None}
    }
    if roles is not None:
        overrides["worker"] = {"roles": [role.strip() for role in roles.split(",")]}
    effective = settings.load(overrides=overrides).settings
    logs.configure(effective.log.level, effective.log.format)
    uvloop.run(_run(effective, port))


async def _run(effective: settings.Settings, port: int | None) -> None:
    from prometheus_client import CollectorRegistry

    from kalla.app.probes import create_probes
    from kalla.app.release_check import check_release
    from kalla.app.serving import bind, serving
    from kalla.database import AWAY, Database
    from kalla.local.autoscaler import Autoscaler

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    async def wait(seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), seconds)
        return stopping.is_set()

    async with Database(effective.database, name="kalla autoscale") as database:

        async def absences() -> list[str]:
            try:
                await database.ping()
            except AWAY:
                return ["Postgres does not answer"]
            return []

        autoscaler = Autoscaler(effective, database)
        registry = CollectorRegistry()
        registry.register(autoscaler.gauges)
        async with AsyncExitStack() as stack:
            if port is not None:
                listener = bind(effective.worker.host, port, "--port")
                probes = create_probes(registry, list, absences)
                await stack.enter_async_context(serving(probes, listener))
            await check_release(database, "this autoscaler", stopping)
            await autoscaler.run(wait)
