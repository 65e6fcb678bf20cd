"""`kalla destinations`: the addresses that callbacks of runs may go to."""

from __future__ import annotations

from typing import Annotated

import typer

from kalla.cli.client import Client, Style, address, ago, print_json, print_table

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command()
def add(
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="The URL, with every path below it.")],
    secret: Annotated[
        str, typer.Option(help="The name of the secret that signs the calls: `kalla secret set`.")
    ],
    replace: Annotated[bool, typer.Option(help="Replace the existing one of this name.")] = False,
) -> None:
    """Let callbacks go to an address. Needs the role admin."""
    body = {"name": name, "url": url, "secret": secret, "replace": replace}
    with Client() as client:
        made = client.post("/api/destinations", body)
    typer.echo(f"Callbacks may go to {made['url']}, signed with the secret {made['secret']}.")


@app.command("list")
def list_destinations(style: Style = "text") -> None:
    """Show every address that callbacks may go to."""
    with Client() as client:
        found = client.get("/api/destinations")
    if style == "json":
        print_json(found)
        return
    print_table(
        ["name", "url", "secret", "changed", "by"],
        [
            [each["name"], each["url"], each["secret"], ago(each["changed_at"]), each["changed_by"]]
            for each in found
        ],
        "No destinations yet: `kalla destinations add NAME URL --secret NAME` adds one.",
    )


@app.command()
def remove(name: Name) -> None:
    """Take an address away: no run can name it for its callback any more."""
    with Client() as client:
        gone = client.post(address("destinations", name, "remove"))
    typer.echo(f"Callbacks cannot go to {gone['url']} any more.")
