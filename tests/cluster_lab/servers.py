"""The servers that users bring themselves: Postgres, S3 and Prometheus, on the node's address."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pyarrow import fs

from kalla.local.servers.postgres import Postgres
from kalla.local.servers.s3 import S3
from tests.cluster_lab.network import NODE

_PROMETHEUS = """\
global: {scrape_interval: 5s}
scrape_configs:
  - job_name: kalla
    dns_sd_configs: [{names: [kalla-api.kalla.svc], type: A, port: 9089, refresh_interval: 5s}]
    relabel_configs: [{target_label: namespace, replacement: kalla}]
"""


class Servers:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        options = {
            "listen_addresses": f"127.0.0.1,{NODE}",
            "fsync": "off",
            "max_connections": "300",
        }
        self.postgres = Postgres(folder / "postgres", 5432, options)
        self.s3 = S3(folder / "s3", 8333)
        self.s3.host = NODE
        self._prometheus: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.postgres.prepare()
        rules = self.postgres.data / "pg_hba.conf"
        rules.write_text(rules.read_text() + "\nhost all all 10.210.0.0/16 scram-sha-256\n")
        self.postgres.start()
        self.postgres.create_database()
        self.s3.start()
        storage = self.s3.settings
        assert storage.s3_access_key is not None
        assert storage.s3_secret_key is not None
        maker = fs.S3FileSystem(
            access_key=storage.s3_access_key.get_secret_value(),
            secret_key=storage.s3_secret_key.get_secret_value(),
            endpoint_override=storage.s3_endpoint,
            region=storage.s3_region,
            allow_bucket_creation=True,
        )
        maker.create_dir("kalla")
        settings = self._folder / "prometheus.yml"
        settings.write_text(_PROMETHEUS)
        with (self._folder / "prometheus.log").open("wb") as log:
            self._prometheus = subprocess.Popen(
                [
                    *(
                        "prometheus",
                        f"--config.file={settings}",
                        f"--web.listen-address={NODE}:9090",
                    ),
                    f"--storage.tsdb.path={self._folder / 'prometheus'}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        if self._prometheus is not None:
            self._prometheus.terminate()
            self._prometheus.wait()
        self.s3.stop()
        self.postgres.stop()

    def database_url(self) -> str:
        return self.postgres.url().replace("127.0.0.1", NODE)

    def secrets(self) -> dict[str, str]:
        """What the Secret `kalla-secrets` says of them."""
        storage = self.s3.settings
        assert storage.s3_access_key is not None
        assert storage.s3_secret_key is not None
        return {
            "KALLA_DATABASE_URL": self.database_url(),
            "KALLA_STORAGE_S3_ENDPOINT": str(storage.s3_endpoint),
            "KALLA_STORAGE_S3_ACCESS_KEY": storage.s3_access_key.get_secret_value(),
            "KALLA_STORAGE_S3_SECRET_KEY": storage.s3_secret_key.get_secret_value(),
        }
