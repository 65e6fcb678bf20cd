"""`kalla reconcile`: one run of a recipe with a private Spark for its duration. No database needed.

Exit code 0: all matched; 1: exceptions found; 2: the run failed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer
from pydantic import SecretStr

from kalla.cli.client import Style, say
from kalla.cli.progress import bar
from kalla.cli.reconcile.recipe import Look, given_values, recipe_text
from kalla.cli.reconcile.report import print_report, printing
from kalla.cli.reconcile.termination import asked_to_end, clearing_up, deferring
from kalla.errors import InvalidInput, KallaError
from kalla.local import ports
from kalla.local.servers.spark import Spark
from kalla.plurals import counted
from kalla.reconcile.arrays import array_path
from kalla.reconcile.evidence.reading import run_report
from kalla.reconcile.evidence.reading.run_report import Report
from kalla.reconcile.evidence.writing.output_lock import claimed
from kalla.reconcile.plan import plan
from kalla.reconcile.plan.plan import Input, Plan
from kalla.reconcile.recipe import parsing
from kalla.reconcile.recipe.model import SIDES, Recipe, Side, Source
from kalla.reconcile.runs.execute import execute_recipe
from kalla.reconcile.sources import inspection, source_planning
from kalla.reconcile.sources.source_planning import Limits
from kalla.redaction import scrub
from kalla.secrets import Vault
from kalla.settings import Spark as SparkSettings
from kalla.settings import load
from kalla.spark import task_failures
from kalla.spark.session import connect
from kalla.storage import Storage, is_s3
from kalla.storage.scratch import scratch

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_NAME_BYTES = 100  # of a recipe's name, in that of a folder, which may have 255


def command(
    file: Annotated[Path, typer.Argument(metavar="RECIPE", help="YAML or JSON.")],
    left: Annotated[str | None, typer.Option(help="Another left source than the recipe's.")] = None,
    right: Annotated[str | None, typer.Option(help="Another right source.")] = None,
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter's value.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="The folder for the evidence, or s3://…")
    ] = None,
    style: Style = "text",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan; match and write nothing.")
    ] = False,
) -> None:
    """Match two sources by a recipe and write the evidence. Exit code 1 if there are exceptions.

    Examples:

      kalla reconcile invoices.yaml

      kalla reconcile invoices.yaml --set month=2026-10 --output october
    """
    try:
        values = given_values(given or [])
        recipe = parsing.read(recipe_text(file), values, left=left, right=right, columns=Look())
        if dry_run:
            with printing():
                _print_plan(recipe, style)
            return
        with clearing_up():
            made = reconcile(recipe, output)
    except KallaError as error:
        lines = map(str, error.problems) if isinstance(error, InvalidInput) else [str(error)]
        say("\n".join(lines), err=True)
        raise typer.Exit(2) from None
    except typer.Exit:
        raise
    except Exception as error:  # exit code 1 would say that exceptions were found
        said = (str(error) or type(error).__name__).strip().splitlines()[0]
        say(f"The run failed: {scrub(said)}", err=True)
        raise typer.Exit(2) from error
    with printing():
        if style == "json":
            typer.echo(made.model_dump_json(indent=2))
        else:
            print_report(made, f"kalla runs import {quote(made.evidence)}")
    raise typer.Exit(1 if made.exceptions else 0)


def reconcile(recipe: Recipe, output: str | None) -> Report:
    """Start a Spark, carry the recipe out, stop it again, and report on the evidence."""
    settings = load().settings
    storage = Storage.of(settings.storage)
    url = _place(recipe, output, storage)
    limits = replace(Limits.of(settings), threads=_cores())  # alone: all of them
    with claimed(url, storage) as evidence:
        # What is wrong with a source is said before Spark takes its time to start.
        for side in SIDES:
            if not source_planning.is_staged(recipe.sources[side]):
                source_planning.inspect_files(recipe.sources[side], side, storage=limits.storage)
        with bar(words=12) as progress:
            start = progress.add_task("start Spark", total=1)
            with private_spark(brief=recipe.match_sql is None) as session:
                progress.update(start, completed=1)
                tasks = {name: progress.add_task(name, total=None) for name in ("stage", "match")}

                def tell(name: str, done: int, of: int) -> None:
                    shown = "stage" if name == "stage" else "match"
                    progress.update(tasks[shown], completed=done, total=of)

                execute_recipe(session, recipe, evidence, limits, tell, Vault(settings).resolve)
    return run_report.of_evidence(url, storage)


@contextmanager
def private_spark(*, brief: bool) -> Iterator[SparkSession]:
    with scratch() as folder:
        server = Spark(folder, ports.choose_free(), cores=_cores(), brief=brief)
        try:
            with deferring():
                # The client takes seconds to import, as the server takes to start.
                client = "pyspark.sql.connect.session"
                threading.Thread(target=import_module, args=(client,)).start()
                server.start(asked_to_end)
            settings = SparkSettings(remote=server.remote, token=SecretStr(server.token))
            session = connect(settings)
            try:
                with task_failures.translate_errors():
                    yield session
            finally:
                session.stop()
        finally:
            server.stop()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def _place(recipe: Recipe, output: str | None, storage: Storage) -> str:
    """Where the evidence goes: as given, as the recipe says, or a folder that nobody else has."""
    url = output or recipe.output
    if url is None:
        signs = "".join(sign if sign.isalnum() else "-" for sign in recipe.name.lower())
        name = signs.encode()[:_NAME_BYTES].decode(errors="ignore")
        names = sys.getfilesystemencoding()  # ASCII alone, where the locale says so
        name = name.encode(names, "replace").decode(names).replace("?", "-")
        url = f"evidence/{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:6]}"
    _, path = storage.filesystem(url)
    return url.rstrip("/") if is_s3(url) else path


def _print_plan(recipe: Recipe, style: str) -> None:
    settings = load().settings
    limits = Limits.of(settings)
    resolve = Vault(settings).resolve
    inputs = {
        side: source_planning.preview(recipe, side, resolve=resolve)
        if source_planning.is_staged(recipe.sources[side])
        else source_planning.inspect_files(recipe.sources[side], side, storage=limits.storage)
        for side in SIDES
    }
    rows = {side: inspection.estimate(inputs[side], limits.storage) for side in SIDES}
    document = _plan_document(recipe, plan.make(recipe, inputs), rows, limits)
    if style == "json":
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    say(f"{recipe.name}: the plan (a dry run: nothing is matched or written)")
    for side in SIDES:
        facts = document["sources"][side]
        say(f"  {side:<6} {run_report.place(facts['uri'], facts['table'])}")
        say(f"         {facts['kind']}, {facts['rows']}, {counted(facts['chunks'], 'chunk')}")
        say(f"         columns: {', '.join(facts['columns'])}")
        for note in facts["notes"]:
            say(f"         {note}")
    for rule in document["rules"]:
        say(f"  rule   {rule['name']} ({rule['cardinality']})")
        say(f"         key: {', '.join(rule['key']) or 'none'}")
        say(f"         checks: {', '.join(rule['checks']) or 'none'}")
        say(f"         matched {rule['matched']}")


def _plan_document(
    recipe: Recipe, made: Plan, rows: Mapping[Side, int | None], limits: Limits
) -> dict[str, Any]:
    def described(source: Source, given: Input, rows: int | None) -> dict[str, Any]:
        staged = source_planning.is_staged(source)
        chunks = source_planning.chunks_wanted(source, rows or 0, limits)
        return {
            "uri": source.uri,
            "table": source.table,
            "kind": f"{source.read} postgres" if staged else f"native {given.format}",
            "rows": "rows unknown" if rows is None else f"about {counted(rows, 'row')}",
            "estimated_rows": rows,
            "bytes": given.bytes,
            "chunks": chunks if staged else len(given.files),
            "columns": list(given.types),
            "notes": list(given.notes),
        }

    return {
        "recipe": recipe.name,
        "recipe_hash": made.recipe_hash,
        "sources": {
            side: described(recipe.sources[side], made.sides[side].input, rows[side])
            for side in SIDES
        },
        "rules": [
            {
                "name": rule.name,
                "cardinality": rule.cardinality,
                "key": [check.label for check in rule.checks if check.is_key],
                "checks": [check.label for check in rule.checks if not check.is_key],
                "matched": str(choice),
            }
            for rule, choice in zip(made.rules, array_path.decide(made, rows), strict=True)
        ],
    }
