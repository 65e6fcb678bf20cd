"""Checks every part that Kalla needs, wherever it runs; waits briefly, reveals no secret."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import nats
import nats.errors
import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from kalla import database
from kalla.errors import KallaError
from kalla.local import folder
from kalla.local.servers import java
from kalla.redaction import scrub
from kalla.settings import Effective, Settings
from kalla.work.state import presence

TIMEOUT = 4.0


@dataclass(frozen=True)
class Finding:
    part: str
    version: str = ""
    address: str = ""
    state: Literal["ok", "away", "gone", "unused"] = "ok"  # gone: others do its work
    reason: str = ""


async def examine(effective: Effective) -> list[Finding]:
    """A finding for every part, the most asked-for first. All are checked in parallel."""
    settings = effective.settings
    groups = await asyncio.gather(
        asyncio.to_thread(_machine, effective),
        _postgres_and_workers(settings),
        _nats(settings),
        _spark(settings),
        _api(settings),
    )
    machine, (postgres, workers), nats_finding, spark, api = groups
    return [*machine, postgres, nats_finding, spark, api, *workers]


def _machine(effective: Effective) -> list[Finding]:
    settings = effective.settings
    python = Finding("python", platform.python_version(), sys.executable)
    return [python, _java(effective), _disk(settings)]


def _java(effective: Effective) -> Finding:
    origin = effective.origins.get("spark.remote", "")
    if origin and not origin.startswith("kalla up"):
        return Finding("java", state="unused", reason="Spark runs elsewhere")
    try:
        found = java.find()
    except KallaError as error:
        return Finding("java", state="away", reason=str(error))
    return Finding("java", found.version, str(found.home))


def _disk(settings: Settings) -> Finding:
    place = settings.data_dir
    while not place.exists():
        place = place.parent
    free, wanted = shutil.disk_usage(place).free, settings.up.min_free_bytes
    free_words = f"{folder.in_words(free)} free"
    if free < wanted:
        reason = f"{free_words}, {folder.in_words(wanted)} are required"
        return Finding("disk", address=str(settings.data_dir), state="away", reason=reason)
    return Finding("disk", address=str(settings.data_dir), reason=free_words)


async def _postgres_and_workers(settings: Settings) -> tuple[Finding, list[Finding]]:
    url = settings.database.url.get_secret_value()
    address = ""
    try:
        address = _database_address(url)
        async with asyncio.timeout(TIMEOUT):
            connection: database.Connection
            async with await AsyncConnection.connect(
                url, row_factory=dict_row, connect_timeout=int(TIMEOUT)
            ) as connection:
                number = connection.info.server_version
                version = f"{number // 10000}.{number % 10000}"
                try:
                    workers = _workers(await presence.workers(connection))
                except psycopg.errors.UndefinedTable:
                    reason = "its tables are missing: run `kalla migrate`"
                    postgres = Finding("postgres", version, address, "away", reason)
                    return postgres, [_no_workers("the database has no tables yet")]
    except (psycopg.Error, OSError, TimeoutError) as error:
        postgres = Finding("postgres", "", address, "away", sentence(error))
        return postgres, [_no_workers("unknown without Postgres")]
    return Finding("postgres", version, address), workers


def _workers(records: list[presence.WorkerRecord]) -> list[Finding]:
    if not records:
        return [_no_workers("none is running")]
    silence: Literal["gone", "away"] = (
        "gone" if any(record.state != "silent" for record in records) else "away"
    )
    return [_worker(record, silence) for record in records]


def _worker(record: presence.WorkerRecord, silence: Literal["gone", "away"]) -> Finding:
    part = f"worker {record.worker}"
    if record.state == "silent":
        words = f"silent for {record.silent_seconds:.0f} s"
        return Finding(part, record.version, record.address, silence, words)
    return Finding(part, record.version, record.address, "ok", record.state)


def _no_workers(reason: str) -> Finding:
    return Finding("workers", state="away", reason=reason)


async def _nats(settings: Settings) -> Finding:
    if settings.wake.channel != "nats":
        return Finding("nats", state="unused", reason="wake.channel is postgres")
    url = settings.wake.nats_url.get_secret_value()
    address = _host_and_port(url)
    if error_message := await _unreachable(url, 4222):
        return Finding("nats", "", address, "away", error_message)
    reasons: list[Exception] = []

    async def note(error: Exception) -> None:
        reasons.append(error)  # connect() itself only says that no server was to its liking

    version = ""
    try:
        async with asyncio.timeout(TIMEOUT):
            client = await nats.connect(
                url, connect_timeout=2, allow_reconnect=False, error_cb=note
            )
            try:
                connected = client.connected_server_version
                version = f"{connected.major}.{connected.minor}.{connected.patch}"
                await client.jetstream().account_info()
            finally:
                await client.close()
    except nats.errors.Error as error:
        reason = "JetStream is off" if version else sentence(reasons[-1] if reasons else error)
        return Finding("nats", version, address, "away", reason)
    except (OSError, TimeoutError) as error:
        return Finding("nats", version, address, "away", sentence(error))
    return Finding("nats", version, address, reason="JetStream")


async def _spark(settings: Settings) -> Finding:
    remote = settings.spark.remote
    address = _host_and_port(remote)
    if error_message := await _unreachable(remote, 15002):
        return Finding("spark", "", address, "away", error_message)
    version, reason = await asyncio.to_thread(
        _ask_spark, remote, settings.spark.token.get_secret_value()
    )
    return Finding("spark", version, address, "away" if reason else "ok", reason)


def _ask_spark(remote: str, token: str) -> tuple[str, str]:
    """(version, trouble). One call, not a session: that takes the server seconds to make."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

    request = base_pb2.AnalyzePlanRequest(
        session_id="00000000-0000-4000-8000-000000000000",
        user_context=base_pb2.UserContext(user_id="kalla doctor"),
        spark_version=base_pb2.AnalyzePlanRequest.SparkVersion(),
    )
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with DefaultChannelBuilder(remote).toChannel() as channel:
        try:
            stub: Any = base_pb2_grpc.SparkConnectServiceStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.AnalyzePlan(request, timeout=TIMEOUT, metadata=metadata)
        except grpc.RpcError as error:
            return "", scrub(f"{error.code().name}: {error.details()}")
    return str(answer.spark_version.version), ""


async def _api(settings: Settings) -> Finding:
    url = settings.api.url.rstrip("/")
    if error_message := await _unreachable(url, 443 if url.startswith("https") else 80):
        return Finding("api", "", url, "away", error_message)
    try:
        # The machine's own API is never behind the proxy of HTTP_PROXY.
        local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
        async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=not local) as client:
            answer = await client.get(f"{url}/health")
    except httpx.HTTPError as error:
        return Finding("api", "", url, "away", sentence(error))
    if answer.status_code != 200:
        return Finding("api", "", url, "away", f"/health answers {answer.status_code}")
    return Finding("api", _version_in(answer), url)


async def _unreachable(url: str, default_port: int) -> str:
    """Why this address cannot be reached; empty if it can."""
    try:
        target = urlsplit(url)
        async with asyncio.timeout(TIMEOUT):
            _, writer = await asyncio.open_connection(target.hostname, target.port or default_port)
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError, ValueError) as error:
        return sentence(error)
    return ""


def _version_in(answer: httpx.Response) -> str:
    try:
        document: Any = answer.json()
    except ValueError:
        return ""
    return str(document.get("version", "")) if isinstance(document, dict) else ""


def _database_address(url: str) -> str:
    parts = conninfo_to_dict(url)
    host, port = parts.get("host", "localhost"), parts.get("port", 5432)
    return f"{host}:{port}/{parts.get('dbname', '')}"


def _host_and_port(url: str) -> str:
    """Without the user and password in front."""
    return urlsplit(url).netloc.rpartition("@")[2]


def sentence(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    text = scrub(str(error)).strip() or type(error).__name__
    # libpq repeats the address before it comes to the point.
    return text.splitlines()[0].rpartition(" failed: ")[2][:300]
