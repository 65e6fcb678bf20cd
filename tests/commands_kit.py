"""A folder with an API and a worker for it, and commands as a person types them there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from kalla.cli.main import main
from kalla.local import ports
from tests.waiting import until

KALLA = [sys.executable, "-m", "kalla.cli.main"]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def _exit_code() -> int:
    try:
        main()
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0


@dataclass
class Place:
    """A folder with an API and a worker running for it."""

    folder: Path
    environment: dict[str, str]
    port: int

    def run(self, *arguments: str, given: bytes = b"", **changes: str) -> Done:
        """A command, in this process: importing it anew each time would take most of the time."""
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
            ThreadPoolExecutor(1) as pool,
        ):
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["kalla", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
            for name, value in (self.environment | changes).items():
                patch.setenv(name, value)
            code = pool.submit(_exit_code).result()
        return Done(code, out.getvalue(), err.getvalue())

    def ok(self, *arguments: str, given: bytes = b"") -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [*KALLA, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    @contextmanager
    def api(self) -> Iterator[subprocess.Popen[bytes]]:
        with self.running("api", "--port", str(self.port)) as process:
            until(self.healthy, "the API is up", 120)
            yield process

    @contextmanager
    def query_worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """A query worker that the API of this place asks."""
        control, artifacts = ports.choose_free(), ports.choose_free()
        self.environment["KALLA_QUERY_WORKERS"] = f"127.0.0.1:{control}"
        given = (f"--port={control}", f"--artifact-port={artifacts}")
        with self.running("query-worker", *given) as process:
            until(lambda: self.healthy(artifacts), "the query worker is up", 120)
            yield process

    def healthy(self, port: int | None = None) -> bool:
        with suppress(OSError):
            url = f"http://127.0.0.1:{port or self.port}/health"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        return False

    @contextmanager
    def served(self) -> Iterator[None]:
        """With an API and a worker that is listed."""
        with self.api(), self.running("worker", "--port", str(ports.choose_free())):
            listed = ("workers", "list", "--format", "json")
            until(lambda: json.loads(self.ok(*listed)), "a worker is listed")
            yield


def a_place(folder: Path, database_url: str, role: str, **environment: str) -> Place:
    """A place with a token of this role, on a migrated database."""
    port = ports.choose_free()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KALLA_")}
    made = Place(
        folder,
        kept
        | {
            "KALLA_DATABASE_URL": database_url,
            "KALLA_WAKE_CHANNEL": "postgres",
            "KALLA_API_URL": f"http://127.0.0.1:{port}",
            "KALLA_API_METRICS_PORT": "0",
        }
        | environment,
        port,
    )
    token = made.ok("token", "create", "--name", "ann", "--role", role).strip()
    made.environment["KALLA_API_TOKEN"] = token
    return made
