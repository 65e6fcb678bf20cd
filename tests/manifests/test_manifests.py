"""The manifests are right, and each known mistake put back into them is found."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kalla.local.servers.spark import SAFETY
from kalla.spark.session import READING
from tests.manifests import rendering, schemas
from tests.manifests.lint import lint
from tests.manifests.objects import Manifests, Object
from tests.manifests.rendering import OVERLAYS, ROOT, ToolMissing

Mistake = Callable[[Manifests], None]


def rendered(render: Callable[[str], Manifests], overlay: str) -> Manifests:
    """A tool that is missing skips, unless `make manifest-tools` is said to have run."""
    try:
        return render(overlay)
    except ToolMissing as error:
        if "KALLA_REQUIRE_TOOLS" in os.environ:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def production() -> Manifests:
    return Manifests(copy.deepcopy(rendered(rendering.overlay_manifests, "production").objects))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_has_no_finding(overlay: str) -> None:
    manifests = rendered(rendering.overlay_manifests, overlay)
    assert [str(each) for each in lint(manifests)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_fits_the_schemas(overlay: str) -> None:
    manifests = rendered(rendering.overlay_manifests, overlay)
    found = rendered(lambda _: Manifests(list(map(vars, schemas.schema_findings(manifests)))), "")
    assert found.objects == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_renders_the_objects_of_the_overlay(overlay: str) -> None:
    by_chart = _by_name(rendered(rendering.chart_manifests, overlay))
    by_overlay = _by_name(rendered(rendering.overlay_manifests, overlay))
    # Helm keeps a release in its namespace, so it cannot make it.
    by_overlay.pop(("Namespace", "kalla"))
    assert by_chart.keys() == by_overlay.keys()
    for key, expected in by_overlay.items():
        assert by_chart[key] == expected, key


@pytest.mark.attack
@pytest.mark.parametrize("name", ["cluster", "scaled"])
def test_the_spark_of_a_compose_file_has_what_every_spark_needs(name: str) -> None:
    services = yaml.safe_load((ROOT / f"deploy/compose/{name}.yml").read_text())["services"]
    command = services["spark"]["command"]
    for setting in {**READING, **SAFETY}.items():
        assert "=".join(setting) in command


def test_prometheus_can_be_left_out(tmp_path: Path) -> None:
    """While one trigger's source is dead, KEDA removes no worker."""
    k8s = os.path.relpath(rendering.K8S, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{k8s}/overlays/bring-your-own]\n"
        f"components: [{k8s}/components/without-prometheus]\n"
    )
    manifests = rendered(lambda _: rendering.kustomized(tmp_path), "")
    names = [each["name"] for each in scaler(manifests)["triggers"]]
    assert names == ["demand", "busy"]


def test_the_rules_are_those_of_the_documentation(production: Manifests) -> None:
    documented = yaml.safe_load((ROOT / "docs" / "alerts" / "kalla.rules.yml").read_text("utf-8"))
    rules = production.get("PrometheusRule", "kalla")
    assert rules
    assert rules["spec"] == documented


def test_every_secret_is_documented() -> None:
    from tests.manifests.lint_pods import SECRETS

    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    assert [name for name in SECRETS if f"secret generic {name}" not in page] == []


def test_the_nats_settings_are_read_by_a_real_server(tmp_path: Path, production: Manifests) -> None:
    import subprocess

    from kalla.local.servers.nats import Nats

    settings = production.get("ConfigMap", "kalla-nats")
    assert settings
    conf = tmp_path / "nats.conf"
    conf.write_text(settings["data"]["nats.conf"].replace("/data", str(tmp_path)), "utf-8")
    program = Nats(tmp_path, 4222).command()[0]
    environment = {"POD_NAME": "kalla-nats-0", "NATS_TOKEN": "token"}
    done = subprocess.run(
        [program, "--config", str(conf), "-t"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# Each mistake was seen in a deployment, or ends or starves workers when it is made.
MISTAKES: dict[str, Mistake] = {}


def mistake(rule: str) -> Callable[[Mistake], Mistake]:
    def register(function: Mistake) -> Mistake:
        MISTAKES[f"{rule}: {function.__name__.replace('_', ' ')}"] = function
        return function

    return register


def take(manifests: Manifests, kind: str, name: str) -> Object:
    found = manifests.get(kind, name)
    assert found, f"{kind}/{name}"
    return found


def scaler(manifests: Manifests) -> Any:
    return take(manifests, "ScaledObject", "kalla-worker-exec")["spec"]


def pod(manifests: Manifests, kind: str = "Deployment", name: str = "kalla-worker-exec") -> Any:
    return take(manifests, kind, name)["spec"]["template"]["spec"]


@mistake("hpa-incomplete")
def metric_target_without_a_type(m: Manifests) -> None:
    hpa = take(m, "HorizontalPodAutoscaler", "kalla-api")
    del hpa["spec"]["metrics"][0]["resource"]["target"]["type"]


@mistake("hpa-incomplete")
def scale_target_without_a_kind(m: Manifests) -> None:
    del take(m, "HorizontalPodAutoscaler", "kalla-api")["spec"]["scaleTargetRef"]["kind"]


@mistake("scale-target")
def scaler_of_a_deployment_that_is_not_there(m: Manifests) -> None:
    take(m, "ScaledObject", "kalla-query")["spec"]["scaleTargetRef"]["name"] = "kalla-queries"


@mistake("demand")
def scaling_by_the_depth_of_the_stream_alone(m: Manifests) -> None:
    spec = scaler(m)
    spec["triggers"] = [t for t in spec["triggers"] if t["type"] == "nats-jetstream"]


@mistake("demand")
def demand_without_running_work(m: Manifests) -> None:
    scaler(m)["triggers"][0]["metadata"]["valueLocation"] = "roles.exec.waiting"


@mistake("demand")
def demand_of_another_role(m: Manifests) -> None:
    scaler(m)["triggers"][0]["metadata"]["valueLocation"] = "roles.stage.demand"


@mistake("demand")
def a_target_that_is_not_that_of_the_concurrency(m: Manifests) -> None:
    take(m, "ConfigMap", "kalla-settings")["data"]["KALLA_WORKER_CONCURRENCY"] = "8"


@mistake("busy")
def scaling_below_the_busy_workers(m: Manifests) -> None:
    del scaler(m)["triggers"][1]


@mistake("busy")
def busy_workers_of_another_role(m: Manifests) -> None:
    scaler(m)["triggers"][1]["metadata"]["valueLocation"] = "roles.stage.busy"


@mistake("lag")
def lag_without_the_monitoring_endpoint(m: Manifests) -> None:
    del scaler(m)["triggers"][3]["metadata"]["natsServerMonitoringEndpoint"]


@mistake("lag")
def lag_of_a_server_that_is_not_there(m: Manifests) -> None:
    m.objects.remove(take(m, "Service", "kalla-nats"))


@mistake("total")
def an_average_under_average_value(m: Manifests) -> None:
    scaler(m)["triggers"][2]["metadata"]["query"] = "avg(kalla_exec_queue_depth)"


@mistake("null-values")
def no_data_taken_for_zero(m: Manifests) -> None:
    del scaler(m)["triggers"][2]["metadata"]["ignoreNullValues"]


@mistake("trigger-text")
def a_number_where_keda_wants_text(m: Manifests) -> None:
    scaler(m)["triggers"][3]["metadata"]["lagThreshold"] = 4


@mistake("token")
def a_trigger_without_a_token(m: Manifests) -> None:
    del scaler(m)["triggers"][0]["authenticationRef"]


@mistake("fallback")
def no_fallback(m: Manifests) -> None:
    del scaler(m)["fallback"]


@mistake("fallback")
def a_fallback_that_ends_running_workers(m: Manifests) -> None:
    scaler(m)["fallback"]["behavior"] = "static"


@mistake("scale-down")
def an_unbounded_scale_down(m: Manifests) -> None:
    del scaler(m)["advanced"]


@mistake("bounds")
def no_maximum(m: Manifests) -> None:
    del scaler(m)["maxReplicaCount"]


@mistake("replicas")
def replicas_beside_a_scaler(m: Manifests) -> None:
    take(m, "Deployment", "kalla-worker-exec")["spec"]["replicas"] = 1


@mistake("grace-period")
def a_grace_period_within_the_drain(m: Manifests) -> None:
    pod(m)["terminationGracePeriodSeconds"] = 120


@mistake("grace-period")
def a_grace_period_left_to_the_default(m: Manifests) -> None:
    del pod(m)["terminationGracePeriodSeconds"]


@mistake("probe")
def liveness_by_readiness(m: Manifests) -> None:
    pod(m)["containers"][0]["livenessProbe"]["httpGet"]["path"] = "/ready"


@mistake("disruption")
def no_disruption_budget(m: Manifests) -> None:
    m.objects.remove(take(m, "PodDisruptionBudget", "kalla-worker-exec"))


@mistake("disruption")
def a_budget_that_blocks_every_drain(m: Manifests) -> None:
    take(m, "PodDisruptionBudget", "kalla-nats")["spec"]["maxUnavailable"] = 0


def _spark_conf(m: Manifests, name: str, value: str | None) -> None:
    spark = take(m, "ConfigMap", "kalla-spark")
    lines = spark["data"]["spark-defaults.conf"].splitlines()
    kept = [line for line in lines if line.split()[0] != name]
    spark["data"]["spark-defaults.conf"] = "\n".join(kept + ([f"{name} {value}"] if value else []))


@mistake("spark-allocation")
def shuffle_tracking_without_a_timeout(m: Manifests) -> None:
    _spark_conf(m, "spark.dynamicAllocation.shuffleTracking.timeout", None)


@mistake("spark-allocation")
def executors_that_are_not_decommissioned(m: Manifests) -> None:
    _spark_conf(m, "spark.decommission.enabled", "false")


@mistake("spark-safety")
def tasks_that_outlive_their_cancel(m: Manifests) -> None:
    _spark_conf(m, "spark.task.reaper.enabled", "false")


@mistake("executor-image")
def executors_of_another_version(m: Manifests) -> None:
    pod(m, "StatefulSet", "kalla-spark")["containers"][0]["image"] = "kalla:0.2.0"


@mistake("roles")
def a_role_that_nobody_takes(m: Manifests) -> None:
    m.objects.remove(take(m, "ScaledObject", "kalla-worker-sinks"))


@mistake("pod-security")
def a_namespace_that_enforces_nothing(m: Manifests) -> None:
    del take(m, "Namespace", "kalla")["metadata"]["labels"]


@mistake("secret")
def a_secret_in_a_manifest(m: Manifests) -> None:
    m.objects.append({"kind": "Secret", "metadata": {"name": "kalla", "namespace": "kalla"}})


@mistake("secret")
def a_password_among_the_settings(m: Manifests) -> None:
    settings = take(m, "ConfigMap", "kalla-settings")["data"]
    settings["KALLA_DATABASE_URL"] = "postgresql://kalla:hunter2@db/kalla"


@mistake("restricted")
def a_pod_that_may_be_root(m: Manifests) -> None:
    pod(m)["securityContext"]["runAsNonRoot"] = False


@mistake("restricted")
def a_writable_root_file_system(m: Manifests) -> None:
    pod(m)["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = False


@mistake("restricted")
def an_executor_that_keeps_its_capabilities(m: Manifests) -> None:
    spark = take(m, "ConfigMap", "kalla-spark")["data"]
    template = yaml.safe_load(spark["executor.yaml"])
    del template["spec"]["containers"][0]["securityContext"]["capabilities"]
    spark["executor.yaml"] = yaml.safe_dump(template)


@mistake("service-links")
def variables_of_services_among_the_settings(m: Manifests) -> None:
    del pod(m)["enableServiceLinks"]


@mistake("resources")
def no_request_for_cpu(m: Manifests) -> None:
    del pod(m, name="kalla-api")["containers"][0]["resources"]["requests"]["cpu"]


@mistake("image")
def an_image_without_a_version(m: Manifests) -> None:
    pod(m)["containers"][0]["image"] = "kalla:latest"


@mistake("reference")
def an_account_that_is_not_there(m: Manifests) -> None:
    pod(m)["serviceAccountName"] = "worker"


@mistake("reference")
def a_secret_that_nobody_is_told_of(m: Manifests) -> None:
    pod(m)["containers"][0]["envFrom"][1]["secretRef"]["name"] = "kalla"


@mistake("rights")
def a_role_with_a_wildcard(m: Manifests) -> None:
    take(m, "Role", "kalla-worker")["rules"][0]["verbs"] = ["*"]


@mistake("rights")
def a_driver_that_cannot_watch_its_executors(m: Manifests) -> None:
    take(m, "Role", "kalla-spark")["rules"][0]["verbs"].remove("watch")


@mistake("rights")
def a_token_for_a_program_that_needs_none(m: Manifests) -> None:
    del pod(m, name="kalla-query")["automountServiceAccountToken"]


@mistake("network")
def no_policy_that_denies(m: Manifests) -> None:
    m.objects.remove(take(m, "NetworkPolicy", "kalla-deny"))


@mistake("network")
def a_policy_for_a_port_that_is_not_there(m: Manifests) -> None:
    rule = take(m, "NetworkPolicy", "kalla-spark")["spec"]["ingress"][0]
    rule["ports"][0]["port"] = "grpc"


@mistake("monitor")
def workers_that_nobody_scrapes(m: Manifests) -> None:
    monitor = take(m, "PodMonitor", "kalla")["spec"]
    monitor["selector"]["matchExpressions"][0]["values"].remove("kalla-worker")


@mistake("headless")
def a_stateful_set_without_names(m: Manifests) -> None:
    del take(m, "Service", "kalla-spark")["spec"]["clusterIP"]


@mistake("nats")
def routes_to_servers_that_are_not_there(m: Manifests) -> None:
    take(m, "StatefulSet", "kalla-nats")["spec"]["replicas"] = 5


@mistake("settings")
def a_setting_that_does_not_exist(m: Manifests) -> None:
    take(m, "ConfigMap", "kalla-settings")["data"]["KALLA_WORKER_CONCURENCY"] = "4"


@mistake("settings")
def probes_of_the_api_on_loopback(m: Manifests) -> None:
    del take(m, "ConfigMap", "kalla-settings")["data"]["KALLA_API_METRICS_HOST"]


@mistake("settings")
def other_bounds_in_the_settings(m: Manifests) -> None:
    scaler(m)["maxReplicaCount"] = 20


@pytest.mark.parametrize("name", MISTAKES)
def test_a_known_mistake_is_found(name: str, production: Manifests) -> None:
    MISTAKES[name](production)
    assert name.partition(":")[0] in {finding.rule for finding in lint(production)}


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("Deployment", "kalla-api", ("spec", "template", "spec", "containers")),
        ("ScaledObject", "kalla-query", ("spec", "triggers")),
        ("PodMonitor", "kalla", ("spec", "podMetricsEndpoints")),
        ("PrometheusRule", "kalla", ("spec", "groups")),
    ],
)
def test_a_misspelled_field_does_not_fit_its_schema(
    kind: str, name: str, path: tuple[str, ...], production: Manifests
) -> None:
    item: Any = take(production, kind, name)
    for step in path:
        item = item[step]
    item[0]["intervall"] = "15s"
    found = rendered(
        lambda _: Manifests(list(map(vars, schemas.schema_findings(production)))), "production"
    )
    assert [each["where"] for each in found.objects] == [f"{kind}/{name}"]


def _by_name(manifests: Manifests) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests.objects}
