"""`kalla schedules`: recipes that run at certain times."""

from __future__ import annotations

from typing import Annotated

import typer

from kalla.cli.client import Client, Style, address, ago, print_json, print_table

app = typer.Typer(no_args_is_help=True)

Schedule = Annotated[int, typer.Argument(metavar="SCHEDULE", min=1)]


@app.command()
def add(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A saved recipe.")],
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help="Minute hour day month weekday: '0 7 * * 1-5'.")
    ],
    time_zone: Annotated[str, typer.Option(help="Time zone, such as Europe/Berlin.")] = "UTC",
    skip_missed: Annotated[
        bool, typer.Option("--skip-missed", help="Do not run for times while Kalla was down.")
    ] = False,
    notify: Annotated[
        str | None, typer.Option(metavar="URL", help="A registered URL to call after each run.")
    ] = None,
    notify_above: Annotated[
        int | None, typer.Option(min=0, help="Only if there are more exceptions than this.")
    ] = None,
) -> None:
    """Run the latest version of a recipe at certain times."""
    body = {
        "recipe_id": recipe,
        "cron": cron,
        "time_zone": time_zone,
        "missed": "skip" if skip_missed else "once",
        "notify_url": notify,
        "notify_above": notify_above,
    }
    with Client() as client:
        made = client.post("/api/schedules", body)
    typer.echo(f"Schedule {made['schedule_id']} runs {recipe} {ago(made['next_at'])} next.")


@app.command("list")
def list_schedules(
    recipe: Annotated[str | None, typer.Option(help="Those of this recipe.")] = None,
    style: Style = "text",
) -> None:
    """Show the schedules, and what came of the last time of each."""
    with Client() as client:
        found = client.get("/api/schedules", recipe_id=recipe)
    if style == "json":
        print_json(found)
        return
    print_table(
        ["schedule", "recipe", "cron", "time zone", "next", "last run", "note"],
        [
            [
                str(each["schedule_id"]),
                each["recipe_id"],
                each["cron"],
                each["time_zone"],
                "paused" if each["is_paused"] else ago(each["next_at"]),
                str(each["last_run_id"] or ""),
                each["last_note"] or "",
            ]
            for each in found
        ],
        "No schedules yet: `kalla schedules add RECIPE CRON` adds one.",
    )


@app.command()
def pause(schedule: Schedule) -> None:
    """Start no runs until it is resumed; times in between are not run later."""
    with Client() as client:
        client.post(address("schedules", str(schedule), "pause"))
    typer.echo(f"Schedule {schedule} is paused.")


@app.command()
def resume(schedule: Schedule) -> None:
    """Go on with the next time."""
    with Client() as client:
        made = client.post(address("schedules", str(schedule), "resume"))
    typer.echo(f"Schedule {schedule} runs {made['recipe_id']} {ago(made['next_at'])} next.")


@app.command()
def remove(schedule: Schedule) -> None:
    """Remove a schedule; the runs it has started stay."""
    with Client() as client:
        client.delete(address("schedules", str(schedule)))
    typer.echo(f"Schedule {schedule} is removed.")
