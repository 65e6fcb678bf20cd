"""`kalla sinks sample` and `infer`: what a topic holds, and the mapping that it suggests."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import yaml

from kalla.cli.client import Client, Style, address, print_json, print_table
from kalla.errors import InvalidInput, Problem

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A pipeline.")]
Brokers = Annotated[str | None, typer.Option(help="Without a pipeline: its bootstrap servers.")]
Topic = Annotated[str | None, typer.Option(help="Without a pipeline: the topic.")]


def sample(
    name: Name = None,
    brokers: Brokers = None,
    topic: Topic = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    style: Style = "text",
) -> None:
    """Show messages of a topic; nothing is delivered or committed."""
    with Client(seconds=120) as client:
        if name is not None:
            found = client.get(address("pipelines", name, "sample"), samples=limit)
        else:
            body = {"kafka": _kafka(brokers, topic), "samples": limit}
            found = client.post("/api/pipelines/sample", body)
    if style == "json":
        print_json(found)
        return
    print_table(
        ["partition", "offset", "key", "message"],
        [
            [
                str(each["partition"]),
                str(each["offset"]),
                each["key"] or "",
                "(no value)" if each["text"] is None else each["text"][:160],
            ]
            for each in found["samples"]
        ],
        "The topic is empty.",
    )


def infer(
    name: Name = None, brokers: Brokers = None, topic: Topic = None, style: Style = "text"
) -> None:
    """Propose a mapping from up to 1,000 samples: presence, nulls, type conflicts, tables."""
    with Client(seconds=120) as client:
        if name is not None:
            found = client.post(address("pipelines", name, "infer"))
        else:
            found = client.post("/api/pipelines/infer", {"kafka": _kafka(brokers, topic)})
    if style == "json":
        print_json(found)
        return
    typer.echo(f"{found['samples']:,} samples; not JSON objects: {found['unreadable']:,}.")
    print_table(
        ["field", "present", "nulls", "types", "column", "type", "conflict"],
        [_field(each) for each in found["fields"]],
        "There is nothing to map.",
    )
    if found["mapping"]:
        columns = [
            {key: value for key, value in each.items() if value is not None}
            for each in found["mapping"]
        ]
        typer.echo(yaml.safe_dump({"mapping": columns}, sort_keys=False, allow_unicode=True))
        for each in found["create_tables"]:
            typer.echo(f"{each};\n")


def _field(facts: dict[str, Any]) -> list[str]:
    column = facts["column"] or {"column": "-", "type": "-"}
    return [
        facts["path"],
        f"{facts['presence']:.0%}",
        str(facts["nulls"]),
        ", ".join(f"{kind} {count}" for kind, count in facts["types"].items()),
        column["column"],
        column["type"],
        facts["conflict"] or "",
    ]


def _kafka(brokers: str | None, topic: str | None) -> dict[str, Any]:
    if not brokers or not topic:
        raise InvalidInput(Problem("", "give the name of a pipeline, or --brokers and --topic"))
    return {"bootstrap_servers": brokers, "topic": topic}
