"""`kalla sources`: the sources that recipes may read through the API, and what is in them."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from kalla.cli.client import Client, Style, address, ago, print_json, print_table
from kalla.cli.reconcile.propose import profile
from kalla.cli.reconcile.recipe import recipe_text
from kalla.errors import InvalidInput, Problem
from kalla.reconcile.recipe import yaml_values
from kalla.reconcile.registry import uri_coverage

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]

PREVIEW_ROWS = 50

app.command()(profile)


@app.command()
def add(
    name: Name,
    uri: Annotated[
        str | None,
        typer.Argument(metavar="URI", help="A file, folder or glob, s3://, postgresql://…"),
    ] = None,
    table: Annotated[str | None, typer.Option(help="For a database: schema.table.")] = None,
    password: Annotated[
        str | None, typer.Option(metavar="secret://NAME", help="Stored by `kalla secret set`.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A primary key column; repeatable.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="csv, parquet, json, delta or postgres.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="All fields of a source, in YAML or JSON.")
    ] = None,
    replace: Annotated[bool, typer.Option(help="Replace the existing one of this name.")] = False,
    upload: Annotated[
        bool, typer.Option("--upload", help="Send the file: the servers need not see its folder.")
    ] = False,
) -> None:
    """Register a source: recipes may then read it as source://NAME. Needs the role admin; to send a
    file with --upload, the role operator."""
    if upload:
        _send(name, uri, replace)
        return
    said = {
        "uri": uri,
        "table": table,
        "password": password,
        "primary_key": key or None,
        "format": kind,
    }
    source = _fields(file) | {field: value for field, value in said.items() if value is not None}
    if isinstance(source.get("uri"), str):
        source["uri"] = _absolute(source["uri"])
    with Client() as client:
        made = client.post("/api/sources", {"name": name, "source": source, "replace": replace})
    typer.echo(f"Recipes may read {made['source']['uri']} as source://{made['name']}.")


@app.command("list")
def list_sources(style: Style = "text") -> None:
    """Show the registered sources."""
    with Client() as client:
        found = client.get("/api/sources")
    if style == "json":
        print_json(found)
        return
    print_table(
        ["name", "uri", "table", "key", "changed", "by"],
        [
            [
                each["name"],
                each["source"]["uri"],
                each["source"].get("table", ""),
                ", ".join(each["source"].get("primary_key", ())),
                ago(each["changed_at"]),
                each["changed_by"],
            ]
            for each in found
        ],
        "No sources yet: `kalla sources add NAME URI` registers one.",
    )


@app.command()
def show(name: Name, style: Style = "text") -> None:
    """Show what is registered about a source."""
    with Client() as client:
        found = client.get(address("sources", name))
    if style == "json":
        print_json(found)
    else:
        typer.echo(yaml_values.write(found["source"]), nl=False)


@app.command()
def remove(name: Name) -> None:
    """Take a source away: no recipe can read it any more. Needs the role admin."""
    with Client() as client:
        client.post(address("sources", name, "remove"))
    typer.echo(f"No recipe can read {name} any more.")


@app.command("test")
def reach(name: Name, style: Style = "text") -> None:
    """Tell whether the API can read a source; exit code 1 if it cannot."""
    with Client() as client:
        found = client.post(address("sources", name, "test"))
    if style == "json":
        print_json(found)
    else:
        typer.echo(found["message"])
    raise typer.Exit(0 if found["reachable"] else 1)


@app.command()
def columns(name: Name, style: Style = "text") -> None:
    """Show a source's columns, its size, and what its primary key may be."""
    with Client() as client:
        found = client.get(address("sources", name, "columns"))
    if style == "json":
        print_json(found)
        return
    print_table(
        ["column", "type", "declared", "null"],
        [
            [each["name"], each["type"], each["declared"], "" if each["nullable"] else "never"]
            for each in found["columns"]
        ],
        "No columns.",
    )
    rows = "an unknown number of" if found["rows"] is None else f"{found['rows']:,}"
    about = "" if found["exact"] or found["rows"] is None else "about "
    typer.echo(f"{found['format']}, {about}{rows} rows, {found['bytes']:,} bytes")
    key = ", ".join(found["primary_key"]) or "none found"
    typer.echo(f"primary key: {key} ({found['primary_key_note']})")
    for note in found["notes"]:
        typer.echo(f"Note: {note}.")


@app.command()
def preview(
    name: Name,
    rows: Annotated[int, typer.Option(help="How many rows, at most 500.")] = PREVIEW_ROWS,
    style: Style = "text",
) -> None:
    """Show a source's first rows."""
    with Client() as client:
        found = client.get(address("sources", name, "preview"), rows=rows)
    if style == "json":
        print_json(found)
        return
    shown = [["" if cell is None else str(cell) for cell in row] for row in found["rows"]]
    print_table(found["columns"], shown, f"No rows; columns: {', '.join(found['columns'])}.")


def _send(name: str, path: str | None, replace: bool) -> None:
    if path is None or not Path(path).is_file():
        raise InvalidInput(Problem("URI", f"{path} is not a file here: --upload sends one file"))
    with Client(seconds=600) as client:
        sent = client.send_file("/api/uploads", Path(path))
        saved = {"name": name, "replace": replace}
        client.post(address("uploads", sent["upload_id"], "save"), saved)
    typer.echo(f"{sent['file_name']} was sent. Recipes may read it as source://{name}.")


def _fields(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    parsed = yaml_values.parse(recipe_text(file))
    if parsed.findings:
        raise InvalidInput(*(each.problem() for each in parsed.findings))
    if not isinstance(parsed.value, dict):
        raise InvalidInput(Problem(str(file), "must be fields of a source and their values"))
    return {name: _sayable(value, name) for name, value in parsed.value.items()}


def _sayable(value: object, where: str) -> object:
    """As JSON can say it; a decimal only where the float that it arrives as is the same number."""
    if isinstance(value, dict):
        return {name: _sayable(item, f"{where}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_sayable(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, Decimal):
        if Decimal(repr(float(value))) != value:
            reason = "has more digits than a number keeps on its way to the API"
            raise InvalidInput(Problem(where, reason, value, "filter by it in the recipe"))
        return float(value)
    return value.isoformat() if isinstance(value, date) else value


def _absolute(uri: str) -> str:
    """A path of the user's folder as the servers find it: they run in other folders."""
    is_path = uri_coverage.kind_of(uri) == "file" and not uri.startswith("file://")
    return str(Path(uri).absolute()) if is_path else uri
