"""`kalla evidence verify`: recompute what a run's evidence claims, without API or database."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from kalla import settings
from kalla.cli.client import Style, print_json
from kalla.plurals import counted
from kalla.reconcile.evidence.verifying import verification
from kalla.storage import Storage
from kalla.web.text_format import visible

app = typer.Typer(help="Check the evidence of runs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """What is said of evidence, wherever it lies."""


@app.command()
def verify(
    place: Annotated[str, typer.Argument(metavar="FOLDER|s3://…", help="Where the evidence is.")],
    style: Style = "text",
) -> None:
    """Recompute every claim of metadata.json from the files; exit 1 if one does not hold."""
    found = verification.verify(place.rstrip("/"), Storage.of(settings.load().settings.storage))
    if style == "json":
        print_json(dataclasses.asdict(found) | {"holds": found.holds})
    else:
        for mismatch in found.mismatches:
            typer.echo(visible(str(mismatch)))
        summary = (
            "holds"
            if found.holds
            else f"fails: {counted(len(found.mismatches), 'mismatch', 'mismatches')}"
        )
        typer.echo(
            f"The evidence {summary}. Checked {found.claims:,} claims over {found.rows:,} rows in"
            f" {found.files:,} files (format {found.format})."
        )
        for note in found.notes:
            typer.echo(note)
    if not found.holds:
        raise typer.Exit(1)
