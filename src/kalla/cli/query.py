"""`kalla query`: asks a PromQL expression through the API and shows the answer."""

from __future__ import annotations

import csv
import io
import json
import re
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from kalla import settings
from kalla.cli.client import Client, print_json, print_table
from kalla.errors import InvalidInput, Problem
from kalla.plurals import counted
from kalla.query.http.request_times import duration_of, time_of, usual_step
from kalla.query.promql.durations import milliseconds
from kalla.query.promql.lexer import go_quote, is_plain_name
from kalla.query.promql.query_errors import BadRequest

Style = Annotated[
    Literal["table", "json", "csv"], typer.Option("--format", help="For people or programs.")
]

_NOW = re.compile(r"now(?:\s*-\s*(\w+))?")
_WHEN = "Seconds since 1970, RFC 3339, now or now-1h."
# The API ends a query that takes too long; its sentence says more than a broken line.
_PATIENCE_SECONDS = 24 * 3600


def command(
    expression: Annotated[
        str, typer.Argument(metavar="EXPR", help="A PromQL expression; or `list`, or `kill ID`.")
    ],
    query_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The query to kill.", show_default=False)
    ] = None,
    time: Annotated[str | None, typer.Option(help=f"Evaluate at this time. {_WHEN}")] = None,
    start: Annotated[str | None, typer.Option(help=f"Evaluate from here on. {_WHEN}")] = None,
    end: Annotated[str | None, typer.Option(help="Up to here; else now.")] = None,
    step: Annotated[
        str | None, typer.Option(help="Seconds or 1m between two values; else some 250 values.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="Time limit of the query: seconds or 1m30s.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of series to show.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Read this metric store, without a server: a folder or URL with its segments.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what was read and what took how long.")
    ] = False,
    style: Style = "table",
) -> None:
    """Ask a PromQL expression: its value now, at --time, or from --start to --end.

    `kalla query list` shows the queries under way, `kalla query kill ID` ends one. A metric that is
    called `list` is asked for as `{__name__="list"}`.

    Examples:

      kalla query 'sum by (queue) (kalla_queue_depth)'

      kalla query 'rate(http_requests_total[5m])' --start now-1h --step 1m

      kalla query up --explain

      kalla query 'sum(up)' --data data/metrics
    """
    if expression == "list" and query_id is None:
        list_queries(style)
        return
    if expression == "kill" and query_id is not None:
        kill_query(query_id)
        return
    if query_id is not None:
        raise InvalidInput(Problem("EXPR", "is one argument: put the expression in quotes"))
    path, asked = _times(time, start, end, step)
    asked = {"query": _text(expression)} | asked
    if timeout is not None:
        asked["timeout"] = timeout
    if data is not None:
        document = _answered_here(data, asked, limit, explain=explain)
    else:
        with Client(_PATIENCE_SECONDS) as client:
            document = client.ask(path, limit=limit, explain="true" if explain else None, **asked)
    if style == "json":
        print_json(document["data"])
    elif style == "csv":
        typer.echo(_csv(document["data"]), nl=False)
    else:
        _print_table(document["data"])
    for note in (*document.get("warnings", ()), *document.get("infos", ())):
        typer.echo(note, err=True)
    if explain and style != "json":
        _print_explanation(document["data"]["explain"], aside=style == "csv")


def _answered_here(
    url: str, asked: Mapping[str, str], limit: int | None, *, explain: bool
) -> dict[str, Any]:
    """What the API would answer, from a folder of segments."""
    from kalla.query.http.explain import explained
    from kalla.query.http.response_json import pieces
    from kalla.query.promql.features import Features
    from kalla.query.service import query_request
    from kalla.query.service.engine_loading import set_kernel_cache
    from kalla.query.service.folder_query import answered

    loaded = settings.load().settings
    set_kernel_cache(loaded.data_dir / "kernels")
    given = asked.get("timeout")
    options = query_request.QueryOptions(
        seconds=duration_of(given, "timeout") / 1000 if given else None,
        features=Features.named(loaded.metrics.features),
    )
    text = asked["query"]
    if "time" in asked:
        question = query_request.instant(text, time_of(asked["time"], "time"), options)
    else:
        first, last = (time_of(asked[name], name) for name in ("start", "end"))
        step = int(duration_of(asked["step"], "step"))
        question = query_request.ranged(text, first, last, step, options)
    reply = answered(question, url, loaded)
    extra = {"explain": explained(reply)} if explain else None
    whole = b"".join(pieces(reply.answer, question.steps.start, limit or 0, extra))
    document: dict[str, Any] = json.loads(whole)
    return document


def list_queries(style: str) -> None:
    with Client() as client:
        found = client.get("/api/queries")
    if style == "json":
        print_json(found)
        return
    print_table(
        ["query", "stage", "seconds", "user", "units", "retries", "expression"],
        [
            [
                one["query_id"],
                one["stage"],
                f"{one['seconds']:.3f}",
                one["user"],
                str(sum(work["units"] for work in one["work"])),
                str(one["retries"]),
                one["expression"] or "series and labels",
            ]
            for one in found
        ],
        "No query yet.",
    )


def kill_query(query_id: str) -> None:
    with Client() as client:
        client.post(f"/api/queries/{quote(query_id)}/kill")
    typer.echo(f"The query {query_id} was ended.")


def _text(argument: str) -> str:
    """What was typed; bytes that are not text become the character for that."""
    return argument.encode(errors="surrogateescape").decode(errors="replace")


def _times(
    time: str | None, start: str | None, end: str | None, step: str | None
) -> tuple[str, dict[str, str]]:
    """The address to ask, and its times; without a start it is one moment."""
    now = int(clock.time() * 1000)
    if start is None:
        for option, given in (("--end", end), ("--step", step)):
            if given is not None:
                raise InvalidInput(Problem(option, "needs --start as well"))
        return "/api/v1/query", {"time": _seconds(_moment("--time", time or "now", now))}
    if time is not None:
        raise InvalidInput(Problem("--time", "is for one moment: leave it out, or --start"))
    first, last = _moment("--start", start, now), _moment("--end", end or "now", now)
    asked = {
        "start": _seconds(first),
        "end": _seconds(last),
        "step": step or _seconds(usual_step(first, last)),
    }
    return "/api/v1/query_range", asked


def _moment(option: str, text: str, now: int) -> int:
    try:
        if relative := _NOW.fullmatch(text):
            return now - (milliseconds(relative.group(1)) if relative.group(1) else 0)
        return time_of(text, option)
    except (BadRequest, ValueError) as problem:
        raise InvalidInput(Problem(option, str(problem))) from None


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"


def _print_table(data: Mapping[str, Any]) -> None:
    if data["resultType"] in ("scalar", "string"):
        typer.echo(data["result"][1])
        return
    rows: list[list[str]] = []
    for series in data["result"]:
        named = _series(series["metric"])
        for time, value in _points(series):
            rows.append([named, _clock(time), value])
            named = ""
    print_table(["series", "time", "value"], rows, "No series.")


def _csv(data: Mapping[str, Any]) -> str:
    """One line a point; each label is a column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if data["resultType"] in ("scalar", "string"):
        writer.writerows([["time", "value"], data["result"]])
        return out.getvalue()
    names = sorted({name for series in data["result"] for name in series["metric"]})
    writer.writerow(["time", "value", *names])
    for series in data["result"]:
        labels = [series["metric"].get(name, "") for name in names]
        writer.writerows([time, value, *labels] for time, value in _points(series))
    return out.getvalue()


def _points(series: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    yield from series["values"] if "values" in series else [series["value"]]


def _series(metric: Mapping[str, str]) -> str:
    name = metric.get("__name__", "")
    plain = is_plain_name(name.replace(":", "_"))
    labels = ", ".join(
        f"{label if is_plain_name(label) else go_quote(label)}={go_quote(value)}"
        for label, value in metric.items()
        if label != "__name__" or (name and not plain)
    )
    return (name if plain else "") + (f"{{{labels}}}" if labels or not plain else "")


def _clock(seconds: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.3f}"
    return moment.isoformat(timespec="milliseconds" if seconds % 1 else "seconds")


def _print_explanation(explained: Mapping[str, Any], *, aside: bool) -> None:
    stages = ", ".join(
        f"{stage['name']} {_short(stage['seconds'])}" for stage in explained["stages"]
    )
    samples = f"{explained['samples_read']:,} samples of {explained['series']:,} series read"
    lines = [
        "",
        explained["expression"],
        f"  {_short(explained['seconds'])}: {stages}",
        f"  {samples}, {explained['samples_held']:,} held at most",
        *(line for leaf in explained["leaves"] for line in _leaf(leaf)),
    ]
    typer.echo("\n".join(lines), err=aside)


def _leaf(leaf: Mapping[str, Any]) -> Sequence[str]:
    read = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in leaf["read"].items())
    return [
        f"  leaf {leaf['leaf']}",
        f"    {leaf['series']:,} series, {leaf['samples']:,} samples in {_short(leaf['seconds'])}"
        f" on {counted(len(leaf['shards']), 'shard')}" + (f"; {read}" if read else ""),
    ]


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
