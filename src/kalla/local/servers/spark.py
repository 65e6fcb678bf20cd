"""The embedded Spark Connect server: local cores, loopback, a token, files in the data folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from kalla.errors import NotInstalled
from kalla.local import folder, ports
from kalla.local.process import Server
from kalla.local.servers import java
from kalla.spark.session import READING

# Warnings and worse: the default writes a dozen lines a query.
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %%d{yyyy-MM-dd HH:mm:ss} %%p %%c{1}: %%m%%n%%ex
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.appenderRef.outlived.ref = outlived
appender.outlived.type = File
appender.outlived.name = outlived
appender.outlived.fileName = %(outlived)s
appender.outlived.createOnDemand = true
appender.outlived.layout.type = PatternLayout
appender.outlived.layout.pattern = %%m%%n
appender.outlived.filter.whole.type = RegexFilter
appender.outlived.filter.whole.regex = Killed task [0-9]+ could not be stopped within [0-9]+ ms.*
"""

# Java's own choice looks for garbage while kernels run, on cores that these need: they took a tenth
# longer. This one stops its own threads instead, for less time in all.
_LASTING = "-XX:+UseParallelGC"
# For a Java that lives for a minute and only places kernels: to compile well takes it too long.
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_OUTLIVING_SECONDS = 20
# What every Spark of Kalla needs, so that SQL of one run is no concern of another's.
SAFETY = {
    # A stack overflow fails its task, and does not end Spark for all.
    "spark.executor.killOnFatalError.depth": "0",
    # Tasks that go on after a cancel are watched. On a cluster Spark replaces their executor; see
    # `restart_reason`.
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.threadDump": "false",
    "spark.task.reaper.pollingInterval": "5s",
    "spark.task.reaper.killTimeout": f"{_OUTLIVING_SECONDS}s",
}


class Spark(Server):
    port_setting = "up.spark_port"
    start_seconds = 120.0
    stop_seconds = 15.0

    def __init__(
        self, data_dir: Path, port: int, cores: int = 2, memory: str = "2g", *, brief: bool = False
    ) -> None:
        """A `brief` one is quick to start, and slow at SQL of any size."""
        super().__init__("spark", port, data_dir / "logs")
        self.folder = data_dir / "spark"
        self.cores = cores
        self.memory = memory
        self.brief = brief

    @property
    def remote(self) -> str:
        # Spelled localhost: with any other name the client wants TLS as soon as there is a token.
        return f"sc://localhost:{self.port}"

    @property
    def token(self) -> str:
        return folder.secret(folder.make(self.folder) / "token")

    @property
    def version(self) -> str:
        return metadata.version("pyspark")

    def check(self) -> None:
        java.find()
        super().check()

    def prepare(self) -> None:
        super().prepare()
        folder.make(self.folder)
        # What a killed server left; a stopped one clears up after itself.
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        for name in ("tmp", "conf", "warehouse"):
            folder.make(self.folder / name)
        self._outlived.unlink(missing_ok=True)
        logging = _LOGGING % {"outlived": self._outlived}
        (self.folder / "conf" / "log4j2.properties").write_text(logging, encoding="utf-8")

    def command(self) -> Sequence[str]:
        java_options = _quoted(f"-Djava.io.tmpdir={self.folder / 'tmp'}")
        settings = {
            # The 4 makes a failed task try again; plain local[n] never does.
            "spark.master": f"local[{self.cores},4]",
            "spark.app.name": "kalla",
            "spark.driver.memory": self.memory,
            "spark.driver.host": ports.HOST,
            "spark.driver.bindAddress": ports.HOST,
            "spark.connect.grpc.binding.address": ports.HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.local.dir": str(self.folder / "tmp"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.sql.shuffle.partitions": str(2 * self.cores),
            **READING,
            # Workers fork from a process that has imported what takes long.
            "spark.python.daemon.module": "kalla.app.spark_daemon",
            # A cancelled kernel is gone sooner.
            "spark.python.task.killTimeout": "100ms",
            **SAFETY,
            "spark.ui.enabled": "false",
            # Its inner ports, too, are for itself alone; the secret is made up at every start.
            "spark.authenticate": "true",
            "spark.driver.extraJavaOptions": f"{java_options} {_BRIEF if self.brief else _LASTING}",
        }
        if self.brief:
            settings["spark.sql.codegen.wholeStage"] = "false"
        flags = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        submit = str(_home() / "bin" / "spark-submit")
        return [submit, "--class", server, *flags, "spark-internal"]

    def environment(self) -> Mapping[str, str]:
        return {
            "SPARK_HOME": str(_home()),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_DIRS": str(self.folder / "tmp"),
            "SPARK_LOCAL_IP": ports.HOST,
            "SPARK_LAUNCHER_OPTS": _BRIEF,  # of the Java that only makes up the command
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": self.token,
            "JAVA_HOME": str(java.find().home_for_spark(self.folder)),
            # Or the Python workers miss the packages.
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PATH": os.environ.get("PATH", os.defpath),
        }

    def inherited(self) -> Mapping[str, str]:
        # Not Kalla's settings and secrets: a kernel is handed what it needs, and SQL that got past
        # the sandbox could read all of these. The keys of the machine, AWS_*, stay: a kernel
        # reaches S3 with them where Kalla has none of its own.
        own = super().inherited()
        return {name: value for name, value in own.items() if not name.startswith("KALLA_")}

    def restart_reason(self) -> str | None:
        """Java's pattern search cannot be cancelled. In one process Spark only logs such a task: to
        a file of its own, where no value of the data can stand.
        """
        if self._outlived.exists():
            return f"ran a task for {_OUTLIVING_SECONDS} s after it was cancelled"
        return None

    @property
    def _outlived(self) -> Path:
        return self.folder / "outlived"

    def probe(self) -> bool:
        # It listens when the session behind it is there.
        return ports.answers(self.port)


def _home() -> Path:
    spec = find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or []:
        return Path(place)
    raise NotInstalled("There is no pyspark: install it with `pip install 'pyspark[connect]'`.")


def _quoted(option: str) -> str:
    """As Spark takes options apart: at blanks."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
