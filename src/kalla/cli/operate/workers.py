"""`kalla workers`: which there are and what they do."""

from __future__ import annotations

import typer

from kalla.cli.client import Client, Style, ago, print_json, print_table

app = typer.Typer(no_args_is_help=True)


@app.callback()
def workers() -> None:
    """Show the workers."""


@app.command("list")
def list_workers(style: Style = "text") -> None:
    """Show every worker with its state, its jobs and when it was last seen."""
    with Client() as client:
        found = client.get("/api/workers")
    if style == "json":
        print_json(found)
        return
    print_table(
        ["worker", "state", "jobs", "takes", "address", "seen", "started"],
        [
            [
                worker["worker"],
                worker["state"],
                f"{worker['active']}/{worker['concurrency']}",
                ", ".join(worker["roles"]),
                worker["address"],
                ago(worker["seen_at"]),
                ago(worker["started_at"]),
            ]
            for worker in found
        ],
        "No worker is running: `kalla worker` starts one.",
    )
