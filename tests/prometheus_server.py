"""A real Prometheus for tests and benchmarks: started on a free port, filled by remote write."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx

from kalla.errors import NotInstalled
from kalla.local.process import Server
from kalla.query.array_types import Floats, Whole
from kalla.query.labels.label_sets import Labels
from kalla.query.store.ingest import remote_write_encoding

_FOREVER = "100y"


class Prometheus(Server):
    """Debian's Prometheus over a folder of its own; it scrapes nothing."""

    start_seconds = 60.0
    stop_seconds = 60.0

    def __init__(self, folder: Path, port: int, options: Sequence[str] = ()) -> None:
        super().__init__("prometheus", port, folder / "logs")
        self.folder = folder
        self.options = tuple(options)

    @property
    def data(self) -> Path:
        return self.folder / "prometheus"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def version(self) -> str:
        said = subprocess.run([_binary(), "--version"], capture_output=True, text=True, check=True)
        return said.stdout.split()[2]

    def check(self) -> None:
        _binary()
        super().check()

    def prepare(self) -> None:
        super().prepare()
        self.data.mkdir(parents=True, exist_ok=True)
        (self.folder / "prometheus.yml").write_text("scrape_configs: []\n")

    def command(self) -> Sequence[str]:
        return [
            _binary(),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.data}",
            f"--storage.tsdb.retention.time={_FOREVER}",
            f"--web.listen-address={self.address}",
            "--web.enable-remote-write-receiver",
            "--web.enable-admin-api",
            *self.options,
        ]

    def probe(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    def write(self, series: Iterable[tuple[Labels, Whole, Floats]]) -> None:
        """One remote-write request; a head takes only what is an hour older than its newest."""
        answer = httpx.post(
            f"{self.url}/api/v1/write",
            content=write_request(series),
            headers={
                "Content-Encoding": "snappy",
                "Content-Type": "application/x-protobuf",
                "X-Prometheus-Remote-Write-Version": "0.1.0",
            },
            timeout=60,
        )
        if answer.status_code >= 300:
            raise RuntimeError(f"Prometheus refused samples: {answer.status_code} {answer.text}")

    def snapshot(self) -> Path:
        """All its samples as blocks, in a folder that another Prometheus can be started over."""
        answer = httpx.post(f"{self.url}/api/v1/admin/tsdb/snapshot", timeout=600)
        answer.raise_for_status()
        return self.data / "snapshots" / str(answer.json()["data"]["name"])


def asked(client: httpx.Client, path: str, **given: str) -> dict[str, Any]:
    """Prometheus' own JSON, whether it is an answer or a refusal."""
    answer = client.post(path, data=given)
    document = json.loads(answer.content)
    if not isinstance(document, dict) or "status" not in document:
        raise RuntimeError(f"{path} answered {answer.status_code} {answer.text[:200]}")
    return document


def write_request(series: Iterable[tuple[Labels, Whole, Floats]]) -> bytes:
    """A remote-write 1.0 request, as `kalla metrics import` makes it: a Prometheus reads it too."""
    return remote_write_encoding.packed(
        b"".join(
            remote_write_encoding.series(remote_write_encoding.labels_of(labels), times, values)
            for labels, times, values in series
        )
    )


def seconds(milliseconds: int) -> str:
    """A time or step as Prometheus' API takes it."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"


def _binary() -> str:
    found = shutil.which("prometheus")
    if found is None:
        raise NotInstalled("There is no prometheus: apt-get install prometheus.")
    return found
