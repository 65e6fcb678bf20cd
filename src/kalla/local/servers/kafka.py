"""The embedded Kafka broker (KRaft, one node), on loopback: for trying out and for tests."""

from __future__ import annotations

import base64
import signal
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from kalla.errors import NotInstalled, StartFailed
from kalla.local import folder, ports
from kalla.local.process import Server
from kalla.local.servers import jars, java

LOCK = "kafka.jars"

_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:{controller}
log.dirs={store}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
message.max.bytes=16777216
log.retention.check.interval.ms={retention_check_ms}
log.segment.delete.delay.ms=1000
"""
_LOGGING = """\
<Configuration status="ERROR"><Appenders><Console name="out"><PatternLayout
pattern="%d %p %m (%c)%n"/></Console></Appenders><Loggers><Root level="WARN">
<AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class Kafka(Server):
    port_setting = "up.kafka_port"
    start_seconds = 90.0
    death_signal = signal.SIGTERM

    def __init__(
        self, data_dir: Path, port: int, memory: str = "256m", retention_check_ms: int = 300_000
    ) -> None:
        super().__init__("kafka", port, data_dir / "logs")
        self.folder = data_dir / "kafka"
        self.memory = memory
        self.retention_check_ms = retention_check_ms

    @property
    def version(self) -> str:
        return next(jar.revision for jar in jars.locked(LOCK) if jar.name == "kafka-server")

    def check(self) -> None:
        java.find()
        if not jars.present(LOCK):
            raise NotInstalled("There are no jars of Kafka: `kalla sinks install` fetches them.")
        super().check()

    def prepare(self) -> None:
        super().prepare()
        folder.make(self.folder)
        configuration = self.folder / "server.properties"
        (self.folder / "log4j2.xml").write_text(_LOGGING, encoding="utf-8")
        configuration.write_text(
            _CONFIGURATION.format(
                host=ports.HOST,
                port=self.port,
                controller=self._controller_port(),
                store=self.folder / "store",
                retention_check_ms=self.retention_check_ms,
            ),
            encoding="utf-8",
        )
        if (self.folder / "store" / "meta.properties").exists():
            return
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        options = ["format", "--standalone", "-t", identity, "-c", str(configuration)]
        done = subprocess.run(
            [*self._java("128m"), "kafka.tools.StorageTool", *options],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StartFailed(f"kafka cannot format its folder: {done.stderr.strip()[-400:]}")

    def command(self) -> Sequence[str]:
        return [*self._java(self.memory), "kafka.Kafka", str(self.folder / "server.properties")]

    def probe(self) -> bool:
        return ports.answers(self.port)

    def _java(self, memory: str) -> list[str]:
        return [
            str(java.find().home / "bin" / "java"),
            f"-Xmx{memory}",
            "-XX:+UseSerialGC",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}",
            "-cp",
            f"{jars.folder_of(LOCK)}/*",
        ]

    def _controller_port(self) -> int:
        """Kept in a file: the quorum's voters are written down when the folder is formatted."""
        path = self.folder / "controller_port"
        if not path.exists():
            path.write_text(str(ports.choose_free()), encoding="ascii")
        return int(path.read_text("ascii"))
