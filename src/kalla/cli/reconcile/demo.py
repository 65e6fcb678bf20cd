"""`kalla demo`: invoices in a CSV against payments in an embedded Postgres, and the report."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import psycopg
import typer
from rich.console import Console

from kalla.cli.reconcile import reconcile
from kalla.cli.reconcile.report import print_report
from kalla.cli.reconcile.termination import asked_to_end, clearing_up, deferring
from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.reconcile.demo_data import invoices, payments, recipe
from kalla.reconcile.recipe import parsing
from kalla.storage import LOCAL
from kalla.storage.scratch import scratch

_VARIABLE = "KALLA_SECRET_DEMO"


def command(
    rows: Annotated[
        int, typer.Option(help="How many invoices.", min=100, max=10_000_000)
    ] = 200_000,
    folder: Annotated[Path, typer.Option(help="Where sources and evidence go.")] = Path("demo"),
) -> None:
    """Make a realistic pair of sources, reconcile them, and print the report.

    Examples:

      kalla demo

      kalla demo --rows 1000000 --folder /tmp/demo
    """
    console = Console(stderr=True, highlight=False)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "invoices.csv"
    recipe_file = folder / "recipe.yaml"
    with clearing_up(), scratch() as data:
        postgres = Postgres(data, ports.choose_free())
        console.print("  starting Postgres")
        try:
            with deferring():
                postgres.start(asked_to_end)
            url = postgres.url("postgres")
            console.print(f"  making {rows:,} invoices and their payments")
            LOCAL.write_text(str(file), invoices(rows))
            with psycopg.connect(url) as connection:
                payments(connection, rows)
            place = f"postgresql://postgres@{postgres.address}/postgres"
            text = recipe(str(file), place)
            LOCAL.write_text(str(recipe_file), text)
            os.environ[_VARIABLE] = url.partition("postgres:")[2].partition("@")[0]
            found = parsing.read(text)
            made = reconcile.reconcile(found, str(_unused(folder / "evidence")))
        finally:
            os.environ.pop(_VARIABLE, None)
            postgres.stop()
    see_more = f"make up, and beside it: .venv/bin/kalla runs import {quote(made.evidence)}"
    print_report(made, see_more)
    typer.echo(f"The recipe is {recipe_file}, the invoices are {file}.")


def _unused(folder: Path) -> Path:
    """The folder, or the first after it that is not there yet."""
    number = 1
    place = folder
    while place.exists():
        number += 1
        place = folder.with_name(f"{folder.name}-{number}")
    return place
