"""The build hook: compiles the protocol of query workers and bundles the libraries of the pages.

It runs before a wheel and before an editable install.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GeneratedFiles(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        """Node from PyPI, for a build of its own on a machine that has none."""
        assets = self._load("src/kalla/web/assets/build.py")
        return [] if assets["node_of_machine"]() else [assets["NODE_PACKAGE"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        self._load("src/kalla/query/protocol/compile.py")["compile_protocol"]()
        self._load("src/kalla/web/assets/build.py")["bundle"]()

    def _load(self, path: str) -> dict[str, Any]:
        return runpy.run_path(str(Path(self.root) / path))
