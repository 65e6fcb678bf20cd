"""KEDA: its definitions, and its operator and server of metrics as processes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import yaml

from tests.cluster_lab.build import KEDA, module_folder
from tests.cluster_lab.control_plane import ControlPlane
from tests.cluster_lab.network import NODE
from tests.waiting import until

_METRICS_PORT = 6443
_OPERATOR = "keda-operator.keda.svc.cluster.local"


def start(control_plane: ControlPlane, folder: Path) -> None:
    """Installs KEDA and waits until Kubernetes can ask it for metrics."""
    source = module_folder("github.com/kedacore/keda/v2", KEDA)
    # Server-side: the definitions are too long for the annotation of a plain apply.
    control_plane.kubectl("apply", "--server-side", "-f", str(source / "config/crd/bases"))
    control_plane.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(_objects()))
    certificates = _certificates(control_plane, folder)
    environment = os.environ | {
        "KUBECONFIG": str(control_plane.kubeconfig),
        "POD_NAMESPACE": "keda",
        "POD_NAME": "keda-operator",
        "WATCH_NAMESPACE": "",
        "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda",
    }
    control_plane.run(
        "keda-operator",
        f"--cert-dir={certificates}",
        "--metrics-bind-address=:18080",
        "--health-probe-bind-address=:18081",
        environment=environment,
    )
    control_plane.run(
        "keda-adapter",
        f"--secure-port={_METRICS_PORT}",
        "--port=18082",
        f"--cert-dir={certificates}",
        f"--tls-cert-file={certificates / 'tls.crt'}",
        f"--tls-private-key-file={certificates / 'tls.key'}",
        f"--metrics-service-address={_OPERATOR}:9666",
        f"--authentication-kubeconfig={control_plane.kubeconfig}",
        f"--authorization-kubeconfig={control_plane.kubeconfig}",
        f"--lister-kubeconfig={control_plane.kubeconfig}",
        environment=environment,
    )
    with control_plane.client() as client:
        until(
            lambda: client.get("/apis/external.metrics.k8s.io/v1beta1").is_success,
            "KEDA serves external metrics",
            seconds=120,
        )


def _certificates(control_plane: ControlPlane, folder: Path) -> Path:
    hosts = (
        _OPERATOR,
        "keda-operator.keda.svc",
        "keda-metrics-apiserver.keda.svc",
        NODE,
        "localhost",
    )
    certificate, key = control_plane.authority.issue("keda", hosts=hosts)
    target = folder / "keda"
    target.mkdir()
    shutil.copy(control_plane.authority.certificate, target / "ca.crt")
    shutil.copy(certificate, target / "tls.crt")
    shutil.copy(key, target / "tls.key")
    return target


def _objects() -> list[dict[str, object]]:
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "keda"}},
        *_service("keda-operator", 9666, 9666),
        *_service("keda-metrics-apiserver", 443, _METRICS_PORT),
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
            "spec": {
                "service": {"name": "keda-metrics-apiserver", "namespace": "keda"},
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]


def _service(name: str, port: int, target: int) -> list[dict[str, object]]:
    """A Service whose endpoint is a process of the lab, not a pod."""
    named = {"name": "https", "port": port, "targetPort": target, "protocol": "TCP"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "keda"},
            "spec": {"ports": [named]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": "keda",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [NODE], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": target, "protocol": "TCP"}],
        },
    ]
