"""Metrics as they are used: files imported by a command, a real Prometheus writing, and a kill."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kalla.local import ports
from kalla.query.labels.label_sets import Labels, value_of
from kalla.query.promql.matchers import Matcher
from kalla.settings import load
from tests.commands_kit import Place, a_place
from tests.metrics_kit import contents, metric_store
from tests.prometheus_server import Prometheus
from tests.remote_write_kit import V1, body, request_1
from tests.servers import PostgresServer, started
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def place(
    postgres_server: PostgresServer, migrated_template: str, tmp_path: Path
) -> Iterator[Place]:
    name = postgres_server.create(migrated_template)
    try:
        yield a_place(tmp_path, postgres_server.url(name), "operator")
    finally:
        postgres_server.drop(name)


def stored(place: Place) -> dict[Labels, list[tuple[int, float]]]:
    """Every sample in the store, read past the API."""

    async def read() -> dict[Labels, list[tuple[int, float]]]:
        found: dict[Labels, list[tuple[int, float]]] = {}
        async with metric_store(load(place.environment, place.folder).settings) as store:
            source = await store.snapshot(-(1 << 60), 1 << 60)
            for shard in range(source.shards):
                named = [Matcher("__name__", "=~", ".+")]
                found |= contents(source.select(shard, named, -(1 << 60), 1 << 60))
        return found

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, read()).result()


def test_what_was_acknowledged_is_there_after_a_kill(place: Place) -> None:
    now = int(time.time() * 1000)
    acknowledged: set[tuple[str, int]] = set()
    headers = {**V1, "Authorization": f"Bearer {place.environment['KALLA_API_TOKEN']}"}
    killed = threading.Event()

    def sender(name: str) -> None:
        with httpx.Client(base_url=place.environment["KALLA_API_URL"], timeout=60) as client:
            for step in range(100_000):
                labels = [("__name__", "kept"), ("sender", name)]
                content = body(request_1([(labels, [(now + step, float(step))])]))
                try:
                    answer = client.post("/api/v1/write", content=content, headers=headers)
                except httpx.TransportError:
                    assert killed.is_set()
                    return
                assert answer.status_code == 204, answer.text
                acknowledged.add((name, now + step))

    with ThreadPoolExecutor(4) as pool:
        with place.api() as api:
            senders = [pool.submit(sender, name) for name in "abcd"]
            enough = random.randrange(50, 150)
            until(
                lambda: len(acknowledged) > enough or any(each.done() for each in senders),
                "some writes are acknowledged",
                60,
            )
            killed.set()
            api.kill()
            api.wait()
        for each in senders:
            each.result(60)
    found = {
        (value_of(labels, "sender"), moment)
        for labels, samples in stored(place).items()
        for moment, _ in samples
    }
    assert len(acknowledged) > 50
    assert acknowledged <= found
    with place.api():
        content = body(request_1([([("__name__", "kept"), ("sender", "a")], [(now, 0.0)])]))
        url = f"{place.environment['KALLA_API_URL']}/api/v1/write"
        assert httpx.post(url, content=content, headers=headers, timeout=60).status_code == 204
    again = [sample for samples in stored(place).values() for sample in samples]
    assert len(again) == len(found)


class Writing(Prometheus):
    """A Prometheus that scrapes itself and writes what it finds to Kalla."""

    def __init__(self, folder: Path, port: int, url: str, token: str) -> None:
        super().__init__(folder, port)
        self._told = (url, token)

    def prepare(self) -> None:
        super().prepare()
        url, token = self._told
        (self.folder / "prometheus.yml").write_text(
            f"""
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: itself
    static_configs: [{{targets: ["{self.address}"]}}]
remote_write:
  - url: {url}/api/v1/write
    authorization: {{credentials: {token}}}
    queue_config: {{batch_send_deadline: 200ms}}
    metadata_config: {{send_interval: 200ms}}
"""
        )


def test_a_real_prometheus_writes_what_it_scrapes(place: Place, tmp_path: Path) -> None:
    url, token = place.environment["KALLA_API_URL"], place.environment["KALLA_API_TOKEN"]
    with place.api():
        server = Writing(tmp_path, ports.choose_free(), url, token)
        with started(server):
            up = (("__name__", "up"), ("instance", server.address), ("job", "itself"))
            until(lambda: len(stored(place).get(up, [])) >= 3, "samples of up arrive", 60)
            failed = httpx.get(
                f"{server.url}/api/v1/query",
                params={"query": "prometheus_remote_storage_samples_failed_total"},
            ).json()
    found = stored(place)
    assert {value for _, value in found[up]} == {1.0}
    assert len(found) > 100
    assert [float(each["value"][1]) for each in failed["data"]["result"]] == [0.0]
    assert "Traceback" not in (place.folder / "api.log").read_text()


def test_files_are_imported_and_once_more_without_doubling(place: Place) -> None:
    lines = [
        f'temp{{room="{room}"}} {step + 0.5} {1_600_000_000 + step}'
        for room in ("hall", "attic")
        for step in range(1000)
    ]
    text = "\n".join(["# TYPE temp gauge", "# HELP temp Degrees.", *lines, "# EOF"]) + "\n"
    (place.folder / "temp.txt").write_text(text)
    with place.api():
        for _ in range(2):
            said = place.ok("metrics", "import", "temp.txt")
            assert said == "Imported 2,000 samples from temp.txt.\n"
        found = stored(place)
        assert {value_of(labels, "room"): len(samples) for labels, samples in found.items()} == {
            "hall": 1000,
            "attic": 1000,
        }
        assert found[(("__name__", "temp"), ("room", "hall"))][1] == (1_600_000_001_000, 1.5)

        (place.folder / "broken.txt").write_text("temp 1\n# EOF\n")
        done = place.run("metrics", "import", "broken.txt")
        assert (done.returncode, "broken.txt line 1" in done.stderr) == (2, True), done.stderr
        done = place.run("metrics", "import", "nowhere.txt")
        assert (done.returncode, "no such file" in done.stderr) == (2, True)
        (place.folder / "ahead.txt").write_text(f"temp 1 {time.time() + 7200}\ntemp 2 5\n# EOF\n")
        done = place.run("metrics", "import", "ahead.txt", "temp.txt")
        assert done.returncode == 1
        assert done.stdout == "Imported 2,001 samples from 2 files.\n"
        assert "1 samples were refused" in done.stderr
        assert "too far in the future" in done.stderr
        _damaged_segments_are_found_and_dropped(place)
    done = place.run("metrics", "import", "temp.txt", KALLA_API_TOKEN="kalla_unknown")
    assert done.returncode == 2


def _damaged_segments_are_found_and_dropped(place: Place) -> None:
    assert place.ok("metrics", "check").startswith("All segments are sound: ")
    files = sorted(
        (place.folder / ".kalla").rglob("*.parquet"), key=lambda file: file.stat().st_mtime
    )
    files[0].write_bytes(b"bent")
    done = place.run("metrics", "check", "--format", "json")
    damaged = [each["segment"] for each in json.loads(done.stdout)["damaged"]]
    assert (done.returncode, sum(each["samples"] for each in damaged)) == (1, 2000)
    done = place.run("metrics", "check")
    assert done.returncode == 1
    assert "2020-09-13T12:26:40+00:00" in done.stdout
    admin = place.ok("token", "create", "--name", "root", "--role", "admin").strip()
    for each in damaged:
        asked = ("metrics", "drop-segment", str(each["segment_id"]))
        done = place.run(*asked)
        assert (done.returncode, "add --yes" in done.stdout) == (1, True)
        done = place.run(*asked, "--yes")
        assert (done.returncode, "needs the role admin" in done.stderr) == (2, True), done.stderr
        done = place.run(*asked, "--yes", KALLA_API_TOKEN=admin)
        assert done.returncode == 0, done.stderr
        assert f"Lost: {each['samples']:,} samples" in done.stdout
    assert place.ok("metrics", "check").startswith("All segments are sound: ")
    # The same samples had come a second time, in segments of their own.
    assert sum(len(samples) for samples in stored(place).values()) == 2001
