"""Prometheus' HTTP API over written samples: each route, each parameter."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.integration.query import http_requests
from tests.integration.query.http_requests import END, START, data, get
from tests.web_kit import Site

SERIES, METADATA = http_requests.SERIES, http_requests.METADATA


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


async def test_a_long_answer_is_sent_in_pieces_and_is_whole(site: Site) -> None:
    found = await data(
        site, "query_range", query="http_requests_total", start=START, end=END, step=0.06
    )
    assert [len(one["values"]) for one in found["result"]] == [10_001] * 4
    assert found["result"][0]["values"][5][0] == pytest.approx(START + 0.3, abs=1e-9)
