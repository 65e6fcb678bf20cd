"""`kalla sinks dead-letters`: list, show, replay."""

from __future__ import annotations

import base64
import sys
import time
from typing import Annotated

import typer

from kalla.cli.client import Client, Style, address, print_json, print_table
from kalla.errors import Unavailable

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]
Reason = Annotated[str, typer.Option(help="Only letters with this reason.")]
Field = Annotated[str, typer.Option(help="Only letters with this field.")]


@app.command("list")
def list_letters(
    name: Name,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    reason: Reason = "",
    field: Field = "",
    style: Style = "text",
) -> None:
    """Show counts by reason and field, and the newest letters."""
    with Client() as client:
        found = client.get(
            address("pipelines", name, "dead-letters"), limit=limit, reason=reason, field=field
        )
    if style == "json":
        print_json(found)
        return
    print_table(
        ["count", "field", "reason"],
        [[f"{each['count']:,}", each["field"], each["reason"]] for each in found["groups"]],
        "There are no dead letters.",
    )
    if found["letters"]:
        print_table(
            ["partition", "offset", "field", "reason", "message"],
            [
                [
                    str(each["partition"]),
                    str(each["offset"]),
                    each["field"],
                    each["reason"],
                    each["text"][:80],
                ]
                for each in found["letters"]
            ],
            "",
        )


@app.command()
def show(
    name: Name,
    partition: int,
    offset: int,
    raw: Annotated[bool, typer.Option("--raw", help="Write only the message's bytes.")] = False,
    style: Style = "text",
) -> None:
    """Show one letter with its whole message."""
    with Client() as client:
        found = client.get(address("pipelines", name, "dead-letters", str(partition), str(offset)))
    if raw:
        sys.stdout.buffer.write(base64.b64decode(found["value"]))
    elif style == "json":
        print_json(found)
    else:
        typer.echo(f"{found['topic']}/{partition} {offset}, mapping version "
                   f"{found['mapping_version']}, generation {found['generation']}")  # fmt: skip
        typer.echo(f"{found['field'] or 'the message'}: {found['reason']}")
        for part, value in [("key", found["key"]), *found["headers"]]:
            if value is not None:
                typer.echo(f"{part}: {value}")
        typer.echo(found["text"])


@app.command()
def replay(
    name: Name,
    reason: Reason = "",
    field: Field = "",
    wait: Annotated[bool, typer.Option(help="Wait for its end.")] = True,
) -> None:
    """Try them again with the newest mapping; each becomes one row or stays a dead letter."""
    with Client() as client:
        made = client.post(
            address("pipelines", name, "dead-letters", "replay"),
            {"reason": reason, "field": field},
        )
        typer.echo(f"Replay {made['replay']} has begun, with mapping version {made['version']}.")
        deadline = time.monotonic() + 3600
        while wait and made["status"] == "running":
            if time.monotonic() > deadline:
                raise Unavailable("The replay still runs: `kalla sinks show` shows its events.")
            time.sleep(0.5)
            found = client.get(address("pipelines", name, "replays"))
            made = next(each for each in found if each["replay"] == made["replay"])
    if made["status"] == "completed":
        typer.echo(f"{made['rows']:,} became rows, {made['refused']:,} stay dead letters.")
