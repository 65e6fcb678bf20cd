"""The lab's network: a bridge in a namespace of its own, one address a pod, and names by dnsmasq.

Everything runs in the network namespace of `make cluster-lab`: no packet leaves the machine.
"""

from __future__ import annotations

import signal
import subprocess
from ipaddress import IPv4Address
from pathlib import Path

NODE = "10.210.0.1"
RESOLVER = f"""\
nameserver {NODE}
search kalla.svc.cluster.local svc.cluster.local cluster.local
options ndots:5
"""
_PREFIX = 16
_FIRST_POD = IPv4Address("10.210.1.0")


class LabNetwork:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pods = 0
        self._hosts = folder / "hosts"
        self._dns: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # Namespaces are mounted below /run/netns: here in a place that ends with the lab.
        _run("mkdir", "-p", "/run/netns")
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "lab0", "type", "bridge")
        _run("ip", "address", "add", f"{NODE}/{_PREFIX}", "dev", "lab0")
        _run("ip", "link", "set", "lab0", "up")
        self._hosts.write_text("")
        # KEDA and Prometheus run beside the control plane and look names up as pods do.
        resolver = self._folder / "resolv.conf"
        resolver.write_text(RESOLVER)
        _run("mount", "--bind", str(resolver), "/etc/resolv.conf")
        self._dns = subprocess.Popen(
            [
                *(
                    "dnsmasq",
                    "--keep-in-foreground",
                    "--no-resolv",
                    "--no-hosts",
                    "--user=root",
                    "--pid-file=",
                ),
                *(f"--addn-hosts={self._hosts}", f"--listen-address={NODE}", "--bind-interfaces"),
                # Names of pods change from second to second: nobody may keep an answer.
                *("--local-ttl=0", "--local=/cluster.local/", "--local=/svc/"),
            ]
        )

    def stop(self) -> None:
        if self._dns is not None:
            self._dns.terminate()
            self._dns.wait()

    def add_pod(self, name: str) -> str:
        """Makes the network namespace `name`, and returns its address."""
        self._pods += 1
        address = str(_FIRST_POD + self._pods)
        link = f"pod{self._pods}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", link, "master", "lab0", "up")
        _run("ip", "-n", name, "address", "add", f"{address}/{_PREFIX}", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        return address

    def remove_pod(self, name: str) -> None:
        """Kills what still runs in the namespace, and removes it."""
        pids = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        )
        for pid in pids.stdout.split():
            _run("kill", "-KILL", pid, check=False)
        _run("ip", "netns", "delete", name, check=False)

    def set_names(self, names: dict[str, set[str]]) -> None:
        """Answers each name with its addresses from now on."""
        lines = [
            f"{address} {name}"
            for name, addresses in sorted(names.items())
            for address in sorted(addresses)
        ]
        text = "\n".join(lines) + "\n"
        if text != self._hosts.read_text():
            self._hosts.write_text(text)
            assert self._dns is not None
            self._dns.send_signal(signal.SIGHUP)


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=not check)
