"""Puts each known flaw back into a copy of the code and demands that a test goes red."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.mutations.mutants import MUTANTS, Mutant
from tests.servers import PostgresServer

Ended = subprocess.CompletedProcess[str]

ROOT = Path(__file__).parents[2]
TESTS_FAILED = 1  # pytest's code; 2 to 5 mean that nothing was proven
AT_ONCE = 2

_TRAPS = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 17}


@pytest.fixture(scope="module")
def runs(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Mutant, Future[Ended]]]:
    """All mutants at work, two at a time; each test below waits for its own."""
    servers = {"KALLA_TEST_POSTGRES": postgres_server.admin_url}
    folder = tmp_path_factory.mktemp("mutants")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {mutant: pool.submit(_run, mutant, folder, servers) for mutant in MUTANTS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_flaw_put_back_turns_a_test_red(
    mutant: Mutant, runs: dict[Mutant, Future[Ended]]
) -> None:
    ended = runs[mutant].result()
    assert ended.returncode == TESTS_FAILED, f"the mutant lives:\n{ended.stdout[-3000:]}"


@pytest.mark.timeout(900)
def test_the_copy_is_what_is_tested_and_without_a_flaw_it_is_green(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """Otherwise a mutant might die of the copying."""
    copy = _copy(tmp_path / "same")
    code = "import kalla.work.jobs as jobs; print(jobs.__file__)"
    environment = _environment(copy, {})
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(told.stdout.strip()).is_relative_to(copy)
    servers = {"KALLA_TEST_POSTGRES": postgres_server.admin_url}
    named = sorted({test for mutant in MUTANTS for test in mutant.tests.split()})
    ended = _pytest(copy, named, servers)
    assert ended.returncode == 0, ended.stdout[-3000:]


def test_every_trap_has_a_mutant() -> None:
    assert {mutant.trap for mutant in MUTANTS} - {None} == _TRAPS


def _run(mutant: Mutant, folder: Path, servers: dict[str, str]) -> Ended:
    copy = _copy(folder / str(mutant))
    file = copy / "src" / "kalla" / mutant.file
    text = file.read_text("utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} has the text {text.count(mutant.old)} times"
    file.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        return _pytest(copy, mutant.tests.split(), servers)
    finally:
        shutil.rmtree(copy)


def _copy(target: Path) -> Path:
    kept = shutil.ignore_patterns("__pycache__", "mutations", "chaos", "e2e")
    shutil.copytree(ROOT / "src", target / "src", ignore=kept)
    shutil.copytree(ROOT / "tests", target / "tests", ignore=kept)
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def _pytest(copy: Path, tests: list[str], servers: dict[str, str]) -> Ended:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "--timeout", "60", "--durations", "0"]
    command += [f"tests/integration/{test}" for test in tests]
    return subprocess.run(
        command,
        cwd=copy,
        env=_environment(copy, servers),
        capture_output=True,
        text=True,
        timeout=600,
    )


def _environment(copy: Path, servers: dict[str, str]) -> dict[str, str]:
    return os.environ | servers | {"PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
