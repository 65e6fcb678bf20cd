"""`kalla worker`: claims jobs until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer
import uvloop

from kalla import logs, settings


def command(
    port: Annotated[int | None, typer.Option(help="Port of /metrics, /health and /ready.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Jobs to run at once.")] = None,
    roles: Annotated[
        str | None, typer.Option(help="Kinds of work to take, comma-separated.")
    ] = None,
    no_leases: Annotated[
        bool, typer.Option("--no-leases", help="Carry every started pipeline, without slots.")
    ] = False,
) -> None:
    """Claim and run jobs; SIGTERM drains.

    Examples:

      kalla worker

      kalla worker --roles stage,exec --concurrency 8 --port 0
    """
    from kalla.app.worker import run_worker

    given = {
        "port": port,
        "concurrency": concurrency,
        "roles": None if roles is None else [role.strip() for role in roles.split(",")],
    }
    overrides: dict[str, dict[str, object]] = {
        "worker": {name: value for name, value in given.items() if value is not None}
    }
    if no_leases:
        overrides["sinks"] = {"leases": False}
    effective = settings.load(overrides=overrides).settings
    logs.configure(effective.log.level, effective.log.format)
    uvloop.run(run_worker(effective))
