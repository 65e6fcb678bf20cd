"""Rows/s of a reconciliation from sources to evidence on disk, against DuckDB by hand, datacompy on
Polars and on Spark, and Spark's own join: the same rows in the same run, warm, interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from bench import reconcile_data, reconcile_demo
from bench.memory import Peak
from bench.reconcile_data import Pair
from bench.reconcile_peers import (
    Apart,
    Contender,
    DatacompySpark,
    Kalla,
    KallaFromPostgres,
    Seen,
    Skipped,
    SparkSql,
    fill_postgres,
    fresh,
    with_duckdb,
    with_kernel,
    with_polars,
    with_profile,
)
from kalla import logs
from kalla.local import ports
from kalla.local.servers.postgres import Postgres
from kalla.local.servers.spark import Spark
from kalla.settings import Spark as SparkSettings
from kalla.spark.session import connect

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

DUCKDB, KERNEL, PARQUET = "DuckDB", "kalla's kernel", "kalla from Parquet"
POLARS = "datacompy on Polars"
BUCKETS = 4
IN_BUCKETS = f"kalla in {BUCKETS} buckets"
PEERS_ON_SPARK = (SparkSql.name, DatacompySpark.name)
ON_SPARK = (
    PARQUET,
    IN_BUCKETS,
    KallaFromPostgres.name_of("staged"),
    KallaFromPostgres.name_of("direct"),
    *PEERS_ON_SPARK,
)
# Besides DuckDB, which everything is held against.
PEERS = {PARQUET: (POLARS, DatacompySpark.name, SparkSql.name), IN_BUCKETS: (SparkSql.name,)}

Figures = dict[str, list[Seen]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100k,1m,5m", help="rows a side: 100k,1m,5m,20m")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--key", choices=("number", "text", "demo"), default="number")
    parser.add_argument("--only", default="", help="contenders whose names contain one of these")
    parser.add_argument("--data", type=Path, help="keep the made-up rows here")
    parser.add_argument("--profile", type=Path, default=Path("build/reconcile-profile.json"))
    parser.add_argument(
        "--datacompy-spark-rows", default="5m", help="datacompy on Spark takes minutes above 1m"
    )
    chosen = parser.parse_args()
    logs.configure("warning", "text")
    sizes = [_rows(each) for each in chosen.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="kalla-bench-") as folder, ExitStack() as stack:
        place = Path(folder)
        make = reconcile_demo.make if chosen.key == "demo" else reconcile_data.make
        pairs = [make(chosen.data or place / "data", rows) for rows in sizes]
        wanted = chosen.only.split(",")
        rivals = [each for each in _alone(chosen.key) if _is_wanted(each.name, wanted)]
        if any(_is_wanted(name, wanted) for name in ON_SPARK):
            most = _rows(chosen.datacompy_spark_rows)
            tables = [KallaFromPostgres.name_of(read) for read in ("staged", "direct")]
            is_filled = chosen.key != "demo" and any(_is_wanted(name, wanted) for name in tables)
            filled = pairs if is_filled else []
            others = _on_spark(stack, place / "ours", filled, chosen.key)
            if chosen.key != "demo" and any(_is_wanted(name, wanted) for name in PEERS_ON_SPARK):
                others += _peers_on_spark(stack, place / "peers", chosen.key, most)
            rivals += [each for each in others if _is_wanted(each.name, wanted)]
        for each in rivals:
            stack.callback(each.close)
        lines = []
        seconds: dict[int, Figures] = {}
        for pair in pairs:
            seconds[pair.rows] = measure(rivals, pair, place / "out", chosen.repeat)
            lines += compare(pair.rows, seconds[pair.rows])
        lines += growth(seconds)
        if any(each.name == KERNEL for each in rivals):
            write_profile(pairs[-1], fresh(place / "out"), chosen.key, chosen.profile)
        for line in sorted(lines, key=lambda line: line["name"] == headline(max(sizes))):
            print(json.dumps(line))


def measure(rivals: Sequence[Contender], pair: Pair, folder: Path, repeat: int) -> Figures:
    """Interleaved repetitions, so that a noisy minute hits all alike; the first is for warmth.

    Each in an order of its own: nobody always comes after the same one, and what that one left.
    """
    seen: Figures = {}
    skipped: set[str] = set()
    for number in range(repeat + 1):
        for rival in random.Random(number).sample(rivals, len(rivals)):
            if rival.name in skipped or pair.rows > rival.most_rows:
                continue
            # What takes minutes is warm enough after its smaller sizes.
            if number == 0 and isinstance(rival, DatacompySpark) and pair.rows >= 1_000_000:
                continue
            empty = fresh(folder)
            os.sync()  # or each would wait for what the one before has left to be written
            try:
                processes = {each.process for each in rivals if each.process}
                with Peak(processes - {rival.process}) as peak:
                    found = rival.run(pair, empty)
            except Skipped as why:
                note(f"{rival.name}: skipped: {why}")
                skipped.add(rival.name)
                continue
            said = f"{pair.rows:,} rows a side: {rival.name} {found.seconds:.2f} s"
            note(f"{said}, {peak.mebibytes:,} MiB in all" + (" (warming)" if number == 0 else ""))
            if number:
                used = found.peak or peak.mebibytes
                seen.setdefault(rival.name, []).append(
                    Seen(found.seconds, found.parts, found.cpu, used)
                )
    return seen


def compare(rows: int, seen: Figures) -> list[dict[str, object]]:
    """Kalla against each peer at one size."""
    lines: list[dict[str, object]] = []
    duckdb = _median(seen.get(DUCKDB, ()))
    if KERNEL in seen and duckdb:
        matching = [each.parts["load"] + each.parts["match"] for each in seen[KERNEL]]
        lines.append(_line(f"match_alone_{_short(rows)}", matching, duckdb, DUCKDB, rows))
        whole = [each.seconds for each in seen[KERNEL]]
        cpu = [each.cpu for each in seen[KERNEL] if each.cpu]
        peer = [each.cpu for each in seen[DUCKDB] if each.cpu]
        lines.append(_line(f"match_and_evidence_{_short(rows)}", whole, duckdb, DUCKDB, rows))
        lines.append(
            _line(f"cpu_seconds_{_short(rows)}", cpu, statistics.median(peer), DUCKDB, rows)
        )
    for name, used in seen.items():
        if not name.startswith("kalla ") or not duckdb:
            continue
        words = name.replace(" ", "_")
        taken = [each.seconds for each in used]
        rates = [2 * rows / each for each in taken]
        lines.append(
            _line(f"{words}_{_short(rows)}_rate", rates, 2 * rows / duckdb, DUCKDB, rows, "rows/s")
        )
        peaks = [float(each.peak) for each in used if each.peak]
        limit = max(each.peak or 0 for each in seen[DUCKDB])
        lines.append(_line(f"{words}_{_short(rows)}_peak", peaks, limit, DUCKDB, rows, "MiB"))
        for peer_name in PEERS.get(name, ()):
            if peer_name in seen:
                other = _median(seen[peer_name])
                against = f"{words}_{_short(rows)}_against_{peer_name.replace(' ', '_')}"
                lines.append(_line(against, taken, other, peer_name, rows))
    if PARQUET in seen and duckdb:
        taken = [each.seconds for each in seen[PARQUET]]
        lines.append(_line(headline(rows), taken, duckdb, DUCKDB, rows))
    return lines


def growth(seen: dict[int, Figures]) -> Iterator[dict[str, object]]:
    """How the kernel's seconds grow, against growing with the rows, from a million on."""
    sizes = [rows for rows in sorted(seen) if rows >= 1_000_000 and KERNEL in seen[rows]]
    for rows in sizes[1:]:
        first = sizes[0]
        taken = [each.seconds for each in seen[rows][KERNEL]]
        linear = _median(seen[first][KERNEL]) * rows / first
        name = f"growth_{_short(first)}_to_{_short(rows)}"
        yield _line(name, taken, linear, "linear growth", rows)


def headline(rows: int) -> str:
    return f"seconds_from_parquet_{_short(rows)}"


def write_profile(pair: Pair, folder: Path, key: str, path: Path) -> None:
    """Where the kernel's time goes: its stages, and its statements, the longest first."""
    rival = Apart("profile", with_profile, key)
    try:
        rival.run(pair, fresh(folder))
        found = rival.run(pair, fresh(folder))
    finally:
        rival.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    longest = sorted(found.parts.items(), key=lambda part: -part[1])
    document = {"rows": pair.rows, "seconds": found.seconds, "cpu": found.cpu, "parts": longest}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    note(f"where the time goes: {path}")


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    return any(part in name for part in wanted)


def _alone(key: str) -> list[Contender]:
    found: list[Contender] = [Apart(DUCKDB, with_duckdb, key), Apart(KERNEL, with_kernel, key)]
    # The peers compare by one key: the demo's four rules are for DuckDB alone.
    return found if key == "demo" else [*found, Apart(POLARS, with_polars, key)]


def _on_spark(stack: ExitStack, folder: Path, filled: Sequence[Pair], key: str) -> list[Contender]:
    _, session = _spark(stack, folder)
    postgres = Postgres(folder, ports.choose_free())
    postgres.start()
    stack.callback(postgres.stop)
    url = postgres.url("postgres")
    for pair in filled:
        fill_postgres(url, pair)
    if key == "demo":
        return [Kalla(session, key), Kalla(session, key, BUCKETS)]
    return [
        Kalla(session, key),
        Kalla(session, key, BUCKETS),
        KallaFromPostgres(session, key, url, "staged"),
        KallaFromPostgres(session, key, url, "direct"),
    ]


def _peers_on_spark(stack: ExitStack, folder: Path, key: str, most: int) -> list[Contender]:
    """On a Spark of their own: Java keeps the memory that a join once took."""
    server, session = _spark(stack, folder)
    process = server.process.pid if server.process else None
    return [SparkSql(session, key, process), DatacompySpark(session, key, process, most)]


def _spark(stack: ExitStack, folder: Path) -> tuple[Spark, SparkSession]:
    server = Spark(folder, ports.choose_free(), memory="1g")
    server.start()
    stack.callback(server.stop)
    session = connect(SparkSettings(remote=server.remote, token=SecretStr(server.token)))
    stack.callback(session.stop)
    return server, session


def _line(
    name: str,
    ours: Sequence[float],
    peer: float,
    peer_name: str,
    rows: int,
    unit: str = "s",
) -> dict[str, object]:
    middle = statistics.median(ours)
    return {
        "name": name,
        "ours": round(middle, 3),
        "peer": round(peer, 3),
        "peer_name": peer_name,
        "unit": unit,
        "ratio": round(middle / peer, 3),
        "rows_a_side": rows,
        "seen": [round(each, 3) for each in ours],
    }


def _median(seen: Sequence[Seen]) -> float:
    return statistics.median(each.seconds for each in seen) if seen else 0.0


def _rows(text: str) -> int:
    units = {"k": 1_000, "m": 1_000_000}
    return int(text[:-1]) * units[text[-1].lower()] if text[-1].isalpha() else int(text)


def _short(rows: int) -> str:
    return f"{rows // 1_000_000}m" if rows % 1_000_000 == 0 else f"{rows // 1_000}k"


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
