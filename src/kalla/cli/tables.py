"""`kalla tables`: apply, list, show, explain, refresh, history, query, audit and drop."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from kalla.cli.client import Client, Style, address, ago, print_json, print_table, say
from kalla.errors import InvalidInput, KallaError, Problem
from kalla.web.text_format import seconds

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME")]

_POLL_SECONDS = 0.5
_DEMO_SECONDS = 3.0  # between two live changes
_FIRST_SECONDS = 120.0


@app.command()
def apply(
    place: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help=".sql text, or a folder of it.")
    ],
    dry_run: Annotated[bool, typer.Option(help="Show the plan alone.")] = False,
) -> None:
    """Create and change tables as `.sql` files say. Shows the plan, then carries it out."""
    if not place.exists():
        raise InvalidInput(Problem(str(place), "is not there"))
    files = sorted(place.rglob("*.sql")) if place.is_dir() else [place]
    if not files:
        raise InvalidInput(Problem(str(place), "has no .sql files"))
    # A comment at the end of a file must not swallow the next statement.
    text = "\n;\n".join(file.read_text("utf-8") for file in files)
    with Client() as client:
        plan = client.post("/api/tables/apply", {"sql": text, "dry_run": True})
        rows = [[step["action"], step["kind"], step["name"], step["reason"]] for step in plan]
        print_table(["plan", "", "name", "why"], rows, "Nothing to do.")
        for step in plan:
            for line in [step["warning"]] * bool(step["warning"]) + step["diff"]:
                say(f"  {step['name']}: {line}")
        if not dry_run and any(step["action"] != "unchanged" for step in plan):
            client.post("/api/tables/apply", {"sql": text})
            typer.echo("Applied.")


@app.command("list")
def list_tables(style: Style = "text") -> None:
    """Show every dynamic table with its lag."""
    with Client() as client:
        found = client.get("/api/tables")
    if style == "json":
        print_json(found)
        return
    print_table(
        ["name", "state", "lag", "target", "rows", "why"],
        [
            [
                each["name"],
                "late" if each["late"] and each["state"] == "active" else each["state"],
                _seconds(each["lag_seconds"], "–"),
                _seconds(each["target_lag_seconds"], "DOWNSTREAM"),
                "–" if each["rows"] is None else f"{each['rows']:,}",
                each["why"],
            ]
            for each in found
        ],
        "No dynamic tables yet: `kalla tables apply FILE` creates them.",
    )


@app.command()
def show(name: Name, style: Style = "text") -> None:
    """Show one table: its lag, where it lies, its columns and its query."""
    with Client() as client:
        found = client.get(address("tables", name))
    if style == "json":
        print_json(found)
        return
    lines = [
        f"{found['name']} is {found['state']}, version {found['version']} of its definition",
        f"lag {_seconds(found['lag_seconds'], 'unknown')}",
        f"target {_seconds(found['target_lag_seconds'], 'DOWNSTREAM')}",
        f"reads {', '.join(found['reads'])}",
        f"columns {', '.join(found['columns'])}",
        f"rows in {found['location']}",
    ]
    if found["why"]:
        lines.append(found["why"])
    say("\n".join([*lines, "", found["query"]]))


@app.command()
def explain(name: Name, style: Style = "text") -> None:
    """Say which strategies the query allows, why not the others, and what each took."""
    with Client() as client:
        found = client.get(address("tables", name, "explain"))
        lately = client.get(address("tables", name, "history"), limit=20)
    if style == "json":
        print_json(found)
        return
    say(f"{found['name']}: REFRESH_STRATEGY = {found['strategy']}")
    print_table(
        ["strategy", "possible", "why", "typically"],
        [
            [
                each["strategy"],
                "yes" if each["possible"] else "no",
                each["reason"],
                _typical(each["strategy"], lately),
            ]
            for each in found["strategies"]
        ],
        "",
    )
    if found["keys"]:
        say(f"recomputed by {', '.join(found['keys'])}")
    period = found["period_seconds"]
    say("refreshed on demand" if period is None else f"a tick every {seconds(period)}")
    for each in lately[:1]:
        say(f"last: {each['strategy'] or each['status']} ({each['reason'] or each['error']})")
    if found["why"]:
        say(found["why"])


def _typical(strategy: str, lately: list[dict[str, Any]]) -> str:
    took = sorted(
        each["seconds"]
        for each in lately
        if each["strategy"] == strategy and each["seconds"] is not None
    )
    return f"{took[len(took) // 2]:.1f} s" if took else ""


@app.command()
def refresh(
    name: Name,
    full: Annotated[bool, typer.Option("--full", help="Recompute every row.")] = False,
    upstream: Annotated[
        bool, typer.Option("--upstream", help="With --full: also of the tables it reads.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until the refresh has ended.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that --wait waits.")] = 600,
) -> None:
    """Refresh a table and what it reads, whatever its lag."""
    with Client() as client:
        newest = _newest(client, name)
        answer = client.post(
            address("tables", name, "refresh"), {"full": full, "upstream": upstream}
        )
        asked_at = datetime.fromisoformat(answer["asked_at"])
        if not wait:
            typer.echo(f"{name} is refreshed with the next tick.")
            return
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = client.get(address("tables", name))
            failed = _newest(client, name)
            if failed is not None and failed != newest and failed["status"] == "failed":
                raise KallaError(f"The refresh failed: {failed['error']}")
            data_time = found["data_time"]
            if data_time is not None and datetime.fromisoformat(data_time) > asked_at:
                typer.echo(f"{name} has {found['rows'] or 0:,} rows.")
                return
            time.sleep(_POLL_SECONDS)
        raise KallaError(f"{name} was not refreshed within {timeout:g} s: {found['why']}")


@app.command()
def history(
    name: Name, limit: Annotated[int, typer.Option(min=1, max=500)] = 20, style: Style = "text"
) -> None:
    """Show the newest refreshes: strategy, why, cost, rows."""
    with Client() as client:
        found = client.get(address("tables", name, "history"), limit=limit)
    if style == "json":
        print_json(found)
        return
    print_table(
        ["ended", "status", "strategy", "took", "predicted", "deleted", "inserted", "why"],
        [
            [
                ago(each["finished_at"]),
                each["status"],
                each["strategy"],
                _seconds(each["seconds"], ""),
                _seconds(each["predicted_seconds"], ""),
                _count(each["rows_deleted"]),
                _count(each["rows_inserted"]),
                each["error"] or each["reason"],
            ]
            for each in found
        ],
        f"{name} has not been refreshed yet.",
    )


@app.command()
def suspend(name: Name) -> None:
    """Stop refreshing a table; those that read it wait."""
    with Client() as client:
        client.post(address("tables", name, "suspend"))
    typer.echo(f"{name} is suspended: `kalla tables resume {name}` ends that.")


@app.command()
def resume(name: Name) -> None:
    """Refresh a suspended table again."""
    with Client() as client:
        client.post(address("tables", name, "resume"))
    typer.echo(f"{name} is active.")


@app.command()
def rename(name: Name, new: Annotated[str, typer.Argument(metavar="NEW")]) -> None:
    """Give a table another name; refused while another one reads it."""
    with Client() as client:
        client.post(address("tables", name, "rename"), {"name": new})
    typer.echo(f"{name} is {new} now.")


@app.command()
def drop(name: Name) -> None:
    """Remove a table and its rows."""
    with Client() as client:
        client.post(address("tables", name, "drop"))
    typer.echo(f"{name} is dropped.")


@app.command()
def lineage(name: Name, style: Style = "text") -> None:
    """Show what a table reads and what reads it."""
    with Client() as client:
        found = client.get(address("tables", name, "lineage"))
    if style == "json":
        print_json(found)
        return
    say(f"{found['name']} reads {', '.join(found['reads'])}")
    for each, reads in found["upstream"].items():
        say(f"  {each} reads {', '.join(reads)}")
    say(f"read by {', '.join(found['downstream']) or 'no table'}")


@app.command()
def query(select: Annotated[str, typer.Argument(metavar="SELECT")], style: Style = "text") -> None:
    """Run a SELECT over dynamic tables and sources; shows at most 1,000 rows."""
    with Client() as client:
        result = _result(client, client.post("/api/tables/query", {"query": select})["job_id"])
    if style == "json":
        print_json(result)
        return
    rows = [["NULL" if cell is None else cell for cell in row] for row in result["rows"]]
    print_table(result["columns"], rows, "No rows.")
    if result["more"]:
        typer.echo("There are more rows.")


@app.command()
def audit(name: Name) -> None:
    """Compare a table with its query run fresh at the same versions."""
    with Client() as client:
        job_id = client.post(address("tables", name, "audit"))["job_id"]
        found = _result(client, job_id)
    if not found["equal"]:
        raise KallaError(
            f"{name} differs from its query: {found['missing']:,} rows are missing and"
            f" {found['extra']:,} are too many. `kalla tables refresh {name} --full` recomputes it."
        )
    typer.echo(f"{name} equals its query run fresh: {found['rows']:,} rows.")


def _result(client: Client, job_id: int, timeout: float = 600) -> dict[str, Any]:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        job = client.get(address("jobs", str(job_id)))
        if job["status"] == "completed":
            result: dict[str, Any] = job["result"]
            return result
        if job["status"] in ("failed", "cancelled"):
            raise KallaError(job["error"] or f"Job {job_id} was {job['status']}.")
        time.sleep(_POLL_SECONDS)
    raise KallaError(f"Job {job_id} did not end within {timeout:g} s: is a worker running?")


def _newest(client: Client, name: str) -> dict[str, Any] | None:
    found = client.get(address("tables", name, "history"), limit=1)
    return found[0] if found else None


def _seconds(value: float | None, absent: str) -> str:
    return absent if value is None else seconds(value)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the shop's sources go.")] = Path(
        ".kalla/tables-demo"
    ),
    changes: Annotated[int, typer.Option(min=1, help="How many live changes.")] = 10,
) -> None:
    """A small shop, three tables deep: live changes, and the lag that is kept."""
    from kalla.tables.demo_shop import TABLES, Shop

    shop = Shop(folder.resolve())
    shop.open()
    with Client() as client:
        client.post("/api/tables/apply", {"sql": shop.statements()})
        typer.echo(f"Tables {', '.join(TABLES)}; the page is {client.url}/tables")
        deadline = time.monotonic() + _FIRST_SECONDS
        while client.get(address("tables", TABLES[-1]))["rows"] is None:
            if time.monotonic() > deadline:
                raise KallaError("The first refresh did not end: is a worker running?")
            time.sleep(_POLL_SECONDS)
        for _ in range(changes):
            say(shop.change())
            time.sleep(_DEMO_SECONDS)
            for name in TABLES:
                each = client.get(address("tables", name))
                newest = _newest(client, name) or {}
                say(
                    f"  {name:<12} lag {_seconds(each['lag_seconds'], '–'):<8}"
                    f" of {_seconds(each['effective_lag_seconds'], '–'):<6}"
                    f" {'late' if each['late'] else 'in time':<8}"
                    f" {newest.get('strategy', '')} {newest.get('reason', '')}"
                )
    typer.echo("Drop them with `kalla tables drop`, the last one first.")
