"""`kalla metrics`: files into the metric store, and whether its segments are sound; by the API."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kalla.cli import progress
from kalla.cli.client import Client, Style, print_json, print_table
from kalla.errors import InvalidInput, Problem, Unavailable
from kalla.plurals import counted
from kalla.threads import spread

if TYPE_CHECKING:
    from kalla.query.store.ingest.file_import import WriteBody

app = typer.Typer(no_args_is_help=True)

# One is committed while the next is decoded and a third is on its way.
_AT_ONCE = 3
_PATIENCE_SECONDS = 60.0
_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


@app.callback()
def _group() -> None:
    """The metric store."""


@dataclass
class _Tally:
    """What was written so far, and what the API refused of it."""

    sent: int = 0
    written: int = 0
    refusals: list[str] = field(default_factory=list)


@app.command("import")
def import_files(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="OpenMetrics text or Parquet.")
    ],
) -> None:
    """Import samples of any age from files. Doing it again, also in parts, doubles nothing."""
    if missing := [file for file in files if not file.is_file()]:
        raise InvalidInput(*(Problem(str(file), "there is no such file") for file in missing))
    tally = _Tally()
    with Client(seconds=120) as client, progress.bar() as bar:
        task = bar.add_task("", total=sum(file.stat().st_size for file in files))
        done = 0
        for file in files:

            def show(position: int, name: str = file.name, before: int = done) -> None:
                words = f"{name}: {tally.written:,} samples"
                bar.update(task, description=words, completed=before + position)

            show(0)
            _import_one(client, file, tally, show)
            done += file.stat().st_size
    names = files[0].name if len(files) == 1 else counted(len(files), "file")
    typer.echo(f"Imported {tally.written:,} samples from {names}.")
    if left := tally.sent - tally.written:
        typer.echo(f"{left:,} samples were refused:", err=True)
        for line in dict.fromkeys(tally.refusals):
            typer.echo(f"  {line}", err=True)
        raise typer.Exit(1)


@app.command()
def check(style: Style = "text") -> None:
    """Read every segment and show those that are damaged. Exit code 1 if any is."""
    damaged: list[dict[str, Any]] = []
    sound = 0
    after: int | None = 0
    with Client(seconds=600) as client, progress.bar(shown=style != "json") as bar:
        task = bar.add_task("", total=None)
        while after is not None:
            some = client.post("/api/metrics/segments/check", {"after": after})
            damaged += some["damaged"]
            sound += some["sound"]
            done = sound + len(damaged)
            words = f"{done:,} segments read, {len(damaged):,} damaged"
            bar.update(task, description=words, completed=done, total=done + some["left"])
            after = some["next_after"]
    if style == "json":
        print_json({"sound": sound, "damaged": damaged})
    else:
        print_table(
            ["segment", "shard", "level", "from", "to", "samples", "problem"],
            [
                [
                    str(each["segment"]["segment_id"]),
                    str(each["segment"]["shard"]),
                    str(each["segment"]["level"]),
                    _moment(each["segment"]["min_time"]),
                    _moment(each["segment"]["max_time"]),
                    f"{each['segment']['samples']:,}",
                    each["problem"],
                ]
                for each in damaged
            ],
            f"All segments are sound: {sound:,}.",
        )
        if damaged:
            typer.echo(
                f"{len(damaged):,} of {sound + len(damaged):,} segments are damaged: bring their "
                "files back from a backup, or give one up with `kalla metrics drop-segment`."
            )
    if damaged:
        raise typer.Exit(1)


@app.command("drop-segment")
def drop_segment(
    segment_id: Annotated[int, typer.Argument(metavar="SEGMENT", min=1)],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this, only show what is lost.")
    ] = False,
) -> None:
    """Give up a damaged segment, so that queries go on without its samples."""
    place = f"/api/metrics/segments/{segment_id}"
    with Client() as client:
        lost = client.post(f"{place}/drop") if yes else client.get(place)
    words = (
        f"{lost['samples']:,} samples of at most {lost['rows']:,} series, from "
        f"{_moment(lost['min_time'])} to {_moment(lost['max_time'])} ({lost['path']}, shard "
        f"{lost['shard']})"
    )
    if yes:
        typer.echo(f"Segment {segment_id} is dropped. Lost: {words}.")
        return
    typer.echo(f"Segment {segment_id} has {words}. To lose them, add --yes.")
    raise typer.Exit(1)


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _import_one(client: Client, file: Path, tally: _Tally, show: Callable[[int], None]) -> None:
    from kalla.query.store.ingest.file_import import bodies  # brings pyarrow

    def sent(body: WriteBody) -> tuple[WriteBody, int, str]:
        return body, *_send(client, body.content)

    for body, written, refused in spread(sent, bodies(file), _AT_ONCE):
        tally.sent += body.samples
        tally.written += written
        tally.refusals += refused.splitlines()
        show(body.position)


def _send(client: Client, content: bytes) -> tuple[int, str]:
    """How many samples of it are durable now, and why others are not."""
    silent_since: float | None = None
    while True:
        try:
            answer = client.upload("/api/v1/metrics/import", content, _HEADERS)
        except Unavailable:
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > _PATIENCE_SECONDS:
                raise
            time.sleep(0.5)
            continue
        counted = answer.headers.get("X-Prometheus-Remote-Write-Samples-Written", "0")
        return int(counted), answer.text
