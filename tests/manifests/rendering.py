"""Renders the overlays and the chart with whatever tools are at hand, and says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.manifests.objects import Manifests

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
CHART = ROOT / "deploy" / "helm" / "kalla"
OVERLAYS = ("small", "production", "scale-to-zero", "bring-your-own")

KUBERNETES = "1.34"
# `make manifest-tools` puts Go programs and modules here, outside of the repository.
CACHE = Path(os.environ.get("KALLA_TOOLS", Path.home() / ".cache" / "kalla" / "tools"))


class ToolMissing(Exception):
    """A tool is not here; the message says how to get it."""


def _tool(name: str) -> str | None:
    own = CACHE / "bin" / name
    return str(own) if own.is_file() else shutil.which(name)


def kustomize_command() -> list[str]:
    if kustomize := _tool("kustomize"):
        return [kustomize, "build"]
    if kubectl := _tool("kubectl"):
        return [kubectl, "kustomize"]
    raise ToolMissing("kustomize is missing: `make manifest-tools` installs it with Go")


def helm_command() -> list[str]:
    if helm := _tool("helm"):
        return [helm, "template", "kalla", "--kube-version", KUBERNETES]
    raise ToolMissing("helm is missing: `make manifest-tools` installs it with Go")


@cache
def overlay_text(overlay: str) -> str:
    return _kustomized(K8S / "overlays" / overlay)


def kustomized(folder: Path) -> Manifests:
    return Manifests.parse(_kustomized(folder))


def _kustomized(folder: Path) -> str:
    return _run([*kustomize_command(), str(folder)])


@cache
def chart_text(overlay: str) -> str:
    values = CHART / f"values-{overlay}.yaml"
    chosen = ["--values", str(values)] if values.exists() else []
    return _run([*helm_command(), str(CHART), "--namespace", "kalla", *chosen])


def overlay_manifests(overlay: str) -> Manifests:
    return Manifests.parse(overlay_text(overlay))


def chart_manifests(overlay: str) -> Manifests:
    return Manifests.parse(chart_text(overlay))


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
