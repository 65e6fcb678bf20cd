"""`make manifests`: renders every overlay and the chart, and prints what is wrong with them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from tests.manifests.lint import lint
from tests.manifests.objects import Finding, Manifests
from tests.manifests.rendering import OVERLAYS, ToolMissing, chart_manifests, overlay_manifests
from tests.manifests.schemas import schema_findings

CHECKS: tuple[Callable[[Manifests], Iterable[Finding]], ...] = (lint, schema_findings)


def main() -> int:
    found: list[str] = []
    missing: set[str] = set()
    checked = 0
    for overlay in OVERLAYS:
        for name, render in (("kustomize", overlay_manifests), ("helm", chart_manifests)):
            try:
                manifests = render(overlay)
            except ToolMissing as error:
                missing.add(str(error))
                continue
            for check in CHECKS:
                try:
                    found += [f"{name} {overlay}: {each}" for each in check(manifests)]
                except ToolMissing as error:
                    missing.add(str(error))
            checked += len(manifests.objects)
    for line in [*found, *sorted(missing)]:
        print(line)
    print(f"{checked} objects checked, {len(found)} findings, {len(missing)} tools missing")
    return 1 if found or (missing and "KALLA_REQUIRE_TOOLS" in os.environ) else 0


if __name__ == "__main__":
    sys.exit(main())
