"""`kalla query-worker`: executes parts of queries until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer
import uvloop

from kalla import logs, settings, tracing


def command(
    port: Annotated[int | None, typer.Option(help="Port of the control stream.")] = None,
    artifact_port: Annotated[
        int | None, typer.Option(help="Port of artifacts, /metrics, /health and /ready.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Work units to execute at once.")] = None,
    name: Annotated[str | None, typer.Option(help="Its identity; else host name and port.")] = None,
) -> None:
    """Execute work units of queries for API processes; SIGTERM drains.

    Examples:

      kalla query-worker

      kalla query-worker --port 9321 --artifact-port 9322 --threads 4
    """
    from kalla.app.query_worker import run_query_worker

    given = {"port": port, "artifact_port": artifact_port, "threads": threads, "name": name}
    overrides = {"query_worker": {key: value for key, value in given.items() if value is not None}}
    effective = settings.load(overrides=overrides).settings
    logs.configure(effective.log.level, effective.log.format)
    tracing.configure(effective.telemetry.endpoint, "kalla-query-worker")
    try:
        uvloop.run(run_query_worker(effective))
    finally:
        tracing.close()
