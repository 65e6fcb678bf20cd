"""Kalla from its wheel, in an environment that has nothing else of this source tree."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from kalla.local import ports
from tests.builds import ROOT, build_wheel
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `kalla` of an empty venv that sees the packages of this one, but not its Kalla."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    uv = Path(sys.executable).with_name("uv")
    python = folder / "bin" / "python"
    command = [str(uv), "pip", "install", "--offline", "--no-deps", "--python", str(python)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # A .pth file inside a folder that a .pth file names is not read: so not the editable Kalla.
    (packages / "shared.pth").write_text("\n".join(site.getsitepackages()), "utf-8")
    return folder / "bin" / "kalla"


def environment(**more: str) -> dict[str, str]:
    dropped = ("PYTHONPATH", "VIRTUAL_ENV")
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("KALLA_") and name not in dropped
    }
    return kept | more


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "kalla").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert expected - held == set()
    for suffix in (".sql", ".html", ".css", ".js"):
        assert any(name.endswith(suffix) for name in held), suffix


def test_the_installed_command_tells_its_version_and_its_help(
    installed: Path, tmp_path: Path
) -> None:
    def told(*arguments: str) -> str:
        done = subprocess.run(
            [str(installed), *arguments],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert told("--version") == "kalla 0.1.0\n"
    assert "Examples:" in told("reconcile", "--help")


def test_the_installed_api_migrates_serves_pages_and_static_files(
    installed: Path, tmp_path: Path, empty_database_url: str
) -> None:
    port = ports.choose_free()
    variables = environment(
        KALLA_DATABASE_URL=empty_database_url,
        KALLA_WAKE_CHANNEL="postgres",
        KALLA_API_PORT=str(port),
        KALLA_API_METRICS_PORT="0",
    )
    migrated = subprocess.run(
        [str(installed), "migrate"], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert "applied 0001_work.sql" in migrated.stdout, migrated.stderr
    api = subprocess.Popen([str(installed), "api"], cwd=tmp_path, env=variables)
    try:

        def page(path: str) -> httpx.Response | None:
            try:
                return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False)
            except httpx.TransportError:
                return None

        until(lambda: page("/health") is not None, "the API answers", 90)
        login = page("/login")
        assert login is not None
        assert login.status_code == 200
        static = [word for word in login.text.split('"') if word.startswith("/static/")]
        assert static
        for path in static:
            found = page(path)
            assert found is not None
            assert found.status_code == 200, path
    finally:
        api.terminate()
        assert api.wait(30) == 0
