"""Prometheus' HTTP API over written samples: each route, each parameter, each kind of refusal."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from kalla.query.store.catalogue import Metadata
from tests.metrics_kit import named
from tests.query_kit import query_site
from tests.servers import PostgresServer
from tests.web_kit import Site, unready_site

# Samples every 15 s for 10 minutes; 2023-11-14T22:13:20Z is 1700000000.
START, END, STEP = 1_700_000_000, 1_700_000_600, 15
TIMES = [1000 * second for second in range(START, END + 1, STEP)]
SERIES = {
    named("http_requests_total", job="api", zone=zone, code=code): [
        (time, float(number * pace)) for number, time in enumerate(TIMES)
    ]
    for pace, (zone, code) in enumerate(
        [("north", "200"), ("north", "500"), ("south", "200"), ("south", "500")], 1
    )
} | {
    named("temperature", room="hall"): [(time, 20.5) for time in TIMES],
    named("strange", kind="nan"): [(TIMES[-1], math.nan)],
    named("strange", kind="inf"): [(TIMES[-1], math.inf)],
    named("strange", kind="minus"): [(TIMES[-1], -math.inf)],
    named("strange", kind="large"): [(TIMES[-1], 1e21)],
    named("strange", kind="small"): [(TIMES[-1], 1e-7)],
    named("strange", kind="long"): [(TIMES[-1], 123456789012345680.0)],
    named("strange", **{"a.b": "dotted", "kind": 'quo"te\n'}): [(TIMES[-1], 0.1)],
}
METADATA = {
    "http_requests_total": Metadata("counter", "Requests answered.", ""),
    "temperature": Metadata("gauge", "How warm it is.", "celsius"),
}


@pytest_asyncio.fixture(scope="module")
async def site(
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Site]:
    name = postgres_server.create(migrated_template)
    folder = tmp_path_factory.mktemp("metrics")
    try:
        async with query_site(postgres_server.url(name), folder, SERIES, METADATA) as opened:
            yield opened
    finally:
        postgres_server.drop(name)


async def get(site: Site, path: str, **given: Any) -> httpx.Response:
    async with site.client("viewer") as client:
        return await client.get(f"/api/v1/{path}", params=given)


async def data(site: Site, path: str, **given: Any) -> Any:
    answer = await get(site, path, **given)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["status"] == "success"
    return document["data"]


async def test_an_instant_query_answers_a_vector(site: Site) -> None:
    found = await data(site, "query", query='http_requests_total{zone="north"}', time=END)
    assert found == {
        "resultType": "vector",
        "result": [
            {
                "metric": {
                    "__name__": "http_requests_total", "code": code, "job": "api", "zone": "north"
                },
                "value": [END, value],
            }
            for code, value in (("200", "40"), ("500", "80"))
        ],
    }  # fmt: skip


async def test_a_range_query_answers_a_matrix(site: Site) -> None:
    found = await data(
        site, "query_range", query="sum by (zone) (http_requests_total)",
        start=START, end=f"{START + 30}.0", step="15s",
    )  # fmt: skip
    assert found == {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"zone": zone},
                "values": [[START + 15 * i, str(i * pace)] for i in range(3)],
            }
            for zone, pace in (("north", 3), ("south", 7))
        ],
    }


async def test_what_is_neither_has_its_own_types(site: Site) -> None:
    health = await data(site, "query", query="1+1", time=4)
    assert health == {"resultType": "scalar", "result": [4, "2"]}
    text = await data(site, "query", query='"fo\\"o"', time=4.5)
    assert text == {"resultType": "string", "result": [4.5, 'fo"o']}
    large = await data(site, "query", query="1e21", time=4)
    assert large["result"] == [4, "1000000000000000000000"]
    scalars = await data(site, "query_range", query="time()", start=0, end=2, step=1)
    assert scalars["result"] == [{"metric": {}, "values": [[0, "0"], [1, "1"], [2, "2"]]}]


async def test_an_instant_query_of_a_range_shows_the_samples(site: Site) -> None:
    found = await data(site, "query", query="temperature[31s]", time=END)
    [series] = found["result"]
    assert series["values"] == [[END - 30, "20.5"], [END - 15, "20.5"], [END, "20.5"]]


async def test_values_are_written_as_go_writes_them(site: Site) -> None:
    found = await data(site, "query", query="strange", time=END)
    assert {one["metric"]["kind"]: one["value"][1] for one in found["result"]} == {
        "nan": "NaN",
        "inf": "+Inf",
        "minus": "-Inf",
        "large": "1e+21",
        "small": "1e-07",
        "long": "123456789012345680",
        'quo"te\n': "0.1",
    }


async def test_a_form_asks_the_same_and_comes_before_the_address(site: Site) -> None:
    forms: dict[str, dict[str, str | list[str]]] = {
        "query": {"query": "sum(http_requests_total)", "time": str(END)},
        "query_range": {
            "query": "temperature", "start": str(START), "end": str(END), "step": "1m"
        },
        "series": {"match[]": ["temperature", "strange"], "start": str(START)},
        "labels": {"match[]": "temperature"},
        "format_query": {"query": "sum(a)by(b)"},
    }  # fmt: skip
    async with site.client("viewer") as client:
        for path, form in forms.items():
            by_form = await client.post(f"/api/v1/{path}?query=wrong(", data=form)
            by_address = await client.get(f"/api/v1/{path}", params=form)
            assert by_form.status_code == 200, by_form.text
            assert by_form.json() == by_address.json()


async def test_times_are_seconds_or_rfc_3339(site: Site) -> None:
    for when in ("1700000600", "1700000600.0", "1.7000006e9", "2023-11-14T22:23:20Z",
                 "2023-11-14T23:23:20.000+01:00"):  # fmt: skip
        found = await data(site, "query", query="time()", time=when)
        assert found["result"] == [END, str(END)]
    found = await data(site, "query", query="1", time="1700000600.0006")
    assert found["result"] == [1700000600.001, "1"]


async def test_without_a_time_it_is_now(site: Site) -> None:
    before = time.time()
    found = await data(site, "query", query="time()")
    assert before - 1 <= float(found["result"][1]) <= time.time() + 1


async def test_the_lookback_can_be_asked_for(site: Site) -> None:
    later = END + 90
    for given, count in (("1m", 0), ("2m", 1), ("120", 1), ("0", 1), ("", 1)):
        found = await data(site, "query", query="temperature", time=later, lookback_delta=given)
        assert len(found["result"]) == count, given


async def test_a_limit_cuts_the_answer_and_says_so(site: Site) -> None:
    for path, given, whole in (
        ("query", {"query": "http_requests_total", "time": END}, 4),
        ("query_range",
         {"query": "http_requests_total", "start": START, "end": END, "step": 60}, 4),
        ("series", {"match[]": "http_requests_total"}, 4),
        ("labels", {}, 7),
        ("label/code/values", {}, 2),
    ):  # fmt: skip
        cut = (await get(site, path, **given, limit=1)).json()
        assert cut["warnings"] == ["results truncated due to limit"]
        assert len(_listed(cut["data"])) == 1
        for limit in (0, whole):
            full = (await get(site, path, **given, limit=limit)).json()
            assert "warnings" not in full
            assert len(_listed(full["data"])) == whole, path


def _listed(found: Any) -> Any:
    return found["result"] if isinstance(found, dict) else found


async def test_series_are_found_by_any_of_the_selectors(site: Site) -> None:
    given = {"match[]": ['http_requests_total{code="500"}', '{__name__="temperature"}']}
    assert await data(site, "series", **given) == [
        {"__name__": "http_requests_total", "code": "500", "job": "api", "zone": "north"},
        {"__name__": "http_requests_total", "code": "500", "job": "api", "zone": "south"},
        {"__name__": "temperature", "room": "hall"},
    ]
    long_after = {"start": END + 40 * 86_400, "end": END + 41 * 86_400}
    assert await data(site, "series", **given, **long_after) == []


async def test_labels_and_their_values_are_listed(site: Site) -> None:
    assert await data(site, "labels") == ["__name__", "a.b", "code", "job", "kind", "room", "zone"]
    only = {"match[]": "temperature"}
    assert await data(site, "labels", **only) == ["__name__", "room"]
    assert await data(site, "label/__name__/values") == [
        "http_requests_total", "strange", "temperature"
    ]  # fmt: skip
    assert await data(site, "label/code/values", **only) == []
    assert await data(site, "label/nowhere/values") == []


@pytest.mark.parametrize("path", ["U__a_2e_b", "U__a_2E_b", "a.b"])
async def test_a_label_that_is_no_plain_name_is_asked_for_escaped(site: Site, path: str) -> None:
    assert await data(site, f"label/{path}/values") == ["dotted"]


async def test_metadata_tells_what_was_told(site: Site) -> None:
    counter = {"type": "counter", "help": "Requests answered.", "unit": ""}
    gauge = {"type": "gauge", "help": "How warm it is.", "unit": "celsius"}
    both = {"http_requests_total": [counter], "temperature": [gauge]}
    assert await data(site, "metadata") == both
    assert await data(site, "metadata", limit_per_metric=1, limit=-1) == both
    assert await data(site, "metadata", metric="temperature") == {"temperature": [gauge]}
    assert len(await data(site, "metadata", limit=1)) == 1
    assert await data(site, "metadata", limit=0) == {}
    assert await data(site, "metadata", metric="a\x00b") == {}
    async with site.client("viewer") as client:
        no_text = await client.get("/api/v1/metadata?metric=%ff")
    assert (no_text.status_code, no_text.json()["data"]) == (200, {})


async def test_warnings_and_infos_come_with_their_places(site: Site) -> None:
    given = {"query": "quantile_over_time(2, temperature[5m])", "time": END}
    warned = (await get(site, "query", **given)).json()
    assert warned["warnings"] == [
        "PromQL warning: quantile value should be between 0 and 1, got 2 (1:20)"
    ]
    informed = (await get(site, "query", query="rate(temperature[5m])", time=END)).json()
    assert "PromQL info: metric might not be a counter" in informed["infos"][0]
    assert "warnings" not in informed


async def test_of_many_annotations_ten_are_shown(site: Site) -> None:
    many = " + ".join(f"sum(quantile({number}, temperature))" for number in range(2, 15))
    warned = (await get(site, "query", query=many, time=END)).json()
    assert len(warned["warnings"]) == 11
    assert warned["warnings"][-1] == "3 more warning annotations omitted"


async def test_stats_are_told_when_asked_for(site: Site) -> None:
    given = {"query": "sum(rate(http_requests_total[1m]))", "time": END}
    assert "stats" not in await data(site, "query", **given)
    told = (await data(site, "query", **given, stats="true"))["stats"]
    assert set(told["timings"]) == {
        "evalTotalTime", "resultSortTime", "queryPreparationTime", "innerEvalTime",
        "execQueueTime", "execTotalTime",
    }  # fmt: skip
    assert set(told["samples"]) == {"samplesRead", "totalQueryableSamples", "peakSamples"}
    assert told["samples"]["samplesRead"] == told["samples"]["totalQueryableSamples"] == 16


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("http_requests_total", [4, 4, 4]),
        ("sum(http_requests_total)", [4, 4, 4]),
        ("temperature + temperature", [2, 2, 2]),
        ("rate(temperature[1m])", [4, 4, 4]),
        ("rate(temperature[45s] offset 30s)", [3, 3, 3]),
        ("temperature @ end()", [1, 1, 1]),
        ("sum_over_time(temperature[1m] @ end()) + temperature", [5, 5, 5]),
        ("max_over_time(http_requests_total[1m:30s])", [8, 8, 8]),
        ("absent(nothing)", [0, 0, 0]),
        ("time()", [0, 0, 0]),
        ('strange{kind="nan"}', [0, 0, 1]),
    ],
)
async def test_the_samples_of_each_step_are_counted(
    site: Site, query: str, seen: list[int]
) -> None:
    given = {"query": query, "start": END - 60, "end": END, "step": 30, "stats": "all"}
    told = (await data(site, "query_range", **given))["stats"]["samples"]
    assert told["totalQueryableSamplesPerStep"] == [
        [END - 60, seen[0]], [END - 30, seen[1]], [END, seen[2]]
    ]  # fmt: skip
    assert told["totalQueryableSamples"] == sum(seen)


@pytest.mark.parametrize(
    ("query", "seen"), [("temperature[1m]", 4), ("temperature[1m:30s]", 2), ('"text"', 0)]
)
async def test_the_samples_of_one_moment_are_counted(site: Site, query: str, seen: int) -> None:
    found = await data(site, "query", query=query, time=END, stats="all")
    assert found["stats"]["samples"]["totalQueryableSamples"] == seen


async def test_a_query_is_explained(site: Site) -> None:
    found = await data(
        site, "query_range", explain="true", start=END - 60, end=END, step=15,
        query='sum by (zone) (rate(http_requests_total{job="api"}[1m] offset 30s)) / 2',
    )  # fmt: skip
    told = found["explain"]
    assert len(found["result"]) == 2
    assert told["expression"].startswith("sum by (zone) (rate(")
    assert (told["start"], told["end"], told["step"]) == (END - 60, END, 15)
    names = [stage["name"] for stage in told["stages"]]
    assert names == ["parse", "wait", "prepare", "snapshot", "plan", "leaves", "evaluation"]
    assert told["seconds"] == pytest.approx(sum(stage["seconds"] for stage in told["stages"]))
    [leaf] = told["leaves"]
    text = 'sum by (zone) (rate(http_requests_total{job="api"}[1m] offset 30s))'
    assert leaf["leaf"] == text
    assert leaf["pushed_down"] == "sum by (zone)"
    assert (leaf["range"], leaf["offset"], leaf["at"]) == (60, 30, None)
    assert (leaf["after"], leaf["until"]) == (END - 60 - 30 - 60, END - 30)
    assert (leaf["series"], leaf["samples"]) == (4, 4 * 8)
    assert told["samples_read"] == 32
    assert len(leaf["shards"]) == site.settings.metrics.shards
    assert sum(shard["samples"] for shard in leaf["shards"]) == 32
    assert leaf["read"]["segments"] >= 1
    assert leaf["read"] == told["read"]


async def test_explain_shows_what_is_read_for_a_range_alone(site: Site) -> None:
    told = (await data(site, "query", query="temperature[1m]", time=END, explain=1))["explain"]
    [leaf] = told["leaves"]
    assert (leaf["leaf"], leaf["samples"]) == ("temperature[1m]", 4)


async def test_an_expression_is_formatted(site: Site) -> None:
    found = await data(site, "format_query", query='sum(rate(x{b="c",a="b"}[5m]))by(z)')
    assert found == 'sum by (z) (rate(x{a="b",b="c"}[5m]))'


async def test_an_expression_is_shown_as_a_tree(site: Site) -> None:
    found = await data(
        site, "parse_query", query='sum by (z) (rate(x{a=~"b"}[5m] @ end())) > bool 1e3'
    )
    call = found["lhs"]["expr"]
    assert (found["type"], found["op"], found["bool"], found["matching"]) == (
        "binaryExpr", ">", True, None
    )  # fmt: skip
    assert (found["rhs"], found["lhs"]["grouping"]) == (
        {"type": "numberLiteral", "val": "1000"}, ["z"]
    )  # fmt: skip
    assert call["func"] == {
        "name": "rate", "argTypes": ["matrix"], "variadic": 0, "returnType": "vector"
    }  # fmt: skip
    assert call["args"] == [
        {
            "type": "matrixSelector", "range": 300_000, "name": "x", "offset": 0,
            "matchers": [
                {"name": "a", "value": "b", "type": "=~"},
                {"name": "__name__", "value": "x", "type": "="},
            ],
            "timestamp": None, "startOrEnd": "end", "anchored": False, "smoothed": False,
        }
    ]  # fmt: skip


async def test_the_version_is_one_that_clients_know(site: Site) -> None:
    told = await data(site, "status/buildinfo")
    assert told["version"].startswith("3.")
    assert told["revision"].startswith("kalla ")
    assert set(told) == {"version", "revision", "branch", "buildUser", "buildDate", "goVersion"}


async def test_what_kalla_does_not_have_is_empty(site: Site) -> None:
    assert await data(site, "rules") == {"groups": []}
    assert await data(site, "alerts") == {"alerts": []}
    assert await data(site, "query_exemplars", query="temperature", start=START, end=END) == []


RANGE = {"query": "temperature", "start": START, "end": END, "step": 60}


@pytest.mark.parametrize(
    ("path", "given", "status", "kind", "message"),
    [
        ("query", {"query": "sum(", "time": 1}, 400, "bad_data",
         'invalid parameter "query": 1:5: parse error: unclosed left parenthesis'),
        ("query", {}, 400, "bad_data",
         'invalid parameter "query": 1:1: parse error: no expression'),
        ("query", {"query": "1", "time": "soon"}, 400, "bad_data",
         "invalid parameter \"time\": invalid time value for 'time': cannot parse \"soon\" to a"),
        ("query", {"query": "1", "time": "1e400"}, 400, "bad_data", "to a valid timestamp"),
        ("query", {"query": "1", "time": "1e17"}, 400, "bad_data", "the time asked for is out of"),
        ("query", {"query": "1", "timeout": "long"}, 400, "bad_data",
         'invalid parameter "timeout": cannot parse "long" to a valid duration'),
        ("query", {"query": "1", "timeout": "1e30"}, 400, "bad_data", "It overflows int64"),
        ("query", {"query": "1", "lookback_delta": "x"}, 400, "bad_data",
         'error parsing lookback delta duration: cannot parse "x" to a valid duration'),
        ("query", {"query": "1", "limit": "-1"}, 400, "bad_data",
         'invalid parameter "limit": limit must be non-negative'),
        ("query", {"query": "1", "limit": "few"}, 400, "bad_data",
         'invalid parameter "limit": strconv.Atoi: parsing "few": invalid syntax'),
        ("query", {"query": "temperature[1s - 2s]", "time": END}, 400, "bad_data",
         'invalid parameter "query": '),
        ("query_range", {"query": "1"}, 400, "bad_data",
         'invalid parameter "start": cannot parse "" to a valid timestamp'),
        ("query_range", RANGE | {"end": START - 1}, 400, "bad_data",
         'invalid parameter "end": end timestamp must not be before start time'),
        ("query_range", RANGE | {"step": 0}, 400, "bad_data",
         'invalid parameter "step": zero or negative query resolution step widths are not'),
        ("query_range", RANGE | {"step": "-15s"}, 400, "bad_data", 'invalid parameter "step": '),
        ("query_range", RANGE | {"step": 0.01}, 400, "bad_data",
         "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing"),
        ("query_range", RANGE | {"query": "temperature[5m]"}, 400, "bad_data",
         'invalid parameter "query": invalid expression type "range vector" for range query'),
        ("query", {"query": "temperature + on () http_requests_total", "time": END}, 422,
         "execution", "many-to-many matching not allowed"),
        ("query", {"query": "histogram_avg(temperature)"}, 422, "execution",
         "native histograms are not supported"),
        ("query", {"query": "temperature", "timeout": "0"}, 503, "timeout", "query timed out in"),
        ("series", {}, 400, "bad_data", "no match[] parameter provided"),
        ("series", {"match[]": "{"}, 400, "bad_data", 'invalid parameter "match[]": 1:2: parse'),
        ("series", {"match[]": '{a=~".*"}'}, 400, "bad_data",
         'invalid parameter "match[]": match[] must contain at least one non-empty matcher'),
        ("series", {"match[]": "rate(x[5m])"}, 400, "bad_data", "a series selector is expected"),
        ("series", {"match[]": "x offset 5m"}, 400, "bad_data", "a series selector is expected"),
        ("series", {"match[]": "x", "start": "x"}, 400, "bad_data", 'invalid parameter "start"'),
        ("labels", {"end": "x"}, 400, "bad_data", 'invalid parameter "end"'),
        ("labels", {"match[]": 'a{__name__="b"}'}, 400, "bad_data",
         "1:1: parse error: metric name must not be set twice"),
        ("label/a/values", {"limit": "1" * 30}, 400, "bad_data", 'invalid parameter "limit"'),
        ("metadata", {"limit": "x"}, 400, "bad_data", "limit must be a number"),
        ("metadata", {"limit_per_metric": "x"}, 400, "bad_data", "limit_per_metric must be a"),
        ("format_query", {"query": "("}, 400, "bad_data", 'invalid parameter "query": 1:2'),
        ("status/flags", {}, 404, "not_found", "there is nothing at this address"),
    ],
)  # fmt: skip
async def test_a_refusal_has_the_shape_of_prometheus(
    site: Site, path: str, given: dict[str, Any], status: int, kind: str, message: str
) -> None:
    answer = await get(site, path, **given)
    assert answer.status_code == status, answer.text
    document = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert set(document) == {"status", "errorType", "error"}
    assert (document["status"], document["errorType"]) == ("error", kind)
    assert message in document["error"]


async def test_who_has_no_token_is_refused_in_the_same_shape(site: Site) -> None:
    async with site.client() as client:
        nobody = await client.get("/api/v1/query", params={"query": "1"})
        wrong = await client.post(
            "/api/v1/query", data={"query": "1"}, headers={"Authorization": "Bearer kalla_wrong"}
        )
    assert nobody.status_code == wrong.status_code == 401
    assert nobody.json()["errorType"] == wrong.json()["errorType"] == "unauthorized"
    assert "Authorization: Bearer" in nobody.json()["error"]
    assert nobody.headers["www-authenticate"].startswith("Bearer")


async def test_a_method_that_is_not_there_is_refused_in_the_same_shape(site: Site) -> None:
    async with site.client("viewer") as client:
        answer = await client.delete("/api/v1/query")
        elsewhere = await client.get("/api/elsewhere")
    assert answer.status_code == 405
    assert (answer.json()["status"], answer.json()["errorType"]) == ("error", "bad_data")
    assert elsewhere.headers["content-type"] == "application/problem+json"


async def test_limits_come_from_the_settings(database_url: str, tmp_path: Path) -> None:
    async with query_site(
        database_url, tmp_path, SERIES, query_samples=50, query_series=3
    ) as small:
        samples = await get(small, "query", query="http_requests_total[5m]", time=END)
        series = await get(small, "query", query="http_requests_total", time=END)
        fine = await data(small, "query", query="sum(http_requests_total)", time=END)
    assert samples.status_code == series.status_code == 422
    assert "query processing would load too many samples into memory" in samples.json()["error"]
    assert "more than the limit of 3 series per query" in series.json()["error"]
    assert fine["result"][0]["value"] == [END, "400"]


async def test_a_database_that_is_away_is_unavailable() -> None:
    async with unready_site("postgresql://127.0.0.1:1/none") as away, away.client() as client:
        headers = {"Authorization": "Bearer kalla_whatever"}
        answer = await client.get("/api/v1/query", params={"query": "1"}, headers=headers)
    assert answer.status_code == 503
    assert answer.json()["errorType"] == "unavailable"
    assert answer.headers["retry-after"] == "2"


async def test_a_long_answer_is_sent_in_pieces_and_is_whole(site: Site) -> None:
    found = await data(
        site, "query_range", query="http_requests_total", start=START, end=END, step=0.06
    )
    assert [len(one["values"]) for one in found["result"]] == [10_001] * 4
    assert found["result"][0]["values"][5][0] == pytest.approx(START + 0.3, abs=1e-9)
