"""Every finding about one rendering, apart from schemas."""

from __future__ import annotations

from tests.manifests.lint_pods import pod_findings
from tests.manifests.lint_scaling import scaling_findings
from tests.manifests.objects import Finding, Manifests


def lint(manifests: Manifests) -> list[Finding]:
    return [*scaling_findings(manifests), *pod_findings(manifests)]
