"""`kalla scaling`: what each role needs, and why the number of workers changed or did not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kalla.cli.client import Client, Style, address, ago, print_json, print_table
from kalla.errors import InvalidInput, Problem
from kalla.scaling.simulation.trace import SHAPES
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
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of decisions.")] = 20,
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
            if key not in ("at", "role") and value != "":  # the first line says them
                typer.echo(f"  {key}: {value}")


@app.command("simulate")
def simulate_policies(
    trace: Annotated[
        str,
        typer.Option(
            help="A CSV file with the columns at and seconds, or a made-up load: "
            f"{', '.join(SHAPES)}."
        ),
    ],
    policy: Annotated[
        str, typer.Option(help="Names of policies, comma-separated; all by default.")
    ] = "",
    startup: Annotated[float, typer.Option(min=0, help="Seconds a worker takes to start.")] = 10,
    concurrency: Annotated[int, typer.Option(min=1, help="Jobs a worker runs at once.")] = 4,
    max_workers: Annotated[
        int, typer.Option("--max", min=1, help="Maximum number of workers.")
    ] = 1000,
    seed: Annotated[int | None, typer.Option(help="Another seed for the made-up load.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A folder for an SVG picture of each policy.")
    ] = None,
    style: Style = "text",
) -> None:
    """Simulate how policies scale workers over a trace of jobs; needs no server.

    Examples:

      kalla scaling simulate --trace diurnal

      kalla scaling simulate --trace jobs.csv --policy demand,demand-tuned --plot pictures
    """
    from kalla.scaling.simulation.plot import svg
    from kalla.scaling.simulation.policies import POLICIES, Machine
    from kalla.scaling.simulation.simulate import simulate
    from kalla.scaling.simulation.trace import load

    names = [name.strip() for name in policy.split(",") if name.strip()] or list(POLICIES)
    if unknown := [name for name in names if name not in POLICIES]:
        raise InvalidInput(
            Problem("--policy", f"there is no {unknown[0]}: choose from {', '.join(POLICIES)}")
        )
    if trace not in SHAPES and not Path(trace).is_file():
        raise InvalidInput(
            Problem("--trace", f"{trace} is not a file, nor one of {', '.join(SHAPES)}")
        )
    if trace in SHAPES:
        jobs = SHAPES[trace]() if seed is None else SHAPES[trace](seed)
    else:
        jobs = load(Path(trace))
    machine = Machine(concurrency=concurrency, startup_seconds=startup, max_workers=max_workers)
    results = [simulate(jobs, name, machine) for name in names]
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)
        for result in results:
            file = plot / f"{result.trace}-{result.policy}.svg"
            file.write_text(svg(result, concurrency), "utf-8")
    if style == "json":
        for result in results:
            shown = {name: value for name, value in asdict(result).items() if name != "history"}
            typer.echo(json.dumps(shown))
        return
    print_table(
        ["policy", "p50 wait", "p95 wait", "p99 wait", "worker-hours", "most", "flips",
         "busy hit", "unfinished"],
        [
            [
                result.policy,
                f"{result.wait_p50:.1f} s",
                f"{result.wait_p95:.1f} s",
                f"{result.wait_p99:.1f} s",
                f"{result.worker_hours:.1f}",
                str(result.highest),
                str(result.flips),
                str(result.busy_hit),
                str(result.unfinished),
            ]
            for result in results
        ],
        "No policy.",
    )  # fmt: skip
