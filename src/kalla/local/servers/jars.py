"""Fetches the jars that a lock file names, by the Ivy that pyspark ships, and checks each sha256.

A lock file has one jar a line: organisation, name, revision, sha256.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from kalla.errors import NotInstalled
from kalla.local.servers import java

_FETCH_SECONDS = 900


@dataclass(frozen=True)
class Jar:
    organisation: str
    name: str
    revision: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.revision}.jar"


def locked(lock: str) -> list[Jar]:
    """The jars of a lock file of this package: `kafka.jars`."""
    text = (files("kalla.local.servers") / lock).read_text("utf-8")
    return [Jar(*line.split()) for line in text.splitlines() if line and line[0] != "#"]


def folder_of(lock: str) -> Path:
    """Where the jars of a lock file are: beside the packages of this Python."""
    return Path(sys.prefix) / "share" / "kalla" / lock.removesuffix(".jars")


def present(lock: str) -> bool:
    folder = folder_of(lock)
    return all((folder / jar.file_name).is_file() for jar in locked(lock))


def fetch(lock: str) -> Path:
    """The folder with every jar of the lock; fetches what is missing, refuses what differs."""
    folder = folder_of(lock)
    if present(lock):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # In a folder of its own and renamed at the end: whoever looks sees all jars or none.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
        fresh = Path(name)
        _retrieve(locked(lock), fresh)
        for jar in locked(lock):
            _check(jar, fresh / "jars" / jar.file_name)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            (fresh / "jars").rename(folder)
        except OSError:
            if not present(lock):  # another process may have been faster
                raise
    return folder


def _retrieve(jars: list[Jar], folder: Path) -> None:
    dependencies = "\n".join(
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} "
        f'rev={quoteattr(jar.revision)} transitive="false" conf="default->default"/>'
        for jar in jars
    )
    description = folder / "ivy.xml"
    description.write_text(
        '<ivy-module version="2.0"><info organisation="kalla" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>",
        encoding="utf-8",
    )
    command = [
        str(java.find().home / "bin" / "java"),
        "-jar",
        str(_ivy()),
        *("-cache", str(folder / "cache")),
        *("-ivy", str(description)),
        *("-confs", "default"),
        *("-types", "jar", "bundle"),
        *("-retrieve", str(folder / "jars" / "[artifact]-[revision].[ext]")),
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_FETCH_SECONDS,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if "UNRESOLVED" in line]
        reason = "; ".join(lines[:3]) or done.stderr.strip()[-300:] or f"exit {done.returncode}"
        raise NotInstalled(
            f"The jars cannot be fetched ({reason}): check that this machine reaches Maven's "
            "repository, then try again."
        )


def _check(jar: Jar, path: Path) -> None:
    if not path.is_file():
        raise NotInstalled(f"The jar {jar.file_name} was not found in Maven's repository.")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise NotInstalled(
            f"The jar {jar.file_name} is not the one that is locked: its sha256 is {found}, "
            f"and {jar.sha256} was expected. Nothing was installed."
        )


def _ivy() -> Path:
    spec = find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or []:
        for path in sorted((Path(place) / "jars").glob("ivy-*.jar")):
            return path
    raise NotInstalled("There is no Ivy: install pyspark with `pip install 'pyspark[connect]'`.")
