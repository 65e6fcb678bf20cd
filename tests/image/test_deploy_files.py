"""Dockerfile, compose files, units, workflow and dashboard say what the code can do."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kalla import settings
from kalla.cli.main import COMMANDS
from kalla.local.program import STOP_SECONDS
from kalla.query.promql.parser import parse
from tests.image.dockerfile import Stage, stages

ROOT = Path(__file__).parents[2]
COMPOSE = sorted((ROOT / "deploy" / "compose").glob("*.yml"))
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
PLACES = ("staging", "evidence", "metrics", "uploads")
# What the image's entrypoint knows besides the commands of `kalla`.
ENTRIES = {"spark-connect", "executor", "spark-master", "spark-worker"}


@pytest.fixture
def final() -> Stage:
    return stages(ROOT / "Dockerfile")[-1]


def test_the_image_runs_as_a_user_and_passes_signals_on(final: Stage) -> None:
    assert final.last("USER").text == "10001:10001"
    assert final.last("ENTRYPOINT").arguments[0].endswith("tini")
    assert final.last("CMD").arguments[0] in COMMANDS


def test_the_image_installs_what_is_locked_and_copies_what_it_needs() -> None:
    first = stages(ROOT / "Dockerfile")[0]
    installs = [each.text for each in first.instructions if "pip install" in each.text]
    locked = [text for text in installs if "requirements.lock" in text]
    assert len(locked) == 1
    assert all("--require-hashes" in text for text in locked)
    sources = [
        word
        for stage in stages(ROOT / "Dockerfile")
        for each in stage.instructions
        if each.word == "COPY" and "--from=" not in each.text
        for word in each.arguments[:-1]
    ]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    assert [s for s in sources if not any(s == k or s.startswith(f"{k}/") for k in kept)] == []


def test_kernels_of_every_room_are_compiled_ahead_of_time() -> None:
    for name, python in (
        ("Dockerfile", "RUN /opt/kalla/bin/python"),
        ("Makefile", "@$(BIN)/python"),
    ):
        lines = [line.strip() for line in (ROOT / name).read_text("utf-8").splitlines()]
        assert f"{python} -m kalla.compiling" in lines, name


def test_the_entrypoint_is_a_shell_script_without_errors() -> None:
    entrypoint = ROOT / "deploy" / "image" / "entrypoint"
    subprocess.run(["sh", "-n", str(entrypoint)], check=True)
    text = entrypoint.read_text("utf-8")
    assert {word for word in ENTRIES if f"\n{word})" in text} == ENTRIES


def test_an_executor_gets_what_spark_hands_over(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\ncat "${1#@}"\nshift\nprintf "%s\\n" "$@"\n', "utf-8")
    java.chmod(0o755)
    given = {
        "JAVA_HOME": str(tmp_path),
        "SPARK_HOME": "/spark",
        "PATH": "/usr/bin:/bin",
        "SPARK_JAVA_OPT_0": '-Dspark.text=two "words"',
        "SPARK_JAVA_OPT_1": "-Dspark.driver.port=7078",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "executor-7",
    }
    entrypoint = str(ROOT / "deploy" / "image" / "entrypoint")
    done = subprocess.run(
        ["sh", entrypoint, "executor"], env=given, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert '"-Dspark.text=two \\"words\\""' in lines
    assert lines[lines.index("--podName") + 1] == "executor-7"
    assert lines[lines.index("--resourceProfileId") + 1] == "0"


def _expanded(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return document


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)
def test_a_compose_file_names_real_commands_settings_and_volumes(path: Path) -> None:
    document = _expanded(path)
    for name, service in document["services"].items():
        if not service["image"].startswith("kalla:"):
            continue
        if "entrypoint" not in service:
            assert service["command"][0] in {*COMMANDS, *ENTRIES}, name
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
        effective = _settings_of(service)
        assert effective.ignored == (), name
        if service.get("command", [""])[0] in ("worker", "autoscale"):
            stop = float(service["stop_grace_period"].removesuffix("s"))
            assert stop > effective.settings.worker.drain_seconds + STOP_SECONDS, name
        volumes = [each.split(":")[0] for each in service.get("volumes", [])]
        assert set(volumes) <= set(document["volumes"]), name
        assert set(service.get("depends_on", {})) <= set(document["services"]), name


def _settings_of(service: dict[str, Any]) -> settings.Effective:
    """The settings of a service, with a value for each variable that the user must set."""
    given = {
        key: re.sub(r"\$\{[^}]*\}", "x", value)
        for key, value in service.get("environment", {}).items()
    }
    return settings.load(environment=given)


@pytest.mark.parametrize("path", [each for each in COMPOSE if each.stem != "single"])
def test_services_of_a_compose_file_share_their_files_and_reach_a_query_worker(path: Path) -> None:
    services = _expanded(path)["services"]
    for name in ("api", "query-worker", "autoscale" if "autoscale" in services else "worker"):
        shared = [each.split(":")[1] for each in services[name]["volumes"]]
        effective = _settings_of(services[name]).settings
        places = [getattr(effective, f"{kind}_url") for kind in PLACES]
        for place in (*places, str(effective.tables_folder)):
            assert any(place.startswith(f"{folder}/") for folder in shared), (name, place)
        assert effective.query.workers == "dns://query-worker:9321", name
        assert effective.query.token.get_secret_value(), name
        assert effective.query_worker.host == "0.0.0.0", name
        assert effective.secrets.key.get_secret_value(), name
    assert services["query-worker"]["command"] == ["query-worker"]


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)
def test_a_compose_file_keeps_its_ports_on_this_machine_and_no_password(path: Path) -> None:
    document = _expanded(path)
    ports = [port for each in document["services"].values() for port in each.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert not re.search(r"PASSWORD: (?!\$\{)", path.read_text("utf-8"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_stops_after_its_drain_and_runs_a_real_command(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(path.read_text("utf-8"))
    service = unit["Service"]
    words = service["ExecStart"].split()
    assert words[0] == "/opt/kalla/bin/kalla"
    assert words[1] in COMMANDS
    assert service["KillSignal"] == "SIGTERM"
    if words[1] in ("worker", "autoscale"):
        # `mixed`: the first process alone gets SIGTERM, and drains what it started itself.
        assert service["KillMode"] == "mixed"
        drain = float(service["Environment"].removeprefix("KALLA_WORKER_DRAIN_SECONDS="))
        assert float(service["TimeoutStopSec"]) > drain + STOP_SECONDS


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing")
    for path in UNITS:
        text = path.read_text("utf-8").replace("/opt/kalla/bin/kalla", "/bin/true")
        copy = tmp_path / path.name.replace("@", "@1")
        copy.write_text(text.replace("%i", "1"), "utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True
        )
        wrong = [line for line in done.stderr.splitlines() if copy.name in line]
        assert wrong == []


def test_the_workflow_runs_targets_that_exist() -> None:
    document = _expanded(ROOT / ".github" / "workflows" / "ci.yml")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    runs = [
        step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step
    ]
    targets = re.findall(r"\bmake ([a-z-]+)", "\n".join(runs))
    assert {"check", "test", "bench-modes"} <= set(targets)
    assert [each for each in targets if not re.search(rf"^{each}:", makefile, re.MULTILINE)] == []
    assert all(job.get("timeout-minutes") for job in document["jobs"].values())


def test_the_dashboard_asks_for_metrics_that_are_exported() -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "kalla.json").read_text("utf-8"))
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "src" / "kalla").rglob("*.py"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 10
    for expression in expressions:
        parse(expression.replace("$namespace", "kalla"))
        for name in re.findall(r"\b([a-z_0-9]+)\{", expression):
            assert f'"{name.removesuffix("_bucket")}"' in source, name
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
