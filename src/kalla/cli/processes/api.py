"""`kalla api`: serves the REST API and the pages until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer
import uvloop

from kalla import logs, settings, tracing


def command(
    host: Annotated[str | None, typer.Option(help="Address to bind to.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API and the pages.")] = None,
) -> None:
    """Serve the REST API and the pages.

    Examples:

      kalla api --host 0.0.0.0 --port 3001
    """
    from kalla.app.api import run_api

    given = {"host": host, "port": port}
    overrides = {"api": {name: value for name, value in given.items() if value is not None}}
    effective = settings.load(overrides=overrides).settings
    logs.configure(effective.log.level, effective.log.format)
    tracing.configure(effective.telemetry.endpoint, "kalla-api")
    try:
        uvloop.run(run_api(effective))
    finally:
        tracing.close()
