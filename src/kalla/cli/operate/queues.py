"""`kalla queues`: how deep, how old, paused or not."""

from __future__ import annotations

from typing import Annotated

import typer

from kalla.cli.client import Client, Style, address, print_json, print_table
from kalla.web.text_format import seconds

app = typer.Typer(no_args_is_help=True)

Queue = Annotated[str, typer.Argument(metavar="QUEUE")]


@app.command("list")
def list_queues(style: Style = "text") -> None:
    """Show every queue with the jobs that wait, are delayed, or run."""
    with Client() as client:
        found = client.get("/api/queues")
    if style == "json":
        print_json(found)
        return
    print_table(
        ["queue", "waiting", "oldest wait", "delayed", "running", "state"],
        [
            [
                queue["queue"],
                str(queue["depth"]),
                seconds(queue["oldest_wait_seconds"]) if queue["depth"] else "–",
                str(queue["delayed"]),
                str(queue["running"]),
                "paused" if queue["paused"] else "open",
            ]
            for queue in found
        ],
        "No queues yet.",
    )


@app.command()
def pause(queue: Queue) -> None:
    """Nothing of this queue is claimed until it is resumed; running jobs go on."""
    with Client() as client:
        found = client.post(address("queues", queue, "pause"))
    typer.echo(f"{queue} is paused, with {found['depth']} waiting and {found['running']} running.")


@app.command()
def resume(queue: Queue) -> None:
    """Let workers claim from this queue again."""
    with Client() as client:
        found = client.post(address("queues", queue, "resume"))
    typer.echo(f"{queue} is open again, with {found['depth']} waiting.")
