"""`kalla recipe`: is a recipe right, and its schema, which needs no server; and those that the API
keeps.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kalla import settings
from kalla.cli.client import Client, Style, address, ago, print_json, print_table, say
from kalla.cli.reconcile.propose import propose
from kalla.errors import InvalidInput, KallaError, MissingSource, Problem
from kalla.plurals import counted
from kalla.reconcile.recipe import parsing, yaml_values
from kalla.reconcile.recipe.model import SIDES, Recipe, Side
from kalla.reconcile.recipe.recipe_problems import RecipeProblem, shown
from kalla.reconcile.registry import uri_coverage
from kalla.storage import Storage

app = typer.Typer(no_args_is_help=True)

_PAGE = 500

app.command()(propose)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON.")],
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter's value.")
    ] = None,
    left: Annotated[str | None, typer.Option(help="Another left source than the recipe's.")] = None,
    right: Annotated[str | None, typer.Option(help="Another right source.")] = None,
    style: Style = "text",
) -> None:
    """Tell every problem of a recipe; exit code 2 if there is one."""
    values = given_values(given or [])
    text = recipe_text(file)
    look = Look(may_be_registered=True)
    try:
        recipe = parsing.read(text, values, left=left, right=right, columns=look)
    except InvalidInput as error:
        _print_problems(file, error, look.notes, style)
        raise typer.Exit(2) from None
    if style == "json":
        facts = {"valid": True, "problems": [], "notes": look.notes, "recipe": _facts(recipe)}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _print_summary(recipe, look.notes)


@app.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors and other programs."""
    typer.echo(json.dumps(parsing.json_schema(), indent=2, ensure_ascii=False))


@app.command()
def save(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON.")],
    style: Style = "text",
) -> None:
    """Keep a recipe: as a new version, unless the latest one says the same."""
    with Client(seconds=60) as client:  # its sources are looked at
        saved = client.post("/api/recipes", {"recipe": recipe_text(file)})
    if style == "json":
        print_json(saved)
        return
    how = "has not changed: it is" if saved["repeated"] else "is saved as"
    typer.echo(f"{saved['recipe_id']} {how} version {saved['version']}.")
    for note in saved["notes"]:
        say(f"Note: {note}.")


@app.command("list")
def list_recipes(style: Style = "text") -> None:
    """Show the latest version of every recipe that is kept."""
    with Client() as client:
        found = _all(client)
    if style == "json":
        print_json(found)
        return
    print_table(
        ["recipe", "version", "name", "saved", "by"],
        [
            [
                each["recipe_id"],
                str(each["version"]),
                each["name"],
                ago(each["created_at"]),
                each["created_by"],
            ]
            for each in found
        ],
        "No recipes yet: `kalla recipe save FILE` keeps one.",
    )


@app.command()
def show(
    recipe_id: Annotated[str, typer.Argument(metavar="ID")],
    version: Annotated[int | None, typer.Option(help="The latest by default.")] = None,
    style: Style = "text",
) -> None:
    """Print a recipe as it was saved, comments included."""
    of = () if version is None else ("versions", str(version))
    with Client() as client:
        found = client.get(address("recipes", recipe_id, *of))
    if style == "json":
        print_json(found)
    else:
        typer.echo(found["text"].rstrip("\n"))


def _all(client: Client) -> list[dict[str, Any]]:
    """Page by page."""
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["recipe_id"] if found else None
        page = client.get("/api/recipes", after=after, limit=_PAGE)
        found += page
        if len(page) < _PAGE:
            return found


class Look:
    """The columns of both sources. One that cannot be reached is a note; one that can, but that a
    run could not read, is a problem.

    What runs here can read no registered source; a recipe that is checked may be meant for the API.
    """

    def __init__(self, *, may_be_registered: bool = False) -> None:
        self.notes: list[str] = []
        self._may_be_registered = may_be_registered

    def __call__(self, recipe: Recipe, sides: Collection[Side]) -> Mapping[Side, Mapping[str, str]]:
        from kalla.reconcile.sources import inspection  # drivers, which take their time to load
        from kalla.secrets import Vault

        if not self._may_be_registered:
            _refuse_registered(recipe)
        loaded = settings.load().settings
        storage, resolve = Storage.of(loaded.storage), Vault(loaded).resolve
        found: dict[Side, Mapping[str, str]] = {}
        problems: list[Problem] = []
        for side in sides:
            source = recipe.sources[side]
            try:
                found[side] = inspection.columns(source, storage=storage, resolve=resolve)
            except MissingSource as error:
                reason = "; ".join(each.message for each in error.problems)
                self.notes.append(f"the {side} source's columns were not checked: {reason}")
            except InvalidInput as error:
                problems += (
                    replace(each, field=f"sources.{side}.{each.field or 'uri'}")
                    for each in error.problems
                )
            except KallaError as error:
                self.notes.append(f"the {side} source's columns were not checked: {error}")
        if problems:
            raise InvalidInput(*problems)
        return found


def _refuse_registered(recipe: Recipe) -> None:
    problems = [
        RecipeProblem(
            f"sources.{side}.uri",
            f"{uri} is a registered source, which the API alone knows",
            uri,
            "run it with `kalla runs submit`, or name a path, s3:// or postgresql://",
        )
        for side in SIDES
        if uri_coverage.kind_of(uri := recipe.sources[side].uri) == "source"
    ]
    if problems:
        raise InvalidInput(*problems)


def given_values(pairs: list[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    wrong = [name for name, sign, _ in split if not sign or not name]
    if wrong:
        raise InvalidInput(*(Problem("--set", f"{name!r} is not NAME=VALUE") for name in wrong))
    names = [name for name, _, _ in split]
    if doubled := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise InvalidInput(*(Problem("--set", f"{name!r} is given twice") for name in doubled))
    return {name: value for name, _, value in split}


def recipe_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            # One byte more than a recipe may have: the reader then says that it is too large.
            return opened.read(yaml_values.LARGEST_BYTES + 1).decode("utf-8", "surrogateescape")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInput(Problem(str(file), f"cannot be read: {reason}")) from None


def _facts(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "sources": {side: recipe.sources[side].uri for side in SIDES},
        "rules": [rule.name for rule in recipe.rules_in_order],
        "match_sql": recipe.match_sql is not None,
    }


def _print_summary(recipe: Recipe, notes: list[str]) -> None:
    say(f"{recipe.name} is a valid recipe.")
    for side in SIDES:
        source = recipe.sources[side]
        say(f"  {side:<5}  {source.uri} by {', '.join(source.primary_key)}")
    for rule in recipe.rules_in_order:
        conditions = ", ".join(f"{each.left} {each.op} {each.right}" for each in rule.conditions)
        say(f"  rule   {rule.name} ({rule.cardinality}): {conditions}")
    if recipe.match_sql is not None:
        typer.echo("  match_sql says what matches")
    for note in notes:
        say(f"Note: {note}.")


def _print_problems(file: Path, error: InvalidInput, notes: list[str], style: str) -> None:
    problems = [RecipeProblem.of(each) for each in error.problems]
    if style == "json":
        facts = {"valid": False, "problems": [each.facts() for each in problems], "notes": notes}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    say(f"{file} has {counted(len(problems), 'problem')}:")
    for each in problems:
        value = f" = {shown(each.value)}" if each.value is not None else ""
        head = f"{each.field}{value}: " if each.field else ""
        say(f"  {head}{each.message}" + (f" ({each.suggestion})" if each.suggestion else ""))
    for note in notes:
        say(f"Note: {note}.")
