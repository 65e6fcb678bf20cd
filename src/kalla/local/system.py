"""The whole system on one machine, as `kalla up` runs it: started, kept and stopped in order."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from psycopg import AsyncConnection
from psycopg.rows import dict_row
from pydantic import SecretStr

from kalla import database, secrets
from kalla.errors import StartFailed
from kalla.local import folder, ports
from kalla.local.process import Server
from kalla.local.program import STOP_SECONDS, Program, reachable
from kalla.local.servers.clickhouse import ClickHouse
from kalla.local.servers.kafka import Kafka
from kalla.local.servers.nats import Nats
from kalla.local.servers.postgres import Postgres
from kalla.local.servers.spark import Spark
from kalla.local.supervisor import News, Supervisor
from kalla.settings import Effective
from kalla.threads import spread
from kalla.web.tokens import login_links, tokens

# One Ctrl-C can arrive twice: from the terminal and from make, from systemd and from a shell.
_SAME_GESTURE_SECONDS = 1.0


class System:
    """A server the user has named in kalla.toml or KALLA_* is used, and not started here."""

    def __init__(self, effective: Effective, tell: Callable[[News], None]) -> None:
        self.settings = settings = effective.settings
        self._tell = tell
        self._stopping = threading.Event()
        self._hurrying = threading.Event()
        self._asked_at = 0.0
        self._running_file = settings.data_dir / "up.toml"

        given = effective.origins
        up = settings.up
        data_dir = settings.data_dir
        self.postgres = (
            None if "database.url" in given else Postgres(data_dir, _port(up.postgres_port))
        )
        self.nats = (
            None
            if "wake.nats_url" in given or settings.wake.channel != "nats"
            else Nats(data_dir, _port(up.nats_port))
        )
        self.spark = (
            None
            if "spark.remote" in given
            else Spark(data_dir, _port(up.spark_port), up.spark_cores, up.spark_memory)
        )
        # Servers that belong to users in production; here they are for trying out.
        self.extras: list[Server] = []
        if "kafka" in up.servers:
            self.extras.append(Kafka(data_dir, _port(up.kafka_port)))
        if "clickhouse" in up.servers:
            self.extras.append(ClickHouse(data_dir, _port(up.clickhouse_port)))
        self.api = _api(effective)
        self.workers = _workers(effective)
        self.query_workers = [] if "query.workers" in given else _query_workers(effective)
        addresses = ",".join(
            f"{reachable(one.host)}:{one.control_port}" for one in self.query_workers
        )
        self._query_addresses = addresses
        self._supervisors: dict[Server, Supervisor] = {}

    def run(self, ready: Callable[[str], None]) -> None:
        """Start everything, call `ready` with the login link, keep it running until a signal."""
        data_dir = self.settings.data_dir
        with folder.held(data_dir), self._signals():
            self._running_file.unlink(missing_ok=True)
            folder.require_space(data_dir, self.settings.up.min_free_bytes)
            self._make_key()
            try:
                self._check()
                link = self._start()
                if link:
                    ready(link)
                    self._stopping.wait()
            finally:
                self._stop()
                self._running_file.unlink(missing_ok=True)

    def _make_key(self) -> None:
        """The key of the encrypted secrets, once: without it they could not be opened again."""
        path = secrets.key_file(self.settings)
        if not self.settings.secrets.key.get_secret_value() and not path.exists():
            folder.write_private(path, secrets.new_key() + "\n")

    def _check(self) -> None:
        """Checks everything that could prevent a start, before anything is started."""
        servers = [
            server
            for server in (
                self.postgres,
                self.nats,
                self.spark,
                self.api,
                *self.workers,
                *self.query_workers,
                *self.extras,
            )
            if server
        ]
        failures = list(spread(_failure, servers, len(servers)))
        if sentences := [str(failure) for failure in failures if failure]:
            raise StartFailed("\n".join(sentences))

    def _start(self) -> str | None:
        """The login link; None when a signal came first."""
        # Spark is the slow one: nothing waits for it but the end.
        self._keep(self.postgres, self.nats, self.spark, *self.extras)
        if not self._await(self.postgres):
            return None
        if self.postgres:
            self.postgres.create_database()
        token, code = asyncio.run(self._open_database())
        self._write_running_file(token)
        if not self._await(self.nats):
            return None
        started = (self.api, *self.workers, *self.query_workers)
        self._keep(*started)
        if not self._await(*started, self.spark, *self.extras):
            return None
        return login_links.address(self._api_url(), code)

    def _keep(self, *servers: Server | None) -> None:
        for server in servers:
            if server:
                self._supervisors[server] = Supervisor(server, self._tell, self._hurrying.is_set)
                self._supervisors[server].start()

    def _await(self, *servers: Server | None) -> bool:
        """Wait until these are up, or raise any failure; False when a signal came first."""
        wanted = [self._supervisors[server] for server in servers if server]
        while not self._stopping.is_set():
            for supervisor in self._supervisors.values():
                if supervisor.failure:
                    raise supervisor.failure
            if all(supervisor.settled.is_set() for supervisor in wanted):
                return True
            self._stopping.wait(0.05)
        return False

    def _stop(self) -> None:
        """Stops workers first, the servers they use last."""
        servers = ([self.spark], self.extras, [self.nats], [self.postgres])
        for group in (self.workers, [self.api], self.query_workers, *servers):
            supervisors = [
                self._supervisors[server] for server in group if server in self._supervisors
            ]
            for supervisor in supervisors:
                supervisor.leave()
            for supervisor in supervisors:
                supervisor.join()

    async def _open_database(self) -> tuple[str, str]:
        """Migrate; the token of this folder's commands, and the code of the first login link."""
        settings = self.settings.database
        if self.postgres:
            settings = settings.model_copy(update={"url": SecretStr(self.postgres.url())})
        await database.migrate(settings)
        connection: database.Connection
        async with await AsyncConnection.connect(
            settings.url.get_secret_value(), row_factory=dict_row
        ) as connection:
            token = await tokens.create(connection, name="kalla up", role="admin", replace=True)
            return token, await login_links.create(connection, "kalla up", "admin")

    def _write_running_file(self, token: str) -> None:
        """Writes the addresses for other commands in this folder; settings.load reads them."""
        sections: dict[str, Mapping[str, str]] = {"api": {"url": self._api_url(), "token": token}}
        if self.query_workers:
            sections["query"] = {"workers": self._query_addresses}
        if self.postgres:
            sections["database"] = {"url": self.postgres.url()}
        if self.nats:
            sections["wake"] = {"nats_url": self.nats.url}
        if self.spark:
            sections["spark"] = {"remote": self.spark.remote, "token": self.spark.token}
        lines = ["# Written by `kalla up`, removed when it stops."]
        for name, values in sections.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(text)}" for key, text in values.items())]
        folder.write_private(self._running_file, "\n".join(lines) + "\n")

    def _api_url(self) -> str:
        return f"http://{reachable(self.api.host)}:{self.api.port}"

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal stops, a later one hurries."""

        def asked(_number: int, _frame: FrameType | None) -> None:
            now = time.monotonic()
            if not self._stopping.is_set():
                self._asked_at = now
                self._stopping.set()
            elif now - self._asked_at > _SAME_GESTURE_SECONDS:
                self._hurrying.set()

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, asked) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _api(effective: Effective) -> Program:
    settings = effective.settings
    port = _port(settings.api.port)
    return Program(
        "api",
        ["api"],
        settings.data_dir,
        settings.api.host,
        port,
        "api.port",
        variables={"KALLA_API_PORT": str(port)},
        other_ports={"api.metrics_port": settings.api.metrics_port},
    )


def _workers(effective: Effective) -> list[Program]:
    settings = effective.settings
    if settings.up.workers == "auto":
        return [_autoscaler(effective)]
    first = settings.worker.port
    programs = []
    for index in range(settings.up.workers):
        port = first + index if first else ports.choose_free()
        programs.append(
            Program(
                f"worker-{index + 1}",
                ["worker", "--port", str(port)],
                settings.data_dir,
                settings.worker.host,
                port,
                "worker.port",
                stop_seconds=settings.worker.drain_seconds + STOP_SECONDS,
                # Its /health tells what a restart cures; the API's is bad without Postgres too.
                watched=True,
            )
        )
    return programs


class QueryWorkerProgram(Program):
    """Answers on /health at its artifact port; its control port is another."""

    control_port: int


def _query_workers(effective: Effective) -> list[QueryWorkerProgram]:
    settings = effective.settings
    own = settings.query_worker
    programs = []
    for index in range(settings.up.query_workers):
        # Two consecutive ports each.
        control = own.port + 2 * index if own.port else ports.choose_free()
        artifacts = own.artifact_port + 2 * index if own.artifact_port else ports.choose_free()
        name = f"query-worker-{index + 1}"
        program = QueryWorkerProgram(
            name,
            [
                "query-worker",
                f"--port={control}",
                f"--artifact-port={artifacts}",
                f"--name={name}",
            ],
            settings.data_dir,
            own.host,
            artifacts,
            "query_worker.artifact_port",
            stop_seconds=own.drain_seconds + 5,
            watched=True,
            other_ports={"query_worker.port": control},
        )
        program.control_port = control
        programs.append(program)
    return programs


def _autoscaler(effective: Effective) -> Program:
    """`kalla autoscale`, which starts and drains the workers; one is always kept ready."""
    settings = effective.settings
    port = ports.choose_free()
    least = settings.scaling.min_workers if "scaling.min_workers" in effective.origins else 1
    return Program(
        "autoscale",
        ["autoscale", "--port", str(port), "--min", str(least)],
        settings.data_dir,
        settings.worker.host,
        port,
        "worker.host",
        stop_seconds=settings.worker.drain_seconds + STOP_SECONDS + 10,
        watched=True,
    )


def _port(configured: int) -> int:
    return configured or ports.choose_free()


def _failure(server: Server) -> StartFailed | None:
    try:
        server.check()
    except StartFailed as failure:
        return failure
    return None
