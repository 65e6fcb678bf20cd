"""`kalla sinks`: pipelines from Kafka into ClickHouse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from kalla.cli.client import Client, Style, address, ago, print_json, print_table
from kalla.cli.sinks import dead_letters as sinks_dead_letters
from kalla.cli.sinks import samples as sinks_samples
from kalla.errors import InvalidInput, Problem
from kalla.web.text_format import seconds

app = typer.Typer(no_args_is_help=True)
app.add_typer(
    sinks_dead_letters.app, name="dead-letters", help="Messages that could not become rows."
)
app.command()(sinks_samples.sample)
app.command()(sinks_samples.infer)

Name = Annotated[str, typer.Argument(metavar="NAME")]


@app.command()
def install() -> None:
    """Fetch the jars of the embedded Kafka, and check each against its sha256."""
    from kalla.local.servers import jars

    typer.echo(f"The jars are in {jars.fetch('kafka.jars')}.")


@app.command()
def demo(
    messages: Annotated[int, typer.Option(min=1000, max=10_000_000)] = 200_000,
) -> None:
    """Deliver generated orders, kill a worker meanwhile, and compare the counts to the row."""
    from kalla.cli.sinks import demo as sinks_demo

    sinks_demo.run(messages)


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML, or JSON.", exists=True)],
) -> None:
    """Create a pipeline or change it; its tables are checked first. Needs the role admin."""
    try:
        document = yaml.safe_load(file.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(Problem(str(file), f"is not YAML: {error}")) from None
    with Client() as client:
        made = client.post("/api/pipelines", document)
    typer.echo(
        f"{made['pipeline']}: {made['state']}, mapping version {made['mapping_version']}, "
        f"guarantee: {made['guarantee']}."
    )
    if made["desired"] == "stopped":
        typer.echo(f"`kalla sinks start {made['pipeline']}` begins to deliver.")


@app.command("list")
def list_pipelines(style: Style = "text") -> None:
    """Show every pipeline."""
    with Client() as client:
        found = client.get("/api/pipelines")
    if style == "json":
        print_json(found)
        return
    print_table(
        [
            "name",
            "state",
            "replicas",
            "topic",
            "table",
            "rows/s",
            "waiting",
            "behind",
            "rows",
            "dead letters",
            "guarantee",
        ],
        [
            [
                each["pipeline"],
                each["state"],
                str(each["replicas"]),
                each["kafka"]["topic"],
                each["clickhouse"]["table"],
                f"{each['rows_per_second']:,.0f}",
                f"{each['waiting']:,}",
                _behind(each),
                f"{each['rows']:,}",
                f"{each['dead_letters']:,}",
                each["guarantee"],
            ]
            for each in found
        ],
        "There are no pipelines yet: `kalla sinks apply FILE` creates one.",
    )


@app.command()
def show(name: Name, style: Style = "text") -> None:
    """Show a pipeline: its state, its workers, its last events."""
    with Client() as client:
        found = client.get(address("pipelines", name))
        slots = client.get(address("pipelines", name, "assignments"))
        events = client.get(address("pipelines", name, "events"))
    if style == "json":
        print_json({"pipeline": found, "assignments": slots, "events": events})
        return
    typer.echo(f"{name}: {found['state']}, {found['rows']:,} rows, "
               f"{found['dead_letters']:,} dead letters, {found['guarantee']}")  # fmt: skip
    if found["trouble"]:
        typer.echo(f"  {found['trouble']}")
    print_table(
        ["slot", "worker", "epoch", "lease", "partitions"],
        [
            [
                "-" if each["slot"] is None else str(each["slot"]),
                each["worker"],
                str(each["epoch"]),
                ("ends " if each["live"] else "ended ") + ago(each["until"])
                if each["until"]
                else "-",
                ", ".join(map(str, each["partitions"])),
            ]
            for each in slots
        ],
        "No worker holds a slot.",
    )
    print_table(
        ["when", "event", "detail"],
        [[ago(each["at"]), each["event"], each["detail"]] for each in events[:10]],
        "There are no events yet.",
    )


@app.command()
def start(name: Name) -> None:
    """Start delivering."""
    _change(name, desired="started")


@app.command()
def stop(name: Name) -> None:
    """Stop delivering; ranges in flight are finished first."""
    _change(name, desired="stopped")


@app.command()
def scale(name: Name, replicas: Annotated[int, typer.Argument(min=0, max=1000)]) -> None:
    """Set how many workers carry it at once."""
    _change(name, replicas=replicas)


@app.command()
def remove(
    name: Name, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> None:
    """Remove a pipeline and its progress; its tables stay. Needs the role admin."""
    if yes or typer.confirm(f"Remove {name} and its progress? Its tables in ClickHouse stay."):
        with Client() as client:
            client.delete(address("pipelines", name))
        typer.echo(f"{name} is removed.")


@app.command()
def lag(name: Name, style: Style = "text") -> None:
    """Show the progress of each partition, what waits, and how far behind it is."""
    with Client() as client:
        found = client.get(address("pipelines", name, "metrics"))
    if style == "json":
        print_json(found)
        return
    print_table(
        ["partition", "next offset", "end", "waiting", "behind", "rows", "dead letters", "state"],
        [
            [
                str(each["partition"]),
                "-" if each["next_offset"] is None else str(each["next_offset"]),
                str(each["end"]),
                f"{each['waiting']:,}",
                _behind(each),
                f"{each['rows']:,}",
                f"{each['dead_letters']:,}",
                each["reason"] or "",
            ]
            for each in found
        ],
        "The topic has no partitions.",
    )


@app.command()
def audit(name: Name, style: Style = "text") -> None:
    """Compare ClickHouse with Kafka, offset by offset; exit 1 where they differ."""
    with Client(seconds=3600) as client:
        found = client.post(address("pipelines", name, "audit"))
    if style == "json":
        print_json(found)
    else:
        print_table(
            [
                "partition",
                "offsets",
                "messages",
                "rows",
                "dead letters",
                "left out",
                "missing",
                "doubled",
            ],
            [
                [
                    str(each["partition"]),
                    f"{each['start']}..{each['end'] - 1}",
                    f"{each['messages']:,}",
                    f"{each['rows']:,}",
                    f"{each['dead_letters']:,}",
                    f"{each['left_out']:,}",
                    _named(each, "missing"),
                    _named(each, "doubled"),
                ]
                for each in found["partitions"]
            ],
            "Nothing has been delivered yet.",
        )
        for each in found["not_compared"]:
            typer.echo(f"Partition {each} cannot be compared: its topic was replaced.")
        typer.echo("Every message is there once." if found["agrees"] else "They do not agree.")
    if not found["agrees"]:
        raise typer.Exit(1)


@app.command()
def seek(
    name: Name,
    to: Annotated[str, typer.Option(help="earliest, latest, or an offset.")],
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Deliver again from an offset, as a new generation. The pipeline must be stopped."""
    body: dict[str, Any] = {"to": to, "partition": partition}
    with Client() as client:
        moves = client.post(address("pipelines", name, "seek"), body | {"dry_run": True})
        print_table(
            ["partition", "from", "to", "delivered again"],
            [
                [
                    str(each["partition"]),
                    str(each["from_offset"]),
                    str(each["to_offset"]),
                    f"{each['rereads']:,}",
                ]
                for each in moves
            ],
            "There is nothing to move.",
        )
        if moves and (yes or typer.confirm("Rows of the earlier generation stay. Continue?")):
            client.post(address("pipelines", name, "seek"), body)
            typer.echo(f"`kalla sinks start {name}` delivers from there.")


@app.command("skip-gap")
def skip_gap(name: Name) -> None:
    """Continue after offsets that Kafka removed before they were delivered."""
    with Client() as client:
        moves = client.post(address("pipelines", name, "skip-gap"))
    for each in moves:
        lost = each["to_offset"] - each["from_offset"]
        typer.echo(
            f"Partition {each['partition']} continues at {each['to_offset']}; {lost:,} offsets "
            f"from {each['from_offset']} are lost."
        )
    if not moves:
        typer.echo("No partition is stopped at a gap.")


def _behind(found: dict[str, Any]) -> str:
    """The age of the newest delivered message, if others wait."""
    return seconds(found["lag_seconds"]) if found["waiting"] and found["lag_seconds"] else "-"


def _named(found: dict[str, Any], what: str) -> str:
    count = found[f"{what}_count"]
    return f"{count}: {', '.join(map(str, found[what][:5]))}" if count else "0"


def _change(name: str, **fields: Any) -> None:
    with Client() as client:
        state = client.patch(address("pipelines", name, "state"), fields)
    typer.echo(f"{name} is {state['desired']}, replicas: {state['replicas']}.")
