"""Lint of pods, accounts and networks: least rights, nothing that is named and not there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kalla import settings
from kalla.errors import KallaError
from tests.manifests.objects import Finding, Manifests, PodTemplate, selects, where

# What users make themselves; docs/deploy.md says how.
SECRETS = {"kalla-secrets", "kalla-viewer", "kalla-nats", "kalla-postgres"}
# Settings of query workers, which a build without them does not know.
_OPTIONAL_SETTINGS = {"KALLA_QUERY_WORKERS", "KALLA_QUERY_WORKER_HOST"}
# Who calls the Kubernetes API, and what for.
_VERBS = {
    "kalla-api": {("discovery.k8s.io", "endpointslices"): {"get", "list", "watch"}},
    "kalla-worker": {("", "pods"): {"patch"}},
    "kalla-spark": {
        ("", "pods"): {"create", "get", "list", "watch", "patch", "delete", "deletecollection"},
        ("", "configmaps"): {
            "create", "get", "list", "watch", "update", "delete", "deletecollection",
        },
    },
}  # fmt: skip


def pod_findings(manifests: Manifests) -> Iterator[Finding]:
    for rule in (
        _namespace,
        _no_secrets,
        _restricted_pods,
        _service_links,
        _resources,
        _images,
        _references,
        _rights,
        _networks,
        _monitors,
        _headless,
        _nats_routes,
        _settings,
    ):
        yield from rule(manifests)


def _namespace(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.of("Namespace"):
        labels = each["metadata"].get("labels", {})
        if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
            yield Finding("pod-security", where(each), "Pod Security restricted is not enforced")
    for each in manifests.objects:
        if each["kind"] != "Namespace" and each["metadata"].get("namespace") != "kalla":
            yield Finding("namespace", where(each), "is not in the namespace kalla")


def _no_secrets(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.of("Secret"):
        yield Finding("secret", where(each), "a Secret in a manifest is a secret in a repository")
    for name, value in manifests.settings().items():
        if re.search(r"://[^/@]*:[^/@]+@", value) or re.search(r"TOKEN|SECRET_KEY|PASSWORD", name):
            yield Finding("secret", "ConfigMap/kalla-settings", f"{name} belongs into a Secret")


def _restricted_pods(manifests: Manifests) -> Iterator[Finding]:
    for template in manifests.pod_templates():
        spec = template.spec
        security = spec.get("securityContext", {})
        wrong = []
        if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
            wrong.append("runAsNonRoot with a runAsUser")
        if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            wrong.append("seccompProfile RuntimeDefault")
        if any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
            wrong.append("no namespace of the host")
        if any("hostPath" in volume for volume in spec.get("volumes", [])):
            wrong.append("no hostPath")
        for container in template.containers:
            own = container.get("securityContext", {})
            if own.get("allowPrivilegeEscalation") is not False:
                wrong.append(f"{container['name']}: allowPrivilegeEscalation: false")
            if own.get("readOnlyRootFilesystem") is not True:
                wrong.append(f"{container['name']}: readOnlyRootFilesystem: true")
            if own.get("capabilities", {}).get("drop") != ["ALL"]:
                wrong.append(f"{container['name']}: capabilities.drop: [ALL]")
        for each in wrong:
            yield Finding("restricted", template.where, f"needs {each}")


def _service_links(manifests: Manifests) -> Iterator[Finding]:
    """Kubernetes makes KALLA_API_PORT=tcp://... of a Service; Kalla reads it as a setting."""
    for template in manifests.pod_templates():
        if template.spec.get("enableServiceLinks") is not False:
            yield Finding("service-links", template.where, "needs enableServiceLinks: false")


def _resources(manifests: Manifests) -> Iterator[Finding]:
    for template in _own_templates(manifests):
        for container in template.containers:
            resources = container.get("resources", {})
            # Without a request for CPU an HPA on utilisation has nothing to divide by.
            missing = [
                f"{part}.{name}"
                for part, name in (
                    ("requests", "cpu"),
                    ("requests", "memory"),
                    ("limits", "memory"),
                )
                if name not in resources.get(part, {})
            ]
            if missing:
                yield Finding("resources", template.where, f"{container['name']} lacks {missing}")


def _images(manifests: Manifests) -> Iterator[Finding]:
    for template in _own_templates(manifests):
        for container in template.containers:
            image = container["image"]
            if image.endswith(":latest") or ":" not in image:
                yield Finding("image", template.where, f"{image} does not name a version")


def _references(manifests: Manifests) -> Iterator[Finding]:
    for template in manifests.pod_templates():
        spec = template.spec
        named: list[tuple[str, str]] = []
        if "serviceAccountName" in spec:
            named.append(("ServiceAccount", spec["serviceAccountName"]))
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                named.append(("ConfigMap", volume["configMap"]["name"]))
            if "persistentVolumeClaim" in volume:
                named.append(
                    ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
                )
        secrets = []
        for container in template.containers:
            for source in container.get("envFrom", []):
                if "configMapRef" in source:
                    named.append(("ConfigMap", source["configMapRef"]["name"]))
                if "secretRef" in source:
                    secrets.append(source["secretRef"]["name"])
            sources = [variable.get("valueFrom", {}) for variable in container.get("env", [])]
            secrets += [each["secretKeyRef"]["name"] for each in sources if "secretKeyRef" in each]
        for kind, name in named:
            if manifests.get(kind, name) is None:
                yield Finding("reference", template.where, f"there is no {kind}/{name}")
        for name in secrets:
            if name not in SECRETS:
                yield Finding("reference", template.where, f"docs/deploy.md names no Secret {name}")
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        workload = manifests.get(*template.where.split("/")) if "/" in template.where else None
        if workload is not None:
            claims = workload["spec"].get("volumeClaimTemplates", [])
            volumes |= {claim["metadata"]["name"] for claim in claims}
        for container in template.containers:
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield Finding("reference", template.where, f"no volume {mount['name']}")


def _rights(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.of("ClusterRole", "ClusterRoleBinding"):
        yield Finding("rights", where(each), "nothing needs rights outside its namespace")
    for each in manifests.of("ServiceAccount"):
        if each.get("automountServiceAccountToken") is not False:
            yield Finding("rights", where(each), "needs automountServiceAccountToken: false")
    granted: dict[str, dict[tuple[str, str], set[str]]] = {}
    for binding in manifests.of("RoleBinding"):
        role = manifests.get("Role", binding["roleRef"]["name"])
        if role is None:
            yield Finding("rights", where(binding), "binds a Role that is not there")
            continue
        for subject in binding["subjects"]:
            rights = granted.setdefault(subject["name"], {})
            for rule in role["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        rights.setdefault((group, resource), set()).update(rule["verbs"])
    for account in granted.keys() | _VERBS.keys():
        if manifests.get("ServiceAccount", account) is None:
            yield Finding("rights", f"ServiceAccount/{account}", "has rights and is not there")
        elif granted.get(account, {}) != _VERBS.get(account, {}):
            yield Finding("rights", f"ServiceAccount/{account}", "has other rights than it needs")
    for template in manifests.pod_templates():
        mounted = template.spec.get("automountServiceAccountToken") is not False
        if mounted != (template.spec.get("serviceAccountName") in _VERBS):
            yield Finding(
                "rights", template.where, "a token is for those alone that call the Kubernetes API"
            )


def _networks(manifests: Manifests) -> Iterator[Finding]:
    policies = list(manifests.of("NetworkPolicy"))
    if not any(
        each["spec"]["podSelector"] == {} and not each["spec"].get("ingress") for each in policies
    ):
        yield Finding("network", "NetworkPolicy", "nothing denies what no policy allows")
    for template in manifests.pod_templates():
        own = [p for p in policies if p["spec"]["podSelector"] and _takes(p, template)]
        if not own:
            yield Finding("network", template.where, "no policy says who may reach it")
    for policy in policies:
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                for template in manifests.pod_templates():
                    if not _takes(policy, template):
                        continue
                    numbers = {
                        each["containerPort"]
                        for container in template.containers
                        for each in container.get("ports", [])
                    }
                    if port["port"] not in template.port_names | numbers:
                        message = f"{template.where} has no port {port['port']}"
                        yield Finding("network", where(policy), message)


def _takes(policy: dict[str, object], template: PodTemplate) -> bool:
    spec = policy["spec"]
    assert isinstance(spec, dict)
    return selects(spec["podSelector"], template.labels)


def _monitors(manifests: Manifests) -> Iterator[Finding]:
    monitored = set()
    for each in manifests.of("PodMonitor"):
        for template in manifests.pod_templates():
            if not selects(each["spec"]["selector"], template.labels):
                continue
            monitored.add(template.labels["app.kubernetes.io/name"])
            for endpoint in each["spec"]["podMetricsEndpoints"]:
                if endpoint["port"] not in template.port_names:
                    yield Finding("monitor", where(each), f"{template.where} has no such port")
    if missing := {"kalla-api", "kalla-worker", "kalla-query"} - monitored:
        yield Finding("monitor", "PodMonitor", f"nobody scrapes {sorted(missing)}")


def _headless(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.of("StatefulSet"):
        service = manifests.get("Service", each["spec"]["serviceName"])
        if service is None or service["spec"].get("clusterIP") != "None":
            yield Finding("headless", where(each), "its pods have no names without such a Service")
    for service in manifests.of("Service"):
        pods = [
            template
            for template in manifests.pod_templates()
            if selects({"matchLabels": service["spec"]["selector"]}, template.labels)
        ]
        for port in service["spec"]["ports"]:
            if not any(port["targetPort"] in template.port_names for template in pods):
                yield Finding(
                    "service", where(service), f"no pod has the port {port['targetPort']}"
                )


def _nats_routes(manifests: Manifests) -> Iterator[Finding]:
    nats = manifests.get("StatefulSet", "kalla-nats")
    conf = manifests.get("ConfigMap", "kalla-nats")
    if nats is None or conf is None:
        return
    routes = re.findall(r"nats://kalla-nats-(\d+)", conf["data"]["nats.conf"])
    replicas = nats["spec"]["replicas"]
    if replicas % 2 == 0:
        yield Finding("nats", where(nats), "an even number of servers has no majority to spare")
    if len(routes) != (replicas if replicas > 1 else 0):
        yield Finding("nats", where(conf), f"{len(routes)} routes for {replicas} servers")


def _settings(manifests: Manifests) -> Iterator[Finding]:
    """A name that is not a setting is ignored; a wrong value keeps a pod from starting."""
    try:
        effective = settings.load(environment=manifests.settings())
    except KallaError as error:
        yield Finding("settings", "ConfigMap/kalla-settings", str(error))
        return
    for name in set(effective.ignored) - _OPTIONAL_SETTINGS:
        yield Finding("settings", "ConfigMap/kalla-settings", f"there is no setting {name}")
    found = effective.settings
    hosts = (found.api.host, found.api.metrics_host, found.worker.host, found.query_worker.host)
    if any(host != "0.0.0.0" for host in hosts):
        # Probes, too, come from outside of the pod: it would never become ready.
        yield Finding("settings", "ConfigMap/kalla-settings", "nobody reaches a loopback server")
    scaling = effective.settings.scaling
    for each in manifests.of("ScaledObject"):
        if each["metadata"]["name"].startswith("kalla-worker"):
            spec = each["spec"]
            bounds = (spec.get("minReplicaCount"), spec.get("maxReplicaCount"))
            if bounds != (scaling.min_workers, scaling.max_workers):
                yield Finding("settings", where(each), f"KALLA_SCALING_* says other than {bounds}")


def _own_templates(manifests: Manifests) -> Iterator[PodTemplate]:
    """Without the executors': Spark fills in their image and resources."""
    return (each for each in manifests.pod_templates() if "executor.yaml" not in each.where)
