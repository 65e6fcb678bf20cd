"""Remote write through the API: what is kept, what is refused in which words, when to come back."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import SecretStr

from kalla.app.api import create_app
from kalla.app.job_types import job_types as all_job_types
from kalla.database import Database
from kalla.query.evaluate.sample_source import STALE, SeriesBatch
from kalla.query.http import write_routes
from kalla.query.labels.label_sets import Labels
from kalla.query.promql.matchers import Matcher
from kalla.query.store.catalogue import Metadata
from kalla.query.store.metric_store import MetricStore
from kalla.settings import Database as DatabaseSettings
from kalla.spark.session import SparkSessions
from kalla.storage import Storage
from kalla.web.tokens import tokens
from kalla.web.tokens.tokens import ROLES
from tests.metrics_kit import contents, metrics_settings, named
from tests.remote_write_kit import V1, V2, Pairs, body, packed, request_1, request_2, symbol
from tests.web_kit import Bell, Site

NOW = int(time.time() * 1000)
HOUR = 3600 * 1000
UP: Pairs = [("__name__", "up"), ("job", "node")]
DOWN: Pairs = [("__name__", "down"), ("job", "node")]
UP_LABELS, DOWN_LABELS = named("up", job="node"), named("down", job="node")


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with a_site(database_url, tmp_path / "metrics") as site:
        yield site


@asynccontextmanager
async def a_site(url: str, folder: Path, **metrics: Any) -> AsyncIterator[Site]:
    """The app with its segments in this folder."""
    settings = metrics_settings(url, folder, commit_seconds=0.001, **metrics)
    job_types = all_job_types(settings, SparkSessions(settings.spark))
    database = Database(settings.database)
    app = create_app(settings, job_types, database, bell := Bell())
    async with app.router.lifespan_context(app):
        site = Site(app, settings, job_types, database, bell, {})
        async with database.transaction() as connection:
            for role in ROLES:
                site.tokens[role] = await tokens.create(connection, role, role, replace=True)
        yield site


async def send(
    site: Site, content: bytes, headers: dict[str, str] = V1, path: str = "/api/v1/write"
) -> httpx.Response:
    async with site.client("operator") as client:
        return await client.post(path, content=content, headers=headers)


async def stored(site: Site) -> dict[Labels, list[tuple[int, float]]]:
    """Every sample there is, as a query finds it."""
    found: dict[Labels, list[tuple[int, float]]] = {}
    for batch in await batches(site):
        found |= contents(batch)
    return found


async def batches(site: Site) -> list[SeriesBatch]:
    store: MetricStore = site.app.state.metric_store
    source = await store.snapshot(-(1 << 60), 1 << 60)
    everything = [Matcher("__name__", "=~", ".+")]
    return [source.select(shard, everything, -(1 << 60), 1 << 60) for shard in range(source.shards)]


@pytest.mark.parametrize(("headers", "make"), [(V1, request_1), (V2, request_2)])
async def test_samples_of_both_versions_are_found_by_a_query(
    site: Site, headers: dict[str, str], make: Any
) -> None:
    answer = await send(site, body(make([(UP, [(NOW, 1.0)]), (DOWN, [(NOW, 0.5)])])), headers)
    assert (answer.status_code, answer.text) == (204, "")
    assert await stored(site) == {UP_LABELS: [(NOW, 1.0)], DOWN_LABELS: [(NOW, 0.5)]}


async def test_version_2_is_told_how_much_was_written(site: Site) -> None:
    request = request_2([(UP, [(NOW, 1.0), (NOW + 1, 2.0)])])
    request.timeseries[0].exemplars.add(value=1.0, timestamp=NOW)
    answer = await send(site, body(request), V2)
    assert answer.status_code == 204
    counts = {
        name: answer.headers[f"X-Prometheus-Remote-Write-{name}-Written"]
        for name in ("Samples", "Histograms", "Exemplars")
    }
    assert counts == {"Samples": "2", "Histograms": "0", "Exemplars": "0"}


async def test_only_the_two_messages_packed_by_snappy_are_known(site: Site) -> None:
    proto = "application/x-protobuf;proto="
    content = body(request_1([(UP, [(NOW, 1.0)])]))
    for unknown in (
        {"Content-Type": f"{proto}io.prometheus.write.v3.Request"},
        {"Content-Type": "application/json"},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "zstd"},
    ):
        answer = await send(site, content, unknown)
        assert (answer.status_code, "not accepted" in answer.text) == (415, True)
    assert await stored(site) == {}
    for known in ({}, {"Content-Type": f"{proto}prometheus.WriteRequest"}):
        assert (await send(site, content, known)).status_code == 204
    assert await stored(site) == {UP_LABELS: [(NOW, 1.0)]}


async def test_bytes_that_are_no_message_are_refused_with_400(site: Site) -> None:
    for headers, content, words in (
        (V1, b"", "snappy"),
        (V2, b"", "snappy"),
        (V1, b"not snappy at all", "snappy"),
        (V2, b"\xff\xff\xff\xff\xff\xff", "snappy"),
        (V1, packed(b"\x0a\xff\x01"), "broken in the field at byte 0"),
        (V2, packed(b"\x2a\x02\x12\x09"), "broken in the field at byte 0"),
        (V2, packed(b"\x22\x01x"), "first of the symbols must be the empty one"),
    ):
        answer = await send(site, content, headers)
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
    assert await stored(site) == {}


async def test_what_is_too_large_packed_or_unpacked_is_refused_with_413(
    database_url: str, tmp_path: Path
) -> None:
    async with a_site(database_url, tmp_path / "metrics", write_bytes=10_000) as site:
        for content in (b"x" * 10_001, packed(b"\0" * 10_001)):
            answer = await send(site, content)
            assert answer.status_code == 413
            assert "metrics.write_bytes" in answer.text
        repeated = request_2([])
        for _ in range(200):
            repeated.timeseries.add(
                labels_refs=[symbol(repeated, "a" * 100), symbol(repeated, "b")]
            )
        answer = await send(site, body(repeated), V2)
        assert answer.status_code == 413
        assert "spelled out" in answer.text
        # Other addresses still take less.
        async with site.client("operator") as client:
            answer = await client.post("/api/jobs", content=b"x" * 400_000)
        assert answer.status_code == 413


@pytest.mark.parametrize(("headers", "make"), [(V1, request_1), (V2, request_2)])
async def test_labels_that_no_series_can_have_are_named_and_the_rest_is_kept(
    site: Site, headers: dict[str, str], make: Any
) -> None:
    wrong: list[tuple[Pairs, str]] = [
        ([("job", "node")], 'invalid metric name or labels, got {job="node"}'),
        ([], "invalid metric name or labels, got {}"),
        ([("__name__", "")], 'invalid metric name or labels, got {__name__=""}'),
        ([("", "x"), *UP], 'invalid metric name or labels, got {""="x", __name__="up"'),
        ([*UP, ("job", "other")], "duplicated label job"),
        ([*UP, ("x", "\udcff")], "invalid metric name or labels, got {"),
    ]
    series = [(labels, [(NOW, 2.0)]) for labels, _ in wrong]
    request = make([(UP, [(NOW, 1.0)]), *series, (DOWN, [(NOW, 3.0)])])
    answer = await send(site, body(request), headers)
    assert answer.status_code == 400
    lines = answer.text.splitlines()
    assert len(lines) == len(wrong)
    for line, (_, words) in zip(lines, wrong, strict=True):
        assert words in line
    assert await stored(site) == {UP_LABELS: [(NOW, 1.0)], DOWN_LABELS: [(NOW, 3.0)]}
    if headers is V2:
        assert answer.headers["X-Prometheus-Remote-Write-Samples-Written"] == "2"


async def test_labels_out_of_order_or_empty_are_the_same_series(site: Site) -> None:
    spellings = [UP, list(reversed(UP)), [*UP, ("zone", "")]]
    for place, labels in enumerate(spellings):
        for make, headers in ((request_1, V1), (request_2, V2)):
            answer = await send(site, body(make([(labels, [(NOW + place, 1.0)])])), headers)
            assert answer.status_code == 204
    assert await stored(site) == {UP_LABELS: [(NOW + place, 1.0) for place in range(3)]}


async def test_many_refusals_are_told_in_a_few_lines(site: Site) -> None:
    bad = [([("job", str(place))], [(NOW, 1.0)]) for place in range(1000)]
    answer = await send(site, body(request_1(bad)))
    assert answer.status_code == 400
    assert answer.text.splitlines()[-1] == "and 990 more"


async def test_native_histograms_are_refused_and_the_floats_beside_them_kept(site: Site) -> None:
    for request, headers in ((request_1([(UP, [(NOW, 1.0)])]), V1), (request_2([]), V2)):
        request.timeseries.add() if headers is V2 else None
        one = request.timeseries[0]
        if headers is V2:
            for name, value in DOWN:
                one.labels_refs.extend([symbol(request, name), symbol(request, value)])
            one.samples.add(timestamp=NOW, value=2.0)
        one.histograms.add(count_int=3, timestamp=NOW)
        answer = await send(site, body(request), headers)
        assert answer.status_code == 400
        assert "native histograms are not supported" in answer.text
    assert answer.headers["X-Prometheus-Remote-Write-Samples-Written"] == "1"
    assert answer.headers["X-Prometheus-Remote-Write-Histograms-Written"] == "0"
    assert await stored(site) == {UP_LABELS: [(NOW, 1.0)], DOWN_LABELS: [(NOW, 2.0)]}


async def test_metadata_of_both_versions_is_kept_by_family(site: Site) -> None:
    told = {"up": (2, "Is it there?", ""), "odd": (99, "\udcff\0", "seconds")}
    answer = await send(site, body(request_1([], told)))
    assert answer.status_code == 204
    request = request_2([([("__name__", "took_seconds_bucket"), ("le", "1")], [(NOW, 1.0)])])
    request.timeseries[0].metadata.type = 3
    request.timeseries[0].metadata.help_ref = symbol(request, "How long it took.")
    request.timeseries[0].metadata.unit_ref = symbol(request, "seconds")
    for _ in range(2):
        assert (await send(site, body(request), V2)).status_code == 204
    store: MetricStore = site.app.state.metric_store
    assert await store.metadata() == {
        "odd": Metadata("unknown", "\ufffd\ufffd", "seconds"),
        "took_seconds": Metadata("histogram", "How long it took.", "seconds"),
        "up": Metadata("gauge", "Is it there?", ""),
    }


async def test_metadata_with_names_no_index_takes_does_not_stop_samples(site: Site) -> None:
    request = request_1([(UP, [(NOW, 1.0)])], {"x" * 100_000: (1, "y" * 1_000_000, "")})
    assert (await send(site, body(request))).status_code == 204
    assert await stored(site) == {UP_LABELS: [(NOW, 1.0)]}


async def test_references_outside_the_symbols_are_refused_with_400(site: Site) -> None:
    for refs in ([1, 99], [1]):
        request = request_2([(UP, [(NOW, 1.0)])])
        request.timeseries.add(labels_refs=refs).samples.add(timestamp=NOW, value=1.0)
        answer = await send(site, body(request), V2)
        assert (answer.status_code, "symbols" in answer.text) == (400, True)
    request = request_2([(UP, [(NOW, 1.0)])])
    request.timeseries[0].metadata.help_ref = 99
    assert (await send(site, body(request), V2)).status_code == 400
    assert await stored(site) == {UP_LABELS: [(NOW, 1.0)]}


async def test_a_series_of_version_2_without_samples_is_named(site: Site) -> None:
    answer = await send(site, body(request_2([(UP, []), (DOWN, [(NOW, 1.0)])])), V2)
    assert answer.status_code == 400
    assert "must contain at least one sample" in answer.text
    assert await stored(site) == {DOWN_LABELS: [(NOW, 1.0)]}


async def test_a_body_that_does_not_end_is_given_up_and_others_have_its_room(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"x"
        await never.wait()

    monkeypatch.setattr(write_routes, "BODY_SECONDS", 0.01)
    async with site.client("operator") as client:
        for _ in range(6):  # without a length, four of them would fill the room
            answer = await client.post("/api/v1/write", content=stalled(), headers=V1)
            assert answer.status_code == 503
            assert "did not come within" in answer.text
    monkeypatch.undo()
    assert (await send(site, body(request_1([(UP, [(NOW, 1.0)])])))).status_code == 204


async def test_a_retry_adds_nothing_and_the_first_value_stays(site: Site) -> None:
    content = body(request_1([(UP, [(NOW, 1.0), (NOW, 2.0), (NOW - 1, 0.0)])]))
    for _ in range(3):
        assert (await send(site, content)).status_code == 204
    assert (await send(site, body(request_1([(UP, [(NOW, 5.0)])])))).status_code == 204
    assert await stored(site) == {UP_LABELS: [(NOW - 1, 0.0), (NOW, 1.0)]}


async def test_samples_may_come_late_within_the_window_but_not_later(site: Site) -> None:
    window = 24 * HOUR
    assert (await send(site, body(request_1([(UP, [(NOW, 1.0)])])))).status_code == 204
    late = [(NOW - window, 2.0), (NOW - HOUR, 3.0)]
    assert (await send(site, body(request_1([(UP, late)])))).status_code == 204
    request = request_1([(UP, [(NOW - window - 1, 4.0), (NOW + 1, 5.0)]), (DOWN, [(NOW, 6.0)])])
    answer = await send(site, body(request))
    assert answer.status_code == 400
    assert answer.text == 'too old sample for series {__name__="up", job="node"}\n'
    assert await stored(site) == {
        UP_LABELS: [(NOW - window, 2.0), (NOW - HOUR, 3.0), (NOW, 1.0), (NOW + 1, 5.0)],
        DOWN_LABELS: [(NOW, 6.0)],
    }


async def test_history_of_any_age_comes_in_by_its_own_address(site: Site) -> None:
    assert (await send(site, body(request_1([(UP, [(NOW, 1.0)])])))).status_code == 204
    old = body(request_1([(UP, [(1000, 0.0), (-1000, 7.0)])]))
    answer = await send(site, old, path="/api/v1/metrics/import")
    assert answer.status_code == 204
    assert await stored(site) == {UP_LABELS: [(-1000, 7.0), (1000, 0.0), (NOW, 1.0)]}


async def test_samples_from_the_future_are_out_of_bounds(site: Site) -> None:
    ahead = int(time.time() * 1000) + HOUR
    for path in ("/api/v1/write", "/api/v1/metrics/import"):
        answer = await send(site, body(request_1([(UP, [(ahead, 1.0), (NOW, 2.0)])])), path=path)
        assert answer.status_code == 400
        assert "out of bounds: timestamp is too far in the future for series" in answer.text
    extremes = body(request_1([(UP, [(-(1 << 63), 1.0), ((1 << 63) - 1, 1.0)])]))
    answer = await send(site, extremes, path="/api/v1/metrics/import")
    assert (answer.status_code, len(answer.text.splitlines())) == (400, 2)
    assert await stored(site) == {UP_LABELS: [(NOW, 2.0)]}


async def test_staleness_markers_survive_and_other_nans_are_none(site: Site) -> None:
    nan = float("nan")
    samples = [(NOW, 1.0), (NOW + 1, float(STALE)), (NOW + 2, nan), (NOW + 3, float("inf"))]
    assert (await send(site, body(request_1([(UP, samples)])))).status_code == 204
    (batch,) = [batch for batch in await batches(site) if len(batch)]
    assert batch.stale is not None
    assert batch.stale.tolist() == [False, True, False, False]
    assert np.isnan(batch.values[1:3]).all()
    assert batch.values[[0, 3]].tolist() == [1.0, float("inf")]


async def test_writing_needs_the_role_operator(site: Site) -> None:
    content = body(request_1([(UP, [(NOW, 1.0)])]))
    for path in ("/api/v1/write", "/api/v1/metrics/import"):
        for role, status in ((None, 401), ("viewer", 403), ("admin", 204)):
            async with site.client(role) as client:  # type: ignore[arg-type]
                answer = await client.post(path, content=content, headers=V1)
            assert answer.status_code == status


async def test_a_full_disk_is_said_to_be_passing_and_nothing_is_acknowledged(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    content = body(request_1([(UP, [(NOW, 1.0)])]))
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "keep", full)
        for _ in range(3):
            answer = await send(site, content)
            assert (answer.status_code, "No space left" in answer.text) == (503, True)
            assert "Retry-After" in answer.headers
    assert await stored(site) == {}
    assert (await send(site, content)).status_code == 204
    assert await stored(site) == {UP_LABELS: [(NOW, 1.0)]}


async def test_a_storage_that_cannot_be_written_to_is_a_503_however_it_fails(
    database_url: str, tmp_path: Path
) -> None:
    place = tmp_path / "metrics"
    place.write_text("a file where the folder should be")
    async with a_site(database_url, place) as site:
        content = body(request_1([(UP, [(NOW, 1.0)])]))
        assert (await send(site, content)).status_code == 503
        place.unlink()
        assert (await send(site, content)).status_code == 204


async def test_without_postgres_nothing_is_acknowledged_and_senders_come_back(site: Site) -> None:
    content = body(request_1([(UP, [(NOW, 1.0)])]))
    store: MetricStore = site.app.state.metric_store
    assert (await send(site, body(request_1([(DOWN, [(NOW, 1.0)])])))).status_code == 204
    gone = DatabaseSettings(
        url=SecretStr("postgresql://nobody@127.0.0.1:1/none"), connect_timeout=0.2
    )
    async with Database(gone) as away:
        present, store.database = store.database, away
        assert (await send(site, content)).status_code == 503
        store.database = present
    assert await stored(site) == {DOWN_LABELS: [(NOW, 1.0)]}
    assert (await send(site, content)).status_code == 204
    assert await stored(site) == {DOWN_LABELS: [(NOW, 1.0)], UP_LABELS: [(NOW, 1.0)]}
