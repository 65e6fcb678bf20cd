"""`kalla runs`: submit, list, show, watch, cancel, retry, import, export and compare runs."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress, TaskID

from kalla.cli import progress
from kalla.cli.client import Client, Style, ago, print_json, print_table, say
from kalla.cli.reconcile import run_evidence
from kalla.cli.reconcile.recipe import given_values, recipe_text
from kalla.cli.reconcile.report import print_report, printing
from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.reconcile.evidence.reading.run_report import Report, percent
from kalla.storage import is_s3
from kalla.web.text_format import seconds, visible

app = typer.Typer(no_args_is_help=True)
app.command("export")(run_evidence.export)
app.command("diff")(run_evidence.diff)

RunId = Annotated[int, typer.Argument(metavar="RUN", min=1)]

_PAUSE = 0.5
_PATIENCE_SECONDS = 60.0


@app.command()
def submit(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A file, or the name of a saved recipe.")
    ],
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter's value.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Version of a saved recipe; else the latest.")
    ] = None,
    left: Annotated[str | None, typer.Option(help="Another left source than the recipe's.")] = None,
    right: Annotated[str | None, typer.Option(help="Another right source.")] = None,
    callback: Annotated[
        str | None, typer.Option(help="A registered URL to call at the end.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher is claimed first.")] = 0,
    new_version: Annotated[
        bool, typer.Option("--new-version", help="Also if a schedule will run this text.")
    ] = False,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again under this key changes nothing.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end; exit codes as of watch.")
    ] = False,
    style: Style = "text",
) -> None:
    """Start a run of a recipe on the workers."""
    file = Path(recipe)
    body: dict[str, Any] = {
        "parameters": given_values(given or []),
        "left": left,
        "right": right,
        "callback_url": callback,
        "priority": priority,
        "new_version": new_version,
    }
    if file.suffix in (".yaml", ".yml", ".json") or file.is_file():
        if version is not None:
            raise InvalidInput(
                Problem("--version", f"is that of a saved recipe: give its name, not {file}")
            )
        body["recipe"] = recipe_text(file)
    else:
        body |= {"recipe_id": recipe, "version": version}
    with Client(seconds=60) as client:
        run = client.post("/api/runs", body, idempotency_key)
        if style == "text":
            kept = f"{run['recipe_id']}, version {run['recipe_version']}"
            typer.echo(
                f"Run {run['run_id']} ({kept}) has started: kalla runs watch {run['run_id']}"
            )
        if wait:
            run = _follow(client, run["run_id"], style)
    if wait:
        _end(run, style)
    elif style == "json":
        print_json(run)


@app.command("list")
def list_runs(
    status: Annotated[
        str | None, typer.Option(help="running, completed, failed or cancelled.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Only runs of this recipe.")] = None,
    before: Annotated[int | None, typer.Option(help="Runs older than this one.")] = None,
    limit: Annotated[int, typer.Option()] = 20,
    style: Style = "text",
) -> None:
    """Show runs, newest first."""
    with Client() as client:
        page = client.get("/api/runs", status=status, recipe_id=recipe, before=before, limit=limit)
    if style == "json":
        print_json(page)
        return
    print_table(
        ["run", "recipe", "version", "status", "matched", "exceptions", "by", "started", "error"],
        [
            [
                str(run["run_id"]),
                run["recipe_id"],
                str(run["recipe_version"] or ""),
                run["status"],
                "" if run["match_rate"] is None else f"{percent(run['match_rate'])} %",
                "" if run["exceptions"] is None else f"{run['exceptions']:,}",
                run["submitted_by"],
                ago(run["created_at"]),
                beginning(run["error"] or ""),
            ]
            for run in page["runs"]
        ],
        "No runs yet: try `kalla runs submit recipe.yaml`.",
    )
    if page["next_before"]:
        typer.echo(f"More: --before {page['next_before']}")


def beginning(text: str) -> str:
    """The first line, or what fits of it; with a mark where something is left out."""
    line = text.split("\n")[0][:80]
    return line if line == text else f"{line} …"


@app.command()
def show(run_id: RunId, style: Style = "text") -> None:
    """Show a run: how far it is, or its report."""
    with Client() as client:
        run = client.get(f"/api/runs/{run_id}")
    _print_run(run, style, client.url)


@app.command()
def watch(run_id: RunId, style: Style = "text") -> None:
    """Follow a run to its end. Exit code 0: all matched, 1: exceptions, 2: not completed."""
    with Client() as client:
        run = _follow(client, run_id, style)
    _end(run, style)


@app.command()
def cancel(run_id: RunId) -> None:
    """End a run and all its jobs."""
    with Client() as client:
        run = client.post(f"/api/runs/{run_id}/cancel")
    typer.echo(f"Run {run_id} is {run['status']}.")


@app.command()
def retry(run_id: RunId) -> None:
    """Let a failed or cancelled run go on from where it was."""
    with Client() as client:
        run = client.post(f"/api/runs/{run_id}/retry")
    typer.echo(f"Run {run_id} is {run['status']} again.")


@app.command("import")
def import_run(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Evidence of kalla reconcile, or s3://…")
    ],
) -> None:
    """Show evidence that was made without the API in its pages; prints the address."""
    with Client() as client:
        place = folder if is_s3(folder) else str(Path(folder).absolute())
        run = client.post("/api/runs/import", {"folder": place})
        typer.echo(f"Imported as run {run['run_id']}: {client.url}/runs/{run['run_id']}")


def _follow(client: Client, run_id: int, style: str) -> dict[str, Any]:
    """Ask until the run has ended. An API that restarts meanwhile is waited for."""
    silent_since: float | None = None
    with progress.bar(shown=style != "json") as bar:
        task = bar.add_task("waiting", total=1.0)
        while True:
            try:
                run: dict[str, Any] = client.get(f"/api/runs/{run_id}")
                silent_since = None
            except Unavailable:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > _PATIENCE_SECONDS:
                    raise
            else:
                _show_progress(bar, task, run["progress"])
                if run["status"] != "running":
                    return run
            time.sleep(_PAUSE)


def _show_progress(bar: Progress, task: TaskID, reached: dict[str, Any]) -> None:
    bar.update(task, description=escape(progress_line(reached)), completed=reached["share"])


def progress_line(reached: dict[str, Any]) -> str:
    """How far a run is, in a few words."""
    if reached["stage"] == "staging":
        done = sum(side["chunks_done"] for side in reached["staging"])
        of = sum(side["chunks"] for side in reached["staging"])
        rows = sum(side["rows"] for side in reached["staging"])
        line = f"staging: {done} of {of} chunks, {rows:,} rows"
    elif reached["stage"] == "matching" and reached["spark_tasks"]:
        line = f"matching: {reached['spark_tasks_done']} of {reached['spark_tasks']} Spark tasks"
    else:
        line = str(reached["stage"])
    if reached["rows_per_second"]:
        line += f", {reached['rows_per_second']:,.0f} rows/s"
    if reached["seconds_left"]:
        line += f", {seconds(reached['seconds_left'])} left"
    if reached["put_off"]:
        line += f" ({put_off_line(reached['put_off'])})"
    return line


def put_off_line(put_off: dict[str, Any]) -> str:
    """Why a job of the run waits, and until when."""
    until = seconds(round(put_off["next_try_seconds"]))
    return f"put off: {visible(put_off['reason'])}; tried again in {until}"


def _end(run: dict[str, Any], style: str) -> None:
    with Client() as client, printing():
        _print_run(run, style, client.url)
    if run["status"] != "completed":
        raise typer.Exit(2)
    raise typer.Exit(1 if run["exceptions"] else 0)


def _print_run(run: dict[str, Any], style: str, url: str) -> None:
    if style == "json":
        print_json(run)
        return
    version = f", version {run['recipe_version']}" if run["recipe_version"] else ""
    say(f"Run {run['run_id']} of {run['recipe_id']}{version} is {run['status']}.")
    if run["error"]:
        say(run["error"], err=True)
    if run["status"] == "running":
        typer.echo(f"  {progress_line(run['progress'])}")
    if run["report"] and run["finished_at"]:
        began, ended = (datetime.fromisoformat(run[each]) for each in ("created_at", "finished_at"))
        # From when it was submitted: what the report knows is the match alone.
        seconds = (ended - began).total_seconds()
        report = Report.model_validate(run["report"] | {"seconds": seconds})
        print_report(report, f"{url}/runs/{run['run_id']}")
