"""Checks objects against their schemas: Kubernetes' own, and the CRDs of KEDA and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.manifests.objects import Finding, Manifests, Object, where
from tests.manifests.rendering import CACHE, KUBERNETES, ToolMissing

# Where a Go module keeps the definitions of its kinds. KEDA before 2.20 has no such fallback.
_MODULES = {
    "keda.sh": ("github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases/keda.sh_{}.yaml"),
    "monitoring.coreos.com": (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml",
    ),
}


def schema_findings(manifests: Manifests) -> Iterator[Finding]:
    for each in manifests.objects:
        group = each["apiVersion"].partition("/")[0]
        if group in _MODULES:
            yield from _against_definition(each, group)
        else:
            yield from _against_kubernetes(each)


def _against_kubernetes(item: Object) -> Iterator[Finding]:
    try:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield Finding("schema", where(item), str(error).splitlines()[0])


def _against_definition(item: Object, group: str) -> Iterator[Finding]:
    validator = jsonschema.Draft202012Validator(_definition(group, item["kind"].lower() + "s"))
    for error in validator.iter_errors(item):
        yield Finding("schema", where(item), f"{error.json_path}: {error.message}")


@cache
def _definition(group: str, plural: str) -> dict[str, Any]:
    module, pattern = _MODULES[group]
    path = CACHE / "mod" / module / pattern.format(plural)
    if not path.is_file():
        raise ToolMissing(f"{module} is missing: `make manifest-tools` downloads it with Go")
    crd = yaml.safe_load(path.read_text("utf-8"))
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object", "additionalProperties": True}
    strict: dict[str, Any] = _strict(schema)
    return strict


def _strict(schema: Any) -> Any:
    """The API server drops unknown fields or, asked to be strict, refuses them: so do we."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
    closed = "properties" in schema and isinstance(schema["properties"], dict)
    if (
        closed
        and schema.get("type") == "object"
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        strict["additionalProperties"] = False
    return strict
