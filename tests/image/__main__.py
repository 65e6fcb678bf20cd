"""`make image-steps`: carries out the Dockerfile in fresh Debian roots, then runs the demo in it.

It shows that every step works and that the result runs as its user, on a read-only root. It does
not show what a container runtime adds: layers, cgroups, seccomp. Needs root and mmdebstrap.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.image.dockerfile import Instruction, Stage, stages

ROOT = Path(__file__).parents[2]
_SUITES = {"debian:bookworm-slim": "bookworm"}
# How this machine reaches the package registries is its own business: pass it on.
_PASSED = ("PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "SSL_CERT_FILE",
           "UV_INDEX_URL", "UV_DEFAULT_INDEX",
           "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_REGISTRY")  # fmt: skip


def main() -> int:
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        print("make image-steps needs root and mmdebstrap (apt-get install mmdebstrap).")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="kalla-image.", dir="/var/tmp"))
    roots: dict[str, Path] = {}
    try:
        for number, stage in enumerate(stages(ROOT / "Dockerfile")):
            roots[stage.name] = root = folder / str(number)
            _begin(stage, root)
            _carry_out(stage, root, roots)
        _try_out(stage, root)
    finally:
        _clean_up(folder, roots)
    print("1 passed, 0 failed")
    return 0


def _begin(stage: Stage, root: Path) -> None:
    print(f"  FROM {stage.image}", flush=True)
    command = ["mmdebstrap", "--quiet", "--variant=minbase", _SUITES[stage.image], str(root)]
    subprocess.run(command, check=True)
    _mount_system(root)


def _mount_system(root: Path) -> None:
    subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
    subprocess.run(["mount", "--bind", "/dev", str(root / "dev")], check=True)


def _pass_on(root: Path) -> None:
    """Certificates and addresses of this machine; a package may have written its own since."""
    files = [Path(os.environ[name]) for name in _PASSED if name in os.environ]
    for file in [*files, *map(Path, ("/etc/pip.conf", "/etc/resolv.conf", "/etc/hosts"))]:
        if file.is_file():
            target = root / file.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def _carry_out(stage: Stage, root: Path, roots: dict[str, Path]) -> None:
    folder = "/"
    environment: dict[str, str] = {}
    for each in stage.instructions:
        if each.word == "ENV":
            environment |= each.variables
        elif each.word == "WORKDIR":
            folder = each.text
            (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif each.word == "RUN":
            print(f"  RUN {' '.join(each.text.split())[:100]}", flush=True)
            script = f"cd {folder} && {each.text}"
            _pass_on(root)
            _in_root(root, ["sh", "-c", script], environment, "0:0")
        elif each.word == "COPY":
            print(f"  COPY {each.text}", flush=True)
            _copy(each, root, roots)


def _copy(instruction: Instruction, root: Path, roots: dict[str, Path]) -> None:
    words = instruction.arguments
    origin = ROOT
    if words[0].startswith("--from="):
        origin = roots[words.pop(0).removeprefix("--from=")]
    *sources, target = words
    place = root / target.lstrip("/")
    for source in sources:
        path = origin / source.lstrip("/")
        if path.is_dir():
            shutil.copytree(
                path, place, symlinks=True, dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__") if origin == ROOT else None,
            )  # fmt: skip
        else:
            into = place / path.name if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, into)


def _try_out(stage: Stage, root: Path) -> None:
    """As a pod would run it: as its user, the root read-only, /tmp and the data folder writable."""
    user = stage.last("USER").text
    entry = stage.last("ENTRYPOINT").arguments
    environment = stage.environment()
    # The root over itself first: it would hide what is mounted in it before.
    for place in ("dev", "proc"):
        subprocess.run(["umount", str(root / place)], check=True)
    subprocess.run(["mount", "--bind", str(root), str(root)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(root)], check=True)
    _mount_system(root)
    for place in ("tmp", "var/lib/kalla"):
        options = ["-t", "tmpfs", "-o", "mode=1777", "none"]
        subprocess.run(["mount", *options, str(root / place)], check=True)
    for arguments in (["--version"], ["demo", "--folder", "/tmp/demo"], ["config", "show"]):
        print(f"  as {user}: {' '.join(arguments)}", flush=True)
        _in_root(root, [*entry, *arguments], environment, user)


def _in_root(root: Path, command: Sequence[str], variables: dict[str, str], user: str) -> None:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive", **passed, **variables,
    }  # fmt: skip
    # By its path: PATH is the image's own, and may not have it.
    chroot = shutil.which("chroot") or "/usr/sbin/chroot"
    subprocess.run([chroot, f"--userspec={user}", str(root), *command], env=environment, check=True)


def _clean_up(folder: Path, roots: dict[str, Path]) -> None:
    for root in roots.values():
        for place in ("tmp", "var/lib/kalla", "dev", "proc", "."):
            subprocess.run(["umount", str(root / place)], check=False, capture_output=True)
    # Never through a mount that is left: it would be this machine's own /dev.
    if not any(f" {folder}/" in line for line in Path("/proc/mounts").read_text().splitlines()):
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)
    else:
        print(f"  something is still mounted below {folder}: it stays", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
