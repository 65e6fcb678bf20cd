"""Checks from inside a cluster: grants, executors, storage, clocks, versions."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import nats
import nats.errors
import psycopg
from nats.js.errors import NotFoundError

from kalla import database, release
from kalla.database import Database
from kalla.errors import KallaError, VersionSkew
from kalla.local.checkup import TIMEOUT, Finding, sentence
from kalla.plurals import counted
from kalla.settings import ROLES, Settings
from kalla.storage import Storage, is_s3, join
from kalla.work.state import presence
from kalla.work.wake.stream import STREAM, consumer

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from kalla.query.dispatch.worker_connection import WorkerConnection
    from kalla.query.protocol import control_pb2 as pb
    from kalla.query.protocol.peer_access import PeerAccess

_SKEW_SECONDS = 2.0
_ROUNDS = 5
_TASKS = 32  # enough for every executor of a usual cluster to get some
_GRANTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


async def examine_cluster(settings: Settings) -> list[Finding]:
    """A finding for each check, all run together."""
    groups = await asyncio.gather(
        _postgres(settings),
        _stream(settings),
        _query_workers(settings),
        asyncio.to_thread(_executors, settings),
    )
    return [finding for group in groups for finding in group]


async def _postgres(settings: Settings) -> list[Finding]:
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            Database(settings.database, name="kalla doctor") as opened,
            opened.transaction() as connection,
        ):
            return [
                await _grants(connection),
                await _clock(connection),
                await _versions(connection),
            ]
    except (psycopg.Error, OSError, TimeoutError, KallaError) as error:
        return [Finding("database", state="away", reason=sentence(error))]


async def _grants(connection: database.Connection) -> Finding:
    """Checks the grants that migrations and every process need."""
    cursor = await connection.execute(
        "SELECT c.relname AS name, p.privilege FROM pg_class AS c"
        " CROSS JOIN unnest(%(privileges)s::text[]) AS p (privilege)"
        " WHERE c.relnamespace = 'kalla'::regnamespace AND c.relkind = 'r'"
        "   AND NOT has_table_privilege(c.oid, p.privilege)"
        " ORDER BY 1, 2",
        {"privileges": list(_GRANTS)},
    )
    missing = [f"{row['privilege']} on {row['name']}" for row in await cursor.fetchall()]
    (row,) = await (
        await connection.execute(
            "SELECT has_schema_privilege('kalla', 'CREATE') AS may,"
            " current_setting('server_version_num')::integer AS number"
        )
    ).fetchall()
    if not row["may"]:
        missing.append("CREATE on the schema kalla")
    if row["number"] < 140_000:
        missing.append("Postgres 14 or newer")
    version = f"{row['number'] // 10000}.{row['number'] % 10000}"
    if missing:
        return Finding("grants", version, state="away", reason=f"missing: {', '.join(missing)}")
    return Finding("grants", version, reason="all that Kalla needs")


async def _clock(connection: database.Connection) -> Finding:
    before = time.time()
    (row,) = await (
        await connection.execute("SELECT extract(epoch FROM kalla.clock())::double precision AS at")
    ).fetchall()
    return _skew("clock of Postgres", row["at"] - (before + time.time()) / 2)


async def _versions(connection: database.Connection) -> Finding:
    try:
        await database.require_release(connection, "this process")
    except VersionSkew as error:
        return Finding("versions", release.version(), state="away", reason=str(error))
    workers = [w for w in await presence.workers(connection) if w.state != "silent"]
    ours = release.series(release.version())
    others = sorted({w.version for w in workers if release.series(w.version) != ours})
    if others:
        reason = f"workers of Kalla {', '.join(others)} run beside {release.version()}"
        return Finding("versions", release.version(), state="away", reason=reason)
    return Finding(
        "versions", release.version(), reason=f"{counted(len(workers), 'worker')} of this series"
    )


async def _stream(settings: Settings) -> list[Finding]:
    if settings.wake.channel != "nats":
        return [Finding("stream", state="unused", reason="wake.channel is postgres")]
    try:
        async with asyncio.timeout(TIMEOUT):
            client = await nats.connect(
                settings.wake.nats_url.get_secret_value(), allow_reconnect=False, connect_timeout=2
            )
            try:
                infos = await client.jetstream().consumers_info(STREAM)
            finally:
                await client.close()
    except NotFoundError:
        reason = f"there is no stream {STREAM}: an API or a worker makes it"
        return [Finding("stream", state="away", reason=reason)]
    except (nats.errors.Error, OSError, TimeoutError) as error:
        return [Finding("stream", state="away", reason=sentence(error))]
    missing = {consumer(role) for role in ROLES} - {info.name for info in infos}
    if missing:
        reason = f"no consumer {', '.join(sorted(missing))}"
        return [Finding("stream", address=STREAM, state="away", reason=reason)]
    return [Finding("stream", address=STREAM, reason=counted(len(infos), "consumer"))]


async def _query_workers(settings: Settings) -> list[Finding]:
    """Whether each can be reached with our token or certificate, and its version fits."""
    from kalla.query.discovery.addresses import discovery_of
    from kalla.query.protocol.peer_access import PeerAccess

    workers = settings.query.workers
    try:
        access = PeerAccess.of(settings.query)
        async with asyncio.timeout(TIMEOUT):
            addresses = await discovery_of(workers).addresses()
    except (KallaError, TimeoutError) as error:
        return [Finding("query workers", address=workers, state="away", reason=sentence(error))]
    if not addresses:
        return [Finding("query workers", address=workers, state="unused", reason="there is none")]
    return await asyncio.gather(*(_query_worker(each, access) for each in addresses))


async def _query_worker(address: str, access: PeerAccess) -> Finding:
    from kalla.query.dispatch.worker_connection import WorkerConnection

    connection = WorkerConnection(address, f"doctor-{secrets.token_hex(4)}", access, _Nobody())
    try:
        async with asyncio.timeout(TIMEOUT):
            while not (connection.is_open or connection.problem):  # noqa: ASYNC110 -- nobody notifies
                await asyncio.sleep(0.02)
    except TimeoutError:
        return Finding("query worker", address=address, state="away", reason="it does not answer")
    finally:
        await connection.close()
    state: Literal["ok", "away"] = "ok" if connection.is_open else "away"
    return Finding("query worker", connection.kalla_version, address, state, connection.problem)


class _Nobody:
    """Takes no work's messages: the doctor only wants to know whether a stream opens."""

    def joined(self, _: WorkerConnection) -> bool:
        return True

    def received(self, _: WorkerConnection, __: pb.ToApi) -> None:
        pass

    def lost(self, _: WorkerConnection) -> None:
        pass


@dataclass(frozen=True)
class ExecutorReport:
    """What one task reports about its executor."""

    executor: str
    version: str
    python: str
    at: float  # seconds since 1970, by its clock
    failures: Mapping[str, str]  # by place it could not write to


def _executors(settings: Settings) -> list[Finding]:
    """A kernel on every executor; it writes to each place."""
    from kalla.spark.session import connect

    try:
        session = connect(settings.spark)
    except KallaError as error:
        return [Finding("executors", state="away", reason=str(error))]
    storage = Storage.of(settings.storage)
    places = [settings.evidence_url, settings.staging_url, settings.uploads_url]
    if settings.storage.tables:  # elsewhere there are no dynamic tables, or only one machine
        places.append(settings.tables_folder)
    markers = {}
    found = []
    try:
        # Executors have nothing to do with metrics.
        for url in (*places, settings.metrics_url):
            marker = join(url, f".doctor-{secrets.token_hex(8)}")
            try:
                storage.write_text(marker, "kalla doctor")
                markers[url] = marker
            except (KallaError, OSError) as error:
                found.append(Finding("storage", address=url, state="away", reason=sentence(error)))
        shared = {url: markers[url] for url in places if url in markers}
        before = time.time()
        reports = _reports(session, report_kernel(storage, shared))
        after = time.time()
    except Exception as error:  # whatever Spark raises, the doctor reports it
        return [*found, Finding("executors", state="away", reason=sentence(error))]
    finally:
        session.stop()
        for marker in markers.values():
            with suppress(KallaError, OSError):
                storage.remove(marker)
    return found + _of_executors(reports, list(shared), before, after)


def _reports(
    session: SparkSession, kernel: Callable[[int], ExecutorReport]
) -> list[ExecutorReport]:
    """Asks until a round reaches no executor that the rounds before it did not."""
    from kalla.spark.placing import place

    reports: list[ExecutorReport] = []
    for _ in range(_ROUNDS):
        known = {report.executor for report in reports}
        reports += place(session, kernel, list(range(_TASKS)))
        if known == {report.executor for report in reports}:
            break
    return reports


def report_kernel(storage: Storage, markers: Mapping[str, str]) -> Callable[[int], ExecutorReport]:
    """The kernel: reads what the doctor wrote, so that a folder of the same name is not enough.

    Each task takes a moment, so that one executor does not take them all.
    """

    def look(_: int) -> ExecutorReport:
        failures = {}
        for url, marker in markers.items():
            try:
                storage.read_text(marker)
                own = f"{marker}-{secrets.token_hex(8)}"
                storage.write_text(own, "kalla doctor")
                storage.remove(own)
            except (KallaError, OSError) as error:
                failures[url] = str(error)
        time.sleep(0.1)
        return ExecutorReport(
            f"{socket.gethostname()} {os.getcwd()}",  # noqa: PTH109 -- as Spark has set it
            release.version(),
            platform.python_version(),
            time.time(),
            failures,
        )

    return look


def _of_executors(
    reports: Sequence[ExecutorReport], places: Sequence[str], before: float, after: float
) -> list[Finding]:
    executors = {report.executor: report for report in reports}
    pythons = sorted({report.python for report in reports})
    number = f"{counted(len(executors), 'executor')} answered"
    found = [Finding("executors", ", ".join({r.version for r in reports}), reason=number)]
    if pythons != [platform.python_version()]:
        reason = f"Python {', '.join(pythons)} there, {platform.python_version()} here"
        found.append(Finding("python of executors", state="away", reason=reason))
    failures = dict(item for report in reports for item in report.failures.items())
    for url, reason in failures.items():
        failed = {report.executor for report in reports if url in report.failures}
        where = f"{len(failed)} of {counted(len(executors), 'executor')}: {reason}"
        found.append(Finding("storage", address=url, state="away", reason=where[:500]))
    if not failures:
        local = [url for url in places if not is_s3(url)]
        note = f"; shared folders: {', '.join(local)}" if local else ""
        found.append(Finding("storage", reason=f"writable from every executor{note}"))
    skews = [_outside(report.at, before, after) for report in reports]
    found.append(_skew("clock of executors", max(skews, key=abs)))
    return found


def _outside(at: float, before: float, after: float) -> float:
    """How far a time is outside of the span in which it must have been read."""
    return min(at - before, 0.0) or max(at - after, 0.0)


def _skew(part: str, seconds: float) -> Finding:
    if abs(seconds) > _SKEW_SECONDS:
        return Finding(part, state="away", reason=f"{seconds:+.1f} s beside this machine's")
    return Finding(part, reason=f"within {_SKEW_SECONDS:g} s of this machine's")
