"""`kalla migrate`: bring the database's tables up to date."""

from __future__ import annotations

import asyncio

import typer

from kalla import database, logs, settings


def command() -> None:
    """Apply the migrations the database does not have yet; two at once do no harm.

    Examples:

      kalla migrate

      KALLA_DATABASE_URL=postgresql://kalla@db/kalla kalla migrate
    """
    effective = settings.load()
    logs.configure("warning", effective.settings.log.format)
    applied = asyncio.run(database.migrate(effective.settings.database))
    for name in applied:
        typer.echo(f"applied {name}")
    if not applied:
        typer.echo("The database is up to date.")
