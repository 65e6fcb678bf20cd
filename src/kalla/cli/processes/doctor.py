"""`kalla doctor`: every part with its version, address and state."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kalla import logs, settings
from kalla.local.checkup import Finding, examine

_LOOKS = {"ok": "green", "away": "red", "gone": "dim", "unused": "dim"}


def command(
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Also check grants, streams, query workers, executors, storage and clocks.",
        ),
    ] = False,
    style: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
) -> None:
    """Name every part with its version, address and state; exit code 1 if a needed one is missing.

    Examples:

      kalla doctor

      kubectl -n kalla exec deploy/kalla-api -- kalla doctor --cluster
    """
    effective = settings.load()
    logs.configure("error", effective.settings.log.format)
    findings = asyncio.run(_examine(effective, cluster))
    if style == "json":
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    if any(finding.state == "away" for finding in findings):
        raise typer.Exit(1)


def _words(finding: Finding) -> str:
    """`not running (connection refused)`, or what else is wrong."""
    if finding.state != "away":
        return ": ".join(word for word in (finding.state, finding.reason) if word)
    reason = finding.reason
    if "refused" in reason.lower() or reason.startswith("no answer"):
        return f"not running ({reason[0].lower()}{reason[1:]})"
    return f"not ready: {reason}" if reason else "not running"


async def _examine(effective: settings.Effective, cluster: bool) -> list[Finding]:
    findings = await examine(effective)
    if cluster:
        from kalla.local.cluster_checkup import examine_cluster

        findings += await examine_cluster(effective.settings)
    return findings


def _print(findings: list[Finding]) -> None:
    table = Table("part", "version", "address", "state", box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        words = _words(finding)
        table.add_row(
            Text(finding.part),
            Text(finding.version),
            Text(finding.address),
            Text(words, style=_LOOKS[finding.state]),
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)  # a pipe has no width to fold into
    console.print(table)
