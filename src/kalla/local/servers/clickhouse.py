"""The embedded ClickHouse, on loopback, from chdb's library: for trying out and for tests."""

from __future__ import annotations

import hashlib
import http.client
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

from kalla.errors import NotInstalled
from kalla.local import folder, ports
from kalla.local.process import Server

_CONFIGURATION = """\
<clickhouse>
  <listen_host>{host}</listen_host>
  <http_port>{port}</http_port>
  <users_config>users.xml</users_config>
  <logger><level>warning</level><console>1</console></logger>
  <query_log>
    <database>system</database><table>query_log</table>
    <flush_interval_milliseconds>7500</flush_interval_milliseconds>
    <ttl>event_date + INTERVAL 3 DAY</ttl>
  </query_log>
  <mark_cache_size>67108864</mark_cache_size>
  <max_server_memory_usage>{memory}</max_server_memory_usage>
</clickhouse>
"""
# The library's own query, which keeps it listening, comes as `default` and without a password;
# that user may do nothing else, and is let in from no address that HTTP requests come from.
_USERS = """\
<clickhouse>
  <profiles><default/></profiles>
  <quotas><default/></quotas>
  <users>
    <default>
      <password></password>
      <networks><ip>::1</ip></networks>
      <profile>default</profile><quota>default</quota>
      <grants>
        <query>GRANT SYSTEM LISTEN ON *.*</query>
        <query>GRANT SELECT ON system.numbers</query>
      </grants>
    </default>
    <kalla>
      <password_sha256_hex>{password}</password_sha256_hex>
      <networks><ip>127.0.0.1</ip></networks>
      <profile>default</profile><quota>default</quota>
      <access_management>1</access_management>
    </kalla>
{users}  </users>
</clickhouse>
"""
_USER = """\
    <{name}>
      <password_sha256_hex>{password}</password_sha256_hex>
      <networks><ip>127.0.0.1</ip></networks>
      <profile>default</profile><quota>default</quota>
      <grants>{grants}</grants>
    </{name}>
"""


class ClickHouse(Server):
    port_setting = "up.clickhouse_port"
    start_seconds = 60.0
    death_signal = signal.SIGKILL

    def __init__(
        self,
        data_dir: Path,
        port: int,
        users: Sequence[tuple[str, str, Sequence[str]]] = (),
        memory_bytes: int = 4 << 30,
    ) -> None:
        """`users` are names with password and grants, besides `kalla`, who may do all."""
        super().__init__("clickhouse", port, data_dir / "logs")
        self.folder = data_dir / "clickhouse"
        self.users = users
        self.memory_bytes = memory_bytes

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def password(self) -> str:
        """Of the user `kalla`."""
        return folder.secret(folder.make(self.folder) / "password")

    @property
    def version(self) -> str:
        return metadata.version("chdb-core")

    def check(self) -> None:
        if find_spec("chdb") is None:
            raise NotInstalled(
                "There is no ClickHouse: install it with `pip install 'kalla[local]'`, "
                "or name a server of your own in the pipeline."
            )
        super().check()

    def prepare(self) -> None:
        super().prepare()
        folder.make(self.folder)
        folder.write_private(
            self.folder / "clickhouse-local.xml",
            _CONFIGURATION.format(host=ports.HOST, port=self.port, memory=self.memory_bytes),
        )
        users = "".join(
            _USER.format(
                name=name,
                password=_hashed(password),
                grants="".join(f"<query>GRANT {escape(grant)}</query>" for grant in grants),
            )
            for name, password, grants in self.users
        )
        folder.write_private(
            self.folder / "users.xml", _USERS.format(password=_hashed(self.password), users=users)
        )

    def command(self) -> Sequence[str]:
        program = str(Path(__file__).with_name("clickhouse_main.py"))
        return [sys.executable, program, str(self.folder)]

    def probe(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2)
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _hashed(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()
