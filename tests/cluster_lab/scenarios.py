"""What the lab does to Kalla and what must hold. Each scenario returns the facts that it saw."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import psycopg

from tests.cluster_lab.control_plane import ControlPlane
from tests.cluster_lab.installation import Installation
from tests.cluster_lab.kubelet import Kubelet
from tests.cluster_lab.servers import Servers
from tests.waiting import until

Facts = dict[str, object]
WORKERS = "kalla-worker-exec"


class Lab:
    """What every scenario needs."""

    def __init__(
        self,
        control_plane: ControlPlane,
        kubelet: Kubelet,
        servers: Servers,
        installation: Installation,
    ) -> None:
        self.control_plane = control_plane
        self.kubelet = kubelet
        self.servers = servers
        self.installation = installation

    def submit(self, number: int, payload: dict[str, Any]) -> list[int]:
        with self.installation.client() as client:
            answers = [
                client.post("/api/jobs", json={"type": "probe", "payload": payload})
                for _ in range(number)
            ]
        return [answer.raise_for_status().json()["job_id"] for answer in answers]

    def jobs(self, ids: list[int]) -> list[tuple[str, int, int]]:
        """Status, fence and counted failures of jobs, from the database itself."""
        with psycopg.connect(self.servers.database_url()) as connection:
            query = "SELECT status, fence, failures FROM kalla.jobs WHERE job_id = ANY(%s)"
            return list(connection.execute(query, [ids]).fetchall())

    def completed(self, ids: list[int]) -> bool:
        return all(status == "completed" for status, _, _ in self.jobs(ids))

    def replicas(self, deployment: str = WORKERS) -> int:
        path = f"/apis/apps/v1/namespaces/kalla/deployments/{deployment}"
        with self.control_plane.client() as client:
            return int(client.get(path).raise_for_status().json()["spec"].get("replicas", 0))

    def executors(self) -> int:
        return sum(bool(pod.running) for pod in self.kubelet.pods() if _is_executor(pod.spec))


def zero_to_many_to_zero(lab: Lab, *, jobs: int = 24, seconds: float = 20) -> Facts:
    """The queue fills: 0 -> N -> 0 workers; nothing is lost, no busy worker is killed."""
    until(lambda: lab.replicas() == 0, "no worker runs while there is nothing to do", seconds=300)
    endings = len(lab.kubelet.endings)
    submitted = time.monotonic()
    ids = lab.submit(jobs, {"sleep": seconds})
    most = _most(lab.replicas, lambda: lab.completed(ids), "all jobs are completed", seconds=900)
    done = time.monotonic() - submitted
    until(
        lambda: lab.replicas() == 0 and not lab.kubelet.pods(WORKERS),
        "the workers are gone again",
        seconds=900,
    )
    found = lab.jobs(ids)
    assert most > 1, "the workers were never scaled beyond one"
    assert all(fence == 1 for _, fence, _ in found), f"jobs were executed more than once: {found}"
    return {
        "jobs": jobs,
        "most_workers": most,
        "seconds_until_completed": round(done, 1),
        "seconds_until_zero": round(time.monotonic() - submitted, 1),
        **_no_busy_worker_killed(lab, endings),
    }


def rolling_restart(lab: Lab, *, jobs: int = 12, seconds: float = 25) -> Facts:
    """A rolling restart under load: workers drain, and no failure is counted."""
    endings = len(lab.kubelet.endings)
    ids = lab.submit(jobs, {"sleep": seconds})
    until(
        lambda: any(status == "claimed" for status, _, _ in lab.jobs(ids)),
        "a job runs",
        seconds=300,
    )
    lab.control_plane.kubectl("-n", "kalla", "rollout", "restart", f"deployment/{WORKERS}")
    until(lambda: lab.completed(ids), "all jobs are completed", seconds=900)
    found = lab.jobs(ids)
    assert all(failures == 0 for _, _, failures in found), f"failures were counted: {found}"
    return {
        "jobs": jobs,
        "handed_over": sum(fence > 1 for _, fence, _ in found),
        **_no_busy_worker_killed(lab, endings),
    }


def dead_metrics(lab: Lab) -> Facts:
    """The source of the demand does not answer: KEDA falls back instead of scaling to zero."""
    # KEDA keeps the token that it has read until a request fails: a change of the Secret alone
    # would change nothing.
    token = lab.installation.create_token("keda", "viewer")
    try:
        until(lambda: lab.replicas() >= 2, "KEDA falls back to two workers", seconds=300)
        kept = lab.replicas()
    finally:
        lab.installation.give_keda(token)
    until(lambda: lab.replicas() == 0, "with the demand back, no worker runs", seconds=600)
    return {"workers_while_metrics_are_dead": kept}


def spark_executors(lab: Lab) -> Facts:
    """Spark makes executors for a job and removes them, with the rights of our Role alone."""
    until(
        lambda: lab.executors() == 0, "no executor runs while there is nothing to do", seconds=300
    )
    ids = lab.submit(1, {"count": 50_000_000})
    most = _most(lab.executors, lambda: lab.completed(ids), "Spark has counted", seconds=900)
    until(lambda: lab.executors() == 0, "the executors are gone again", seconds=600)
    assert most > 0, "Spark made no executor"
    return {"most_executors": most}


def spark_without_rights(lab: Lab) -> Facts:
    """Without the verb `create` on pods Spark gets no executor: the Role gives the right."""
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/kalla/roles/kalla-spark"
    with lab.control_plane.client() as client:
        role = client.get(path).raise_for_status().json()
        rules = json.loads(json.dumps(role["rules"]))
        for rule in rules:
            if "pods" in rule["resources"]:
                rule["verbs"].remove("create")
        _merge(client, path, {"rules": rules})
        try:
            ids = lab.submit(1, {"count": 50_000_000})
            until(
                lambda: any(status == "claimed" for status, _, _ in lab.jobs(ids)),
                "the job runs",
                seconds=300,
            )
            until(lambda: _forbidden(lab), "Spark is told that it may not", seconds=180)
            assert not lab.completed(ids), "the job completed without executors"
        finally:
            _merge(client, path, {"rules": role["rules"]})
    until(lambda: lab.completed(ids), "with the verb back, the job completes", seconds=600)
    return {"refused": True}


def doctor(lab: Lab) -> Facts:
    """`kalla doctor --cluster` in the API's pod finds every part well, and says so."""
    pod = lab.kubelet.pods("kalla-api")[0]
    code, output = lab.kubelet.execute(pod, ["doctor", "--cluster"], seconds=300)
    assert code == 0, output
    return {"doctor": [line.strip() for line in output.splitlines() if line.strip()]}


SCENARIOS: dict[str, Callable[[Lab], Facts]] = {
    each.__name__: each
    for each in (
        zero_to_many_to_zero,
        rolling_restart,
        dead_metrics,
        spark_executors,
        spark_without_rights,
        doctor,
    )
}


def _most(number: Callable[[], int], done: Callable[[], bool], what: str, *, seconds: float) -> int:
    """The largest number that was seen until it was done."""
    most = 0

    def check() -> bool:
        nonlocal most
        most = max(most, number())
        time.sleep(0.5)
        return done()

    until(check, what, seconds=seconds)
    return most


def _no_busy_worker_killed(lab: Lab, since: int) -> Facts:
    endings = [each for each in lab.kubelet.endings[since:] if each.pod.startswith(WORKERS)]
    bad = [each for each in endings if each.exit_code != 0]
    assert not bad, f"workers did not end by draining: {bad}"
    return {"workers_drained": len(endings), "workers_killed": 0}


def _forbidden(lab: Lab) -> bool:
    return any(
        "forbidden" in log.read_text(errors="replace").lower()
        for pod in lab.kubelet.pods("kalla-spark")
        for log in pod.folder.glob("*.log")
    )


def _is_executor(spec: dict[str, Any]) -> bool:
    return bool(spec["metadata"].get("labels", {}).get("spark-role") == "executor")


def _merge(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    kind = {"Content-Type": "application/merge-patch+json"}
    client.patch(path, content=json.dumps(body), headers=kind).raise_for_status()
