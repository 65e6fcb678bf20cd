"""Lint of everything that scales: each rule is a mistake that was made, and what it cost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.manifests.objects import Finding, Manifests, Object, selects, where

_UTILISATION = 0.8
_DRAIN_MARGIN = 15  # seconds to write the last state and end after the drain


def scaling_findings(manifests: Manifests) -> Iterator[Finding]:
    for rule in (
        _complete_autoscalers,
        _scale_targets,
        _demand_triggers,
        _busy_triggers,
        _lag_triggers,
        _prometheus_triggers,
        _trigger_values,
        _fallbacks,
        _scale_down,
        _owned_replicas,
        _grace_periods,
        _readiness,
        _disruption_budgets,
        _spark_allocation,
        _spark_safety,
        _roles,
    ):
        yield from rule(manifests)


def _complete_autoscalers(manifests: Manifests) -> Iterator[Finding]:
    """An HPA without `target.type` or `scaleTargetRef.kind` is refused, or scales nothing."""
    for each in manifests.of("HorizontalPodAutoscaler"):
        spec = each["spec"]
        for field in ("apiVersion", "kind", "name"):
            if not spec["scaleTargetRef"].get(field):
                yield Finding("hpa-incomplete", where(each), f"scaleTargetRef.{field} is missing")
        for metric in spec.get("metrics", []):
            (source,) = [value for key, value in metric.items() if key != "type"]
            if not source.get("target", {}).get("type"):
                yield Finding("hpa-incomplete", where(each), "a metric has no target.type")


def _scale_targets(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.of("HorizontalPodAutoscaler", "ScaledObject"):
        target = each["spec"]["scaleTargetRef"]
        kind, name = target.get("kind"), target.get("name")
        if not kind:
            yield Finding("scale-target", where(each), "scaleTargetRef.kind is missing")
        elif manifests.get(kind, name) is None:
            yield Finding("scale-target", where(each), f"there is no {kind}/{name}")


def _demand_triggers(manifests: Manifests) -> Iterator[Finding]:
    """Demand is waiting and running work. Depth alone ended eight busy workers of eight."""
    settings = manifests.settings()
    for each, role in _worker_scalers(manifests):
        # A pipeline's slot is not a job, and a worker carries more of them.
        places = "SINKS_REPLICAS_PER_WORKER" if role == "sinks" else "WORKER_CONCURRENCY"
        target = round(int(settings[f"KALLA_{places}"]) * _UTILISATION, 9)
        demand = [t for t in _of_the_api(each) if t["name"] != "busy"]
        if not demand:
            yield Finding("demand", where(each), "no metrics-api trigger reads the demand")
        for trigger in demand:
            location = trigger["metadata"].get("valueLocation")
            if location != f"roles.{role}.demand":
                yield Finding("demand", where(each), f"{location} is not the demand of {role}")
            if float(trigger["metadata"]["targetValue"]) != target:
                yield Finding(
                    "demand", where(each), f"targetValue is not places x 0.8 = {target:g}"
                )
            if trigger.get("metricType", "AverageValue") != "AverageValue":
                yield Finding("demand", where(each), "a total needs metricType AverageValue")


def _busy_triggers(manifests: Manifests) -> Iterator[Finding]:
    """Eight workers with a long job each have a demand of 8, for which 3 workers are enough."""
    for each, role in _worker_scalers(manifests):
        busy = [t for t in _of_the_api(each) if t["name"] == "busy"]
        if [t["metadata"].get("valueLocation") for t in busy] != [f"roles.{role}.busy"]:
            yield Finding("busy", where(each), f"one trigger must read roles.{role}.busy")
        for trigger in busy:
            if trigger["metadata"]["targetValue"] != "1":
                yield Finding("busy", where(each), "a worker that is busy needs itself: 1")
            if trigger.get("metricType", "AverageValue") != "AverageValue":
                yield Finding("busy", where(each), "a total needs metricType AverageValue")


def _of_the_api(scaler: Object) -> list[Object]:
    return [t for t in scaler["spec"]["triggers"] if t["type"] == "metrics-api"]


def _lag_triggers(manifests: Manifests) -> Iterator[Finding]:
    for each, role in _worker_scalers(manifests):
        for trigger in each["spec"]["triggers"]:
            if trigger["type"] != "nats-jetstream":
                continue
            metadata = trigger["metadata"]
            endpoint = metadata.get("natsServerMonitoringEndpoint")
            if not endpoint:
                yield Finding("lag", where(each), "natsServerMonitoringEndpoint is missing")
            elif not _service_exists(manifests, endpoint):
                yield Finding("lag", where(each), f"there is no Service for {endpoint}")
            if metadata.get("consumer") != f"workers-{role}":
                yield Finding("lag", where(each), f"the consumer of {role} is workers-{role}")


def _prometheus_triggers(manifests: Manifests) -> Iterator[Finding]:
    """An average under AverageValue stayed at 2 replicas with 36 jobs waiting."""
    for each in manifests.of("ScaledObject"):
        for trigger in each["spec"]["triggers"]:
            if trigger["type"] != "prometheus":
                continue
            metadata = trigger["metadata"]
            if re.search(r"\bavg\b|_avg\b|avg_over_time", metadata["query"]):
                yield Finding("total", where(each), "the query is an average, not a total")
            if metadata.get("ignoreNullValues") != "false":
                yield Finding(
                    "null-values", where(each), 'without ignoreNullValues: "false" no data is zero'
                )


def _trigger_values(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.of("ScaledObject"):
        for trigger in each["spec"]["triggers"]:
            for name, value in trigger["metadata"].items():
                if not isinstance(value, str):
                    yield Finding("trigger-text", where(each), f"{name} must be text, in quotes")
            if trigger["type"] == "metrics-api":
                url = trigger["metadata"]["url"]
                if not _service_exists(manifests, url.split("://")[1].split("/")[0]):
                    yield Finding("service", where(each), f"there is no Service for {url}")
                if trigger["metadata"].get("authMode") != "bearer" or not trigger.get(
                    "authenticationRef"
                ):
                    yield Finding("token", where(each), "the API refuses a trigger without a token")


def _fallbacks(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.of("ScaledObject"):
        fallback = each["spec"].get("fallback")
        if not fallback:
            yield Finding("fallback", where(each), "without fallback a dead metric stops scaling")
        elif fallback.get("behavior") != "currentReplicasIfHigher":
            yield Finding("fallback", where(each), "the fallback would end workers that run")


def _scale_down(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.of("ScaledObject", "HorizontalPodAutoscaler"):
        spec = each["spec"]
        if each["kind"] == "ScaledObject":
            least, most = spec.get("minReplicaCount"), spec.get("maxReplicaCount")
            hpa = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
            behavior = hpa.get("behavior", {})
        else:
            least, most = spec.get("minReplicas"), spec.get("maxReplicas")
            behavior = spec.get("behavior", {})
        if least is None or most is None or least > most:
            yield Finding("bounds", where(each), "needs a minimum and a maximum above it")
        down = behavior.get("scaleDown", {})
        bounded = [policy for policy in down.get("policies", []) if policy["type"] == "Pods"]
        if not bounded or not down.get("stabilizationWindowSeconds"):
            yield Finding("scale-down", where(each), "scaling down is not bounded and stabilised")


def _owned_replicas(manifests: Manifests) -> Iterator[Finding]:
    """An apply would set the number back while the scaler wants another."""
    for each in manifests.of("ScaledObject", "HorizontalPodAutoscaler"):
        target = each["spec"]["scaleTargetRef"]
        workload = manifests.get(target.get("kind", ""), target.get("name", ""))
        if workload and "replicas" in workload["spec"]:
            yield Finding("replicas", where(workload), "the scaler owns the number of replicas")


def _grace_periods(manifests: Manifests) -> Iterator[Finding]:
    drain = float(manifests.settings().get("KALLA_WORKER_DRAIN_SECONDS", "20"))
    for template in manifests.pod_templates():
        if template.labels.get("app.kubernetes.io/name") != "kalla-worker":
            continue
        grace = template.spec.get("terminationGracePeriodSeconds", 30)
        if grace < drain + _DRAIN_MARGIN:
            yield Finding(
                "grace-period",
                template.where,
                f"{grace} s end a worker within its drain of {drain:g} s",
            )


def _readiness(manifests: Manifests) -> Iterator[Finding]:
    for template in manifests.pod_templates():
        name = template.labels.get("app.kubernetes.io/name", "")
        if name not in ("kalla-api", "kalla-worker", "kalla-query"):
            continue
        (container,) = template.spec["containers"]
        for probe, path in (("livenessProbe", "/health"), ("readinessProbe", "/ready")):
            found = container.get(probe, {}).get("httpGet", {})
            if (found.get("path"), found.get("port")) != (path, "metrics"):
                yield Finding("probe", template.where, f"{probe} must ask {path} on port metrics")


def _disruption_budgets(manifests: Manifests) -> Iterator[Finding]:
    for template in manifests.pod_templates():
        kind, _, name = template.where.partition("/")
        workload = manifests.get(kind, name)
        if workload is None or workload["spec"].get("replicas") == 1:
            continue
        budgets = [
            each
            for each in manifests.of("PodDisruptionBudget")
            if selects(each["spec"]["selector"], template.labels)
        ]
        if len(budgets) != 1:
            yield Finding("disruption", template.where, f"{len(budgets)} PodDisruptionBudgets")
        for each in budgets:
            if each["spec"].get("maxUnavailable") in (0, "0", "0%"):
                yield Finding("disruption", where(each), "no node could ever be drained")


def _spark_allocation(manifests: Manifests) -> Iterator[Finding]:
    spark = manifests.get("StatefulSet", "kalla-spark")
    if spark is None:
        return
    conf = manifests.spark_defaults()
    for name in (
        "spark.dynamicAllocation.enabled",
        "spark.dynamicAllocation.shuffleTracking.enabled",
        "spark.decommission.enabled",
        "spark.storage.decommission.enabled",
        "spark.storage.decommission.shuffleBlocks.enabled",
    ):
        if conf.get(name) != "true":
            yield Finding("spark-allocation", "ConfigMap/kalla-spark", f"{name} is not true")
    # Without a timeout of its own, an executor with shuffle files is kept for ever.
    timeout = conf.get("spark.dynamicAllocation.shuffleTracking.timeout", "infinity")
    if not re.fullmatch(r"\d+(s|m|min|h)", timeout):
        yield Finding("spark-allocation", "ConfigMap/kalla-spark", "shuffleTracking has no timeout")
    if "spark.dynamicAllocation.maxExecutors" not in conf:
        yield Finding("spark-allocation", "ConfigMap/kalla-spark", "maxExecutors is unbounded")
    if spark["spec"].get("replicas") != 1:
        yield Finding("spark-allocation", where(spark), "a session lives in one Connect server")
    (container,) = spark["spec"]["template"]["spec"]["containers"]
    image = next(e["value"] for e in container["env"] if e["name"] == "EXECUTOR_IMAGE")
    if image != container["image"]:
        yield Finding(
            "executor-image",
            where(spark),
            f"executors run {image}, the server {container['image']}",
        )


def _spark_safety(manifests: Manifests) -> Iterator[Finding]:
    from kalla.local.servers.spark import SAFETY
    from kalla.spark.session import READING

    if manifests.get("StatefulSet", "kalla-spark") is None:
        return
    conf = manifests.spark_defaults()
    for name, value in {**READING, **SAFETY}.items():
        if conf.get(name) != value:
            yield Finding("spark-safety", "ConfigMap/kalla-spark", f"{name} is not {value}")


def _roles(manifests: Manifests) -> Iterator[Finding]:
    from kalla.settings import ROLES

    found = {role for _, role in _worker_scalers(manifests)}
    if found != set(ROLES):
        yield Finding("roles", "ScaledObject", f"roles without workers: {set(ROLES) - found}")


def _worker_scalers(manifests: Manifests) -> Iterator[tuple[Object, str]]:
    """The ScaledObjects of workers, with the role that their Deployment's command names."""
    for each in manifests.of("ScaledObject"):
        target = each["spec"]["scaleTargetRef"]
        workload = manifests.get(target.get("kind", "Deployment"), target["name"])
        if workload is None:
            continue
        args = workload["spec"]["template"]["spec"]["containers"][0].get("args", [])
        if args[:2] == ["worker", "--roles"]:
            yield each, args[2]


def _service_exists(manifests: Manifests, address: str) -> bool:
    host, _, port = address.partition(":")
    service = manifests.get("Service", host.split(".")[0])
    return service is not None and int(port) in [p["port"] for p in service["spec"]["ports"]]
