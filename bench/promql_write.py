"""Remote write into Kalla and into Prometheus: the same requests over HTTP, each server by itself.

A request has 2,000 samples, one a series of ten labels, as a Prometheus server sends them; they are
made beforehand, so that the sender costs little. Kalla answers when they are durable on disk and
listed in Postgres, Prometheus when they are in its write-ahead log.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import pyarrow as pa
from numpy.typing import NDArray

from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.query.labels.label_sets import Labels, labels_of
from tests.prometheus_server import Prometheus, write_request

KALLA = [sys.executable, "-m", "kalla.cli.main"]
REQUEST_SAMPLES = 2000
HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


@dataclass(frozen=True)
class Rate:
    """What a server took in: samples a second, and CPU seconds a million by whose they are."""

    samples_per_second: float
    cpu_per_million: dict[str, float]


@dataclass(frozen=True)
class Target:
    """A server that takes remote writes, and the processes that work for it, by name."""

    url: str
    token: str
    processes: dict[str, int]
    database: str = ""
    query_workers: tuple[int, ...] = ()  # the ports of their metrics

    def cpu_seconds(self) -> float:
        return sum(_cpu(pid) for pid in self.processes.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20, help="samples of each series")
    parser.add_argument("--connections", type=int, default=25)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="without Prometheus")
    parser.add_argument(
        "--new", action="store_true", help="series that were not sent before; else all were"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as folder:
        line = measure(
            Path(folder),
            chosen.series,
            chosen.rounds,
            chosen.connections,
            chosen.repeat,
            alone=chosen.alone,
            new=chosen.new,
        )
    print(json.dumps(line))


def measure(
    folder: Path,
    series: int = 100_000,
    rounds: int = 20,
    connections: int = 25,
    repeat: int = 3,
    *,
    alone: bool = False,
    new: bool = False,
) -> dict[str, object]:
    """One comparison: samples a second, medians of fresh servers in turns."""
    seen: dict[str, list[Rate]] = {"kalla": [], "prometheus": []}
    start = int(time.time() * 1000) - rounds * 1000
    content = bodies(series, rounds, start)
    warm = bodies(10 if new else series, 1, start - 60_000)
    for turn in range(repeat):
        for name in ("kalla",) if alone else ("kalla", "prometheus"):
            place = folder / f"{name}-{turn}"
            place.mkdir(parents=True)
            with kalla(place) if name == "kalla" else prometheus(place) as target:
                send(target, warm, 1)
                seen[name].append(timed(target, content, connections, series * rounds))
            note(f"{name}: {seen[name][-1]}")
    rates = {
        name: statistics.median([rate.samples_per_second for rate in found] or [0.0])
        for name, found in seen.items()
    }
    return {
        "name": "remote_write_new_series" if new else "remote_write",
        "ours": round(rates["kalla"]),
        "peer": round(rates["prometheus"]),
        "peer_name": "prometheus",
        "unit": "samples/s",
        "ratio": round(rates["kalla"] / rates["prometheus"], 3) if rates["prometheus"] else None,
        "seen": [round(rate.samples_per_second) for rate in seen["kalla"]],
        "cpu_seconds_per_million": {
            name: round(statistics.median(rate.cpu_per_million[name] for rate in seen["kalla"]), 2)
            for name in seen["kalla"][0].cpu_per_million
        },
        "series": series,
        "samples": series * rounds,
        "connections": connections,
    }


def bodies(series: int, rounds: int, start: int) -> list[list[bytes]]:
    """The bodies of all requests, by the series they are of: each once a round, a second apart."""
    groups = [
        _template(
            [series_labels(place) for place in range(first, min(first + REQUEST_SAMPLES, series))]
        )
        for first in range(0, series, REQUEST_SAMPLES)
    ]
    chance = np.random.default_rng(5)
    made: list[list[bytes]] = [[] for _ in groups]
    for turn in range(rounds):
        moment = start + turn * 1000
        for line, (message, ends) in zip(made, groups, strict=True):
            values = chance.integers(0, 1 << 30, len(ends)).astype("<f8")
            message[ends[:, None] + np.arange(-15, -7)] = values.view(np.uint8).reshape(-1, 8)
            for place in range(6):
                more = 0x80 if place < 5 else 0
                message[ends - 6 + place] = (moment >> 7 * place) & 0x7F | more
            line.append(bytes(pa.compress(message.tobytes(), codec="snappy", asbytes=True)))
    return made


def _template(group: Sequence[Labels]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A message with a sample for each, and where each series ends: 15 bytes from its value on."""
    moment, value = np.array([1 << 41]), np.array([0.0])
    messages = [
        pa.decompress(
            body := write_request([(labels, moment, value)]),
            _declared(body),
            "snappy",
            asbytes=True,
        )
        for labels in group
    ]
    ends = np.cumsum([len(message) for message in messages])
    return np.frombuffer(b"".join(messages), np.uint8).copy(), ends


def _declared(body: bytes) -> int:
    """The size that a body packed by snappy says it has."""
    size = 0
    for place, byte in enumerate(body):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return size


def series_labels(place: int) -> Labels:
    return labels_of(
        {
            "__name__": f"http_server_request_{place % 50}_total",
            "cluster": "production-eu-1",
            "container": f"service-{place % 7}",
            "env": "prod",
            "instance": f"10.{place // 62500}.{place // 250 % 250}.{place % 250}:9100",
            "job": "node",
            "namespace": f"namespace-{place % 40}",
            "node": f"node-{place % 200}.internal",
            "pod": f"service-{place % 7}-{place * 7919 % 99991:08x}-{place:05x}",
            "zone": f"eu-1{'abc'[place % 3]}",
        }
    )


def timed(
    target: Target, content: Sequence[Sequence[bytes]], connections: int, samples: int
) -> Rate:
    before = {name: _cpu(pid) for name, pid in target.processes.items()}
    own = time.process_time()
    begun = time.monotonic()
    send(target, content, connections)
    seconds = time.monotonic() - begun
    spent = {name: _cpu(pid) - before[name] for name, pid in target.processes.items()}
    spent["sender"] = time.process_time() - own
    return Rate(samples / seconds, {name: used / samples * 1e6 for name, used in spent.items()})


def send(target: Target, content: Sequence[Sequence[bytes]], connections: int) -> None:
    """All bodies over some connections, each of which waits for its answers.

    A series keeps to one of them, as Prometheus does it: its samples arrive in order.
    """
    address = urlsplit(target.url)
    failures: list[str] = []

    def sender(lines: Sequence[Sequence[bytes]]) -> None:
        headers = {**HEADERS, "Authorization": f"Bearer {target.token}"}
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)
        for body in chain.from_iterable(zip(*lines, strict=True)):
            if failures:
                break
            connection.request("POST", "/api/v1/write", body, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 204:
                failures.append(f"{answer.status} {said[:200]!r}")
        connection.close()

    threads = [
        threading.Thread(target=sender, args=[content[place::connections]])
        for place in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])


@contextmanager
def kalla(folder: Path, query_workers: int = 0) -> Iterator[Target]:
    """An API over a Postgres of its own, and so many query workers, all on this machine."""
    postgres = Postgres(folder, ports.choose_free())
    postgres.start()
    try:
        port = ports.choose_free()
        kept = {name: text for name, text in os.environ.items() if not name.startswith("KALLA_")}
        environment = kept | {
            "KALLA_DATABASE_URL": postgres.url("postgres"),
            "KALLA_WAKE_CHANNEL": "postgres",
            "KALLA_API_METRICS_PORT": "0",
            "KALLA_LOG_LEVEL": "warning",
            "KALLA_DATA_DIR": str(folder / "data"),
        }
        subprocess.run(
            [*KALLA, "migrate"], env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        token = subprocess.run(
            [*KALLA, "token", "create", "--name", "bench", "--role", "operator"],
            env=environment,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        own = [(ports.choose_free(), ports.choose_free()) for _ in range(query_workers)]
        environment["KALLA_QUERY_WORKERS"] = ",".join(f"127.0.0.1:{one}" for one, _ in own)
        given = [
            ["query-worker", f"--port={control}", f"--artifact-port={artifacts}", "--threads=1"]
            for control, artifacts in own
        ]
        started = [
            subprocess.Popen([*KALLA, *arguments], env=environment, cwd=folder)
            for arguments in (["api", "--port", str(port)], *given)
        ]
        try:
            url = f"http://127.0.0.1:{port}"
            for process, listening in zip(started, (port, *(one for _, one in own)), strict=True):
                _wait(listening, process)
            pids = {"api": started[0].pid, "postgres": _postmaster(folder)}
            pids |= {f"query-worker-{place}": one.pid for place, one in enumerate(started[1:], 1)}
            metrics = tuple(artifacts for _, artifacts in own)
            yield Target(url, token, pids, postgres.url("postgres"), metrics)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)
    finally:
        postgres.stop()


@contextmanager
def prometheus(folder: Path) -> Iterator[Target]:
    server = Prometheus(folder, ports.choose_free())
    server.start()
    try:
        pid = next(
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if f"--web.listen-address={server.address}" in (process.info["cmdline"] or ())
        )
        yield Target(server.url, "none", {"prometheus": pid})
    finally:
        server.stop()


def _postmaster(folder: Path) -> int:
    (file,) = folder.rglob("postmaster.pid")
    return int(file.read_text().splitlines()[0])


def _wait(port: int, api: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            if api.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        finally:
            connection.close()


def _cpu(pid: int) -> float:
    """Of a process and those it started that still live."""
    process = psutil.Process(pid)
    times = [process.cpu_times(), *(child.cpu_times() for child in process.children(True))]
    return float(sum(each.user + each.system for each in times))


def note(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
