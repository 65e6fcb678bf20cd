"""`make cluster-lab`: builds the control plane, installs Kalla, carries the scenarios out.

Needs root, Go, and the Debian packages iproute2, dnsmasq-base, bubblewrap and prometheus.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp

from tests.cluster_lab import keda
from tests.cluster_lab.build import build
from tests.cluster_lab.control_plane import ControlPlane
from tests.cluster_lab.installation import Installation
from tests.cluster_lab.kubelet import Kubelet
from tests.cluster_lab.network import LabNetwork
from tests.cluster_lab.scenarios import SCENARIOS, Lab
from tests.cluster_lab.servers import Servers

_INSIDE = "KALLA_LAB_INSIDE"
_NEEDED = ("ip", "dnsmasq", "bwrap", "prometheus", "unshare", "setpriv", "go")


def main() -> int:
    options = _options()
    if missing := [program for program in _NEEDED if shutil.which(program) is None]:
        print(f"Missing: {', '.join(missing)}. See tests/cluster_lab/__main__.py.")
        return 2
    programs = build()
    if _INSIDE not in os.environ:
        # Networks, mounts and processes of its own: all of it ends with this process.
        namespaces = [
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ]
        command = [*namespaces, sys.executable, "-m", "tests.cluster_lab", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {_INSIDE: "1"}, check=False).returncode
    folder = Path(options.folder or mkdtemp(prefix="kalla-lab-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    print(f"  logs          {folder}", flush=True)
    with ExitStack() as stack:
        lab = _start(stack, programs, folder, patient=options.patient)
        return _carry_out(lab, options.scenario or list(SCENARIOS), folder)


def _start(stack: ExitStack, programs: Path, folder: Path, *, patient: bool) -> Lab:
    network = LabNetwork(folder)
    network.start()
    stack.callback(network.stop)
    servers = Servers(folder)
    servers.start()
    stack.callback(servers.stop)
    control_plane = ControlPlane(programs, folder)
    stack.callback(control_plane.stop)
    control_plane.start()
    kubelet = Kubelet(control_plane.client(), network, folder, control_plane.authority.certificate)
    kubelet.start()
    stack.callback(kubelet.stop)
    _say("Kubernetes runs")
    keda.start(control_plane, folder)
    _say("KEDA runs")
    installation = Installation(control_plane, servers, patient=patient)
    installation.install()
    _say("Kalla runs")
    return Lab(control_plane, kubelet, servers, installation)


def _carry_out(lab: Lab, names: list[str], folder: Path) -> int:
    failed = 0
    with (folder / "report.jsonl").open("w") as report:
        for name in names:
            started = time.monotonic()
            try:
                facts = {"holds": True, **SCENARIOS[name](lab)}
            except AssertionError as error:
                failed += 1
                facts = {"holds": False, "why": str(error)}
            line = json.dumps(
                {"scenario": name, **facts, "seconds": round(time.monotonic() - started, 1)}
            )
            report.write(line + "\n")
            report.flush()
            print(line, flush=True)
    for met, times in Counter(lab.kubelet.errors).most_common(10):
        print(f"  the kubelet met {times} x {met}")
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster_lab", description=__doc__)
    parser.add_argument("--folder", help="where logs and data go; a new folder unless given")
    parser.add_argument(
        "--patient", action="store_true", help="keep the manifests' own waits before workers go"
    )
    parser.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="only these; may be repeated"
    )
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')}      {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
