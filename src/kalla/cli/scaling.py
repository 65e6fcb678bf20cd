"""`kalla scaling`: what each role needs, and why the number of workers changed or did not."""

from __future__ import annotations

from typing import Annotated

import typer

from kalla.cli.client import Client, Style, address, ago, print_json, print_table
from kalla.web.text_format import seconds

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show_roles(style: Style = "text") -> None:
    """Show each role's demand, its workers and how many there should be."""
    with Client() as client:
        found = client.get("/autoscale")["roles"]
    if style == "json":
        print_json(found)
        return
    print_table(
        ["role", "waiting", "running", "oldest wait", "workers", "desired", "reason"],
        [
            [
                role["role"],
                str(role["waiting"]),
                str(role["running"]),
                seconds(role["oldest_wait_seconds"]) if role["waiting"] else "–",
                str(role["current"]),
                str(role["desired"]),
                role["reason"],
            ]
            for role in found.values()
        ],
        "No roles.",
    )


@app.command("list")
def list_decisions(
    role: Annotated[str | None, typer.Option(help="Decisions for this role only.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many.")] = 20,
    style: Style = "text",
) -> None:
    """Show the latest decisions, newest first."""
    with Client() as client:
        found = client.get("/api/scaling/decisions", limit=limit, role=role)
    if style == "json":
        print_json(found)
        return
    print_table(
        ["id", "when", "pool", "role", "workers", "desired", "reason"],
        [
            [
                str(each["decision_id"]),
                ago(each["at"]),
                each["pool"],
                each["role"],
                str(each["current"]),
                str(each["desired"]),
                each["reason"],
            ]
            for each in found
        ],
        "No decision yet: the API decides every few seconds while it runs.",
    )


@app.command()
def explain(
    decision_id: Annotated[int, typer.Argument(metavar="ID")], style: Style = "text"
) -> None:
    """Show one decision with its inputs, its policy and the limit that held it."""
    with Client() as client:
        found = client.get(address("scaling", "decisions", str(decision_id)))
    if style == "json":
        print_json(found)
        return
    typer.echo(f"{found['role']} of {found['pool']}, {found['at']}")
    typer.echo(f"workers {found['current']} -> {found['desired']}: {found['reason']}")
    if found["held_by"]:
        typer.echo(f"held by: {found['held_by']}")
    for name in ("inputs", "policy"):
        typer.echo(f"{name}:")
        for key, value in found[name].items():
            typer.echo(f"  {key}: {value}")
