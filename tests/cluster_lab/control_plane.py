"""etcd, the API server, the controllers and the scheduler of Kubernetes, as processes."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.cluster_lab.certificates import Authority
from tests.cluster_lab.network import NODE
from tests.waiting import until

API = "https://kubernetes.default.svc"
_API_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


class ControlPlane:
    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.authority = Authority(folder / "certificates")
        self.admin = self.authority.issue("admin", group="system:masters")
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))

    def start(self) -> None:
        self.run(
            "etcd",
            "--data-dir",
            str(self._folder / "etcd"),
            "--unsafe-no-fsync",
            "--log-level",
            "warn",
        )
        server = self.authority.issue(
            "kube-apiserver", hosts=(*_API_NAMES, NODE, "127.0.0.1", "10.211.0.1")
        )
        proxy = self.authority.issue("aggregator")
        private, public = self.authority.service_account_keys()
        ca = str(self.authority.certificate)
        self.run(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=443",
            f"--advertise-address={NODE}",
            "--service-cluster-ip-range=10.211.0.0/16",
            f"--tls-cert-file={server[0]}",
            f"--tls-private-key-file={server[1]}",
            f"--client-ca-file={ca}",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={API}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            # Services have no addresses of their own here: go to the endpoints.
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={ca}",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={proxy[0]}",
            f"--proxy-client-key-file={proxy[1]}",
        )
        until(self._answers, "the Kubernetes API answers", seconds=180)
        self.run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={private}",
            f"--root-ca-file={ca}",
            # The node of the lab sends no heartbeats.
            "--controllers=*,-node-lifecycle-controller",
            "--leader-elect=false",
        )
        self.run("kube-scheduler", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false")

    def run(
        self, program: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts a program of the control plane; its output goes to a file of its name."""
        with (self._folder / f"{program}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self._programs / program), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self._processes.append(process)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def client(self) -> httpx.Client:
        """A client of the API with all rights."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(*map(str, self.admin))
        return httpx.Client(base_url=f"https://{NODE}", verify=context, timeout=30)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        command = [str(self._programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def _answers(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                raise RuntimeError(
                    f"a part of the control plane ended: see the logs in {self._folder}"
                )
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _kubeconfig(self) -> dict[str, Any]:
        cluster = {
            "server": f"https://{NODE}",
            "certificate-authority": str(self.authority.certificate),
        }
        user = {"client-certificate": str(self.admin[0]), "client-key": str(self.admin[1])}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "admin", "user": user}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
            "current-context": "lab",
        }
