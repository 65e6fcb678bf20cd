"""`kalla config`: the settings in force, and where each came from."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from kalla import settings

app = typer.Typer(no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the settings in force and where each came from."""


@app.command()
def show(
    style: Annotated[Literal["text", "json"], typer.Option("--format")] = "text",
) -> None:
    """Print every setting with its value and its origin; secrets are masked."""
    effective = settings.load()
    rows = list(effective.rows())
    if style == "json":
        document = {
            "settings": [
                {"name": name, "value": value, "origin": origin} for name, value, origin in rows
            ],
            "ignored": list(effective.ignored),
        }
        typer.echo(json.dumps(document, indent=2))
        return
    names = max(len(name) for name, _, _ in rows)
    values = min(40, max(len(value) for _, value, _ in rows))
    for name, value, origin in rows:
        typer.echo(f"{name:{names}}  {value:{values}}  {origin}")
    for variable in effective.ignored:
        typer.echo(f"{variable} names no setting and is ignored.")
