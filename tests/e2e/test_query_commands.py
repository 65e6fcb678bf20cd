"""`kalla query` as a person types it, against an API of its own."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands_kit import Place, a_place
from tests.metrics_kit import commit, metric_store, metrics_settings, named
from tests.servers import PostgresServer, in_thread

START = 1_700_000_000
SERIES = {
    named("m", zone=zone): [(1000 * (START + 15 * at), float(at * pace)) for at in range(41)]
    for pace, zone in enumerate(("north", "south"), 1)
}


@pytest.fixture(scope="module")
def place(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    name = postgres_server.create(migrated_template)
    url = postgres_server.url(name)
    folder = tmp_path_factory.mktemp("asked")
    try:
        in_thread(_written(url, folder / "metrics"))
        made = a_place(folder, url, "viewer", KALLA_STORAGE_METRICS=str(folder / "metrics"))
        with made.query_worker(), made.api():
            yield made
    finally:
        postgres_server.drop(name)


async def _written(url: str, folder: Path) -> None:
    async with metric_store(metrics_settings(url, folder)) as store:
        await commit(store, SERIES)


def test_a_vector_is_a_table(place: Place) -> None:
    shown = place.ok("query", "m * 1000", "--time", str(START + 600))
    assert shown.split("\n")[0].split() == ["series", "time", "value"]
    assert [line.split() for line in shown.strip().split("\n")[1:]] == [
        ['{zone="north"}', "2023-11-14T22:23:20+00:00", "40000"],
        ['{zone="south"}', "2023-11-14T22:23:20+00:00", "80000"],
    ]


def test_a_range_is_a_table_with_each_series_named_once(place: Place) -> None:
    times = ("--start", str(START), "--end", str(START + 30), "--step", "15s")
    shown = place.ok("query", 'm{zone="south"}', *times)
    assert [line.split() for line in shown.strip().split("\n")[1:]] == [
        ['m{zone="south"}', "2023-11-14T22:13:20+00:00", "0"],
        ["2023-11-14T22:13:35+00:00", "2"],
        ["2023-11-14T22:13:50+00:00", "4"],
    ]


def test_json_is_what_the_api_answers(place: Place) -> None:
    found = json.loads(place.ok("query", "1 + 1", "--time", "5", "--format", "json"))
    assert found == {"resultType": "scalar", "result": [5, "2"]}


def test_csv_has_a_column_for_every_label(place: Place) -> None:
    times = ("--start", str(START), "--end", "2023-11-14T22:13:35Z", "--step", "15")
    lines = list(csv.reader(place.ok("query", "m", *times, "--format", "csv").splitlines()))
    assert lines == [
        ["time", "value", "__name__", "zone"],
        [str(START), "0", "m", "north"],
        [str(START + 15), "1", "m", "north"],
        [str(START), "0", "m", "south"],
        [str(START + 15), "2", "m", "south"],
    ]


def test_a_query_without_times_asks_for_now(place: Place) -> None:
    assert float(place.ok("query", "time()").strip()) > START
    assert "No series." in place.ok("query", "m")
    hours = json.loads(
        place.ok("query", "vector(1)", "--start", "now-2h", "--end", "now-1h", "--format", "json")
    )
    assert len(hours["result"][0]["values"]) in (250, 251)


def test_explain_tells_what_was_read(place: Place) -> None:
    shown = place.ok("query", "sum(rate(m[1m]))", "--time", str(START + 600), "--explain")
    assert "  0.19999999999999996" in shown  # a tenth, extrapolated, twice
    assert "leaf sum (rate(m[1m]))" in shown
    assert "2 series, 8 samples" in shown
    assert "segments pruned" in shown
    assert "evaluation" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["sum by (zone) (rate(m[1m]))", "--time", str(START + 600)],
        ["m", "--start", str(START), "--end", str(START + 600), "--step", "15s", "--limit", "1"],
        ["m[1m]", "--time", str(START + 600)],
        ["time()", "--time", "5"],
    ],
)
def test_a_folder_is_queried_without_a_server(place: Place, arguments: list[str]) -> None:
    folder = str(place.folder / "metrics")
    by_api = place.run("query", *arguments, "--format", "json")
    alone = place.run("query", *arguments, "--format", "json", "--data", folder, KALLA_API_URL="no")

    assert (alone.returncode, alone.stdout, alone.stderr) == (0, by_api.stdout, by_api.stderr)


def test_a_folder_without_segments_is_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of somebody else")
    done = place.run("query", "m", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "holds no segments: name the folder of a metric store" in done.stderr
    wrong = place.run("query", "sum(", "--data", str(place.folder / "metrics"))
    assert "1:5: parse error: unclosed left parenthesis" in wrong.stderr
    shown = place.ok(
        "query",
        "sum(m)",
        "--data",
        str(place.folder / "metrics"),
        "--explain",
        "--time",
        str(START + 600),
    )
    assert "leaf sum (m)" in shown


def test_queries_are_listed_and_a_viewer_kills_none(place: Place) -> None:
    place.ok("query", "m * 1234", "--time", str(START + 600))
    listed = json.loads(place.ok("query", "list", "--format", "json"))
    [one] = [query for query in listed if query["expression"] == "m * 1234"]
    assert (one["stage"], one["live"]) == ("answered", False)
    assert "m * 1234" in place.ok("query", "list")

    refused = place.run("query", "kill", one["query_id"])

    assert refused.returncode == 2
    assert "operator" in refused.stderr  # this token is a viewer's


def test_notes_are_told_aside(place: Place) -> None:
    done = place.run("query", "rate(m[1m])", "--time", str(START + 600), "--limit", "1")
    assert done.returncode == 0
    assert "results truncated due to limit" in done.stderr
    assert "metric might not be a counter" in done.stderr
    assert "metric might" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sum("], 'Invalid parameter "query": 1:5: parse error: unclosed left parenthesis'),
        (["m + \udcff"], "parse error: unexpected character"),
        (["m + on () m", "--time", str(START)], "many-to-many matching not allowed"),
        (["m", "--time", "soon"], '--time: cannot parse "soon" to a valid timestamp'),
        (["m", "--time", "now-soon"], "--time: not a valid duration"),
        (["m", "--end", "5"], "--end: needs --start as well"),
        (["m", "--start", "0", "--time", "5"], "--time: is for one moment"),
        (["m", "--start", "0", "--step", "1ms", "--end", "1e6"], "Exceeded maximum resolution"),
        (["m", "--timeout", "0"], "Query timed out"),
    ],
)
def test_a_query_that_cannot_be_answered_is_a_sentence(
    place: Place, arguments: list[str], message: str
) -> None:
    done = place.run("query", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
