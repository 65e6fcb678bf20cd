"""Builds etcd, Kubernetes and KEDA with Go, into a folder outside of the repository.

Go installs no program whose module replaces others, as these do. So each is built in a module of
its own, which requires it and repeats its replacements.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "v1.34.3"
ETCD = "v3.6.6"
KEDA = "v2.21.0"

TOOLS = Path(os.environ.get("KALLA_TOOLS", str(Path.home() / ".cache/kalla/tools")))
# A replacement by a folder of the module itself: parts that Kubernetes also publishes alone.
STAGED = re.compile(r"^\s*(?:replace\s+)?(\S+)\s*=>\s*\./staging/src/\S+", re.MULTILINE)
REPLACED = re.compile(
    r"^\s*(?:replace\s+)?(\S+)(?:\s+v\S+)?\s*=>\s*([^\s.]\S*)\s+(v\S+)", re.MULTILINE
)


@dataclass(frozen=True)
class GoModule:
    """A module and the programs that the lab needs of it, by the name of their executables."""

    path: str
    version: str
    programs: dict[str, str]


MODULES = (
    GoModule("go.etcd.io/etcd/server/v3", ETCD, {"etcd": "go.etcd.io/etcd/server/v3"}),
    GoModule(
        "k8s.io/kubernetes",
        KUBERNETES,
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        },
    ),
    GoModule(
        "github.com/kedacore/keda/v2",
        KEDA,
        {
            "keda-operator": "github.com/kedacore/keda/v2/cmd/operator",
            "keda-adapter": "github.com/kedacore/keda/v2/cmd/adapter",
        },
    ),
)


def build() -> Path:
    """Builds what is missing, which takes a quarter of an hour; returns the folder of programs."""
    programs = TOOLS / "lab" / f"bin-{KUBERNETES}-{ETCD}-{KEDA}"
    programs.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        missing = {
            name: package
            for name, package in module.programs.items()
            if not (programs / name).exists()
        }
        if missing:
            _build_module(module, missing, programs)
    return programs


def module_folder(path: str, version: str) -> Path:
    """The sources of a module, fetched if they are missing."""
    answer = _go(["mod", "download", "-json", f"{path}@{version}"], TOOLS)
    return Path(json.loads(answer)["Dir"])


def _build_module(module: GoModule, programs: dict[str, str], target: Path) -> None:
    folder = TOOLS / "lab" / module.path.replace("/", "_")
    folder.mkdir(parents=True, exist_ok=True)
    original = (module_folder(module.path, module.version) / "go.mod").read_text()
    (folder / "go.mod").write_text(_go_mod(module, original))
    imports = "\n".join(f'\t_ "{package}"' for package in programs.values())
    # Keeps the modules of the programs required; the tag keeps the compiler from reading it.
    (folder / "programs.go").write_text(
        f"//go:build programs\n\npackage programs\n\nimport (\n{imports}\n)\n"
    )
    for name, package in programs.items():
        print(f"  go build      {name} {module.version}", flush=True)
        _go(
            [
                "build",
                "-mod=mod",
                "-trimpath",
                "-ldflags=-s -w",
                "-o",
                str(target / f".{name}"),
                package,
            ],
            folder,
        )
        (target / f".{name}").rename(target / name)


def _go_mod(module: GoModule, original: str) -> str:
    """Requires `module` and all that its own go.mod requires, so that Go searches no versions."""
    published = module.version.replace("v1.", "v0.", 1)
    replacements = [f"replace {path} => {path} {published}" for path in STAGED.findall(original)]
    replacements += [
        f"replace {old} => {new} {version}" for old, new, version in REPLACED.findall(original)
    ]
    required = re.sub(
        r"k8s\.io/\S+ v0\.0\.0(?=\s)", lambda found: found[0].replace("v0.0.0", published), original
    )
    required = "\n".join(line for line in required.splitlines() if "=>" not in line)
    required = re.sub(r"replace \(\s*\)", "", required)
    required = re.sub(r"^module .*$", "module kalla.example/lab", required, flags=re.MULTILINE)
    return "\n".join((required, f"require {module.path} {module.version}", *replacements, ""))


def _go(arguments: list[str], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "GOMODCACHE": str(TOOLS / "mod"),
        "GOCACHE": str(TOOLS / "build"),
        "GOFLAGS": "-modcacherw",
        "CGO_ENABLED": "0",
    }
    done = subprocess.run(
        ["go", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"go {' '.join(arguments[:2])} failed: {done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    print(build())
