"""The `kalla` command: imports the one asked for alone, and turns errors into a sentence.

A command is a module of `kalla.cli` with either a `typer.Typer` called `app` (a group) or a
function called `command`. COMMANDS lists it, with the line that `kalla --help` shows.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated

import typer

from kalla.cli.examples import epilog
from kalla.errors import InvalidInput, KallaError, StartFailed
from kalla.web.text_format import visible_lines

COMMANDS = {
    "up": ("processes.up", "Start the whole system on this machine; Ctrl-C stops it."),
    "doctor": ("processes.doctor", "Name every part with its version, address and state."),
    "config": ("processes.config", "Show the settings in force and where each came from."),
    "migrate": ("processes.migrate", "Bring the database's tables up to date."),
    "api": ("processes.api", "Serve the REST API and the pages."),
    "worker": ("processes.worker", "Claim jobs and run them."),
    "query-worker": ("processes.query_worker", "Execute parts of queries for the API."),
    "autoscale": ("processes.autoscale", "Keep as many workers here as the demand needs."),
    "scaling": ("operate.scaling", "Show what each role needs, and the decisions so far."),
    "jobs": ("operate.jobs", "Submit, list, show, cancel and retry jobs."),
    "queues": ("operate.queues", "Show queues, pause and resume them."),
    "workers": ("operate.workers", "Show the workers."),
    "reconcile": ("reconcile.reconcile", "Match two sources by a recipe, alone, on this machine."),
    "runs": ("reconcile.runs", "Submit, list, show, watch, cancel, export and compare runs."),
    "evidence": ("reconcile.evidence", "Verify a run's evidence against what it claims."),
    "demo": ("reconcile.demo", "Reconcile made-up invoices and payments, and show the report."),
    "recipe": ("reconcile.recipe", "Check recipes, save them, list and show what is saved."),
    "schedules": ("reconcile.schedules", "Run saved recipes at certain times."),
    "sources": ("reconcile.sources", "Register, test and preview sources."),
    "destinations": ("reconcile.destinations", "Register the addresses that callbacks may go to."),
    "sinks": ("sinks.sinks", "Deliver Kafka topics into ClickHouse tables, exactly once."),
    "tables": ("tables", "Keep the results of queries up to date."),
    "query": ("query", "Query the stored metrics with PromQL."),
    "metrics": ("metrics", "Import samples from files."),
    "secret": ("operate.secret", "Store, list and remove secrets, encrypted."),
    "token": ("operate.tokens", "Create, list and revoke tokens."),
}


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that lacks a sign shows another; what was done is done all the same.
            stream.reconfigure(errors="replace")
    try:
        application(sys.argv[1:])(prog_name="kalla")
    except KallaError as error:
        if os.environ.get("KALLA_LOG_LEVEL", "").lower() == "debug":
            raise
        lines = map(str, error.problems) if isinstance(error, InvalidInput) else [str(error)]
        typer.echo(visible_lines("\n".join(lines)), err=True)
        sys.exit(1 if isinstance(error, StartFailed) else 2)
    except OSError as error:
        from kalla.storage.storage_failures import (
            is_full,  # here: it would take each command a second
        )

        if not is_full(error):
            raise
        where = f" for {error.filename}" if error.filename else ""
        typer.echo(
            f"No disk space is left{where}: {error.strerror}. Free some and try again.", err=True
        )
        _give_up_stdout()
        sys.exit(2)


def _give_up_stdout() -> None:
    """Drop what is still buffered: when the process ends, Python would try to write it again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def application(arguments: list[str]) -> typer.Typer:
    """The command line with the command in `arguments` in full, and of the others the name only."""
    app = typer.Typer(
        help="Kalla runs data work on autoscaled workers and proves what it did.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # the frames around the help would double the time to show it
    )
    app.callback()(_options)
    arguments = arguments or _completed_words()
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, (module_name, summary) in COMMANDS.items():
        if name != wanted:
            app.command(name, help=summary)(_placeholder)
            continue
        module = import_module(f"kalla.cli.{module_name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=summary, epilog=epilog(name))
        else:
            app.command(name)(module.command)
    return app


def _completed_words() -> list[str]:
    """The words after `kalla` that a shell wants completed; typer's scripts hand them over."""
    if "_KALLA_COMPLETE" not in os.environ:
        return []
    words = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return words.split()[1:]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"kalla {metadata.version('kalla')}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """What comes before the command."""


def _placeholder() -> None:
    """Stands for a command that was not asked for; importing them all would take a second."""


if __name__ == "__main__":
    main()
