"""One container of a pod as a process, with a root, network, user and environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from kalla.local.servers import java
from tests.cluster_lab.network import RESOLVER

ROOT = Path(__file__).parents[2]
_SHARED_FOLDERS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/opt",
    "/etc/ssl",
    "/etc/alternatives",
)


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    writable: bool


@dataclass
class Container:
    """A started container. It is ended by its pid: the parent, bubblewrap, passes no signals on."""

    name: str
    process: subprocess.Popen[bytes]
    pid: int
    started: float
    ready: bool = False
    started_up: bool = False  # its startup probe has succeeded
    next_probe: float = field(default=0.0)

    def signal(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return  # it has ended by itself, and poll() says how


def start(
    spec: dict[str, Any],
    *,
    pod: str,
    namespace: str,
    address: str,
    mounts: list[Mount],
    environment: dict[str, str],
    folder: Path,
    now: float,
) -> Container:
    """Starts the container's command or the image's entrypoint in the network of its pod."""
    folder.mkdir(parents=True, exist_ok=True)
    entrypoint = ["/entrypoint"] if spec["image"].startswith("kalla") else []
    command = [*spec.get("command", entrypoint), *spec.get("args", [])]
    inside = ["ip", "netns", "exec", namespace, "bwrap", "--unshare-uts", "--hostname", pod]
    # A mount below another comes after it: /tmp of the pod, then a clone that is below /tmp.
    every = sorted([*_image(pod, address, folder), *mounts], key=lambda each: each.target)
    wrapper = [*inside, "--die-with-parent", *_root(every)]
    user = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups"]
    user += ["--no-new-privs", "--bounding-set=-all"]
    reading, writing = os.pipe()
    with (folder / f"{spec['name']}.log").open("ab") as log:
        process = subprocess.Popen(
            [*wrapper, "--info-fd", str(writing), "--", *user, *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_image_environment() | environment,
            pass_fds=(writing,),
            start_new_session=True,
        )
    os.close(writing)
    with os.fdopen(reading) as answer:
        facts = answer.read()
    pid = json.loads(facts)["child-pid"] if facts else process.pid
    return Container(spec["name"], process, pid, now)


def _root(mounts: list[Mount]) -> list[str]:
    """Arguments for a root that holds these mounts and nothing else, read-only but for them."""
    arguments = ["--tmpfs", "/", "--proc", "/proc", "--dev", "/dev"]
    for mount in mounts:
        # Folders above a mount would be closed to all but root.
        for parent in reversed(Path(mount.target).parents[:-1]):
            arguments += ["--perms", "0755", "--dir", str(parent)]
        if mount.source.is_symlink():
            arguments += ["--symlink", str(mount.source.readlink()), mount.target]
        else:
            bind = "--bind" if mount.writable else "--ro-bind"
            arguments += [bind, str(mount.source), mount.target]
    return [*arguments, "--remount-ro", "/", "--chdir", "/"]


def _image(pod: str, address: str, folder: Path) -> list[Mount]:
    """The files of the image and those that a kubelet writes: names, hosts and users."""
    java_settings = map(str, Path("/etc").glob("java-*-openjdk"))  # where Debian keeps them
    shared = dict.fromkeys((*_SHARED_FOLDERS, *java_settings, *_python_folders()))
    mounts = [Mount(Path(each), each, writable=False) for each in shared if Path(each).exists()]
    mounts.append(Mount(ROOT / "deploy/image/entrypoint", "/entrypoint", writable=False))
    for name, text in _system_files(pod, address).items():
        (folder / name).write_text(text)
        mounts.append(Mount(folder / name, f"/etc/{name}", writable=False))
    return mounts


def _python_folders() -> list[str]:
    """Where this Python and its packages are: the lab's stand-in for the image."""
    prefixes = {
        sys.prefix,
        sys.base_prefix,
        str(Path(sys.executable).resolve().parents[1]),
        str(ROOT / "src"),
    }
    return sorted(prefix for prefix in prefixes if not prefix.startswith("/usr"))


def _image_environment() -> dict[str, str]:
    """What the Dockerfile sets."""
    return {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "JAVA_HOME": str(java.find().home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/var/lib/kalla",
        "LANG": "C.UTF-8",
    }


def _system_files(pod: str, address: str) -> dict[str, str]:
    return {
        "resolv.conf": RESOLVER,
        "hosts": f"127.0.0.1 localhost\n{address} {pod}\n",
        "nsswitch.conf": "hosts: files dns\n",
        "passwd": "root:x:0:0::/:/bin/sh\nkalla:x:10001:10001::/var/lib/kalla:/bin/sh\n",
        "group": "root:x:0:\nkalla:x:10001:\n",
    }
