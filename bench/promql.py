"""Seconds of PromQL queries over HTTP, Kalla against Prometheus: the same data in the same run,
both warm, repetitions interleaved; and remote write, and bytes on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from pydantic import SecretStr

from bench import promql_write
from bench.promql_data import START, Extent, fill_kalla, fill_prometheus
from bench.promql_write import Target
from kalla import logs
from kalla.database import Database
from kalla.query.engine import Engine
from kalla.query.evaluate.evaluation import Limits
from kalla.query.http.response_json import pieces
from kalla.query.store.metric_store import MetricStore
from kalla.query.store.segment_source import SegmentSource
from kalla.settings import Database as DatabaseSettings
from kalla.settings import Settings

HOUR = 3_600_000
PEER = "Prometheus 2.42"
HEADLINE = "sum_of_rates"
QUERY_WORKERS = 2
LIGHT_ASKED = 100
LIGHT_SECONDS = 0.06  # the goal for the 95th percentile
CANCELLED = 40
# Where 2.42 and 3.x compute alike, the last bits of a naive sum may still differ.
_CLOSE = 1e-9


@dataclass(frozen=True)
class Asked:
    """A query; an instant one has no step. Light ones are counted by their 95th percentile.

    `any_of_equals`: which of several equal values is in the answer is left open.
    """

    name: str
    text: str
    start: int
    end: int
    step: int = 0
    light: bool = False
    any_of_equals: bool = False

    @property
    def path(self) -> str:
        times = (
            {"start": self.start / 1000, "end": self.end / 1000, "step": self.step / 1000}
            if self.step
            else {"time": self.end / 1000}
        )
        where = "query_range" if self.step else "query"
        return f"/api/v1/{where}?" + urlencode({"query": self.text, **times})


@dataclass(frozen=True)
class Seen:
    seconds: float
    cpu: float
    bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--small", action="store_true", help="a hundredth of the data: does it run?"
    )
    parser.add_argument("--only", default="", help="data sets whose names contain this")
    parser.add_argument("--no-write", action="store_true", help="without remote write")
    chosen = parser.parse_args()
    logs.configure("warning", "text")
    lines: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as folder:
        for extent in extents(small=chosen.small):
            if chosen.only in extent.name:
                lines += measure(extent, Path(folder) / extent.name, chosen.repeat)
        if not chosen.no_write:
            series, rounds = (20_000, 3) if chosen.small else (100_000, 20)
            repeat = min(chosen.repeat, 3)
            lines.append(
                promql_write.measure(Path(folder) / "write", series, rounds, repeat=repeat)
            )
    for line in sorted(lines, key=lambda line: line["name"] == f"1s_{HEADLINE}"):
        print(json.dumps(line))


def extents(*, small: bool) -> list[Extent]:
    if small:
        return [Extent("1s", 100, 1000, HOUR), Extent("30s", 1000, 30_000, 2 * HOUR)]
    return [Extent("1s", 1000, 1000, 4 * HOUR), Extent("30s", 100_000, 30_000, 2 * HOUR)]


def queries(extent: Extent) -> list[Asked]:
    """Over all the time there is. What has a row for every series is asked at one moment where
    there are too many of them to be sent at every step."""
    start, end = START, extent.end
    step = 15_000 if extent.length > 2 * HOUR else 30_000
    each = step if extent.series <= 1000 else 0
    near = end - HOUR
    return [
        Asked("selector", "m", start, end),
        Asked(HEADLINE, "sum by (zone) (rate(m[5m]))", start, end, step),
        Asked("topk", "topk(10, rate(m[5m]))", start, end, step, any_of_equals=True),
        Asked("quantile", "histogram_quantile(0.99, sum by (le) (rate(m[5m])))", start, end, step),
        Asked("max_over_time", "max_over_time(m[1h])", start, end, each),
        Asked(
            "join",
            'rate(m[5m]) / on (pod) group_left rate(m{le="+Inf"}[5m])',
            start,
            end,
            each,
        ),
        Asked("light_selector", 'm{pod="web-00003"}', start, end, light=True),
        Asked(
            "light_rate", 'rate(m{pod="web-00003",le="+Inf"}[5m])', near, end, 15_000, light=True
        ),
        Asked(
            "light_quantile",
            'histogram_quantile(0.9, sum by (le) (rate(m{pod=~"web-0000[0-4]"}[5m])))',
            near,
            end,
            30_000,
            light=True,
        ),
    ]


def measure(extent: Extent, folder: Path, repeat: int) -> list[dict[str, object]]:
    with ExitStack() as stack:
        kalla = stack.enter_context(promql_write.kalla(_made(folder / "kalla"), QUERY_WORKERS))
        note(f"{extent.name}: {extent.samples:,} samples into Kalla")
        ours_bytes = asyncio.run(fill_kalla(extent, kalla.database, folder / "kalla" / "data"))
        note(f"{extent.name}: {extent.samples:,} samples into Prometheus")
        blocks = fill_prometheus(extent, folder / "prometheus")
        theirs_bytes = _bytes_of_blocks(blocks / "prometheus")
        prometheus = stack.enter_context(promql_write.prometheus(blocks))
        lines = [
            _compared(
                f"{extent.name}_bytes_per_sample",
                [ours_bytes / extent.samples],
                [theirs_bytes / extent.samples],
                "bytes/sample",
                samples=extent.samples,
            )
        ]
        alone = OneProcess(asyncio.run(snapshot(kalla.database, folder / "kalla" / "data")))
        for asked in queries(extent):
            lines += _measured(extent, asked, kalla, prometheus, alone, repeat)
        lines += worker_figures(extent, kalla)
    return lines


def worker_figures(extent: Extent, kalla: Target) -> list[dict[str, object]]:
    """How often a query worker had the segments in memory, and how soon a cancelled query is gone.

    Goals: above 0.95, and 95 of 100 within 0.2 s.
    """
    connection = Connection(kalla)
    found = connection.document("/api/query-workers")
    connection.close()
    known = [one["affinity"] for one in found if one["affinity"] is not None]
    affinity = statistics.mean(known) if known else 0.0
    lines = [_against_goal(f"{extent.name}_affinity", affinity, 0.95, "share")]
    if freed := sorted(cancelled(extent, kalla)):
        late = freed[max(int(len(freed) * 0.95) - 1, 0)]
        lines.append(_against_goal(f"{extent.name}_cancel_p95", late, 0.2, "s", seen=freed))
    return lines


def _against_goal(
    name: str, ours: float, goal: float, unit: str, seen: Sequence[float] = ()
) -> dict[str, object]:
    return {
        "name": name,
        "ours": round(ours, 4),
        "peer": goal,
        "peer_name": "goal",
        "unit": unit,
        "ratio": round(ours / goal, 3),
        "seen": [round(one, 4) for one in seen],
    }


def cancelled(extent: Extent, kalla: Target) -> list[float]:
    """Seconds from killing a heavy query until no query worker works."""
    [heavy] = [one for one in queries(extent) if one.name == "max_over_time"]
    freed: list[float] = []
    operator = Connection(kalla)
    for _ in range(10 * CANCELLED):  # of few data a query may end before it is killed
        if len(freed) == CANCELLED:
            break
        asking = threading.Thread(target=_ask_in_vain, args=(kalla, heavy))
        asking.start()
        while asking.is_alive() and not _work(kalla):
            time.sleep(0.001)
        live = [one for one in operator.document("/api/queries") if one["live"]]
        began = time.monotonic()
        if live and operator.delete(f"/api/queries/{live[0]['query_id']}"):
            while _work(kalla):
                time.sleep(0.001)
            freed.append(time.monotonic() - began)
        asking.join()
    operator.close()
    return freed


def _ask_in_vain(kalla: Target, heavy: Asked) -> None:
    connection = Connection(kalla)
    with suppress(RuntimeError):
        connection.ask(heavy)
    connection.close()


def _work(kalla: Target) -> float:
    """Work units that run or wait on any query worker."""
    found = 0.0
    for port in kalla.query_workers:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().decode().splitlines():
            name, _, value = line.partition(" ")
            if name in ("kalla_query_worker_running", "kalla_query_worker_queue_depth"):
                found += float(value)
        connection.close()
    return found


def _measured(
    extent: Extent,
    asked: Asked,
    kalla: Target,
    prometheus: Target,
    alone: OneProcess,
    repeat: int,
) -> list[dict[str, object]]:
    """The first question warms, and is compared; then all are asked in turns.

    Beside Prometheus: a light query against its goal, a heavy one against one process.
    """
    ours, theirs = Connection(kalla), Connection(prometheus)
    agree(asked, ours.answer(asked), theirs.answer(asked))
    alone.seconds(asked)
    seen: dict[str, list[Seen]] = {"ours": [], "theirs": []}
    engine: list[float] = []
    for _ in range(LIGHT_ASKED if asked.light else repeat):
        seen["ours"].append(ours.ask(asked))
        seen["theirs"].append(theirs.ask(asked))
        if not asked.light:
            engine.append(alone.seconds(asked))
    ours.close()
    theirs.close()
    line = _compared(
        f"{extent.name}_{asked.name}",
        _figures(asked, seen["ours"]),
        _figures(asked, seen["theirs"]),
        "s",
        cpu=round(statistics.median(one.cpu for one in seen["ours"]), 3),
        peer_cpu=round(statistics.median(one.cpu for one in seen["theirs"]), 3),
        answer_bytes=seen["ours"][0].bytes,
        query=asked.text,
        figure="p95" if asked.light else "median",
    )
    note(
        f"{line['name']}: {line['ours']} s against {line['peer']} s; "
        f"CPU {line['cpu']} s against {line['peer_cpu']} s"
    )
    figures = _figures(asked, seen["ours"])
    if asked.light:
        goal = _against_goal(f"{line['name']}_p95", figures[0], LIGHT_SECONDS, "s")
        return [line, goal]
    name = f"{line['name']}_against_one_process"
    beside = _compared(name, figures, engine, "s", peer="the engine in one process", goal=1.25)
    return [line, beside]


async def snapshot(database_url: str, data_dir: Path) -> SegmentSource:
    settings = Settings(data_dir=data_dir, database=DatabaseSettings(url=SecretStr(database_url)))
    async with Database(settings.database) as database:
        return await MetricStore(settings, database).snapshot(-(2**62), 2**62)


class OneProcess:
    """The engine over the same segments in this process, a thread for each query worker."""

    def __init__(self, source: SegmentSource) -> None:
        self._engine = Engine(source, limits=Limits(seconds=600.0), workers=QUERY_WORKERS)

    def seconds(self, asked: Asked) -> float:
        """Until the answer is encoded."""
        began = time.monotonic()
        if asked.step:
            answer = self._engine.range(asked.text, asked.start, asked.end, asked.step)
        else:
            answer = self._engine.instant(asked.text, asked.end)
        deque(pieces(answer, asked.end, 0), maxlen=0)
        return time.monotonic() - began


class Connection:
    """Asks one query at a time; timed is from the request to the last byte of the answer."""

    def __init__(self, target: Target) -> None:
        address = urlsplit(target.url)
        self._target = target
        self._headers = {"Authorization": f"Bearer {target.token}"}
        self._connection = http.client.HTTPConnection(
            str(address.hostname), address.port, timeout=600
        )

    def ask(self, asked: Asked) -> Seen:
        before, began = self._target.cpu_seconds(), time.monotonic()
        content = self._content(asked)
        seconds = time.monotonic() - began
        return Seen(seconds, self._target.cpu_seconds() - before, len(content))

    def answer(self, asked: Asked) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self._content(asked))
        return found

    def document(self, path: str) -> Any:
        self._connection.close()
        self._connection.request("GET", path, headers=self._headers)
        return json.loads(self._connection.getresponse().read())

    def delete(self, path: str) -> bool:
        """False where there is nothing to delete any more."""
        self._connection.close()
        self._connection.request("DELETE", path, headers=self._headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status == 200

    def close(self) -> None:
        self._connection.close()

    def _content(self, asked: Asked) -> bytes:
        """Over a connection that is new: an idle one is closed while the other server is asked."""
        self._connection.close()
        self._connection.request("GET", asked.path, headers=self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{asked.text}: {answer.status} {content[:300]!r}")
        return content


def agree(asked: Asked, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """A figure counts only if both have computed the same."""
    mine, other = _points(asked, ours), _points(asked, theirs)
    if mine.keys() != other.keys() or not mine:
        raise RuntimeError(f"{asked.text}: {len(mine)} points against {len(other)}")
    for place, values in mine.items():
        for value, peer in zip(values, other[place], strict=True):
            if not math.isclose(value, peer, rel_tol=_CLOSE):
                raise RuntimeError(f"{asked.text}: {place} is {value} against {peer}")


def _points(asked: Asked, document: Mapping[str, Any]) -> dict[tuple[str, float], list[float]]:
    found: defaultdict[tuple[str, float], list[float]] = defaultdict(list)
    for row in document["data"]["result"]:
        labels = "" if asked.any_of_equals else json.dumps(row["metric"], sort_keys=True)
        for moment, value in row.get("values") or [row["value"]]:
            found[labels, moment].append(float(value))
    return {place: sorted(values) for place, values in found.items()}


def _figures(asked: Asked, seen: Sequence[Seen]) -> list[float]:
    seconds = sorted(one.seconds for one in seen)
    return [seconds[int(len(seconds) * 0.95) - 1]] if asked.light else seconds


def _compared(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    unit: str,
    peer: str = PEER,
    **facts: object,
) -> dict[str, object]:
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        "name": name,
        "ours": round(mine, 4),
        "peer": round(other, 4),
        "peer_name": peer,
        "unit": unit,
        "ratio": round(mine / other, 3),
        "seen": [round(one, 4) for one in ours],
        **facts,
    }


def _bytes_of_blocks(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
