"""A Spark standalone cluster for tests: a master, two workers of a core each, a Connect server.

Its executors have no writable place in common, where the system lets processes have mounts of their
own. It takes half a minute to start, so that one serves the whole session; mark its tests `spark`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from kalla.local import ports
from kalla.local.process import Server
from kalla.local.servers import java
from kalla.local.servers.spark import Spark
from kalla.settings import Spark as SparkSettings
from tests import isolation
from tests.servers import started

WORKERS = 2
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Daemon(Server):
    """A master or a worker of a standalone cluster."""

    start_seconds = 300.0

    def __init__(
        self, name: str, folder: Path, port: int, command: Sequence[str], *, isolated: bool = False
    ) -> None:
        super().__init__(name, port, folder / "logs")
        self._folder = folder / name
        self.own = self._folder / "own"  # what it and its executor write
        self._command = command
        self._isolated = isolated

    @property
    def version(self) -> str:
        return metadata.version("pyspark")

    def prepare(self) -> None:
        super().prepare()
        self.own.mkdir(parents=True, exist_ok=True)

    def command(self) -> Sequence[str]:
        command = [str(_home() / "bin" / "spark-class"), *self._command]
        return isolation.isolated(self.own, command) if self._isolated else command

    def environment(self) -> Mapping[str, str]:
        return {
            "SPARK_HOME": str(_home()),
            "SPARK_LOCAL_IP": ports.HOST,
            "SPARK_LOCAL_DIRS": str(self.own),
            "SPARK_WORKER_DIR": str(self.own),
            "TMPDIR": str(self.own),
            "NUMBA_CACHE_DIR": str(self.own),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={self.own} -XX:-UsePerfData",
            "SPARK_DAEMON_MEMORY": "256m",
            "JAVA_HOME": str(java.find().home_for_spark(self._folder)),
            "PYSPARK_PYTHON": sys.executable,
        }

    def probe(self) -> bool:
        return ports.answers(self.port)


class Connect(Spark):
    """The Connect server in front of a cluster."""

    start_seconds = 300.0

    def __init__(self, folder: Path, port: int, master: str) -> None:
        super().__init__(folder, port, memory="512m")
        self._master = master

    def command(self) -> Sequence[str]:
        *command, resource = super().command()
        settings = {
            "spark.master": self._master,
            "spark.authenticate": "false",  # its secret would have to be known to the workers too
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": str(WORKERS),
            # They are on one host, but do not see each other's disks.
            "spark.shuffle.readHostLocalDisk": "false",
        }
        flags = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        return [*command, *flags, resource]


@dataclass(frozen=True)
class Cluster:
    spark: SparkSettings
    workers: tuple[Daemon, ...]
    isolated: bool  # whether its executors have no writable place in common

    def spilling(self) -> set[str]:
        """The folders that tasks spill into, wherever they run: each task has some of its own."""
        return {
            str(found)
            for executor in self.executors()
            for worker in self.workers
            for found in Path(f"/proc/{executor}/root{worker.own}").glob("**/blockmgr-*/kalla-*")
        }

    def executors(self) -> set[int]:
        """The processes that run tasks now."""
        found = set()
        for worker in self.workers:
            assert worker.process is not None
            for child in psutil.Process(worker.process.pid).children(recursive=True):
                try:
                    if any(_EXECUTOR in part for part in child.cmdline()):
                        found.add(child.pid)
                except psutil.Error:  # it has just ended
                    continue
        return found


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    isolated = isolation.namespaces() is not None
    if not isolated and os.environ.get("CI") == "true" and os.geteuid() == 0:
        pytest.fail("no mount namespaces can be made here: unshare --mount")
    with standalone(tmp_path_factory.mktemp("cluster"), isolated=isolated) as cluster:
        yield cluster


@contextmanager
def standalone(folder: Path, *, isolated: bool = False) -> Iterator[Cluster]:
    port, *others = (ports.choose_free() for _ in range(3 + WORKERS))
    master = f"spark://{ports.HOST}:{port}"
    named = ["-h", ports.HOST]
    head = ["org.apache.spark.deploy.master.Master", *named]
    body = ["org.apache.spark.deploy.worker.Worker", *named, "-c", "1", "-m", "1g"]
    with ExitStack() as running:
        ui = str(others.pop())
        running.enter_context(
            started(Daemon("master", folder, port, [*head, "-p", str(port), "--webui-port", ui]))
        )
        workers = []
        for number in range(WORKERS):
            own = others.pop()
            command = [*body, "--webui-port", str(own), master]
            name = f"worker-{number}"
            workers.append(Daemon(name, folder, own, command, isolated=isolated))
            running.enter_context(started(workers[-1]))
        connect = Connect(folder, others.pop(), master)
        running.enter_context(started(connect))
        settings = SparkSettings(remote=connect.remote, token=SecretStr(connect.token))
        yield Cluster(settings, tuple(workers), isolated)


def _home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
