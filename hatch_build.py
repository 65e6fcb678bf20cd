"""The build hook: compiles the protocol of query workers before a wheel or an editable install."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtocolHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        compiler = Path(self.root) / "src/kalla/query/protocol/compile.py"
        runpy.run_path(str(compiler))["compile_protocol"]()
