"""Two builds of Kalla beside each other: another series is refused, and says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kalla import release
from kalla.database import Database, migrate
from kalla.errors import VersionSkew
from kalla.local import ports
from kalla.settings import Settings
from kalla.spark.placing import place
from kalla.spark.session import connect
from tests.builds import build_wheel, unpacked
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)

NEWER = "0.2.0"
MAIN = [sys.executable, "-m", "kalla.cli.main"]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a process of the newer build."""
    folder = tmp_path_factory.mktemp("newer")
    return unpacked(build_wheel(folder, NEWER), folder / "packages")


def variables(of_build: dict[str, str], url: str) -> dict[str, str]:
    return of_build | {
        "KALLA_DATABASE_URL": url,
        "KALLA_WAKE_CHANNEL": "postgres",
        "KALLA_WORKER_PORT": "0",
        "KALLA_API_PORT": str(ports.choose_free()),
        "KALLA_API_METRICS_PORT": "0",
    }


def told(command: str, build: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MAIN, command], cwd=folder, env=build, capture_output=True, text=True, timeout=120
    )


def test_versions_of_one_series_work_together() -> None:
    release.require_same_series("a", "0.1.0", "b is", "0.1.9")
    assert release.is_newer("0.10.0", "0.9.3")
    assert not release.is_newer("0.1.9", "0.1.0")
    with pytest.raises(VersionSkew, match=r"a is Kalla 0\.1\.0, but b is Kalla 0\.2\.0"):
        release.require_same_series("a", "0.1.0", "b is", "0.2.0")


@pytest.mark.parametrize("command", ["worker", "api"])
async def test_a_newer_build_is_refused_until_the_database_is_migrated_and_an_older_one_after(
    command: str, newer: dict[str, str], empty_database_url: str, tmp_path: Path
) -> None:
    settings = Settings.model_validate({"database": {"url": empty_database_url}})
    await migrate(settings.database)
    later = variables(newer, empty_database_url)
    refused = told(command, later, tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert f"is Kalla {NEWER}, but the database belongs to Kalla 0.1.0" in refused.stderr

    assert told("migrate", later, tmp_path).returncode == 0
    build = {name: text for name, text in later.items() if name != "PYTHONPATH"}
    build["PYTHONPATH"] = ":".join(path for path in sys.path if path)
    back = told("migrate", build, tmp_path)
    assert back.returncode == 2, back.stderr
    assert f"this command is Kalla 0.1.0, but the database belongs to Kalla {NEWER}" in back.stderr
    refused = told(command, build, tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert f"is Kalla 0.1.0, but the database belongs to Kalla {NEWER}" in refused.stderr


async def test_the_order_of_an_upgrade_leaves_running_workers_at_their_work(
    newer: dict[str, str], empty_database_url: str, tmp_path: Path
) -> None:
    settings = Settings.model_validate({"database": {"url": empty_database_url}})
    await migrate(settings.database)
    later = variables(newer, empty_database_url)
    older = later | {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    running = subprocess.Popen([*MAIN, "worker"], cwd=tmp_path, env=older)
    replacing: subprocess.Popen[bytes] | None = None
    async with Database(settings.database) as database:

        async def versions() -> set[str]:
            async with database.transaction() as connection:
                rows = await (
                    await connection.execute("SELECT version FROM kalla.workers")
                ).fetchall()
            return {row["version"] for row in rows}

        async def appears(version: str) -> None:
            import asyncio

            deadline = asyncio.get_running_loop().time() + 60
            while version not in await versions():
                assert asyncio.get_running_loop().time() < deadline, version
                await asyncio.sleep(0.1)

        try:
            await appears("0.1.0")
            assert told("migrate", later, tmp_path).returncode == 0
            replacing = subprocess.Popen([*MAIN, "worker"], cwd=tmp_path, env=later)
            await appears(NEWER)
            assert running.poll() is None
            running.terminate()
            assert running.wait(60) == 0
        finally:
            for process in (running, replacing):
                if process is not None:
                    process.terminate()
                    process.wait(60)


@pytest.mark.spark
def test_an_executor_of_another_build_is_refused_before_it_touches_data(
    newer: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kalla.local.servers.spark import Spark

    monkeypatch.setenv("PYTHONPATH", newer["PYTHONPATH"])
    server = Spark(tmp_path, ports.choose_free(), cores=1, memory="1g", brief=True)
    server.start()
    try:
        settings = Settings.model_validate(
            {"spark": {"remote": server.remote, "token": server.token}}
        )
        session = connect(settings.spark)
        try:
            touched = tmp_path / "touched"

            def kernel(path: str) -> None:
                Path(path).touch()

            with pytest.raises(
                VersionSkew, match=r"is Kalla 0\.1\.0, but the Spark executor is Kalla 0\.2\.0"
            ):
                place(session, kernel, [str(touched)])
            assert not touched.exists()
        finally:
            session.stop()
    finally:
        server.stop()
    until(lambda: not server.running, "Spark has stopped", 30)
