"""The lab's kubelet: one node whose pods are processes. It starts, probes, drains and reports them.

It does what a kubelet does for the fields that Kalla's manifests use.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from tests.cluster_lab import container
from tests.cluster_lab.container import Container, Mount
from tests.cluster_lab.network import NODE, LabNetwork

NAME = "lab-node"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_USER = 10001


@dataclass
class Pod:
    """A pod that this node runs."""

    spec: dict[str, Any]
    uid: str
    network: str
    address: str
    folder: Path
    running: list[Container] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)  # init containers, then the others
    ending_since: float | None = None
    signalled: bool = False
    killed: bool = False  # something in it had not ended by the end of its grace period
    restarts: int = 0
    failed: str | None = None
    reported: str = ""


@dataclass(frozen=True)
class Ending:
    """How a container's process ended: what proves that no busy worker was killed."""

    pod: str
    exit_code: int
    killed_by_us: bool  # it had not ended by the end of its grace period
    asked: bool  # Kubernetes wanted it to end


class Kubelet:
    def __init__(self, client: httpx.Client, network: LabNetwork, folder: Path, ca: Path) -> None:
        self._client = client
        self._network = network
        self._folder = folder
        self._ca = ca
        self._pods: dict[str, Pod] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="kubelet")
        self._probes = ThreadPoolExecutor(16, "probe")
        self.endings: list[Ending] = []
        self.errors: list[str] = []

    def start(self) -> None:
        capacity = {"cpu": "200", "memory": "800Gi", "pods": "500", "ephemeral-storage": "4000Gi"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "the lab's kubelet",
        }
        node = {
            "metadata": {
                "name": NAME,
                "labels": {"kubernetes.io/hostname": NAME, "kubernetes.io/os": "linux"},
            },
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "conditions": [ready],
                "addresses": [{"type": "InternalIP", "address": NODE}],
            },
        }
        self._client.post("/api/v1/nodes", json=node).raise_for_status()
        # New nodes are tainted until a controller, which the lab does without, has seen them.
        self._patch(f"/api/v1/nodes/{NAME}", {"spec": {"taints": None}})
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._probes.shutdown(cancel_futures=True)
        for pod in self._pods.values():
            self._network.remove_pod(pod.network)

    def pods(self, prefix: str = "") -> list[Pod]:
        return [
            pod
            for pod in list(self._pods.values())
            if pod.spec["metadata"]["name"].startswith(prefix)
        ]

    def execute(self, pod: Pod, arguments: list[str], *, seconds: float) -> tuple[int, str]:
        """As `kubectl exec POD -- kalla ARGUMENTS`: the exit code and what it printed."""
        spec = pod.spec["spec"]["containers"][0] | {"name": "exec", "args": arguments}
        started = self._container(pod, spec)
        code = started.process.wait(seconds)
        return code, (pod.folder / "exec.log").read_text(errors="replace")

    def _loop(self) -> None:
        while not self._stopping.wait(0.5):
            try:
                self._tick()
            except (
                httpx.HTTPError,
                KeyError,
                OSError,
            ) as error:  # the API may be away for a moment
                self.errors.append(f"{type(error).__name__}: {error}")

    def _tick(self) -> None:
        wanted = self._list("/api/v1/pods", fieldSelector=f"spec.nodeName={NAME}")
        for each in wanted:
            uid = each["metadata"]["uid"]
            if uid not in self._pods and "deletionTimestamp" not in each["metadata"]:
                self._pods[uid] = self._admit(each)
            if uid in self._pods and "deletionTimestamp" in each["metadata"]:
                self._end(self._pods[uid], each["metadata"].get("deletionGracePeriodSeconds", 30))
            elif uid not in self._pods:
                self._forget(each)
        present = {each["metadata"]["uid"] for each in wanted}
        for uid in [uid for uid in self._pods if uid not in present]:
            self._remove(self._pods.pop(uid))
        for pod in list(self._pods.values()):
            self._advance(pod)
        self._bind_claims()
        self._publish_names()

    # -- starting

    def _admit(self, spec: dict[str, Any]) -> Pod:
        name, uid = spec["metadata"]["name"], spec["metadata"]["uid"]
        network = f"pod-{uid[:13]}"
        folder = self._folder / "pods" / f"{name}-{uid[:8]}"
        folder.mkdir(parents=True)
        pod = Pod(spec, uid, network, self._network.add_pod(network), folder)
        pod.waiting = [*spec["spec"].get("initContainers", []), *spec["spec"]["containers"]]
        return pod

    def _container(self, pod: Pod, spec: dict[str, Any]) -> Container:
        return container.start(
            spec,
            pod=pod.spec["metadata"]["name"],
            namespace=pod.network,
            address=pod.address,
            mounts=self._mounts(pod, spec),
            environment=self._environment(pod, spec),
            folder=pod.folder,
            now=time.monotonic(),
        )

    def _environment(self, pod: Pod, spec: dict[str, Any]) -> dict[str, str]:
        namespace = pod.spec["metadata"]["namespace"]
        found = {
            "KUBERNETES_SERVICE_HOST": "kubernetes.default.svc",
            "KUBERNETES_SERVICE_PORT": "443",
        }
        for source in spec.get("envFrom", []):
            if "configMapRef" in source:
                found |= self._data(namespace, "configmaps", source["configMapRef"]["name"])
            else:
                found |= self._data(namespace, "secrets", source["secretRef"]["name"])
        for variable in spec.get("env", []):
            origin = variable.get("valueFrom", {})
            if "fieldRef" in origin:
                path = origin["fieldRef"]["fieldPath"]
                known = {
                    "metadata.name": pod.spec["metadata"]["name"],
                    "metadata.namespace": namespace,
                    "status.podIP": pod.address,
                }
                found[variable["name"]] = known[path]
            elif "secretKeyRef" in origin:
                reference = origin["secretKeyRef"]
                found[variable["name"]] = self._data(namespace, "secrets", reference["name"])[
                    reference["key"]
                ]
            else:
                found[variable["name"]] = variable.get("value", "")
        return found

    def _mounts(self, pod: Pod, spec: dict[str, Any]) -> list[Mount]:
        volumes = {each["name"]: each for each in pod.spec["spec"].get("volumes", [])}
        mounts = []
        for mount in spec.get("volumeMounts", []):
            if mount["mountPath"] == _ACCOUNT:
                # The API server adds it to pods whose account or own field asks for it.
                mounts.append(Mount(self._account(pod), _ACCOUNT, writable=False))
                continue
            source, writable = self._volume(pod, volumes[mount["name"]])
            mounts.append(Mount(source / mount.get("subPath", ""), mount["mountPath"], writable))
        if not any(each.target == "/tmp" for each in mounts) and not _read_only(spec):
            mounts.append(Mount(_folder(pod.folder / "tmp"), "/tmp", writable=True))
        return mounts

    def _volume(self, pod: Pod, volume: dict[str, Any]) -> tuple[Path, bool]:
        namespace = pod.spec["metadata"]["namespace"]
        if "emptyDir" in volume:
            return _folder(pod.folder / "volumes" / volume["name"]), True
        if "persistentVolumeClaim" in volume:
            return _folder(
                self._folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            ), True
        if "configMap" in volume:
            kind, name = "configmaps", volume["configMap"]["name"]
        elif "secret" in volume:
            kind, name = "secrets", volume["secret"]["secretName"]
        else:
            raise KeyError(f"the lab does not know this volume: {volume}")
        folder = _folder(pod.folder / "volumes" / volume["name"])
        for key, value in self._data(namespace, kind, name).items():
            (folder / key).write_text(value)
        return folder, False

    def _account(self, pod: Pod) -> Path:
        """The token of the pod's account, as every container finds it."""
        namespace = pod.spec["metadata"]["namespace"]
        folder = _folder(pod.folder / "account")
        if not (folder / "token").exists():
            account = pod.spec["spec"].get("serviceAccountName", "default")
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
            answer = self._client.post(path, json={"spec": {"expirationSeconds": 86400}})
            (folder / "token").write_text(answer.raise_for_status().json()["status"]["token"])
            (folder / "namespace").write_text(namespace)
            shutil.copy(self._ca, folder / "ca.crt")
        return folder

    # -- running

    def _advance(self, pod: Pod) -> None:
        """Starts what is due, notices what has ended, probes what runs, reports what changed."""
        for each in list(pod.running):
            code = each.process.poll()
            if code is not None:
                self._ended(pod, each, code)
        first = {each["name"] for each in pod.spec["spec"].get("initContainers", [])}
        prepared = not any(each.name in first for each in pod.running)
        if pod.waiting and prepared and pod.ending_since is None and pod.failed is None:
            pod.running.append(self._container(pod, pod.waiting.pop(0)))
        now = time.monotonic()
        for each in pod.running:
            if now >= each.next_probe:
                each.next_probe = now + 2
                self._probes.submit(self._probe, pod, each)
        self._report(pod)

    def _ended(self, pod: Pod, ended: Container, code: int) -> None:
        pod.running.remove(ended)
        asked = pod.ending_since is not None
        if (
            any(each["name"] == ended.name for each in pod.spec["spec"].get("initContainers", []))
            and code == 0
        ):
            return
        self.endings.append(Ending(pod.spec["metadata"]["name"], code, pod.killed, asked))
        if asked:
            return
        if pod.spec["spec"].get("restartPolicy", "Always") == "Always":
            pod.restarts += 1
            again = [*pod.spec["spec"].get("initContainers", []), *pod.spec["spec"]["containers"]]
            pod.waiting.insert(0, next(each for each in again if each["name"] == ended.name))
        else:
            pod.failed = "Succeeded" if code == 0 else "Failed"

    def _probe(self, pod: Pod, running: Container) -> None:
        spec = next(
            (each for each in pod.spec["spec"]["containers"] if each["name"] == running.name), None
        )
        if spec is None:
            return
        if not running.started_up and "startupProbe" in spec:
            running.started_up = self._answers(pod, spec, spec["startupProbe"])
            return
        running.ready = "readinessProbe" not in spec or self._answers(
            pod, spec, spec["readinessProbe"]
        )

    def _answers(self, pod: Pod, spec: dict[str, Any], probe: dict[str, Any]) -> bool:
        check = probe.get("httpGet") or probe["tcpSocket"]
        ports = {each["name"]: each["containerPort"] for each in spec.get("ports", [])}
        port = ports.get(check["port"], check["port"])
        # Patient: this machine is slower than a node of a cluster.
        timeout = probe.get("timeoutSeconds", 1) + 4
        try:
            if "tcpSocket" in probe:
                socket.create_connection((pod.address, int(port)), timeout).close()
                return True
            url = f"http://{pod.address}:{port}{check['path']}"
            return httpx.get(url, timeout=timeout).status_code < httpx.codes.BAD_REQUEST
        except (OSError, httpx.HTTPError):
            return False

    # -- ending

    def _end(self, pod: Pod, grace: float) -> None:
        now = time.monotonic()
        if pod.ending_since is None:
            pod.ending_since = now
        hook = (
            pod.spec["spec"]["containers"][0]
            .get("lifecycle", {})
            .get("preStop", {})
            .get("sleep", {})
        )
        if now - pod.ending_since >= hook.get("seconds", 0) and not pod.signalled:
            pod.signalled = True
            for each in pod.running:
                each.signal(signal.SIGTERM)
        if now - pod.ending_since > grace and any(e.process.poll() is None for e in pod.running):
            pod.killed = True
            for each in pod.running:
                each.signal(signal.SIGKILL)
        if not any(each.process.poll() is None for each in pod.running):
            for each in list(pod.running):
                self._ended(pod, each, each.process.returncode)
            self._forget(pod.spec)

    def _forget(self, spec: dict[str, Any]) -> None:
        metadata = spec["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        self._client.request("DELETE", path, json=body)

    def _remove(self, pod: Pod) -> None:
        for each in pod.running:
            each.signal(signal.SIGKILL)
        self._network.remove_pod(pod.network)

    # -- reporting

    def _report(self, pod: Pod) -> None:
        specs = pod.spec["spec"]["containers"]
        running = {each.name: each for each in pod.running}
        ready = pod.ending_since is None and all(
            each["name"] in running and running[each["name"]].ready for each in specs
        )
        phase = pod.failed or (
            "Running" if any(each["name"] in running for each in specs) else "Pending"
        )
        started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        statuses = [
            {
                "name": each["name"],
                "image": each["image"],
                "imageID": "",
                "ready": each["name"] in running and running[each["name"]].ready,
                "restartCount": pod.restarts,
                "state": {"running": {"startedAt": started}}
                if each["name"] in running
                else self._ended_state(pod),
            }
            for each in specs
        ]
        condition = "True" if ready else "False"
        status = {
            "phase": phase,
            "podIP": pod.address,
            "podIPs": [{"ip": pod.address}],
            "hostIP": NODE,
            "startTime": started,
            "containerStatuses": statuses,
            "conditions": [
                {"type": kind, "status": condition} for kind in ("Ready", "ContainersReady")
            ]
            + [{"type": kind, "status": "True"} for kind in ("Initialized", "PodScheduled")],
        }
        key = json.dumps([phase, ready, pod.restarts, sorted(running)])
        if key != pod.reported:
            metadata = pod.spec["metadata"]
            self._patch(
                f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status",
                {"status": status},
            )
            pod.reported = key

    def _ended_state(self, pod: Pod) -> dict[str, Any]:
        if pod.failed:
            return {"terminated": {"exitCode": 0 if pod.failed == "Succeeded" else 1}}
        return {"waiting": {"reason": "ContainerCreating"}}

    # -- what else a cluster has

    def _bind_claims(self) -> None:
        """Gives each claim a volume: a folder of the lab."""
        for claim in self._list("/api/v1/persistentvolumeclaims"):
            metadata = claim["metadata"]
            if claim["status"].get("phase") == "Bound" or "volumeName" in claim["spec"]:
                continue
            volume = {
                "metadata": {"name": f"lab-{metadata['uid']}"},
                "spec": {
                    "accessModes": claim["spec"]["accessModes"],
                    "capacity": claim["spec"]["resources"]["requests"],
                    "hostPath": {"path": str(self._folder / "claims" / metadata["name"])},
                    "claimRef": {
                        "namespace": metadata["namespace"],
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                    },
                    **(
                        {"storageClassName": name}
                        if (name := claim["spec"].get("storageClassName"))
                        else {}
                    ),
                },
            }
            self._client.post("/api/v1/persistentvolumes", json=volume)

    def _publish_names(self) -> None:
        names: dict[str, set[str]] = {}
        for slice_ in self._list("/apis/discovery.k8s.io/v1/endpointslices"):
            service = slice_["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            namespace = slice_["metadata"]["namespace"]
            for endpoint in slice_.get("endpoints") or []:
                if not service or not endpoint.get("conditions", {}).get("ready", True):
                    continue
                hosts = [
                    service,
                    *([f"{endpoint['hostname']}.{service}"] if "hostname" in endpoint else []),
                ]
                for host in hosts:
                    for domain in (
                        f"{host}.{namespace}.svc",
                        f"{host}.{namespace}.svc.cluster.local",
                    ):
                        names.setdefault(domain, set()).update(endpoint["addresses"])
        for domain in ("kubernetes.default.svc", "kubernetes.default.svc.cluster.local"):
            names[domain] = {NODE}
        # Servers that users bring themselves; here they are processes beside the control plane.
        for domain in ("prometheus-operated.monitoring.svc", "db.example", "s3.example"):
            names[domain] = {NODE}
        self._network.set_names(names)

    # -- the API

    def _list(self, path: str, **query: str) -> list[dict[str, Any]]:
        answer = self._client.get(path, params=query).raise_for_status().json()
        return list(answer["items"])

    def _data(self, namespace: str, kind: str, name: str) -> dict[str, str]:
        answer = (
            self._client.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
            .raise_for_status()
            .json()
        )
        data: dict[str, str] = answer.get("data") or {}
        return (
            {key: base64.b64decode(value).decode() for key, value in data.items()}
            if kind == "secrets"
            else data
        )

    def _patch(self, path: str, body: dict[str, Any]) -> None:
        kind = {"Content-Type": "application/merge-patch+json"}
        answer = self._client.patch(path, content=json.dumps(body), headers=kind)
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()


def _read_only(spec: dict[str, Any]) -> bool:
    return bool(spec.get("securityContext", {}).get("readOnlyRootFilesystem"))


def _folder(path: Path) -> Path:
    """A folder that the pods' user may write to."""
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, _USER, _USER)
    return path
