"""Kubernetes objects as parsed from YAML, and how the lint looks things up in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Object = dict[str, Any]

WORKLOADS = ("Deployment", "StatefulSet")


@dataclass(frozen=True)
class Finding:
    """A mistake: which rule, in which object, and what is wrong with it."""

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.rule}]"


@dataclass(frozen=True)
class PodTemplate:
    """The pods of one workload, or the template that Spark makes its executors from."""

    where: str
    labels: Mapping[str, str]
    spec: Object

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def port_names(self) -> set[str]:
        ports = [port for each in self.containers for port in each.get("ports", [])]
        return {port["name"] for port in ports}


class Manifests:
    """The objects of one rendering."""

    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects

    @classmethod
    def parse(cls, text: str) -> Manifests:
        return cls([each for each in yaml.safe_load_all(text) if each])

    def of(self, *kinds: str) -> Iterator[Object]:
        return (each for each in self.objects if each["kind"] in kinds)

    def get(self, kind: str, name: str) -> Object | None:
        found = (each for each in self.of(kind) if each["metadata"]["name"] == name)
        return next(found, None)

    def settings(self) -> dict[str, str]:
        """The KALLA_* variables that all programs have."""
        found = self.get("ConfigMap", "kalla-settings")
        return dict(found["data"]) if found else {}

    def pod_templates(self) -> Iterator[PodTemplate]:
        for each in self.of(*WORKLOADS):
            template = each["spec"]["template"]
            yield PodTemplate(where(each), template["metadata"]["labels"], template["spec"])
        if executor := self.executor_template():
            yield executor

    def executor_template(self) -> PodTemplate | None:
        spark = self.get("ConfigMap", "kalla-spark")
        if spark is None:
            return None
        pod = yaml.safe_load(spark["data"]["executor.yaml"])
        return PodTemplate(f"{where(spark)} executor.yaml", pod["metadata"]["labels"], pod["spec"])

    def spark_defaults(self) -> dict[str, str]:
        spark = self.get("ConfigMap", "kalla-spark")
        lines = spark["data"]["spark-defaults.conf"].splitlines() if spark else []
        return dict(line.split(None, 1) for line in lines if line.strip())


def where(item: Object) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes a pod with these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", []):
        if expression["operator"] != "In":
            raise ValueError(f"the lint does not know the operator {expression['operator']}")
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True
